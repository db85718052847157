"""The GEMM kernels of a program by a profiler's export, measured beside predicted.

Read are the Chrome trace of PyTorch's profiler, whose operators tell their sizes with `record_shapes=True`, and
two CSV reports of `nsys stats`, which tell no sizes; and what Nsight Compute exports of a kernel
(`ncu --csv --page raw`).
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemm_model.bench.counters import launches
from gemm_model.bench.cublas_names import SGEMM, copied_bytes, parse_cublas_name, parse_sgemm_name
from gemm_model.bench.cutlass.names import cutlass_cells
from gemm_model.choice.selection import rank
from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import GpuSpec, before_hopper
from gemm_model.core.kernel_config import SCHEDULERS, KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.hierarchy.model import MemoryHierarchyModel
from gemm_model.kernel_model.faults import WITHIN, Suspect, counts_of, deviations, distance_of, suspects
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.question import World
from gemm_model.models import Model

KNOWN = read_toml("explanations")
METRICS: Mapping[str, tuple[str, float]] = {
    count["metric"]: (name, count["factor"]) for name, count in KNOWN["counts"].items() if "metric" in count
}
"""By metric: what it counts here, and the factor from base units (ns, bytes, cycles, sectors)."""
COMMAND = f"ncu --csv --page raw --print-units base --metrics {','.join(METRICS)} PROGRAM"
"""What exports all that is read."""
KERNEL, GRID = "Kernel Name", "Grid Size"
ADDS_UP = re.compile(r"splitKreduce|splitk_reduce", re.IGNORECASE)
"""In the names of kernels that add up the parts of a split K."""
OF_CTAS = ("smem_bytes_per_cta", "ctas")
"""Counts that are no sums over a kernel's time."""
MOST_PARTS = 32
"""Parts of a split K [1]; cuBLAS's kernels, whose names tell none; no measured one has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedKernel:
    """One launch of an export."""

    name: str
    counted: Mapping[str, float]
    """By name of METRICS' counts, and `ctas` of its grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What was counted beside what is predicted of the kernel that was meant."""

    kernel: CountedKernel
    rows: tuple[Mapping[str, Any], ...]
    """Counts: `what`, `counted`, `predicted`, `ratio`, and `spreads`, how many of the model's they are off."""
    as_meant: float
    """Distance of all counts from those of the kernel that was meant, in spreads [1]."""
    suspects: tuple[Suspect, ...]
    """Faults, the closest first."""

    @property
    def fault(self) -> Suspect | None:
        """What explains the counts; None where they are those of the kernel that was meant, or of no fault."""
        first, left = next(iter(self.suspects), None), room_numbers("counts").unexplained * self.as_meant
        return first if first and self.as_meant > WITHIN and first.distance < left else None


def read_export(path: Path) -> list[CountedKernel]:
    """The launches of a file that COMMAND exported, the longest first; one that adds up parts is its GEMM's.

    Raises InputError for a file without launches, or without a needed metric: it says which, and COMMAND.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise InputError(f"{path}: {why}; expected what this exports: {COMMAND}") from None
    found: list[CountedKernel] = []
    for row, (cells, units) in enumerate(launches(text.splitlines()), start=1):
        kernel = _kernel(cells, units, f"{path}, kernel {row}")
        if found and ADDS_UP.search(kernel.name):
            found[-1] = _with_sums(found[-1], kernel)
        else:
            found.append(kernel)
    if not found:
        raise InputError(f"{path}: no kernel in it; expected what this exports: {COMMAND}")
    return sorted(found, key=lambda each: -each.counted["duration_us"])


def _kernel(cells: Mapping[str, str], units: Mapping[str, str], where: str) -> CountedKernel:
    missing = [name for name in (KERNEL, *METRICS) if name not in cells]
    if missing:
        raise InputError(f"{where}: no column {', '.join(missing)}; expected what this exports: {COMMAND}")
    counted = {}
    for metric, (name, factor) in METRICS.items():
        text, unit = (cells[metric] or "").replace(",", ""), units[metric] or ""
        try:
            counted[name] = float(text) * KNOWN["units"][unit] * factor
        except (ValueError, KeyError):
            raise InputError(
                f"{where}: {metric} is {text!r} {unit}; expected a number in base units"
            ) from None
    if not 0.0 < counted["duration_us"] < math.inf or not 0.0 < counted["sm_cycles"] < math.inf:
        raise InputError(f"{where}: no time or no cycles; expected a kernel that ran")
    if extents := re.findall(r"\d+", cells.get(GRID) or ""):
        counted["ctas"] = float(math.prod(map(int, extents)))
    return CountedKernel(name=cells[KERNEL], counted=counted)


def _with_sums(kernel: CountedKernel, adds: CountedKernel) -> CountedKernel:
    """A kernel of parts of K, and the one that adds them up."""
    both = {name: value + adds.counted[name] for name, value in kernel.counted.items() if name not in OF_CTAS}
    return replace(kernel, counted={**kernel.counted, **both})


def config_of(name: str) -> KernelConfig:
    """The configuration that a kernel's name tells; raises InputError where it tells no tile."""
    cells, kernel = cutlass_cells(name), "cutlass"
    try:
        cells, kernel = (cells, kernel) if cells else (parse_cublas_name(name), "cublas")
    except InputError:
        raise InputError(
            f"the name of kernel {name[:60]!r} tells no tile; expected --cta, and --kernel of "
            "quack, cutlass, cublas or triton"
        ) from None
    return KernelConfig(
        **{**{key: value for key, value in cells.items() if value not in ("", 0)}, "kernel": kernel}
    )


