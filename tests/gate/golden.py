"""The golden table: what the calibrated model says of some 300 kernels that exercise every mechanism.

`make golden` writes it; its diff shows a person which kernels a change moved, and by how much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.core.batch import GemmBatch, batch_of
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.calibration_file import Calibration
from gemm_model.kernel_model.model import KernelModel

TABLE = Path(__file__).parent / "kernels.csv"
DIGITS = 6
SAME = 1e-5
"""Relative difference of two values that are one number of six digits."""
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel of the table; `what` says which mechanism it is there for."""

    what: str
    gpu: str = "h200"
    family: str = "auto"
    regime: str = "burst"
    l2: str = "cold"
    dtype: str = "bf16"
    out_dtype: str | None = None
    mnk: tuple[int, int, int] = (4096, 4096, 4096)
    batch: int = 1
    tile: tuple[int, int] = (128, 128)
    cluster: tuple[int, int] = (1, 1)
    schedule: str = "cooperative"
    swizzle: int = 8
    raster: str = "heuristic"
    stages: int = 0
    split_k: int = 1
    fast_accum: bool = False
    pdl: bool | None = None
    majors: str = "kkn"
    """Contiguous extents of A, B and the output."""

    def pair(self) -> tuple[GemmProblem, KernelConfig]:
        problem = GemmProblem.of(*self.mnk, self.dtype, self.out_dtype, batch=self.batch)
        a_major, b_major, c_major = self.majors
        config = KernelConfig(
            kernel=self.family,
            cta_m=self.tile[0],
            cta_n=self.tile[1],
            cluster_m=self.cluster[0],
            cluster_n=self.cluster[1],
            schedule=self.schedule,
            swizzle=self.swizzle,
            raster=self.raster,
            stages=self.stages,
            split_k=self.split_k,
            fast_accum=self.fast_accum,
            pdl=self.pdl,
        )
        return replace(problem, a_major=a_major, b_major=b_major, c_major=c_major), config


def _edge_tiles() -> Iterator[Case]:
    for m, cluster in product((1, 48, 80, 200), CLUSTERS):
        yield Case(what="decode", mnk=(m, 7168, 4096), tile=(64, 128), cluster=cluster)
    for m, cluster in product((17, 130, 300), CLUSTERS):
        yield Case(what="decode", dtype="fp8", mnk=(m, 4096, 7168), tile=(128, 64), cluster=cluster)
    for m, raster in product((256, 288, 736), ("along_m", "along_n")):
        yield Case(what="edge row kept", mnk=(m, 8448, 4096), tile=(64, 64), raster=raster)
        yield Case(what="edge row kept", mnk=(m, 12672, 4096), tile=(192, 64), raster=raster)
    for m, n, swizzle in ((352, 8448, 8), (544, 896, 16)):
        yield Case(what="edge row kept", mnk=(m, n, 4096), tile=(64, 64), raster="along_m", swizzle=swizzle)
    for n, cluster in product((1064, 4104, 5000), ((1, 1), (2, 2))):
        yield Case(what="edge column", mnk=(4096, n, 4096), cluster=cluster)


def _spilling() -> Iterator[Case]:
    narrow = (((128, 128), "pingpong"), ((256, 128), "cooperative"), ((192, 160), "cooperative"))
    wide = (((128, 256), "cooperative"), ((128, 224), "cooperative"), ((64, 256), "pingpong"))
    for (tile, schedule), k in product((*narrow, *wide), (512, 4096)):
        yield Case(what="spilling", dtype="fp8", mnk=(4096, 4096, k), tile=tile, schedule=schedule)
    for tile in ((256, 160), (192, 192), (320, 160), (256, 208)):
        yield Case(what="spilling", dtype="fp8", tile=tile)
    yield Case(what="spilling", tile=(256, 224))
    yield Case(what="spilling", tile=(256, 256), mnk=(2048, 2048, 256))


def _mma() -> Iterator[Case]:
    for cta_n, dtype in product((32, 48, 64, 96), ("bf16", "fp8")):
        yield Case(what="narrow tile", dtype=dtype, tile=(64, cta_n), schedule="pingpong")
    for tile, fast in product(((64, 64), (64, 128), (128, 128), (192, 128)), (False, True)):
        yield Case(what="promotion", dtype="fp8", tile=tile, fast_accum=fast)
    for tile, fast in product(((64, 128), (64, 192), (128, 96)), (False, True)):
        yield Case(what="promotion", dtype="fp8", tile=tile, schedule="pingpong", fast_accum=fast)
    for cluster, dtype in product(CLUSTERS, ("bf16", "fp8")):
        case = Case(what="signals", dtype=dtype, mnk=(64, 128, 16384), tile=(64, 32), cluster=cluster)
        yield replace(case, schedule="pingpong")
    for dtype, schedule in product(("bf16", "fp16", "tf32", "int8", "fp8"), ("cooperative", "pingpong")):
        yield Case(what="schedule", dtype=dtype, mnk=(8192, 8192, 2048), tile=(128, 96), schedule=schedule)
    for stages in (2, 3, 5):
        yield Case(what="stages", stages=stages, mnk=(1024, 2048, 8192))


