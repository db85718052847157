"""The clipped residual: a small correction of the physical model's time by boosted trees, off by default.

The trees (LightGBM) predict log(physical / measured) from what the physical model found out about a kernel;
never from m, n and k themselves. The correction is clipped, so that the physical model stays the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import Any

import numpy as np
import yaml

from gemm_model.config import is_yaml_file, read_yaml_mapping
from gemm_model.core.batch import FloatArray
from gemm_model.core.elementwise import Values, ceil, floor, maximum, minimum, power_of_two_divisor, where
from gemm_model.core.errors import InputError, MissingExtraError
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.persistent.calibration_file import CALIBRATION_DIR, Calibration
from gemm_model.persistent.kernel_time import Geometry, KernelTime

LIMIT = 0.08
"""The correction's bound, as a share of the physical model's time."""
CORRECTIONS_APART = (1.0 + LIMIT) / (1.0 - LIMIT)
"""A kernel whose physical time is more than so many times another's stays the slower one."""
OFF = "off"
AUTO = "auto"
FORMAT_VERSION = 1
RESIDUAL_DIR = CALIBRATION_DIR / "residual"
ALIGNED_BYTES = 128.0
"""An alignment beyond a 128-byte line makes no difference."""
FEATURE_DECIMALS = 6
"""Trees are steps: features are rounded, so that the last bits of a sum do not choose the step."""

FEATURES = (
    *("cta_m", "cta_n", "cluster_m", "cluster_n", "pingpong", "swizzle"),
    *("filled_m", "filled_n", "empty_ctas_m", "empty_ctas_n"),
    *("tensor_share", "epilogue_share", "port_share", "latency_share", "l2_share", "dram_share"),
    *("launch_share", "sm_clk_mhz", "k_step_us"),
    *("operand_alignment", "output_alignment"),
    *("waves", "last_wave_share", "slots", "ctas", "k_tiles", "stages", "group", "minor_is_m"),
    *("zeros_over_loads", "merged_over_loads", "slow_load"),
)
"""Columns of `features`: kernel, how tiles fill the matrix, shares of the time, alignment, waves, traffic."""


def features(shape: Geometry, times: KernelTime) -> FloatArray:
    """What the trees see of each row: one row of FEATURES for each, of numbers and arrays alike."""
    batch, schedule = shape.batch, shape.schedule
    runtime_us = times.runtime_us
    a_pitch = where(batch.a_k_major, batch.k, batch.m) * batch.a_bits / 8.0
    b_pitch = where(batch.b_k_major, batch.k, batch.n) * batch.b_bits / 8.0
    output_pitch = where(batch.c_n_major, batch.n, batch.m) * batch.out_bits / 8.0
    columns = (
        batch.cta_m,
        batch.cta_n,
        batch.cluster_m,
        batch.cluster_n,
        batch.schedule == PINGPONG,
        batch.swizzle,
        schedule.filled_m,
        schedule.filled_n,
        _empty_ctas(batch.m, batch.cta_m, batch.cluster_m),
        _empty_ctas(batch.n, batch.cta_n, batch.cluster_n),
        times.tensor_us / runtime_us,
        times.epilogue_us / runtime_us,
        times.port_us / runtime_us,
        times.latency_us / runtime_us,
        times.l2_us / runtime_us,
        times.dram_us / runtime_us,
        times.launch_us / runtime_us,
        times.sm_clk_mhz,
        times.waves_us / (schedule.waves * schedule.k_tiles),
        minimum(_alignment(a_pitch), _alignment(b_pitch)),
        _alignment(output_pitch),
        schedule.waves,
        schedule.last_tiles / schedule.resident,
        schedule.resident,
        schedule.resident * batch.cluster_m * batch.cluster_n,
        schedule.k_tiles,
        shape.resources.stages,
        schedule.group,
        schedule.minor_is_m,
        shape.outside.bytes_per_wave / times.traffic.l2_load_bytes,
        times.traffic.merged_bytes / times.traffic.l2_load_bytes,
        shape.outside.slow_load,
    )
    table = np.empty((np.size(runtime_us), len(FEATURES)))
    for position, values in enumerate(columns):
        table[:, position] = values
    return np.round(table, FEATURE_DECIMALS)


def _empty_ctas(size: Values, tile: Values, cluster: Values) -> Values:
    """CTAs of the last cluster along an extent that lie wholly outside the matrix."""
    tiles = ceil(size / tile)
    return ceil(tiles / cluster) * cluster - tiles


def _alignment(pitch_bytes: Values) -> Values:
    """The largest power of two that divides a row pitch, up to a line."""
    return minimum(power_of_two_divisor(maximum(floor(pitch_bytes), 1.0)), ALIGNED_BYTES)


