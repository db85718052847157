"""Trees that correct `HeuristicChoice`'s formulas for cuDNN's heuristic choices of convolutions.

A library's choice follows rules that it does not publish. The forest predicts log(expected / measured time)
of whole calls from the problem and the prediction of its fastest kernel; its correction is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from gemm_model.core.batch import FloatArray
from gemm_model.core.conv import KINDS
from gemm_model.core.elementwise import power_of_two_divisor
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import CALIBRATION_DIR
from gemm_model.kernel_model.forest import Features, Forest
from gemm_model.kernel_model.forest_file import forest_of, read_archive, write_archive

LIMIT = 0.2
"""The correction's bound [1, log of the call's time], and that of the errors that it learns from; picks;
chosen: by networks held out 0.15 does as well, 0.3 less; a pick that takes twice as long tells little."""
FEATURE_DECIMALS = 6
"""Decimals of a feature [1]; forests of picks; as of other forests."""
FOREST = "picks"
"""The forest's name in its file."""
FORMAT_VERSION = 1
TYPES = ("bf16", "fp16")
"""Operand types of the calls that the trees were trained on."""
RESOURCES = ("tensor", "epilogue", "port", "latency", "l2", "dram", "launch")

FEATURES = (
    *("kind", "fp16", "m", "n", "k", "channels", "filters", "groups", "taps", "places", "dilation"),
    *("dimensions", "images", "output_pixels", "width", "channel_alignment", "filter_alignment"),
    *("fastest_us", "expected_over_fastest", *(f"{name}_share" for name in RESOURCES)),
    *("full_waves", "last_wave_share", "tiles_per_wave", "cta_m", "cta_n", "cta_k", "split_k"),
)
"""Rows of `features`: the convolution, the time and the resources' shares of it that are predicted of the
fastest kernel, its waves and tile."""


def features(problem: GemmProblem, config: KernelConfig, fastest: Prediction, expected_us: float) -> Features:
    """The features of one convolution and its fastest kernel, of shape (FEATURES, 1)."""
    conv, details = problem.conv, fastest.details
    if conv is None:
        raise ValueError("a plain product; expected a convolution")
    alignments = (power_of_two_divisor(size / conv.groups) for size in (conv.channels, conv.filters))
    values = (
        *(KINDS.index(conv.kind), TYPES.index(problem.a_dtype.name), problem.m, problem.n, problem.k),
        *(conv.channels, conv.filters, conv.groups, conv.taps, prod(conv.stride), max(conv.dilation)),
        *(len(conv.size), conv.images, prod(conv.output_size), conv.output_size[-1], *alignments),
        *(fastest.runtime_us, expected_us / fastest.runtime_us),
        *(details[f"{name}_us"] / fastest.runtime_us for name in RESOURCES),
        *(
            details["full_waves"],
            details["last_wave_tiles"] / details["tiles_per_wave"],
            details["tiles_per_wave"],
        ),
        *(config.cta_m, config.cta_n, config.cta_k, config.split_k),
    )
    table = np.array(values, dtype=np.float64)[:, np.newaxis]
    return np.round(table, FEATURE_DECIMALS).astype(np.float32)


def bounded(log_error: FloatArray) -> FloatArray:
    """The log error, bounded by LIMIT."""
    found: FloatArray = np.clip(log_error, -LIMIT, LIMIT)
    return found


def picks_of(gpu: str, family: str) -> Path:
    """The path of a library's trees on a GPU, beside its calibration; the file may not exist."""
    return CALIBRATION_DIR / gpu / f"{family}.picks.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class PickResidual:
    """The forest of one library's heuristic choices."""

    fingerprint: str
    """Of the calibration whose times its formulas start from."""
    forest: Forest
    """Of FEATURES."""
    shift: float
    """Added to the forest's value [1, log]: a few calls take far longer than similar ones, so that the mean
    relative error is least below the median."""
    error_band: float
    """Relative error that 90 % of calls on unseen layers stay within."""

    def knows(self, problem: GemmProblem) -> bool:
        """Whether the trees were trained on the types of A and B."""
        return problem.a_dtype == problem.b_dtype and problem.a_dtype.name in TYPES

    def factor(
        self, problem: GemmProblem, config: KernelConfig, fastest: Prediction, expected_us: float
    ) -> float:
        """Ratio of a call's time to `expected_us` [1]."""
        log_error = self.forest.predict(features(problem, config, fastest, expected_us))
        return math.exp(-float(bounded(log_error + self.shift)[0]))


def write_pick_residual(residual: PickResidual, path: Path) -> None:
    """The file that `load_pick_residual` reads."""
    about = {
        "version": FORMAT_VERSION,
        "fingerprint": residual.fingerprint,
        "features": FEATURES,
        "shift": residual.shift,
        "error_band": residual.error_band,
    }
    write_archive(about, {FOREST: residual.forest}, path)


@lru_cache(maxsize=4)
def load_pick_residual(path: Path) -> PickResidual:
    """Raises InputError for another file, or one of other features."""
    about, arrays = read_archive(path)
    expected = {"version": FORMAT_VERSION, "features": list(FEATURES)}
    header = about if isinstance(about, Mapping) else {}
    whole = header.keys() >= {"fingerprint", "shift", "error_band"}
    if not whole or any(header.get(key) != value for key, value in expected.items()):
        raise InputError(f"{path}: expected picks of format version {FORMAT_VERSION} and the known features")
    return PickResidual(
        fingerprint=str(header["fingerprint"]),
        forest=forest_of(arrays, FOREST, len(FEATURES), path),
        shift=float(header["shift"]),
        error_band=float(header["error_band"]),
    )
