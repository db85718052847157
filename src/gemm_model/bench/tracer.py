"""Traces of real kernels: NVIDIA's in-kernel tracer IKET around a worker, and its output in our format.

The tracer runs the worker twice (once to see how many events a warp makes) and decodes what the second run
wrote. Kernels are compiled with tracing ranges into a cache of their own, by the first run for both. In turn
with these launches two more workers launch the same kernels without ranges: one times them without a tracer,
of the other one the tracer takes the lifetimes of warps alone. What the ranges add is measured against these.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemm_model.bench.counters import last_line
from gemm_model.bench.rows import Row
from gemm_model.bench.traced_worker import LAUNCHES_A_TURN, LIFETIMES, RANGES, ROUNDS, UNTRACED, end_turns
from gemm_model.core.batch import numbers_of
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.kernel_model.kernel import Geometry
from gemm_model.kernel_model.model import KernelModel
from gemm_model.timeline import iket
from gemm_model.timeline.phases import median_of
from gemm_model.timeline.trace import Trace, kernel_identity

TRACER = "iket"
TRACED_DEVICE = "gemm_model.bench.torch_device:TorchDevice"
PROCESS_LIMIT_S = 540.0
"""Most time of one run of the tracer [s]; all traces; two runs of a worker and the decoding of some 10
kernels take 60 s."""
MOST_RANGES = 8_000_000
"""Most ranges of one run of the tracer [ranges]; all traces; so many are 2.2 GB of JSON, which take 5 GB to
read."""
EPILOGUE_COLUMNS = 32
"""Columns that an epilogue stores at once [elements]; QuACK, each time with four ranges of a warp; QuACK's
source."""
TRACED_TURNS = iket.LaunchedInTurns(ROUNDS, LAUNCHES_A_TURN[RANGES])
LIFETIME_TURNS = iket.LaunchedInTurns(ROUNDS, LAUNCHES_A_TURN[LIFETIMES])
LAUNCHES = TRACED_TURNS.launches + 1
"""Launches of a row in all [1]; under the tracer; a library's first use of a kernel launches it once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How to trace."""

    device: str
    """module:class of the device."""
    events_per_warp: int | None = None
    """Room for the events of a warp; None as many as the tracer's first run counts."""
    waits: bool = True
    """Whether each wait of the ring is traced: time per k tile, at twice the overhead."""
    stores: bool = False
    """Whether the parts of each epilogue are traced: most of the ranges where K is short."""
    every_warp: bool = False
    """Whether all warps of a warpgroup are in the traces, not its first one alone."""
    keep: Path | None = None
    """A folder for the tracer's own files; None removes them."""


def require_tracer() -> None:
    """Raise MissingExtraError where the tracer is not installed."""
    if find_spec(TRACER) is None:
        raise MissingExtraError(
            "no in-kernel tracer: it comes with nvidia-cutlass-dsl 4.8, pip install 'gemm-model[bench]'"
        )


def traced_kernel(row: Row, gpu: GpuSpec) -> iket.TracedKernel:
    """What the trace of a row is of. Raises InputError for a row without a tile."""
    config, geometry = _geometry(row, gpu)
    return iket.TracedKernel(
        gpu=gpu.name,
        identity=kernel_identity(row.problem, config),
        k_tiles=int(geometry.schedule.k_tiles),
        stages=int(geometry.resources.stages),
    )


def _geometry(row: Row, gpu: GpuSpec) -> tuple[KernelConfig, Geometry]:
    if not isinstance(row.config, KernelConfig):
        raise InputError(f"{row.kernel} chooses its own kernel; expected one with a tile to trace")
    evaluation = KernelModel(gpu, residual="off").evaluate_row(numbers_of(row.problem, row.config))
    return row.config, evaluation.geometry