def _alignment() -> Iterator[Case]:
    for k, cluster in product((72, 200, 1000, 4104, 4112, 4128, 4160), ((1, 1), (2, 1))):
        yield Case(what="k pitch", mnk=(2048, 4096, k), cluster=cluster)
    for k in (208, 1040, 4112, 4144):
        yield Case(what="k pitch", dtype="fp8", mnk=(2048, 4096, k), tile=(128, 96))
    for n, cta_n in product((4104, 4112, 4128), (128, 208)):
        yield Case(what="n pitch", mnk=(2048, n, 512), tile=(64, cta_n), schedule="pingpong")
    for majors in ("mkn", "knn", "mnm"):
        yield Case(what="majors", mnk=(2056, 4104, 1000), majors=majors)
    for out in ("fp32", "fp16"):
        yield Case(what="output", mnk=(4096, 4096, 256), out_dtype=out)


def _waves() -> Iterator[Case]:
    for ctas, dtype in product((1, 4, 16, 40, 66, 100, 131, 133, 264, 270, 400), ("bf16", "fp8")):
        yield Case(what="SMs at work", dtype=dtype, mnk=(128, 128 * ctas, 4096))
    for clusters, k in product((2, 11, 12, 30), (256, 8192)):
        yield Case(what="quiet clock", regime="counters", mnk=(64, 128 * clusters, k), tile=(64, 128))
        case = Case(what="quiet clock", regime="counters", mnk=(256, 64 * clusters, k), tile=(64, 64))
        yield replace(case, cluster=(4, 1))
    for m, n, k in ((64, 64, 64), (128, 128, 512), (1024, 1024, 64), (2048, 2048, 128)):
        yield Case(what="launch", mnk=(m, n, k), tile=(64, 64))
        yield Case(what="launch", mnk=(m, n, k), tile=(64, 64), cluster=(2, 1))
    for batch, split_k in ((3, 1), (16, 1), (1, 2), (1, 4), (1, 8), (2, 2)):
        yield Case(what="batch, split-K", mnk=(512, 512, 4096), batch=batch, split_k=split_k)


def _memory() -> Iterator[Case]:
    for (m, n, k), dtype in product(
        ((64, 57344, 8192), (16, 28672, 4096), (128, 8192, 28672)), ("bf16", "fp8")
    ):
        yield Case(what="DRAM", dtype=dtype, mnk=(m, n, k), tile=(64, 128))
        yield Case(
            what="DRAM", dtype=dtype, mnk=(m, n, k), tile=(64, 64), cluster=(2, 1), schedule="pingpong"
        )
    for tile, cluster in product(((64, 64), (64, 128), (128, 64)), ((1, 1), (2, 1))):
        yield Case(what="L2", mnk=(8192, 8192, 1024), tile=tile, cluster=cluster)
        yield Case(what="L2", dtype="fp8", mnk=(2048, 8192, 7168), tile=tile, cluster=cluster)
    for m, dtype in product((384, 512, 640), ("bf16", "fp8")):
        yield Case(what="few panels", dtype=dtype, mnk=(m, 8192, 4096), tile=(128, 64))
    for swizzle, raster in product((1, 4, 16), ("along_m", "along_n")):
        yield Case(what="L2 capacity", mnk=(16384, 16384, 8192), swizzle=swizzle, raster=raster)
    for mnk, cluster in product(((16384, 16384, 16384), (8192, 57344, 8192)), ((1, 1), (2, 1), (1, 2))):
        yield Case(what="long", mnk=mnk, tile=(128, 256), cluster=cluster)
        yield Case(what="long", dtype="fp8", mnk=mnk, tile=(128, 192), cluster=cluster)


def _regimes() -> Iterator[Case]:
    shapes = ((64, 4096, 7168), (1024, 4096, 4096), (8192, 8192, 8192))
    worlds = (("graph", "cold"), ("sustained", "warm"), ("counters", "cold"), ("burst", "warm"))
    for mnk, dtype, (regime, l2) in product(shapes, ("bf16", "fp16", "fp8"), worlds):
        tile = (128, 192) if dtype == "fp8" else (128, 256)
        yield Case(what="regime", regime=regime, l2=l2, dtype=dtype, mnk=mnk, tile=tile, cluster=(2, 1))
    for mnk, regime in product(shapes, ("graph", "sustained")):
        yield Case(what="regime", regime=regime, mnk=mnk, pdl=False)


