"""The clipped residual: a forest of small trees that corrects a calibration's formulas.

The forest predicts log(physical / measured) from features that the physical model computes for a kernel,
never from m, n and k themselves. The correction is clipped, so that the physical model stays the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray
from gemm_model.core.elementwise import (
    Flags,
    Values,
    ceil,
    exp,
    floor,
    maximum,
    minimum,
    power_of_two_divisor,
)
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.errors import InputError
from gemm_model.kernel_model.alignment import LINE_BYTES
from gemm_model.kernel_model.calibration_file import AGAIN, WHOLE_SITUATIONS, Calibration, has_bands
from gemm_model.kernel_model.forest import Features, Forest
from gemm_model.kernel_model.forest_file import forest_of, read_archive, write_archive
from gemm_model.kernel_model.kernel import Geometry
from gemm_model.kernel_model.kernel_time import KernelTime

LIMIT = 0.08
"""The correction's bound [1, of the physical time]; all residuals; chosen: the physical model stays the
answer."""
LOG_LIMITS = math.log(1.0 - LIMIT), math.log(1.0 + LIMIT)
OFF = "off"
AUTO = "auto"
SUFFIX = ".residual.npz"
"""A calibration `quack.yaml` has its residual beside it, in `quack.residual.npz`."""
FORMAT_VERSION = 2
FEATURE_DECIMALS = 6
"""Decimals of a feature [1]; all forests; chosen: trees are steps, and the last bits of a sum must not choose
the step."""

FEATURES = (
    *("cta_m", "cta_n", "cluster_m", "cluster_n", "pingpong", "filled_m", "filled_n"),
    *("launch_share", "tensor_share", "epilogue_share", "port_share", "latency_share", "l2_share"),
    *("dram_share", "k_tile_us", "operand_alignment", "output_alignment"),
    *("waves", "last_wave_share", "resident", "k_tiles"),
    *("stages", "rows_of_clusters", "columns_of_clusters", "ctas_at_once"),
    *("slowest_share", "merged_share", "read_share", "fill_tb_per_s"),
    *("sharers", "splits_at_once", "exposed_share"),
)
"""Rows of `features`: the kernel, how its tiles fill the matrix, each resource's share of the time, the time
of a k tile, alignments of the pitches in bytes, the walk over the tiles, the ring, the grid of clusters and
the CTAs that run at once, how much of the waves the slowest resource explains, requests that merge, reads
among DRAM's bytes, out-of-bounds fill, and how clusters share a tile."""


def features(geometry: Geometry, times: KernelTime) -> Features:
    """The features of the trees, of shape (FEATURES, rows), for numbers and arrays alike."""
    return feature_table(feature_columns(geometry, times), np.size(times.runtime_us))


def feature_table(columns: Sequence[Values | Flags], rows: int) -> Features:
    """FEATURES of a batch as an array (features, rows)."""
    table = np.empty((len(FEATURES), rows))
    for row, values in zip(table, columns, strict=True):
        row[:] = values
    return rounded(table)


def rounded(table: FloatArray) -> Features:
    """A table of features as the trees take it."""
    return np.round(table, FEATURE_DECIMALS, out=table).astype(np.float32)


def feature_columns(geometry: Geometry, times: KernelTime) -> tuple[Values | Flags, ...]:
    """FEATURES of some rows."""
    batch, schedule, moved = geometry.batch, geometry.schedule, times.traffic
    of_runtime = 1.0 / times.runtime_us
    alignment = minimum(_alignment(batch.a_pitch_bytes), _alignment(batch.b_pitch_bytes))
    clusters = (
        ceil(batch.m / (batch.cta_m * batch.cluster_m)),
        ceil(batch.n / (batch.cta_n * batch.cluster_n)),
    )
    shares_us = (
        *(times.launch_us, times.tensor_us, times.epilogue_us, times.port_us, times.latency_us),
        *(times.l2_us, times.dram_us),
    )
    return (
        *(batch.cta_m, batch.cta_n, batch.cluster_m, batch.cluster_n, batch.schedule == PINGPONG),
        *(schedule.filled_m, schedule.filled_n, *(share_us * of_runtime for share_us in shares_us)),
        *(
            times.waves_us / (schedule.waves * schedule.k_tiles),
            alignment,
            _alignment(batch.output_pitch_bytes),
        ),
        *(schedule.waves, schedule.last_tiles / schedule.resident, schedule.resident, schedule.k_tiles),
        *(geometry.resources.stages, *clusters, schedule.resident * batch.cluster_m * batch.cluster_n),
        *(_slowest_us(times) / times.waves_us, moved.merged_bytes / moved.l2_request_bytes),
        moved.dram_read_bytes / maximum(moved.dram_bytes, 1.0),
        times.edge.bytes_per_wave * schedule.waves * of_runtime * 1e-6,
        *(schedule.sharers, schedule.splits_at_once, times.exposed_us * of_runtime),
    )


def _slowest_us(times: KernelTime) -> Values:
    """The time of the resource that alone would take longest."""
    fetching_us = maximum(maximum(times.port_us, times.latency_us), maximum(times.l2_us, times.dram_us))
    return maximum(maximum(times.tensor_us, times.epilogue_us), fetching_us)


def _alignment(pitch_bytes: Values) -> Values:
    """The largest power of two that divides a row pitch, up to a line."""
    return minimum(power_of_two_divisor(maximum(floor(pitch_bytes), 1.0)), LINE_BYTES)