def card_of(name: str, gpu: GpuSpec, problem: GemmProblem) -> GpuSpec:
    """The card as a kernel of this name sees it."""
    copied = copied_bytes(name, problem.a_dtype.bits)
    return gpu if copied is None else before_hopper(gpu, copied)


def with_parts(world: World, kernel: CountedKernel) -> World:
    """The kernel with as many parts of K as its counts tell, where a name tells that K is split and no more."""
    config = world.config
    if config.scheduler != "split_k" or config.split_k > 1:
        return world
    most = min(MOST_PARTS, int(world.composed().kernel.schedule.k_tiles))
    split = [replace(world, config=replace(config, split_k=parts)) for parts in range(1, most + 1)]
    return min(split, key=lambda each: distance_of(each.composed(), kernel.counted))


def beside(world: World, kernel: CountedKernel) -> Beside:
    """The counts of a launch beside those of the kernel that was meant, and what explains them."""
    composed, config, counted = world.composed(), world.config, dict(kernel.counted)
    if config.split_k > 1 or config.scheduler != SCHEDULERS[0]:
        # Partial sums reach L2 as reductions; the profiler does not count those as writes.
        counted.pop("l2_write_bytes", None)
    predicted = {name: value for name, value in counts_of(composed).items() if name in counted}
    predicted["sm_cycles"] = predicted["duration_us"] * float(composed.times.sm_clk_mhz)
    off, gpu = deviations(composed, counted), world.gpu
    reserved = gpu.smem_bytes_per_sm - gpu.smem_bytes_per_cta  # for each CTA
    for each in (predicted, counted):
        # Occupancy, as far as shared memory bounds it.
        fit = gpu.smem_bytes_per_sm // (each["smem_bytes_per_cta"] + reserved)
        each["ctas_per_sm"] = min(fit, gpu.ctas_per_sm)
        each["sm_clk_mhz"] = each["sm_cycles"] / each["duration_us"]
        each["l2_hit_share"] = max(1.0 - each["dram_read_bytes"] / max(each["l2_read_bytes"], 1.0), 0.0)
    rows = []
    for what, value in predicted.items():
        ratio = counted[what] / value if value else None
        row = {"what": what, "counted": counted[what], "predicted": value, "ratio": ratio}
        rows.append({**row, "spreads": off.get(what)})
    return Beside(
        kernel=kernel,
        rows=tuple(rows),
        as_meant=distance_of(composed, counted),
        suspects=tuple(suspects(world, counted)),
    )


EXPECTED = (
    "expected a Chrome trace of PyTorch's profiler (record_shapes=True), or a CSV of nsys stats with "
    "--report cuda_gpu_kern_sum or cuda_gpu_trace"
)
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Parts of K [1]; kernels whose names tell none; those that cuBLASLt's heuristic picks, and more."""
CUDA_CORES = "sgemm"
LIBRARIES = {CUDA_CORES: SGEMM} | {name: re.compile(words) for name, words in KNOWN["libraries"].items()}
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
    split: bool = False
    """Whether a kernel that adds up parts of K follows."""


