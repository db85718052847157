"""Empirical numbers typed by hand: round ones, so that what a test expects can be worked out beside them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from gemm_model.config.mechanisms import KernelNumbers, kernel_numbers, within_phases
from gemm_model.kernel_model.calibration_file import Calibration, as_mapping
from gemm_model.kernel_model.forest import Forest
from gemm_model.kernel_model.residual import FEATURES, Residual, write_residual

VALUES: dict[str, float] = {
    f"{mechanism}.{name}": value
    for mechanism, values in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
    for name, value in values.items()
}


def numbers(changes: dict[str, float] | None = None) -> KernelNumbers:
    """The typed numbers, some of them changed."""
    return kernel_numbers({**VALUES, **(changes or {})})


def calibration(**changes: object) -> Calibration:
    """A calibration of h200:quack with the typed numbers, alike for 16-bit and fp8 operands."""
    kinds = ("fp16", "fp8")
    arguments = {
        "gpu": "h200",
        "family": "quack",
        "architecture": "sm90",
        "numbers": {kind: numbers() for kind in kinds},
        "intervals": {kind: {"launch.kernel_us": 0.05} for kind in kinds},
        "sources": {},
        "error_band": {
            kind: {"tiny": 0.05, "memory_bound": 0.09, "few_waves": 0.06, "many_waves": 0.07, "split_k": 0.2}
            for kind in kinds
        },
        "fitted_to": {"tables": ["typed.csv"]},
        "within_phases": within_phases({"prologue_us": 0.5}),
    }
    return Calibration(**{**arguments, **changes})  # type: ignore[arg-type]


def calibration_file(path: Path, **changes: object) -> Path:
    """The same as a file of `gemm-model calibrate`."""
    path.write_text(yaml.safe_dump(as_mapping(calibration(**changes)), sort_keys=False))
    return path


def one_tree(features: Sequence[str], name: str, border: float, *leaves: int) -> Forest:
    """What a forest says up to a border of one feature, and beyond it, in 1e-5 of the logarithm."""
    return Forest(
        features=len(features),
        split_feature=np.array([features.index(name)], dtype=np.uint8),
        split_border=np.array([border], dtype=np.float32),
        tree_splits=np.array([[0]], dtype=np.uint16),
        leaves=np.array([leaves], dtype=np.int16),
    )


def residual(of: Calibration | None = None, log_error: float = -0.05) -> Residual:
    """One tree that says of kernels with 256 columns that they are predicted too fast, or what is asked."""
    forest = one_tree(FEATURES, "cta_n", 200.0, 0, round(log_error * 1e5))
    known = of or calibration()
    return Residual(
        gpu="h200",
        fingerprint=known.fingerprint(),
        forests=dict.fromkeys(known.numbers, forest),
        error_band={kind: dict.fromkeys(bands, 0.0123) for kind, bands in known.error_band.items()},
    )


def calibration_with_residual(folder: Path) -> Path:
    """A calibration file with its residual beside it."""
    path = calibration_file(folder / "typed.yaml")
    write_residual(residual(), folder / "typed.residual.npz")
    return path
