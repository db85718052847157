"""Calibrations: fitted parameters of a kernel family on a GPU, with the errors that held-out data showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gemm_model.config import CONFIG_DIR, is_yaml_file, read_yaml_mapping
from gemm_model.core.batch import IntArray
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.elementwise import Values, where
from gemm_model.core.errors import InputError
from gemm_model.persistent.clock import PowerModel
from gemm_model.persistent.kernel_parameters import KernelParameters

FORMAT_VERSION = 2
KERNEL_FAMILY = "quack"
CALIBRATION_DIR = CONFIG_DIR / "calibration"
FALLBACK = "h200"
"""The calibration that stands in for a GPU that has none."""

SITUATIONS = ("tiny", "memory_bound", "few_waves", "many_waves")
"""What the error band depends on: a kernel of a few microseconds; L2 or DRAM; waves to quantize; the rest."""
TINY_US = 10.0
FEW_WAVES = 4.0
UNCALIBRATED_BAND_FACTOR = 2.5
"""Wider band where a calibration stands in for another GPU's or another type's."""
Record = TypeVar("Record", KernelParameters, PowerModel)
NEAREST_KINDS = ("fp16", "fp8", "tf32", "int8", "fp6", "fp4", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One calibration file; parameters and bands by rate class of the operand types."""

    gpu: str
    kernel: str
    parameters: Mapping[str, KernelParameters]
    error_band: Mapping[str, Mapping[str, float]]
    """By class and situation: relative error that 90 % of held-out rows stay within."""
    power: Mapping[str, PowerModel]
    """By class; empty where no sustained rows were there to fit it."""
    fitted_to: Mapping[str, Any]

    def kind_for(self, math_kind: str) -> str:
        """The rate class whose parameters serve `math_kind`: its own, else the nearest that was fitted."""
        if math_kind in self.parameters:
            return math_kind
        narrow_first = math_kind in ("fp8", "int8", "fp6", "fp4")
        order = reversed(tuple(self.parameters)) if narrow_first else iter(self.parameters)
        return next(order)


def load_calibration(name_or_path: str) -> Calibration:
    """A calibration of the package by its name, or a YAML file written by `gemm-model calibrate`."""
    if is_yaml_file(name_or_path):
        return _from_mapping(read_yaml_mapping(Path(name_or_path), "a calibration"), name_or_path)
    if name_or_path not in calibration_names():
        known = ", ".join(calibration_names())
        raise InputError(f"unknown calibration {name_or_path!r}; expected a YAML file or one of {known}")
    return _packaged(name_or_path)


def calibration_path(name_or_path: str) -> Path:
    """Where a calibration lies that `load_calibration` knows by this name or path."""
    return Path(name_or_path) if is_yaml_file(name_or_path) else CALIBRATION_DIR / f"{name_or_path}.yaml"


@lru_cache(maxsize=1)
def calibration_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CALIBRATION_DIR.glob("*.yaml")))


@lru_cache(maxsize=16)
def _packaged(name: str) -> Calibration:
    path = calibration_path(name)
    return _from_mapping(read_yaml_mapping(path, "a calibration"), path.name)


def _from_mapping(values: Mapping[str, Any], where: str) -> Calibration:
    expected = ("version", "gpu", "kernel", "parameters", "error_band", "power", "fitted_to")
    for key in expected:
        if key not in values:
            raise InputError(f"{where}: key {key} is missing; expected {', '.join(expected)}")
    if values["version"] != FORMAT_VERSION:
        raise InputError(
            f"{where}: calibration of format version {values['version']!r}; expected {FORMAT_VERSION}"
        )
    if values["kernel"] != KERNEL_FAMILY:
        raise InputError(
            f"{where}: calibration of kernel family {values['kernel']!r}; expected {KERNEL_FAMILY}"
        )
    by_kind = values["parameters"]
    if not isinstance(by_kind, Mapping) or not by_kind or any(kind not in MATH_KINDS for kind in by_kind):
        raise InputError(f"{where}: parameters; expected a mapping by rate class ({', '.join(MATH_KINDS)})")
    parameters = {
        kind: _named_numbers(KernelParameters, by_kind[kind], f"{where}, {kind}")
        for kind in NEAREST_KINDS
        if kind in by_kind
    }
    return Calibration(
        gpu=str(values["gpu"]),
        kernel=str(values["kernel"]),
        parameters=parameters,
        error_band=values["error_band"],
        power={
            kind: _named_numbers(PowerModel, found, f"{where}, power of {kind}")
            for kind, found in (values["power"] or {}).items()
        },
        fitted_to=values["fitted_to"],
    )


def _named_numbers(record: type[Record], values: Mapping[str, float], where: str) -> Record:
    """A record of a calibration file: all of its fields and no other; `where` names it in errors."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where} is {values!r}; expected a mapping of parameters")
    names = tuple(record.__dataclass_fields__)
    for name in names:
        if name not in values:
            raise InputError(f"{where}: parameter {name} is missing; expected {', '.join(names)}")
    for name in values:
        if name not in names:
            raise InputError(f"{where}: unknown parameter {name!r}; expected {', '.join(names)}")
    try:
        return record(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def as_mapping(calibration: Calibration) -> dict[str, Any]:
    """Plain values of a calibration, as they stand in its file."""
    return {
        "version": FORMAT_VERSION,
        "gpu": calibration.gpu,
        "kernel": calibration.kernel,
        "fitted_to": dict(calibration.fitted_to),
        "parameters": {kind: asdict(values) for kind, values in calibration.parameters.items()},
        "power": {kind: asdict(found) for kind, found in calibration.power.items()},
        "error_band": {kind: dict(bands) for kind, bands in calibration.error_band.items()},
    }


def situation(waves: Values, waves_us: Values, memory_us: Values, tensor_us: Values) -> IntArray:
    """Position in SITUATIONS of each row; arguments are numbers for one row, else arrays."""
    memory_bound = where(memory_us > tensor_us, 1, where(waves <= FEW_WAVES, 2, 3))
    return np.atleast_1d(where(waves_us < TINY_US, 0, memory_bound))
