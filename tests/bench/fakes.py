"""A provider and a device without a GPU. The problem's n says in which way a row fails."""

import json
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

from gemm_model import GemmProblem, KernelConfig
from gemm_model.bench.device import PairedTiming, Timing, TimingSettings, in_turn
from gemm_model.bench.provider import (
    CompileError,
    IncorrectResultError,
    KernelError,
    Operands,
    OutOfMemoryError,
    Rotation,
)

COMPILE_FAILS, WRONG, CRASHES, HANGS, NO_MEMORY, LAUNCH_FAILS, COMPILER_CRASHES = range(1008, 1057, 8)
DISPOSITIONS = {
    COMPILE_FAILS: "compile_failed",
    WRONG: "incorrect",
    CRASHES: "crashed",
    HANGS: "hung",
    NO_MEMORY: "out_of_memory",
    LAUNCH_FAILS: "launch_failed",
    COMPILER_CRASHES: "compile_failed",
}
UUID = "GPU-fake-0001"
MEMORY_BYTES = 2**24


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class FakeProvider:
    name = "tests.bench.fakes:FakeProvider"

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        return "the fake has no fp32" if problem.a_dtype.name == "fp32" else ""

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> list[KernelConfig]:
        return [
            KernelConfig(cta_m=128, cta_n=cta_n, swizzle=swizzle) for cta_n in (64, 128) for swizzle in (1, 8)
        ]

    def kernel_key(self, problem: GemmProblem, config: Any) -> Any:
        return (problem.a_dtype, problem.n, config.cta_n)

    def compile(self, problem: GemmProblem, config: Any, compute_capability: tuple[int, int]) -> None:
        if problem.n == COMPILE_FAILS:
            raise CompileError("the fake compiler refuses")
        if problem.n == COMPILER_CRASHES:
            crash()

    def prepare(self, problem: GemmProblem, config: Any, operands: Operands) -> Any:
        if problem.n == LAUNCH_FAILS:
            raise KernelError("the fake launch fails")

        def launch() -> tuple[GemmProblem, Any]:
            if problem.n == CRASHES:
                crash()
            if problem.n == HANGS:
                time.sleep(60)
            return problem, config

        return launch


class FakeDevice:
    """Its times depend on the row alone. FAKE_GPU_UUID and FAKE_ROW_SECONDS change it.

    Each of CUDA_VISIBLE_DEVICES is a card of its own; FAKE_SLOW_CARD is one that takes a tenth longer.
    """

    l2_bytes = 2**20

    def __init__(self) -> None:
        self._clock = 0

    def describe(self) -> dict[str, Any]:
        card = os.environ.get("CUDA_VISIBLE_DEVICES")
        uuid = os.environ.get("FAKE_GPU_UUID", UUID) + (f"-{card}" if card else "")
        return {
            "gpu_name": "Fake GPU",
            "gpu_uuid": uuid,
            "compute_capability": [9, 0],
            "empty_kernel_us": 3.4,
        }

    def operands(self, problem: GemmProblem, placement: int) -> Operands:
        if problem.n == NO_MEMORY:
            raise OutOfMemoryError("the fake GPU is full")
        return Operands(a=None, b=None, out=None)

    def scratch(self, size_bytes: int) -> str:
        return f"{size_bytes} bytes"

    def displace(self, turn: int) -> None:
        pass

    def lend(self, operands: list[list[Operands]]) -> bytes:
        return pickle.dumps(operands)

    def borrow(self, lent: bytes) -> list[list[Operands]]:
        borrowed: list[list[Operands]] = pickle.loads(lent)
        return borrowed

    def check(self, problem: GemmProblem, operands: Operands, launch: Any) -> float:
        launch()
        if problem.n == WRONG:
            raise IncorrectResultError("relative error 0.7, expected at most 0.005")
        return 0.001

    def time_burst(self, launches: Any, settings: TimingSettings, *, cold_l2: bool) -> Timing:
        time.sleep(float(os.environ.get("FAKE_ROW_SECONDS", "0")))
        log = os.environ.get("FAKE_LAUNCH_LOG")
        problem, config = launches[0]()
        if log:
            with Path(log).open("a") as file:
                file.write(json.dumps([problem.m, problem.n, config.cta_n, config.swizzle]) + "\n")
        base = problem.m / 64 + config.cta_n / 128 + config.swizzle / 100 + float(not cold_l2)
        if "FAKE_SLOW_CARD" in os.environ:
            base *= 1.0 + 0.1 * (os.environ["FAKE_SLOW_CARD"] == os.environ.get("CUDA_VISIBLE_DEVICES"))
        drift = float(os.environ.get("FAKE_DRIFT", "0")) * self._clock
        self._clock += 1
        samples = tuple(base + drift + 0.25 * index for index in range(settings.repeats))
        return Timing(samples_us=samples, count=len(samples), state={"sm_mhz": 1980, "power_w": 100.0})

    def time_sustained(self, launches: Any, settings: TimingSettings) -> Timing:
        launches[0]()
        return Timing(samples_us=(5.0, 5.5, 6.0), count=300, state={"sm_mhz": 1410, "power_w": 699.0})

    def rotating_operands(
        self, problem: GemmProblem, rotation: Rotation, part: tuple[int, int]
    ) -> list[Operands]:
        if rotation.footprint_bytes(problem) > MEMORY_BYTES:
            raise OutOfMemoryError(f"a rotation of {rotation.weights} copies does not fit")
        return [self.operands(problem, turn) for turn in range(rotation.weights)]

    def norm(self, operands: Operands) -> Any:
        return lambda: None

    def time_graph(self, launches: Any, settings: TimingSettings, *, settled: bool) -> Timing:
        """A microsecond for each launch of the turn, less without PDL, more where settled."""
        first = launches[0]()
        pdl = first is not None and first[1].pdl
        time_us = len(launches) - 0.5 * pdl + 0.25 * settled
        return Timing(samples_us=(time_us,), count=64, state={"graph_launches": 64, "sm_mhz": 1700})

    def time_graph_pair(self, first: Any, second: Any, settings: TimingSettings) -> PairedTiming:
        """The times of `time_graph`, drifting by a tenth of a microsecond from replay to replay."""
        order = in_turn(first, second, 4)
        times_us = [self.time_graph(each, settings, settled=False).samples_us[0] for each in order]
        drifting = [time_us + 0.1 * index for index, time_us in enumerate(times_us)]
        return PairedTiming.of(drifting, 64, {"graph_launches": 64})

    def profile(self, launch: Any, label: str) -> dict[str, Any]:
        launch()
        return {"power_w": 90.0}

    def healthy(self) -> bool:
        return True