def read_profile(path: Path) -> tuple[list[Launches], str]:
    """The launches of a profiler's export by kernel and problem, and the card's name, '' where it is unknown.

    Raises InputError for a file that is none.
    """
    found: dict[tuple[str, GemmProblem | None], Launches] = {}
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
        document = json.loads(text) if text.lstrip()[:1] in ("{", "[") else None
        trace = document if isinstance(document, Mapping) else {"traceEvents": document}
        for each in _of_trace(_mappings(trace.get("traceEvents"))) if document else _of_table(text):
            before = found.get((each.name, each.problem), replace(each, calls=0, total_us=0.0))
            calls, total_us = before.calls + each.calls, before.total_us + each.total_us
            found[each.name, each.problem] = replace(each, calls=calls, total_us=total_us)
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error) as error:
        raise InputError(f"{path}: {error}; {EXPECTED}") from None
    if not found:
        raise InputError(f"{path}: no kernel in it; {EXPECTED}")
    cards = [str(each.get("name", "")) for each in _mappings(trace.get("deviceProperties"))]
    return list(found.values()), next(iter(cards), "")


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
        total_us, split = sum(time_us for _, time_us in parts), any(ADDS_UP.search(each) for each, _ in parts)
        yield Launches(name=name, problem=problems.get(operator), calls=1, total_us=total_us, split=split)


def _time(value: Any, where: str) -> float:
    try:
        time = float(value)
    except (TypeError, ValueError):
        time = math.nan
    if not 0.0 <= time < math.inf:
        raise ValueError(f"{where}: {str(value)[:40]!r} is no time")
    return time


def _problem(event: Mapping[str, Any], args: Mapping[str, Any]) -> GemmProblem | None:
    """The product of an operator; None for other operators and where its inputs' sizes are unknown."""
    try:
        (a, a_type, a_steps), (b, b_type, b_steps) = (
            (args["Input Dims"][place], str(args["Input type"][place]), args["Input Strides"][place])
            for place in KNOWN["operands"][str(event.get("name"))]
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
    library, problem, config = library_of(each.name), each.problem, _config(each)
    found = None if problem is None else _predicted(each.name, problem, config, gpu, options)
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
        **{name: getattr(found, name, None) for name in ("error_band", "limiter")},
        "predicted_for": None if found is None else "the fastest" if config is None else "the named kernel",
        "kernel_name": each.name,
    }


def _config(each: Launches) -> KernelConfig | None:
    """What a name tells of a kernel; None without a tile."""
    cells = parse_sgemm_name(each.name)
    try:
        config = KernelConfig(**cells) if cells else config_of(each.name)
    except InputError:
        return None
    return replace(config, scheduler="split_k") if each.split and not cells else config


def _predicted(
    name: str, problem: GemmProblem, config: KernelConfig | None, gpu: GpuSpec, options: Mapping[str, Any]
) -> Prediction | None:
    """None where no such kernel can run, or the card has none of that library."""
    library, card = library_of(name), card_of(name, gpu, problem)
    try:
        if config is None:
            return rank(problem, card, 1, family=library, options=options).best.prediction
        if library == CUDA_CORES:
            return on_cuda_cores(problem, config, gpu)
        splits = SPLITS[1:] if config.scheduler == "split_k" else SPLITS[:1]
        return _named(problem, config, splits, KernelModel(card, **options))
    except InputError:
        return None


def on_cuda_cores(problem: GemmProblem, config: KernelConfig, gpu: GpuSpec) -> Prediction:
    """A named kernel of fp32. Raises InputError."""
    return _named(problem, config, SPLITS, MemoryHierarchyModel(gpu, datapath="cuda_cores"))


def _named(problem: GemmProblem, config: KernelConfig, splits: Sequence[int], model: Model) -> Prediction:
    """A named kernel, with K split as it is fastest: no name tells the parts. Raises InputError."""
    possible = [parts for parts in splits if problem.k >= parts * config.cta_k] or splits[:1]
    found = model.predict_batch(batch_of([(problem, replace(config, split_k=parts)) for parts in possible]))
    return found.row(int(found.runtime_us.argmin()))
