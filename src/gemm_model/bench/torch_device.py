"""A CUDA device through torch: events, the spin that lets the card rest, the L2 flush, NVML's sensors."""

from __future__ import annotations

import ctypes
import math
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from gemm_model.bench.captured_graph import captured, elapsed_us, programmatic_edges
from gemm_model.bench.device import PairedTiming, Timing, TimingSettings, in_turn
from gemm_model.bench.kind_tensors import results
from gemm_model.bench.provider import KernelError, Launch, Operands, OutOfMemoryError, Rotation
from gemm_model.bench.tensors import OperandPool, compare, error_limit, poison, references
from gemm_model.bench.torch_library import as_kernel_errors
from gemm_model.config import read_toml
from gemm_model.config.numbers import room_numbers
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import MissingExtraError

OPERAND_SEED = 20240229
STACK_LIMIT = 0
"""Code of the limit of a thread's stack [1]; `cuCtxSetLimit`; CU_LIMIT_STACK_SIZE, CUDA driver API."""


class Sensors:
    """NVML's clocks, power, temperature and throttle reasons of one card."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def describe(self) -> dict[str, Any]:
        """Bus width [bit] (None if the driver does not report it), power cap, highest clocks, and the driver."""
        nvml, handle = self._nvml, self._handle
        try:
            bus_bits = int(nvml.nvmlDeviceGetMemoryBusWidth(handle))
        except nvml.NVMLError:
            bus_bits = None
        return {
            "dram_bus_bits": bus_bits,
            "power_cap_w": float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1e3,
            "max_sm_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
        }

    def processes(self) -> int:
        """How many processes compute on the card, this one included."""
        return len(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))

    def read(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        known = enumerate(read_toml("other_names")["nvml"]["throttle"])
        reasons = [name for bit, name in known if mask >> bit & 1]
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": round(self._power_w(), 1),
            "temp_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle": "+".join(reasons) or "none",
        }

    def _power_w(self) -> float:
        """Instantaneous power if the card reports it, else NVML's running mean [W]."""
        nvml = self._nvml
        field = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return float(field.value.uiVal) / 1e3
        return float(nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3


class TorchDevice:
    """The first visible CUDA device: its identity, operands, checks and the timing protocols.

    Another class with these methods may take its place (`RunOptions.device`).
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise MissingExtraError("no CUDA GPU is visible; the benchmark needs one")
        torch.cuda.set_device(0)
        self._properties = torch.cuda.get_device_properties(0)
        self.l2_bytes: int = self._properties.L2_cache_size
        self.sensors = Sensors(self.uuid)
        numbers = room_numbers("bench")
        share = self._properties.total_memory // int(numbers.pool_memory_share)
        elements = min(int(numbers.pool_elements), share)
        self._pool = OperandPool("cuda", OPERAND_SEED, elements)
        self._flush = torch.ones(
            int(numbers.flush_l2_multiple) * self.l2_bytes // 4, dtype=torch.float32, device="cuda"
        )
        self._flush_sum = torch.zeros((), dtype=torch.float32, device="cuda")
        self._reference: tuple[Any, tuple[torch.Tensor, ...]] | None = None
        self._spin_cycles_per_ms = self._measure_spin()

    @property
    def uuid(self) -> str:
        text = str(self._properties.uuid)
        return text if text.startswith("GPU-") else f"GPU-{text}"

    def describe(self) -> dict[str, Any]:
        """Identity of the card and its software: name, UUID, compute capability, SMs, memory, driver."""
        properties = self._properties
        return {
            "gpu_name": properties.name,
            "gpu_uuid": self.uuid,
            "compute_capability": [properties.major, properties.minor],
            "sm_count": properties.multi_processor_count,
            "l2_bytes": self.l2_bytes,
            "memory_bytes": properties.total_memory,
            **self.sensors.describe(),
            "cuda": torch.version.cuda,
            "empty_kernel_us": round(self.empty_kernel_us(), 3),
        }

    def operands(self, problem: GemmProblem, placement: int) -> Operands:
        """Random operands and an output at a place in memory; raises OutOfMemoryError."""
        with as_kernel_errors():
            return self._pool.operands(problem, placement)

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """Memory that a kernel may use for itself; raises OutOfMemoryError."""
        with as_kernel_errors():
            return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    def displace(self, turn: int) -> None:
        """Move memory that the driver keeps for kernels, such as spilled registers, to another place each turn."""
        numbers = room_numbers("bench")
        stack_bytes = int(numbers.least_stack_bytes + turn * numbers.stack_step_bytes)
        code = ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(STACK_LIMIT, ctypes.c_size_t(stack_bytes))
        if code != 0:
            raise KernelError(
                f"the driver refuses {stack_bytes} bytes of local memory a thread (code {code})"
            )

    def lend(self, operands: list[list[Operands]]) -> bytes:
        """A handle with which another process on this card uses the same memory while this process lives."""
        return bytes(ForkingPickler.dumps(operands))

    def borrow(self, lent: bytes) -> list[list[Operands]]:
        """The operands that another process lends."""
        operands: list[list[Operands]] = pickle.loads(lent)
        return operands

    def rotating_operands(
        self, problem: GemmProblem, rotation: Rotation, part: tuple[int, int]
    ) -> list[Operands]:
        """Operands of each launch of a rotation, in part i of n of the memory; raises OutOfMemoryError."""
        needed_gb = rotation.footprint_bytes(problem) * part[1] / 1e9
        memory_gb = self._properties.total_memory / 1e9
        if needed_gb > room_numbers("bench").usable_memory * memory_gb:
            raise OutOfMemoryError(
                f"a rotation of {rotation.weights} copies of the weights needs {needed_gb:.1f} GB; "
                f"this card has {memory_gb:.1f} GB"
            )
        with as_kernel_errors():
            return self._pool.rotating(problem, rotation, part)

    def norm(self, operands: Operands) -> Launch:
        """A launch that writes A, its rows normed."""
        from gemm_model.bench.rms_norm import rms_norm

        return partial(rms_norm, operands.a, operands.a)

    def check(self, problem: GemmProblem, operands: Operands, launch: Launch) -> float:
        """Relative error of the result; raises IncorrectResultError, or KernelError from the launch."""
        try:
            with as_kernel_errors(RuntimeError):
                if self._reference is None or self._reference[0] != problem:
                    self._reference = None
                    self._reference = (problem, references(problem, operands))
                poison(operands.out)
                launch()
                torch.cuda.synchronize()
                limit = error_limit(problem)
                pairs = zip(results(problem, operands), self._reference[1], strict=True)
                return max(compare(found, reference, limit) for found, reference in pairs)
        except OutOfMemoryError:
            self._reference = None
            raise

    def time_burst(self, launches: Sequence[Launch], settings: TimingSettings, *, cold_l2: bool) -> Timing:
        """Each launch queued behind a one-thread spin, so that the card rests, the host is ahead, and the
        pair of events brackets the kernel alone. Before it L2 is flushed, or filled by the same launch.
        """
        caches = {"flush": cold_l2, "fill": not cold_l2}
        launches[0]()
        estimate_ms = self._spaced_launches(launches, settings.spin_ms, 1, **caches)[0]
        rest_ms = max(settings.spin_ms, settings.spin_factor * estimate_ms)
        affordable = int(settings.row_budget_ms / (rest_ms + estimate_ms))
        count = min(settings.repeats, max(settings.min_repeats, affordable))
        samples = self._spaced_launches(launches, rest_ms, count, **caches)
        return Timing(
            samples_us=tuple(1e3 * sample for sample in samples), count=count, state=self.sensors.read()
        )

    def time_sustained(self, launches: Sequence[Launch], settings: TimingSettings) -> Timing:
        """Windows of graph replays, one placement each, in turn; those after the settling time count."""
        launches[0]()
        estimate_ms = self._spaced_launches(launches, settings.spin_ms, 1)[0]
        numbers = room_numbers("bench")
        repeats = min(int(numbers.window_graph_launches), max(1, round(numbers.window_ms / estimate_ms)))
        placed = launches[: int(numbers.sustained_placements)]
        graphs = [captured([launch] * repeats) for launch in placed]
        return self._settled(graphs, repeats, estimate_ms, settings.settle_ms, settings.sustained_ms)

    def time_graph(self, launches: Sequence[Launch], settings: TimingSettings, *, settled: bool) -> Timing:
        """Replays of one graph that holds whole turns of the launches; after a rest each, or settled."""
        estimate_ms, turns = self._turns(launches, settings)
        count = turns * len(launches)
        graph = captured(list(launches) * turns, keep_graph=True)
        columns = {"graph_launches": count, "programmatic_edges": programmatic_edges(graph)}
        if settled:
            timing = self._settled([graph], count, estimate_ms, settings.settle_ms, settings.graph_settled_ms)
            return replace(timing, state={**timing.state, **columns})
        rest_ms = _rest_ms(count * estimate_ms, settings)
        # The first replay also uploads the graph.
        replays_ms = self._spaced_launches([graph.replay], rest_ms, 1 + settings.graph_repeats)[1:]
        return Timing(
            samples_us=tuple(1e3 * replay_ms / count for replay_ms in replays_ms),
            count=count * len(replays_ms),
            state={**self.sensors.read(), **columns},
        )

    def time_graph_pair(
        self, first: Sequence[Launch], second: Sequence[Launch], settings: TimingSettings
    ) -> PairedTiming:
        """Replays of both graphs in turn, each after a rest, until the mean difference is known well
        enough.
        """
        estimate_ms, turns = self._turns(first, settings)
        count = turns * len(first)
        one, other = (captured(list(each) * turns, keep_graph=True) for each in (first, second))
        columns = {"graph_launches": count, "programmatic_edges": programmatic_edges(one)}
        rest_ms = _rest_ms(count * estimate_ms, settings)
        order = in_turn(one.replay, other.replay, int(room_numbers("bench").pairs_at_once))
        # The first replays also upload the graphs.
        self._spaced_launches(order[:2], rest_ms, 2)
        end = time.monotonic() + settings.pair_budget_ms / 1e3
        samples_us: list[float] = []
        while True:
            replays_ms = self._spaced_launches(order, rest_ms, len(order))
            samples_us += [1e3 * replay_ms / count for replay_ms in replays_ms]
            timing = PairedTiming.of(samples_us, count, {**self.sensors.read(), **columns})
            if timing.error_us <= settings.pair_error_us or time.monotonic() >= end:
                return timing

    def _turns(self, launches: Sequence[Launch], settings: TimingSettings) -> tuple[float, int]:
        """Milliseconds of a launch, roughly, and how many turns of the launches a graph holds."""
        launches[0]()
        estimate_ms = self._spaced_launches(launches, settings.spin_ms, 1)[0]
        numbers = room_numbers("bench")
        wanted = max(settings.graph_ms / estimate_ms, numbers.fewest_graph_launches)
        most = int(numbers.most_graph_launches) // len(launches)
        return estimate_ms, max(1, min(math.ceil(wanted / len(launches)), most))

    def _settled(
        self,
        graphs: Sequence[torch.cuda.CUDAGraph],
        repeats: int,
        estimate_ms: float,
        settle_ms: float,
        measured_ms: float,
    ) -> Timing:
        """Windows of replays of each graph of `repeats` launches in turn; those after `settle_ms` count.

        A window is launched before the sensors are read for the one before, so that the card never rests:
        rests of 1 % let a capped card run 2.5 % faster.
        """
        replays = max(1, round(room_numbers("bench").window_ms / (repeats * estimate_ms)))
        turns = cycle(graphs)
        kept_us: list[float] = []
        states: list[dict[str, Any]] = []
        spent_ms = 0.0
        ahead = _launched(next(turns), replays)
        while not kept_us or spent_ms < settle_ms + measured_ms:
            (start, stop), ahead = ahead, _launched(next(turns), replays)
            state = self.sensors.read()
            stop.synchronize()
            window_ms = float(start.elapsed_time(stop))
            if spent_ms >= settle_ms:
                kept_us.append(1e3 * window_ms / (replays * repeats))
                states.append(state)
            spent_ms += window_ms
        ahead[1].synchronize()
        return Timing(
            samples_us=tuple(kept_us),
            count=replays * repeats * len(kept_us),
            state={
                **states[-1],
                "sm_mhz": round(statistics.mean(state["sm_mhz"] for state in states), 1),
                "power_w": round(statistics.mean(state["power_w"] for state in states), 1),
            },
        )

    def profile(self, launch: Launch, label: str) -> dict[str, Any]:
        """Launch once under a label that a profiler sees; returns the card's state."""
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(label)
        launch()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        return self.sensors.read()

    def rested_launches(self, launch: Launch, count: int) -> None:
        """Launch `count` times, each on a rested card with a cold L2, and wait for the end."""
        self._spaced_launches([launch], room_numbers("bench").traced_rest_ms, count, flush=True)

    def kernel_times_us(self, launch: Launch, count: int) -> list[float]:
        """Durations of the launch's longest kernel, without launch overhead, over `count` rested launches.

        The longest kernel is the one that computes: a split-K launch clears its counters with another.
        """
        own = {name for name, _ in self._kernels(launch)}
        found = self._kernels(lambda: self.rested_launches(launch, count))
        times_us = [time_us for name, time_us in found if name in own]
        longest_us: list[float] = np.array(times_us).reshape(count, -1).max(axis=1).tolist()
        return longest_us

    def _kernels(self, run: Callable[[], object]) -> list[tuple[str, float]]:
        """Name and time in us of each kernel that runs meanwhile, in their order, as CUPTI reads it."""
        from torch.profiler import DeviceType, ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run()
            torch.cuda.synchronize()
        events = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
        events.sort(key=lambda event: event.time_range.start)
        return [(event.name, event.time_range.elapsed_us()) for event in events]

    def healthy(self) -> bool:
        """Whether the context still works: an illegal access or a hung kernel leaves it dead for good."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def median_rested_us(self, launch: Launch, count: int) -> float:
        """Median time of `count` launches, each after a short spin; caches are left as they are."""
        return 1e3 * statistics.median(self._spaced_launches([launch], TimingSettings().spin_ms, count))

    def empty_kernel_us(self) -> float:
        """What a burst row reads for a kernel of no work: it differs by half a microsecond among hosts."""
        empty = partial(torch.cuda._sleep, 0)
        spin_ms, count = TimingSettings().spin_ms, int(room_numbers("bench").empty_launches)
        return 1e3 * statistics.median(self._spaced_launches([empty], spin_ms, count, flush=True))

    def _measure_spin(self) -> float:
        """Cycles of torch's one-thread spin in a millisecond."""
        cycles = 4_000_000
        spin = partial(torch.cuda._sleep, cycles)
        spin()
        return 1e3 * cycles / elapsed_us(spin)

    def _spaced_launches(
        self,
        launches: Sequence[Launch],
        rest_ms: float,
        count: int,
        *,
        flush: bool = False,
        fill: bool = False,
    ) -> list[float]:
        """Milliseconds of launches after a rest, L2 flushed or filled before each, or left as it is."""
        pairs = []
        for _, launch in zip(range(count), cycle(launches), strict=False):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if fill:
                # Launches take turns in memory: only this one's own run leaves its operands in L2.
                launch()
            torch.cuda._sleep(int(rest_ms * self._spin_cycles_per_ms))
            if flush:
                # Reads, not writes: the lines left behind are clean, so the kernel writes none of them back.
                torch.sum(self._flush, dim=0, out=self._flush_sum)
            start.record()
            launch()
            stop.record()
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) for start, stop in pairs]


def _launched(graph: torch.cuda.CUDAGraph, replays: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Events around `replays` replays of a graph, which wait in the queue."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    stop.record()
    return start, stop


def _rest_ms(graph_ms: float, settings: TimingSettings) -> float:
    """Rest before a replay of a graph that takes so long."""
    return max(settings.spin_ms, settings.graph_rest_factor * graph_ms)
