"""The GEMM kernels of a program by a profiler's export, measured beside predicted.

Read are the Chrome trace of PyTorch's profiler, whose operators tell their sizes with `record_shapes=True`, and
two CSV reports of `nsys stats`, which tell no sizes.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemm_model.bench.cublas_names import SGEMM, parse_sgemm_name
from gemm_model.choice.selection import rank
from gemm_model.core.batch import batch_of
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.hierarchy.model import MemoryHierarchyModel
from gemm_model.integrations.nsight import config_of
from gemm_model.kernel_model.question import World

EXPECTED = (
    "expected a Chrome trace of PyTorch's profiler (record_shapes=True), or a CSV of nsys stats with "
    "--report cuda_gpu_kern_sum or cuda_gpu_trace"
)
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Parts of K [1]; kernels whose names tell none; those that cuBLASLt's heuristic picks, and more."""
OPERANDS = {
    **{"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::_scaled_mm": (0, 1)},
    **{"aten::addmm": (1, 2), "aten::baddbmm": (1, 2), "aten::_addmm_activation": (1, 2)},
}
"""Operators that are one product, and the places of A (m, k) and B (k, n) among their inputs."""
CUDA_CORES = "sgemm"
LIBRARIES = {
    CUDA_CORES: SGEMM,
    "quack": re.compile(r"quack"),
    "cutlass": re.compile(r"cutlass::gemm|cutlass3x"),
    "triton": re.compile(r"^triton_(tem|mm|bmm)|matmul"),
    "cublas": re.compile(r"nvjet|_xmma_gemm|s\d+gemm"),
}
"""What the names of their GEMM kernels hold."""
TIMES = re.compile(r"(Total Time|Duration) \((ns|us|ms|s)\)")
US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launches of one kernel; of an operator that launches several, of the one that multiplies."""

    name: str
    problem: GemmProblem | None
    """None where the export does not tell its sizes."""
    calls: int
    total_us: float
    """Of all launches; of an operator, with its further kernels."""


def read_profile(path: Path) -> tuple[list[Launches], str]:
    """The launches of a profiler's export by kernel and problem, and the card's name, '' where it is not told.

    Raises InputError for a file that is none.
    """
    found: Counter[tuple[str, GemmProblem | None]] = Counter()
    total_us: defaultdict[tuple[str, GemmProblem | None], float] = defaultdict(float)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
        document = json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
        trace = document if isinstance(document, Mapping) else {"traceEvents": document}
        for each in _of_trace(_mappings(trace.get("traceEvents"))) if document else _of_table(text):
            found[each.name, each.problem] += each.calls
            total_us[each.name, each.problem] += each.total_us
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error) as error:
        raise InputError(f"{path}: {error}; {EXPECTED}") from None
    if not found:
        raise InputError(f"{path}: no kernel in it; {EXPECTED}")
    cards = [str(each.get("name", "")) for each in _mappings(trace.get("deviceProperties"))]
    together = [
        Launches(name=name, problem=problem, calls=calls, total_us=total_us[name, problem])
        for (name, problem), calls in found.items()
    ]
    return together, next(iter(cards), "")


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []


def _of_trace(events: list[Mapping[str, Any]]) -> Iterator[Launches]:
    """Kernels by the operator that launched them: its external id is theirs, or their launch call's."""
    problems, called = {}, {}
    kernels: dict[Any, list[tuple[str, float]]] = {}
    for event in events:
        kind, args = event.get("cat"), event.get("args")
        if isinstance(args, Mapping) and kind == "cpu_op" and (problem := _problem(event, args)):
            problems[str(args.get("External id"))] = problem
        if isinstance(args, Mapping) and kind in ("cuda_runtime", "cuda_driver"):
            called[str(args.get("correlation"))] = str(args.get("External id"))
    for place, event in enumerate(events):
        if event.get("cat") == "kernel" and event.get("ph") == "X":
            args = event["args"] if isinstance(event.get("args"), Mapping) else {}
            own, caller = str(args.get("External id")), called.get(str(args.get("correlation")), "")
            operator = own if own in problems else caller if caller in problems else f"alone {place}"
            time_us = _time(event.get("dur"), f"event {place}, dur")
            kernels.setdefault(operator, []).append((str(event.get("name")), time_us))
    for operator, parts in kernels.items():
        name = next((name for name, _ in parts if library_of(name)), parts[0][0])
        total_us = sum(time_us for _, time_us in parts)
        yield Launches(name=name, problem=problems.get(operator), calls=1, total_us=total_us)


def _time(value: Any, where: str) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not 0.0 <= time < math.inf:
        raise ValueError(f"{where}: {str(value)[:40]!r} is no time")
    return time