def _families() -> Iterator[Case]:
    shapes = ((48, 4096, 4096), (4096, 4096, 4096))
    for family, mnk, dtype in product(("cutlass", "cublas", "triton"), shapes, ("bf16", "fp8")):
        yield Case(what="family", family=family, mnk=mnk, dtype=dtype, tile=(128, 128))
    for gpu, mnk in product(("a100_sxm_80gb", "rtx_a6000", "l40s", "rtx_4090"), shapes):
        yield Case(what="family", gpu=gpu, family="triton", mnk=mnk, stages=3)
    for gpu in ("l4", "l40s"):
        case = Case(what="power cap", gpu=gpu, family="triton", regime="sustained", l2="warm", stages=3)
        yield replace(case, dtype="fp16", mnk=(8192, 8192, 8192))
    for gpu, mnk in product(("h100_sxm", "rtx_5090"), shapes):
        yield Case(what="GPU", gpu=gpu, mnk=mnk)
    for (cta_n, schedule, cluster), dtype in product(
        ((128, "cooperative", (1, 1)), (256, "2cta", (2, 1)), (192, "2cta", (2, 2))),
        ("bf16", "fp8", "nvfp4", "mxfp8"),
    ):
        case = Case(what="Blackwell", gpu="b200", dtype=dtype, mnk=(8192, 8192, 4096), cluster=cluster)
        yield replace(case, tile=(128, cta_n), schedule=schedule)
        yield replace(case, tile=(128, cta_n), schedule=schedule, mnk=(300, 7168, 2048))


@cache
def cases() -> tuple[Case, ...]:
    groups = (_edge_tiles, _spilling, _mma, _alignment, _waves, _memory, _regimes, _families)
    return tuple(case for group in groups for case in group())


_World = tuple[str, str, str]
"""GPU, regime, state of L2: a model each."""


@cache
def _batches() -> Mapping[_World, tuple[list[int], GemmBatch]]:
    """By world: the positions of its cases, and their batch."""
    rows: dict[_World, list[int]] = defaultdict(list)
    for index, case in enumerate(cases()):
        rows[case.gpu, case.regime, case.l2].append(index)
    return {world: (index, batch_of([cases()[row].pair() for row in index])) for world, index in rows.items()}


def golden_table(calibration: str | Calibration = "auto") -> pd.DataFrame:
    """The cases with what the physical model says of them, a row each."""
    parts = []
    for (gpu, regime, l2), (index, batch) in _batches().items():
        options = {"regime": regime, "l2": l2, "calibration": calibration, "residual": "off"}
        found = KernelModel(load_gpu(gpu), **options).predict_batch(batch)
        columns = {"runtime_us": found.runtime_us}
        columns |= {f"{name}_us": column for name, column in found.phases_us.items()}
        # The stages that were found, beside those that were asked for.
        details = {
            "stages_found" if name == "stages" else name: found.details[name] for name in found.details
        }
        columns |= {name: column for name, column in details.items() if name not in columns}
        columns |= {f"{name}_bytes": column for name, column in found.bytes_by_level.items()}
        parts.append(pd.DataFrame(columns, index=index))
    figures = pd.concat(parts).sort_index()
    kernels = [{spec.name: _told(getattr(case, spec.name)) for spec in fields(Case)} for case in cases()]
    return pd.concat([pd.DataFrame(kernels), figures], axis="columns")


def _told(value: object) -> str:
    """As it stands in the table: 128x256 for a pair, nothing for what is not said."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def write_golden() -> None:
    rounded = golden_table().map(lambda value: f"{value:.{DIGITS}g}" if isinstance(value, float) else value)
    rounded.to_csv(TABLE, index=False)


def read_golden() -> pd.DataFrame:
    names = [spec.name for spec in fields(Case)]
    return pd.read_csv(TABLE, dtype=dict.fromkeys(names, str), keep_default_na=False)


def golden_differences(recorded: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    """One line for each column of each kernel that is another number than the recorded one."""
    names = [spec.name for spec in fields(Case)]
    same_columns = list(recorded.columns) == list(found.columns) and len(recorded) == len(found)
    if not same_columns or (recorded[names].to_numpy() != found[names].to_numpy()).any():
        return ["the table has other kernels or columns: run `make golden`"]
    lines = []
    for column in found.columns.drop(names):
        was, is_now = recorded[column].to_numpy(), found[column].to_numpy()
        for row in np.flatnonzero(np.abs(is_now - was) > SAME * np.abs(was)):
            kernel = " ".join(filter(None, found.loc[row, names]))
            lines.append(f"line {row + 2}, {column}: {was[row]:.6g} -> {is_now[row]:.6g} ({kernel})")
    return lines
