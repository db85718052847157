"""How far is the prediction from timings that others published? By system, type and duration.

    python benchmarks/external.py library_gemms.csv.gz
    python benchmarks/external.py library_gemms.csv.gz --activations bf16
    python benchmarks/external.py library_gemms.csv.gz --type bf16 --family cublas --own-choice --copies 5 --loop
    python benchmarks/external.py library_gemms.csv.gz --type nvfp4 --activations bf16 --family cutlass \
        --kernel sm100=128x256 --kernel sm103=128x256x768 --kernel sm120=128x128
    python benchmarks/external.py dsv3_fp8.csv dsv3_nvfp4.csv --gpu b200_1300mhz

A table of library calls (columns system, in_dtype, m, n, k, runtime_us; `device` where `system` is no GPU of
the package) names no kernel: each row is held against the best that the card could reach by prediction.
A table that names its kernels (cta_m, cta_n, cluster_m, ... besides) is predicted row by row, and the first
choice of each shape is judged too; with columns kernel_name, batch and empty_kernel_us, by its kernels of CUDA
cores. Nothing is fitted to such a table: it is a judge.

What is known of how a table was taken can be given. `--own-choice` adds what the library of the family loses
by its own choice of kernel, as `gemm-model torch` does, and to the band by how much frameworks differ.
`--copies 5`: weights rotate through five copies, or as many as hold L2's bytes where those are fewer, and the
rest is the same from call to call. `--loop`: calls follow each other for so long that the power cap acts on
the longer ones. `--kernel` names, by architecture, the tile that a framework takes instead of choosing, with
the depth of its k tile where that is not 128 bytes.

With `--activations bf16` each call of narrower operands quantizes its activations first, as a framework's
linear layer does: a kernel that reads them in bf16 and writes them with their scale factors, at DRAM's rate
or its own, after a boundary between kernels without programmatic dependent launch. The nvfp4 rows of
aiconfigurator are such calls (ai-dynamo/aiconfigurator, collector/trtllm/collect_gemm.py: `forward` of a
layer, of bf16), and without a tuning run before them TensorRT-LLM takes a CUTLASS kernel by default
(`getDefaultGemmConfig` of cpp/tensorrt_llm/thop/fp4Gemm.cpp): 128x256 on sm100 and sm103, 128x128 on sm120,
no clusters; on sm103 its k tiles are of 768 elements (`nvfp4_nvfp4_gemm_template_sm100.h` beside it: three
times the 256 of its name).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_model import load_gpu, predict_table
from gemm_model.bench.characterization import base_gpu
from gemm_model.bench.cublas_names import parse_sgemm_name
from gemm_model.choice.selection import Ranker
from gemm_model.choice.table_ranking import rank_table
from gemm_model.config import gpu_names, load_gpu_mapping
from gemm_model.core.dtypes import element_type, operand_type
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.kernel_config import AUTO_KERNEL, KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.core.regimes import SUSTAINED
from gemm_model.errors import InputError
from gemm_model.integrations.aiconfigurator import fallen_share
from gemm_model.integrations.profile import on_cuda_cores
from gemm_model.kernel_model.calibration_file import calibration_for, heuristic_choices
from gemm_model.kernels.registry import family_of
from gemm_model.tables.accuracy import top1_efficiency
from gemm_model.tables.table import read_table

BINS_US = (0.0, 10.0, 30.0, 100.0, np.inf)
OUTPUT_BYTES = 2.0
"""Of one output [B]; what libraries' linear layers return: bf16."""
QUANTIZED_GB_PER_S = 4781.0
"""Read and written by a kernel that quantizes to nvfp4 [GB/s]; where DRAM is faster; published: 8192 x 8192
of bf16 in 36 us (flashinfer issue 2496, `nvfp4_quantize --backends cuda`, TensorRT-LLM's kernel)."""
SPREAD = 0.1
"""Difference that nine in ten calls of two frameworks stay within, whose builds of the library differ [1]; one card
and shape; aiconfigurator's tables: -10 to +10 % (5th to 95th percentile)."""
BIN_NAMES = ("below 10 us", "10 to 30 us", "30 to 100 us", "above 100 us")
CALLS, TIMED = 13, 6
"""Calls of each copy of the weights in a loop, and the last of them, which are timed [1]: one, three, three in a
graph, six; collector/trtllm/collect_gemm.py and collector/helper.py of ai-dynamo/aiconfigurator."""
NEEDED = ("in_dtype", "m", "n", "k", "runtime_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the calls of a table."""

    family: str
    options: Mapping[str, str]
    own_choice: bool = False
    copies: int | None = None
    """Most copies of the weights that calls rotate through; None where nothing comes again."""
    loop: bool = False
    activations: str | None = None
    """Type that narrower activations are quantized from; None where they come as they are."""
    tiles: Mapping[str, str] = field(default_factory=dict)
    """By architecture the tile that is taken, such as 128x256 or 128x256x768; else the best."""


def gpu_of(system: str, device: str | None) -> str:
    """The packaged GPU that a table calls `system`, or that its driver calls `device`."""
    if system in gpu_names() or device is None:
        return load_gpu(system).name
    return base_gpu(device, {name: load_gpu_mapping(name) for name in gpu_names()})


def quantizing_us(frame: pd.DataFrame, gpu: GpuSpec, activations: str) -> pd.Series:
    """What it takes to quantize the activations of each call [us]; 0 where operands are as wide."""
    wide_bits = element_type(activations).bits
    narrow = frame["in_dtype"].map(stored_bits)
    moved_bits = pd.to_numeric(frame["m"]) * pd.to_numeric(frame["k"]) * (wide_bits + narrow)
    family = family_of("auto", gpu)
    chain = calibration_for(gpu, family.name)[0].numbers_on(gpu, "fp8", family).chain
    rate = min(gpu.dram_read_bytes_per_us, QUANTIZED_GB_PER_S * 1e3)
    took_us = moved_bits / 8.0 / rate + chain.boundary_us + chain.gap_us
    return took_us.where(narrow < wide_bits, 0.0)


def stored_bits(in_dtype: str) -> float:
    """Of an operand's element, with its share of a scale factor."""
    element, scale = operand_type(in_dtype)
    return element.bits + (0.0 if scale is None else 8.0 * scale.bytes_per_element)


def footprint_bytes(frame: pd.DataFrame, gpu: GpuSpec, copies: int) -> pd.Series:
    """What comes by until a call's weights are used again [bytes]: their copies, activations, outputs."""
    m, n, k = (pd.to_numeric(frame[name]) for name in ("m", "n", "k"))
    operand_bytes = frame["in_dtype"].map(stored_bits) / 8.0
    return (rotated(frame, gpu, copies) * n * k + m * k) * operand_bytes + m * n * OUTPUT_BYTES


def rotated(frame: pd.DataFrame, gpu: GpuSpec, copies: int) -> pd.Series:
    """Copies of a call's weights that come by in turn."""
    weights = pd.to_numeric(frame["n"]) * pd.to_numeric(frame["k"]) * frame["in_dtype"].map(stored_bits) / 8.0
    return np.ceil(gpu.l2_bytes / weights).clip(1, copies)


def kernels(frame: pd.DataFrame, gpu: GpuSpec, known: Known) -> pd.DataFrame:
    """The kernel of each call: the one that is given, or the fastest of the family."""
    calls = frame[["in_dtype", "m", "n", "k"]].reset_index(drop=True)
    if tile := known.tiles.get(gpu.architecture):
        extents = dict(zip(("cta_m", "cta_n", "cta_k"), map(int, tile.split("x")), strict=False))
        return calls.assign(kernel=known.family, **extents, cluster_m=1, cluster_n=1)
    ranker = Ranker(gpu, family=known.family, options=known.options)
    best = rank_table(calls, ranker, own=known.own_choice).reset_index(drop=True)
    return best.assign(mma_m=pd.to_numeric(best["cta_m"]) * np.where(best["schedule"] == "2cta", 2, 1))


def on_cuda_cores_us(row: Any, gpu: GpuSpec) -> float:
    """Of the kernel of CUDA cores that a row names, with what its host's events read without one [us]."""
    problem = GemmProblem.of(int(row.m), int(row.n), int(row.k), row.in_dtype, batch=int(row.batch))
    config = KernelConfig(**parse_sgemm_name(row.kernel_name))
    return on_cuda_cores(problem, config, gpu).runtime_us + float(row.empty_kernel_us)


def judged(frame: pd.DataFrame, gpu: str, known: Known) -> pd.DataFrame:
    """The rows with `predicted_us` and `runtime_us`."""
    spec = load_gpu(gpu)
    if "kernel_name" in frame:
        return frame.assign(predicted_us=[on_cuda_cores_us(row, spec) for row in frame.itertuples()])
    if "cta_m" in frame:
        return predict_table(frame, gpu, options=known.options)
    found = kernels(frame, spec, known)
    if known.copies is not None:
        found = found.assign(footprint_bytes=footprint_bytes(found, spec, known.copies))
    if known.copies is not None or "predicted_us" not in found:
        asked = found.drop(columns=["predicted_us", "limiter"], errors="ignore")
        found = predict_table(asked, spec, options=known.options)
    predicted_us = pd.to_numeric(found["predicted_us"])
    if known.own_choice:
        heuristic_choice = heuristic_choices().get(known.family, HeuristicChoice())
        predicted_us = heuristic_choice.time_us(predicted_us.to_numpy(), found["limiter"].to_numpy())
        found["error_band"] = heuristic_choice.band(np.hypot(pd.to_numeric(found["error_band"]), SPREAD))
    if known.activations is not None:
        predicted_us = predicted_us + quantizing_us(found, spec, known.activations)
    return found.assign(predicted_us=predicted_us, runtime_us=pd.to_numeric(frame["runtime_us"]).to_numpy())


def in_loop(frame: pd.DataFrame, gpu: str, known: Known) -> pd.DataFrame:
    """`judged`, with calls that are timed once the power cap lowers the clock."""
    found, spec = judged(frame, gpu, known).reset_index(drop=True), load_gpu(gpu)
    copies = rotated(found, spec, known.copies or 1).to_numpy()
    share = fallen_share(found["predicted_us"].to_numpy(float), CALLS * copies, TIMED * copies)
    late, sustained = share > 0.0, replace(known, options={**known.options, "regime": SUSTAINED})
    if late.any():
        late_us = judged(frame[late], gpu, sustained)["predicted_us"].to_numpy()
        found.loc[late, "predicted_us"] += share[late] * (late_us - found.loc[late, "predicted_us"])
    return found


def figures(rows: pd.DataFrame) -> dict[str, object]:
    ratio = rows["predicted_us"] / rows["runtime_us"]
    error = (ratio - 1.0).abs()
    found: dict[str, object] = {
        "rows": len(rows),
        "median error": f"{error.median():.1%}",
        "mean error": f"{error.mean():.1%}",
        "p95 error": f"{error.quantile(0.95):.1%}",
        "predicted / measured": f"{ratio.median():.2f}",
        "mean ratio": f"{ratio.mean():.2f}",
    }
    if "error_band" in rows:
        found["within the band"] = f"{(error <= pd.to_numeric(rows['error_band'])).mean():.0%}"
    return found


def report(rows: pd.DataFrame, system: str) -> Iterator[dict[str, object]]:
    """Figures of a system by type and duration, and of all durations."""
    for dtype, of_type in rows.groupby("in_dtype"):
        for low, high, name in zip(BINS_US, BINS_US[1:], BIN_NAMES, strict=False):
            part = of_type[of_type["runtime_us"].between(low, high, inclusive="left")]
            if len(part):
                yield {"system": system, "type": dtype, "duration": name, **figures(part)}
        all_sizes = figures(of_type)
        if "cta_m" in of_type and of_type.groupby(["m", "n", "k"]).size().max() > 1:
            all_sizes["first choice"] = f"{top1_efficiency(of_type).mean():.1%}"
        yield {"system": system, "type": dtype, "duration": "all", **all_sizes}


def systems(path: Path, gpu: str | None, dtype: str | None = None) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Name, GPU and rows of each system of a table, of one type where it is given."""
    frame = read_table(path)
    missing = [name for name in NEEDED if name not in frame]
    if missing or (gpu is None and "system" not in frame):
        first = (missing or ["system"])[0]
        raise InputError(f"{path}: column {first!r} is missing; expected {', '.join(NEEDED)}")
    if dtype is not None:
        frame = frame[frame["in_dtype"] == dtype]
    if gpu is not None:
        yield path.name, gpu, frame
        return
    for system, rows in frame.groupby("system"):
        device = str(rows["device"].iloc[0]) if "device" in rows else None
        yield str(system), gpu_of(str(system), device), rows


def tile_of_word(word: str) -> tuple[str, str]:
    """Architecture and tile of a word such as sm100=128x256 or sm103=128x256x768."""
    architecture, _, tile = word.partition("=")
    extents = tile.split("x")
    if len(extents) not in (2, 3) or not all(extent.isdecimal() for extent in extents):
        raise argparse.ArgumentTypeError(f"{word!r}; expected one such as sm100=128x256 or sm103=128x256x768")
    return architecture, tile


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("tables", type=Path, nargs="+", metavar="FILE")
    cli.add_argument("--gpu", help="the GPU of all rows (default: by the columns system and device)")
    cli.add_argument("--family", default=AUTO_KERNEL, help="kernels to choose from (default: auto)")
    cli.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the model")
    cli.add_argument("--type", help="judge rows of this type alone")
    cli.add_argument("--own-choice", action="store_true", help="the library chooses by itself")
    cli.add_argument("--copies", type=int, help="most copies of the weights (default: no reuse)")
    cli.add_argument("--loop", action="store_true", help="calls follow each other without a rest")
    cli.add_argument("--activations", metavar="TYPE", help="what narrower operands are quantized from")
    cli.add_argument("--kernel", action="append", default=[], type=tile_of_word, help="tile that calls take")
    given = vars(cli.parse_args())
    settings = {name: given[name] for name in ("family", "own_choice", "copies", "loop", "activations")}
    options = dict(each.split("=", 1) for each in given["option"])
    known = Known(**settings, options=options, tiles=dict(given["kernel"]))
    lines = [
        line
        for path in given["tables"]
        for system, gpu, rows in systems(path, given["gpu"], given["type"])
        for line in report((in_loop if known.loop else judged)(rows, gpu, known), system)
    ]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    rows = [columns, ["---"] * len(columns), *([line.get(name, "") for name in columns] for line in lines)]
    print("\n".join(f"| {' | '.join(map(str, row))} |" for row in rows))


if __name__ == "__main__":
    main()