def supported_share(settled_clk_share: Values) -> Values:
    """The share of a correction [1] that a kernel at `settled_clk_share` of the boost clock [1] supports."""
    known = room_numbers("kernel_model")
    none, whole = known.trees_least_clk_share, known.trees_whole_clk_share
    return maximum(minimum((settled_clk_share - none) / (whole - none), 1.0), 0.0)


def corrected_us(physical_us: Values, log_error: Values, floor_us: Values) -> Any:
    """The physical times corrected by their expected error, by at most LIMIT and never below `floor_us`."""
    log_factor = minimum(maximum(-log_error, LOG_LIMITS[0]), LOG_LIMITS[1])
    return maximum(physical_us * exp(log_factor), floor_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The donor of borrowed forests, and by rate class the share [1] that rows of this card support."""

    donor: str
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The forests of one calibration, and the errors that held-out data show with them."""

    gpu: str
    fingerprint: str
    """Of the calibration whose times the forests correct."""
    forests: Mapping[str, Forest]
    """By rate class, of FEATURES."""
    error_band: Mapping[str, Mapping[str, float]]
    """As in a calibration, with the correction."""
    splits: tuple[str, ...] = ()
    """Rate classes whose forest was trained on split-K kernels too, and corrects them."""
    taken_over: TakenOver | None = None
    """None if the forests were trained on rows of this GPU."""


def residual_beside(calibration_path: Path) -> Path:
    """The path of a calibration file's residual."""
    return calibration_path.with_suffix(SUFFIX)


def is_residual_file(name: object) -> bool:
    """Whether an option names a residual's file and is no other word."""
    return isinstance(name, str | Path) and str(name).endswith(".npz")


def load_residual(file: str | Path, calibration: Calibration) -> Residual:
    """The residual in a file of `gemm-model calibrate`.

    Raises InputError if there is none, or if it was trained on another calibration's times.
    """
    if not is_residual_file(file):
        raise InputError(f"residual is {file!r}; expected {AUTO}, {OFF} or an .npz file")
    path = Path(file)
    found = _read(path, path.stat().st_mtime_ns if path.is_file() else 0)
    expected = calibration.fingerprint()
    if found.fingerprint != expected:
        raise InputError(
            f"{path.name}: a residual of another calibration ({found.gpu}, fingerprint {found.fingerprint}); "
            f"expected that of {calibration.gpu} with {expected}: {AGAIN}, "
            f"or set residual={OFF}"
        )
    return found


@lru_cache(maxsize=4)
def _read(path: Path, _modified: int) -> Residual:
    """A file's residual, read again once the file has changed."""
    about, arrays = read_archive(path)
    for key, kind_of_value in (("version", int), ("gpu", str), ("fingerprint", str), ("error_band", dict)):
        if not isinstance(about, dict) or not isinstance(about.get(key), kind_of_value):
            raise InputError(f"{path}: key {key} of about is missing or no {kind_of_value.__name__}")
    if about["version"] != FORMAT_VERSION:
        raise InputError(
            f"{path}: residual of format version {about['version']}; expected {FORMAT_VERSION}: {AGAIN}"
        )
    if about.get("features") != list(FEATURES):
        raise InputError(f"{path}: a residual of other features; expected {', '.join(FEATURES)}: {AGAIN}")
    return Residual(
        gpu=about["gpu"],
        fingerprint=about["fingerprint"],
        forests={kind: forest_of(arrays, kind, len(FEATURES), path) for kind in about["error_band"]},
        error_band={kind: _band(bands, f"{path}, {kind}") for kind, bands in about["error_band"].items()},
        splits=_splits(about, path),
        taken_over=_taken_over(about, path),
    )


def _splits(about: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The rate classes that the file lists as trained on split-K kernels; empty if it lists none."""
    splits = about.get("splits", [])
    if not isinstance(splits, list) or not all(kind in about["error_band"] for kind in splits):
        raise InputError(f"{path}: splits is {splits!r}; expected a list of {', '.join(about['error_band'])}")
    return tuple(splits)


def _taken_over(about: Mapping[str, Any], path: Path) -> TakenOver | None:
    """The donor and the shares, where the file names them."""
    if "donor" not in about:
        return None
    donor, shares = about["donor"], about.get("shares")
    if (
        not isinstance(donor, str)
        or not isinstance(shares, dict)
        or set(shares) != set(about["error_band"])
        or not all(isinstance(share, float) and 0.0 <= share <= 1.0 for share in shares.values())
    ):
        raise InputError(f"{path}: shares are {shares!r} of {donor!r}; expected 0 to 1 by rate class")
    return TakenOver(donor=donor, shares=shares)


def _band(bands: Any, place: str) -> dict[str, float]:
    if not has_bands(bands) or not all(
        isinstance(band, float) and 0.0 <= band < math.inf for band in bands.values()
    ):
        raise InputError(
            f"{place}: error_band is {bands!r}; expected a share for each of {', '.join(WHOLE_SITUATIONS)}"
        )
    return dict(bands)


def write_residual(residual: Residual, path: Path) -> None:
    """The file that `load_residual` reads; the same residual gives the same bytes."""
    about = {
        "version": FORMAT_VERSION,
        "gpu": residual.gpu,
        "fingerprint": residual.fingerprint,
        "features": FEATURES,
        "error_band": {kind: dict(bands) for kind, bands in residual.error_band.items()},
    }
    if residual.splits:
        about["splits"] = residual.splits
    if residual.taken_over is not None:
        about |= {"donor": residual.taken_over.donor, "shares": dict(residual.taken_over.shares)}
    write_archive(about, residual.forests, path)