def corrected_us(physical_us: FloatArray, log_error: FloatArray, floor_us: FloatArray) -> FloatArray:
    """The physical model's times less their expected error, at most LIMIT of it, never below `floor_us`."""
    log_factor = np.clip(-log_error, np.log(1.0 - LIMIT), np.log(1.0 + LIMIT))
    result: FloatArray = np.maximum(physical_us * np.exp(log_factor), floor_us)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The trees that belong to one calibration, and the errors that held-out data showed with them."""

    gpu: str
    fingerprint: str
    """Of the calibration whose times the trees correct."""
    boosters: Mapping[str, Any]
    """By rate class, a `lightgbm.Booster` of FEATURES."""
    error_band: Mapping[str, Mapping[str, float]]
    """As in a calibration, with the correction."""

    def log_error(self, math_kind: str, seen: FloatArray) -> FloatArray:
        """Expected log(physical / measured), not clipped, of rows of `features`."""
        result: FloatArray = self.boosters[math_kind].predict(seen, num_threads=1)
        return result


def lightgbm() -> ModuleType:
    """The package of the trees; raises MissingExtraError where it or its OpenMP library is not there."""
    try:
        import lightgbm as package
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise MissingExtraError(
            f"the residual needs the package lightgbm: pip install 'gemm-model[residual]' ({reason})"
        ) from error
    return package  # type: ignore[no-any-return]


def fingerprint(calibration: Calibration) -> str:
    """A short name of a calibration's parameters: any other value of one of them gives another."""
    parameters = {
        kind: {name: float(value) for name, value in asdict(values).items()}
        for kind, values in calibration.parameters.items()
    }
    told = json.dumps([calibration.gpu, calibration.kernel, parameters], sort_keys=True)
    return sha256(told.encode()).hexdigest()[:16]


def load_residual(name_or_path: str, calibration: Calibration) -> Residual:
    """The residual shipped with a calibration ('auto'), or one from a file of `calibrate --residual`.

    Raises InputError where there is none, or where it was trained on another calibration's times;
    MissingExtraError without LightGBM.
    """
    if name_or_path == AUTO:
        path = RESIDUAL_DIR / f"{calibration.gpu}.yaml"
        if not path.is_file():
            raise InputError(
                f"no residual comes with calibration {calibration.gpu}; expected a YAML file or off"
            )
    elif isinstance(name_or_path, str) and is_yaml_file(name_or_path):
        path = Path(name_or_path)
    else:
        raise InputError(f"residual is {name_or_path!r}; expected {OFF}, {AUTO} or a YAML file")
    found = _read(path, path.stat().st_mtime_ns if path.is_file() else 0)
    expected = fingerprint(calibration)
    if found.fingerprint != expected:
        raise InputError(
            f"{path.name}: a residual of another calibration ({found.gpu}, fingerprint {found.fingerprint}); "
            f"expected that of {calibration.gpu} with {expected}: run gemm-model calibrate --residual again"
        )
    return found


@lru_cache(maxsize=4)
def _read(path: Path, _modified: int) -> Residual:
    """A file's residual, read again once the file has changed."""
    values = read_yaml_mapping(path, "a residual", interpolated=False)
    expected = ("version", "gpu", "fingerprint", "error_band", "trees")
    for key in expected:
        if key not in values:
            raise InputError(f"{path}: key {key} is missing; expected {', '.join(expected)}")
    if values["version"] != FORMAT_VERSION:
        raise InputError(
            f"{path}: residual of format version {values['version']!r}; expected {FORMAT_VERSION}"
        )
    if not isinstance(values["trees"], Mapping) or not values["trees"]:
        raise InputError(f"{path}: trees; expected LightGBM models by rate class")
    return Residual(
        gpu=str(values["gpu"]),
        fingerprint=str(values["fingerprint"]),
        boosters={kind: _booster(text, f"{path}, {kind}") for kind, text in values["trees"].items()},
        error_band=values["error_band"],
    )


def _booster(text: str, where_from: str) -> Any:
    package = lightgbm()
    try:
        booster = package.Booster(model_str=text)
    except (package.basic.LightGBMError, TypeError) as error:
        raise InputError(f"{where_from}: not a LightGBM model ({error})") from None
    if tuple(booster.feature_name()) != FEATURES:
        raise InputError(f"{where_from}: trees of other features; expected {', '.join(FEATURES)}")
    return booster


KEPT_LINES = (
    *("tree", "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx"),
    *("objective", "feature_names", "feature_infos", "end of trees"),
    *("Tree", "num_leaves", "num_cat", "split_feature", "left_child", "right_child"),
)
"""What LightGBM needs of its text of a model to predict."""
DECIMALS = {"threshold": FEATURE_DECIMALS, "leaf_value": 5}


def trees_text(booster: Any) -> str:
    """LightGBM's text of a model, without what only training needs (gains, counts, sizes, settings)."""
    lines = []
    for line in booster.model_to_string().splitlines():
        name, _, values = line.partition("=")
        if name in DECIMALS:
            rounded = (f"{float(value):.{DECIMALS[name]}f}" for value in values.split())
            lines.append(f"{name}={' '.join(value.rstrip('0').rstrip('.') for value in rounded)}")
        elif name in KEPT_LINES or not line:
            lines.append(line)
        if line == "end of trees":
            break
    return "\n".join(lines) + "\n"


def as_text(residual: Residual) -> str:
    """The file that `load_residual` reads: LightGBM's own text of each class's trees in a YAML mapping."""
    head = {
        "version": FORMAT_VERSION,
        "gpu": residual.gpu,
        "fingerprint": residual.fingerprint,
        "error_band": {kind: dict(bands) for kind, bands in residual.error_band.items()},
    }
    text = "# Clipped residual of a calibration, written by gemm-model calibrate --residual.\n"
    text += yaml.safe_dump(head, sort_keys=False) + "trees:\n"
    for kind, booster in residual.boosters.items():
        text += f"  {kind}: |\n" + indent(trees_text(booster), "    ")
    return text