def expected_ranges(row: Row, gpu: GpuSpec, *, stores: bool = False) -> int:
    """About how many ranges the trace of a row holds, all launches of it together."""
    config, geometry = _geometry(row, gpu)
    k_tiles = int(geometry.schedule.k_tiles)
    warps = iket.WARPS_PER_GROUP * int(geometry.resources.warpgroups)
    # Whole tiles, next tiles and waits; the producer has no epilogue.
    computing = warps * (k_tiles + 4 + (4 * config.cta_n // EPILOGUE_COLUMNS if stores else 0))
    tiles = int(geometry.schedule.tiles) * config.cluster_m * config.cluster_n
    return LAUNCHES * tiles * (computing + k_tiles + 3)


def batches(rows: Sequence[Row], gpu: GpuSpec, *, stores: bool = False) -> list[list[int]]:
    """Positions of the rows that one run of the tracer takes: alike in size, so that buffers fit."""
    sizes = [expected_ranges(row, gpu, stores=stores) for row in rows]
    found: list[list[int]] = []
    filled = MOST_RANGES
    for index in sorted(range(len(rows)), key=sizes.__getitem__):
        if filled + sizes[index] > MOST_RANGES:
            found.append([])
            filled = 0
        found[-1].append(index)
        filled += sizes[index]
    return found


def trace_rows(rows: Sequence[Row], gpu: Callable[[], GpuSpec], options: TraceOptions) -> list[Trace]:
    """The traces of some rows, in one run of the tracer: phases are medians of all launches that count.

    Raises InputError for a kernel that does not run, and where events are lost.
    """
    with tempfile.TemporaryDirectory(prefix="gemm-trace-") as folder:
        place = Path(folder)
        cells = [row.columns() for row in rows]
        (place / "rows.json").write_text(json.dumps(cells))
        out = options.keep or place / "iket"
        lived = place / "lifetimes"
        words, untraced = _in_turn(rows, place, options, out, lived)
        launches = iket.read_iket(_only_trace(out, words))
        counted = iket.counted_launches(launches, len(rows), TRACED_TURNS)
        names = [own[0].kernel_name for own in counted]
        unranged_us = iket.lifetimes_us(_only_trace(lived, words), names, LIFETIME_TURNS)
    kernels = [
        replace(traced_kernel(row, gpu()), untraced_us=reply["kernel_us"], unranged_us=lived_us)
        for row, reply, lived_us in zip(rows, untraced, unranged_us, strict=True)
    ]
    found = [
        median_of([iket.trace_of(launch, kernel, every_warp=options.every_warp) for launch in own])
        for own, kernel in zip(counted, kernels, strict=True)
    ]
    lost = max(iket.lost_warps(words), sum(trace.info.lost_warps for trace in found))
    if lost:
        room = "its own count" if options.events_per_warp is None else str(options.events_per_warp)
        raise InputError(
            f"the tracer's buffer lost the events of {lost} warps at {room} events a warp; "
            "expected more by --events-per-warp"
        )
    return found


def _in_turn(
    rows: Sequence[Row], place: Path, options: TraceOptions, out: Path, lived: Path
) -> tuple[str, list[dict[str, Any]]]:
    """What the tracer printed where it traced ranges, and the replies about the kernels without the tracer.

    The tracer's files are then in `out`, those of lifetimes in `lived`.
    """
    traced = [*_tracer(out, _tracing(options)), *_worker(place, options, RANGES), *_ranges(options)]
    commands = {
        # Kernels with ranges have the same name in the library's cache as those without.
        RANGES: (traced, {"QUACK_CACHE_DIR": str(place / "kernels")}),
        UNTRACED: (_worker(place, options, UNTRACED), {}),
        LIFETIMES: ([*_tracer(lived, ["--warp-trace"]), *_worker(place, options, LIFETIMES)], {}),
    }
    failed: list[BaseException] = []
    with ThreadPoolExecutor(len(commands)) as pool:
        running = {part: pool.submit(_run, words, place, env) for part, (words, env) in commands.items()}
        for done in as_completed(running.values()):
            error = done.exception()
            if error is not None:
                failed.append(error)
                end_turns(place, str(error))
    # A kernel that does not run says so itself, and is why nobody's turn comes.
    if not failed or (place / f"{UNTRACED}.json").exists():
        replies = _replies(rows, place)
    if failed:
        raise failed[0]
    return running[RANGES].result(), replies


def _worker(place: Path, options: TraceOptions, part: str) -> list[str]:
    command = [sys.executable, "-m", "gemm_model.bench.traced_worker", "--device", options.device]
    files = ["--rows", str(place / "rows.json"), "--replies", str(place / f"{part}.json")]
    return [*command, *files, "--turns", str(place), "--part", part]


def _ranges(options: TraceOptions) -> list[str]:
    """Words for the worker about the ranges of its kernels."""
    return [*(["--waits"] if options.waits else []), *([] if options.stores else ["--no-stores"])]


def _tracing(options: TraceOptions) -> list[str]:
    """Words for the tracer where it traces ranges."""
    words = [] if options.keep is None else ["--keep"]
    if options.events_per_warp is not None:
        words += ["--max-ts-cnt-per-warp", str(options.events_per_warp)]
    return words


def _tracer(out: Path, words: Sequence[str]) -> list[str]:
    """The tracer around the worker; JSON alone is decoded, the other outputs take most of its time."""
    command = [sys.executable, "-m", f"{TRACER}.cli.main", "--output-dir", str(out), "--clobber"]
    return [*command, "--log-level", "warn", "profile", "--postprocess", "json", *words, "--"]


def _only_trace(folder: Path, words: str) -> Path:
    """The trace that the tracer left in its folder. Raises InputError where that is not one."""
    traces = sorted(folder.glob("*.trace.json"))
    if len(traces) != 1:
        raise InputError(f"the tracer left {len(traces)} traces ({last_line(words)}); expected one")
    return traces[0]


def _run(command: Sequence[str], place: Path, environment: Mapping[str, str]) -> str:
    """What a command printed. Raises InputError where it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROCESS_LIMIT_S,
            env={**os.environ, **environment},
            cwd=place,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the traced kernels did not end within {PROCESS_LIMIT_S:.0f} s") from None
    words = done.stdout + done.stderr
    if done.returncode != 0:
        raise InputError(f"the traced process ended with code {done.returncode}: {last_line(words)}")
    return words


def _replies(rows: Sequence[Row], place: Path) -> list[dict[str, Any]]:
    replies: list[dict[str, Any]] = json.loads((place / f"{UNTRACED}.json").read_text())
    for row, reply in zip(rows, replies, strict=True):
        if reply["disposition"] != "ok":
            size = f"{row.problem.m} x {row.problem.n} x {row.problem.k}"
            raise InputError(f"{row.kernel} {size}: {reply['disposition']} ({reply['detail']})")
    return replies
