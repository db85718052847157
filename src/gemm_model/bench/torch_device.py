"""A CUDA device through torch: events, the spin that lets the card rest, the L2 flush, NVML's sensors."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from gemm_model.bench.device import Timing, TimingSettings
from gemm_model.bench.provider import KernelError, Launch, Operands, OutOfMemoryError
from gemm_model.bench.tensors import OperandPool, compare, error_limit, poison, reference_product
from gemm_model.errors import MissingExtraError
from gemm_model.problem import GemmProblem

OPERAND_SEED = 20240229
POOL_ELEMENTS = 2**26
FLUSH_L2_MULTIPLE = 4
GRAPH_LAUNCHES = 64
WINDOW_MS = 8.0
"""Sustained: length of one window; its mean launch time is one sample."""

THROTTLE_REASONS = (
    (0x1, "idle"),
    (0x2, "app_clocks"),
    (0x4, "power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "thermal_sw"),
    (0x40, "thermal_hw"),
    (0x80, "power_brake"),
    (0x100, "display_clocks"),
)
"""Bits of nvmlClocksEventReasons (NVML API reference)."""


class Sensors:
    """NVML's clocks, power, temperature and throttle reasons of one card."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def power_cap_w(self) -> float:
        return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3

    def read(self) -> dict[str, Any]:
        nvml, handle = self._nvml, self._handle
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        reasons = [name for bit, name in THROTTLE_REASONS if mask & bit]
        return {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "mem_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_w": round(self._power_w(), 1),
            "temp_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle": "+".join(reasons) or "none",
        }

    def _power_w(self) -> float:
        """Power of this moment where the card tells it, else NVML's running mean."""
        nvml = self._nvml
        field = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn == nvml.NVML_SUCCESS:
            return float(field.value.uiVal) / 1e3
        return float(nvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3


class TorchDevice:
    """The first visible CUDA device."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise MissingExtraError("no CUDA GPU is visible; the benchmark needs one")
        torch.cuda.set_device(0)
        self._properties = torch.cuda.get_device_properties(0)
        self._sensors = Sensors(self.uuid)
        self._pool = OperandPool("cuda", OPERAND_SEED, POOL_ELEMENTS)
        self._flush = torch.ones(
            FLUSH_L2_MULTIPLE * self._properties.L2_cache_size // 4, dtype=torch.float32, device="cuda"
        )
        self._flush_sum = torch.zeros((), dtype=torch.float32, device="cuda")
        self._reference: tuple[Any, torch.Tensor] | None = None
        self._spin_cycles_per_ms = self._measure_spin()

    @property
    def uuid(self) -> str:
        text = str(self._properties.uuid)
        return text if text.startswith("GPU-") else f"GPU-{text}"

    def describe(self) -> dict[str, Any]:
        properties = self._properties
        return {
            "gpu_name": properties.name,
            "gpu_uuid": self.uuid,
            "compute_capability": [properties.major, properties.minor],
            "sm_count": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
            "power_cap_w": self._sensors.power_cap_w(),
            "driver": self._sensors.driver(),
            "cuda": torch.version.cuda,
        }

    def operands(self, problem: GemmProblem) -> Operands:
        try:
            return self._pool.operands(problem)
        except torch.cuda.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemoryError(str(error).splitlines()[0]) from error

    def check(self, problem: GemmProblem, operands: Operands, launch: Launch) -> float:
        try:
            if self._reference is None or self._reference[0] != problem:
                self._reference = None
                self._reference = (problem, reference_product(problem, operands))
            poison(operands.out)
            launch()
            torch.cuda.synchronize()
            return compare(operands.out, self._reference[1], error_limit(problem))
        except torch.cuda.OutOfMemoryError as error:
            self._reference = None
            torch.cuda.empty_cache()
            raise OutOfMemoryError(str(error).splitlines()[0]) from error
        except RuntimeError as error:
            raise KernelError(str(error).splitlines()[0]) from error

    def time_burst(self, launch: Launch, settings: TimingSettings, *, cold_l2: bool) -> Timing:
        """Each launch queued behind a one-thread spin and the flush, so that the card rests, the host is
        ahead, and the pair of events brackets the kernel alone."""
        flush = self._read_through_l2 if cold_l2 else None
        launch()
        estimate_ms = self._spaced_launches(launch, flush, settings.spin_ms, 1)[0]
        rest_ms = max(settings.spin_ms, settings.spin_factor * estimate_ms)
        affordable = int(settings.row_budget_ms / (rest_ms + estimate_ms))
        count = min(settings.repeats, max(settings.min_repeats, affordable))
        samples = self._spaced_launches(launch, flush, rest_ms, count)
        return Timing(
            samples_us=tuple(1e3 * sample for sample in samples), count=count, state=self._sensors.read()
        )

    def time_sustained(self, launch: Launch, settings: TimingSettings) -> Timing:
        """Windows of graph replays until time and with it clock and power settle; the settled half counts."""
        launch()
        estimate_ms = self._spaced_launches(launch, None, settings.spin_ms, 1)[0]
        launches = min(GRAPH_LAUNCHES, max(1, round(WINDOW_MS / estimate_ms)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                launch()
        replays = max(1, round(WINDOW_MS / (launches * estimate_ms)))
        windows: list[float] = []
        state: dict[str, Any] = {}
        spent_ms = 0.0
        while spent_ms < settings.settle_max_ms:
            window_ms, state = self._window(graph, replays)
            windows.append(window_ms / (replays * launches))
            spent_ms += window_ms
            if spent_ms >= settings.settle_min_ms and _settled(windows, settings.settle_tolerance):
                break
        kept = windows[len(windows) // 2 :]
        return Timing(
            samples_us=tuple(1e3 * window for window in kept),
            count=replays * launches * len(kept),
            state=state,
        )

    def profile(self, launch: Launch, label: str) -> dict[str, Any]:
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(label)
        launch()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        return self._sensors.read()

    def healthy(self) -> bool:
        """Whether the context still works: an illegal access or a hung kernel leaves it dead for good."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _measure_spin(self) -> float:
        """Cycles of torch's one-thread spin in a millisecond."""
        cycles = 4_000_000
        torch.cuda._sleep(cycles)
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda._sleep(cycles)
        stop.record()
        stop.synchronize()
        return cycles / float(start.elapsed_time(stop))

    def _read_through_l2(self) -> None:
        """Reads, not writes: the lines left behind are clean, so the kernel pays no write-back for them."""
        torch.sum(self._flush, dim=0, out=self._flush_sum)

    def _spaced_launches(self, launch: Launch, flush: Any, rest_ms: float, count: int) -> list[float]:
        pairs = []
        for _ in range(count):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(int(rest_ms * self._spin_cycles_per_ms))
            if flush is not None:
                flush()
            start.record()
            launch()
            stop.record()
            pairs.append((start, stop))
        torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) for start, stop in pairs]

    def _window(self, graph: torch.cuda.CUDAGraph, replays: int) -> tuple[float, dict[str, Any]]:
        """Time of `replays` replays, and the sensors read while they run."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(replays):
            graph.replay()
        stop.record()
        state = self._sensors.read()
        stop.synchronize()
        return float(start.elapsed_time(stop)), state


def _settled(windows: list[float], tolerance: float) -> bool:
    """Whether the last three windows agree within `tolerance` of their median."""
    last = windows[-3:]
    return len(last) == 3 and max(last) - min(last) <= tolerance * statistics.median(last)