def _problem(event: Mapping[str, Any], args: Mapping[str, Any]) -> GemmProblem | None:
    """The product of an operator; None for other operators and where its inputs' sizes are not told."""
    try:
        (a, a_type, a_steps), (b, b_type, b_steps) = (
            (args["Input Dims"][place], str(args["Input type"][place]), args["Input Strides"][place])
            for place in OPERANDS[str(event.get("name"))]
        )
        a_type, b_type = (name.rpartition("::")[2] for name in (a_type, b_type))
        batch = a[0] if len(a) == 3 else 1
        product = GemmProblem.of(a[-2], b[-1], a[-1], a_type, b_dtype=b_type, batch=batch)
        return replace(
            product,
            a_major="k" if a_steps[-1] == 1 or product.m == 1 else "m",
            b_major="k" if b_steps[-2] == 1 or product.n == 1 else "n",
        )
    except (LookupError, TypeError, ValueError, InputError):
        return None


def _of_table(text: str) -> Iterator[Launches]:
    """The rows of a report; lines before its header, which nsys prints, are passed over."""
    lines = text.splitlines()
    headers = [place for place, line in enumerate(lines) if TIMES.search(line) and "Name" in line]
    if not headers:
        return
    table = csv.DictReader(lines[headers[0] :], strict=True)
    column, unit = next(found.group(0, 2) for name in table.fieldnames or () if (found := TIMES.match(name)))
    for row, cells in enumerate(table, start=headers[0] + 2):
        name = cells.get("Name") or ""
        if name and not name.startswith("[CUDA"):
            calls = _time((cells.get("Instances") or "1").replace(",", ""), f"line {row}, Instances")
            time = _time((cells.get(column) or "").replace(",", ""), f"line {row}, {column}")
            yield Launches(name=name, problem=None, calls=int(calls), total_us=time * US[unit])


def library_of(name: str) -> str:
    """The library whose GEMM kernels have such names; '' where none has."""
    return next((library for library, words in LIBRARIES.items() if words.search(name)), "")


def lay_beside(
    launches: Sequence[Launches], gpu: GpuSpec, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The GEMM kernels among some launches, those that lost most first, then those without a prediction.

    `options` are KernelModel's. `lost_us` is the measured time of all calls less the predicted one, of the named
    kernel, or of the library's fastest where a name tells no tile or splits.
    """
    rows = [_row(each, gpu, options) for each in launches if library_of(each.name)]
    return sorted(rows, key=lambda row: (row["lost_us"] is None, -(row["lost_us"] or row["measured_us"])))


def _row(each: Launches, gpu: GpuSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    library, problem, config = library_of(each.name), each.problem, _config(each.name)
    found = None if problem is None else _predicted(problem, library, config, gpu, options)
    predicted_us = None if found is None else each.calls * found.runtime_us
    return {
        "kernel": library,
        "tile": None if config is None else f"{config.cta_m}x{config.cta_n}",
        **{name: getattr(problem, name, None) for name in ("m", "n", "k", "batch")},
        "in_dtype": None if problem is None else problem.a_dtype.name,
        "calls": each.calls,
        "measured_us": each.total_us,
        "predicted_us": predicted_us,
        "lost_us": None if predicted_us is None else each.total_us - predicted_us,
        "error_band": None if found is None else found.error_band,
        "limiter": None if found is None else found.limiter,
        "predicted_for": None if found is None else "the fastest" if config is None else "the named kernel",
        "kernel_name": each.name,
    }


def _config(name: str) -> KernelConfig | None:
    """What a name tells of a kernel; None without a tile, and of splits, whose number no name tells."""
    if cells := parse_sgemm_name(name):
        return KernelConfig(**cells)
    try:
        config = config_of(name)
    except InputError:
        return None
    return None if config.scheduler == "split_k" else config


def _predicted(
    problem: GemmProblem, library: str, config: KernelConfig | None, gpu: GpuSpec, options: Mapping[str, Any]
) -> Prediction | None:
    """None where no such kernel can run, or the card has none of that library."""
    try:
        if config is not None and library == CUDA_CORES:
            return on_cuda_cores(problem, config, gpu)
        if config is None:
            return rank(problem, gpu, 1, family=library, options=options).best.prediction
        return World(problem=problem, config=config, gpu=gpu, options=options).predicted()
    except InputError:
        return None


def on_cuda_cores(problem: GemmProblem, config: KernelConfig, gpu: GpuSpec) -> Prediction:
    """A named kernel of fp32, with K split as it is fastest: no name tells the parts. Raises InputError."""
    splits = [parts for parts in SPLITS if problem.k >= parts * config.cta_k or parts == 1]
    batch = batch_of([(problem, replace(config, split_k=parts)) for parts in splits])
    found = MemoryHierarchyModel(gpu, datapath="cuda_cores").predict_batch(batch)
    return found.row(int(found.runtime_us.argmin()))
