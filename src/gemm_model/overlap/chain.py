"""A chain of layers (previous kernel, weight-prefetch GEMM) as one CUDA graph with programmatic edges.

Each layer has its own weights, so that a chain reads far more than L2 holds. Layer l normalizes (or reduces)
the output of layer l - 1 and multiplies it by its weights. Needs the CuTe DSL, torch and a Hopper GPU.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cuda.bindings.driver as cuda
import cutlass.cute as cute
import torch
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.runtime import make_ptr

from gemm_model.bench.captured_graph import elapsed_us
from gemm_model.overlap.config import TRACE_EVENTS, KernelBuild, OverlapSetting, check_problem
from gemm_model.overlap.kernel import ELEMENT_TYPE, WeightPrefetchGemm
from gemm_model.overlap.previous_kernel import PreviousKernel, vectors_per_thread
from gemm_model.overlap.views import trace_of_events
from gemm_model.timeline.trace import Trace

REPLAYS, REPEATS = 4, 5
"""Graphs replayed for one time, and such times of a setting [1]; layers; chosen."""
TORCH_TYPE = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousSpec:
    """The kernel before each GEMM: sum of its inputs, normalized or not, ``extra_clocks`` longer.

    trigger_early: it lets the GEMM start at once instead of after its last store.
    """

    normalize: bool = True
    extra_clocks: int = 0
    trigger_early: bool = True


def device_pointer(element_type: Any, address: int) -> Any:
    """Global-memory pointer, 16-byte aligned as TMA demands."""
    return make_ptr(element_type, address, cute.AddressSpace.gmem, assumed_align=16)


@cache
def compile_gemm(build: KernelBuild) -> Any:
    """The compiled GEMM; works without a GPU (for ``CUTE_DSL_ARCH=sm_90a``)."""
    return cute.compile(
        WeightPrefetchGemm(build),
        device_pointer(ELEMENT_TYPE[build.a_type], 0),
        device_pointer(ELEMENT_TYPE[build.b_type], 0),
        device_pointer(BFloat16, 0),
        device_pointer(Int64, 0),
        *map(Int32, (64, 8, 128, 64, 1)),
        *map(Float32, (-1, 0)),
        *map(Int32, (0, 1, 0)),
        cuda.CUstream(0),
    )


@cache
def compile_previous(
    out_type: str, vectors: int, parts: int, normalize: bool, dependent_launch: bool, trace: bool
) -> Any:
    """The compiled previous kernel; works without a GPU."""
    return cute.compile(
        PreviousKernel(out_type, vectors, parts, normalize, dependent_launch, trace),
        device_pointer(BFloat16, 0),
        device_pointer(ELEMENT_TYPE[out_type], 0),
        device_pointer(Int64, 0),
        *map(Int32, (8, 128, 128, 1, 0)),
        cuda.CUstream(0),
    )


def current_stream() -> Any:
    return cuda.CUstream(torch.cuda.current_stream().cuda_stream)


def random_operand(shape: tuple[int, ...], element: str, scale: float, seed: int) -> torch.Tensor:
    """Normal values in ``element`` type on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) * scale
    return values.to(TORCH_TYPE[element])


class LayerChain:
    """``layers`` pairs of previous kernel and GEMM D[n, m] = Y[n, k] A[m, k]^T with weights of their own."""

    def __init__(
        self, size: tuple[int, int, int], types: tuple[str, str], *, layers: int = 16, parts: int = 1
    ) -> None:
        self.m, self.n, self.k = m, n, k = size
        self.a_type, self.b_type = a_type, b_type = types
        self.layers, self.parts = layers, parts
        self.pitch = max(m, k)
        self.trace = torch.zeros((layers, 1024, len(TRACE_EVENTS)), dtype=torch.int64, device="cuda")
        self.previous_trace = torch.zeros((layers, n, len(TRACE_EVENTS)), dtype=torch.int64, device="cuda")
        self.weights = [random_operand((m, k), a_type, k**-0.5, layer) for layer in range(layers)]
        # outputs[l] is the input of layer l and outputs[l + 1] its output; part 0 is what a GEMM writes.
        self.outputs = [
            random_operand((parts, n, self.pitch), "bf16", 1.0, 1000 + i) for i in range(layers + 1)
        ]
        self.inputs = [torch.empty((n, k), dtype=TORCH_TYPE[b_type], device="cuda") for _ in range(layers)]

    def launch(self, build: KernelBuild, setting: OverlapSetting, previous: PreviousSpec) -> None:
        """Enqueue all layers on the current stream; raises InputError for a build that cannot take them."""
        check_problem(self.m, self.n, self.k, build)
        gemm = compile_gemm(replace(build, clusters=1, fill_delay_clocks=0))  # neither is part of the code
        norm = compile_previous(
            self.b_type,
            vectors_per_thread(self.k),
            self.parts,
            previous.normalize,
            build.dependent_launch,
            build.trace,
        )
        stream = current_stream()
        for layer in range(self.layers):
            y = device_pointer(ELEMENT_TYPE[self.b_type], self.inputs[layer].data_ptr())
            norm(
                device_pointer(BFloat16, self.outputs[layer].data_ptr()),
                y,
                device_pointer(Int64, self.previous_trace[layer].data_ptr()),
                *map(Int32, (self.n, self.k, self.pitch)),
                *map(Int32, (int(previous.trigger_early), previous.extra_clocks)),
                stream,
            )
            gemm(
                device_pointer(ELEMENT_TYPE[self.a_type], self.weights[layer].data_ptr()),
                y,
                device_pointer(BFloat16, self.outputs[layer + 1].data_ptr()),
                device_pointer(Int64, self.trace[layer].data_ptr()),
                *map(Int32, (self.m, self.n, self.k, self.pitch, build.clusters)),
                *map(Float32, (setting.overlap_ratio, setting.prefetch_ratio)),
                *map(Int32, (build.fill_delay_clocks, build.fill_window, build.prefetch_interval_clocks)),
                stream,
            )

    def capture(
        self, build: KernelBuild, setting: OverlapSetting, previous: PreviousSpec
    ) -> torch.cuda.CUDAGraph:
        """The chain as a CUDA graph (modules are loaded before the capture)."""
        self.launch(build, setting, previous)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            self.launch(build, setting, previous)
        return graph

    def trace_of(self, layer: int, build: KernelBuild, gpu: str) -> Trace:
        """The trace that a layer's GEMM recorded in its last run; needs a build with `trace`."""
        events = self.trace[layer, : build.ctas].cpu().numpy()
        return trace_of_events(events, (self.m, self.n, self.k), build, gpu)

    def layer_time_us(self, build: KernelBuild, setting: OverlapSetting, previous: PreviousSpec) -> float:
        """Median microseconds per layer over REPEATS runs of REPLAYS graphs back to back."""
        graph = self.capture(build, setting, previous)
        graph.replay()
        return statistics.median(self.replay_time_us(graph, REPLAYS) for _ in range(REPEATS))

    def replay_time_us(self, graph: torch.cuda.CUDAGraph, replays: int) -> float:
        """Microseconds per layer of ``replays`` captured chains back to back."""
        return elapsed_us(lambda: [graph.replay() for _ in range(replays)]) / (replays * self.layers)
