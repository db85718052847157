"""The kernels that a library call launches, read from a CUDA graph into which the call is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from cuda.bindings import driver

from gemm_model.bench.cuda_program import ask
from gemm_model.bench.provider import KernelError, Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedKernel:
    """One kernel of a captured call: its (mangled) name, CTAs of its grid and threads of a CTA."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def cells(self) -> dict[str, Any]:
        """The columns of a benchmark table."""
        extents = {"grid": self.grid, "block": self.block}
        return {"kernel_name": self.name, **{name: f"({x}, {y}, {z})" for name, (x, y, z) in extents.items()}}


def launched_kernels(launch: Launch) -> list[LaunchedKernel]:
    """The kernels of one call, in the order in which they were enqueued. Raises KernelError."""
    stream = _side_stream()
    with torch.cuda.stream(stream):
        # Once outside the capture, because libraries allocate workspace for a new stream.
        launch()
        stream.synchronize()
        handle = driver.CUstream(stream.cuda_stream)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        ask(driver.cuStreamBeginCapture(handle, mode))
        try:
            launch()
        finally:
            graph = ask(driver.cuStreamEndCapture(handle))
    try:
        return _kernels(graph)
    finally:
        driver.cuGraphDestroy(graph)


@lru_cache(maxsize=1)
def _side_stream() -> torch.cuda.Stream:
    """Work cannot be captured on the default stream."""
    return torch.cuda.Stream()


def _kernels(graph: Any) -> list[LaunchedKernel]:
    _, count = ask(driver.cuGraphGetNodes(graph))
    nodes, _ = ask(driver.cuGraphGetNodes(graph, count))
    kernels = []
    for node in nodes[:count]:
        if ask(driver.cuGraphNodeGetType(node)) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
            continue
        found = ask(driver.cuGraphKernelNodeGetParams(node))
        # A kernel of a lazily loaded library has another kind of handle.
        answer = driver.cuKernelGetName(found.kern) if int(found.kern) else driver.cuFuncGetName(found.func)
        name = ask(answer)
        kernels.append(
            LaunchedKernel(
                name=name.decode() if isinstance(name, bytes) else str(name),
                grid=(found.gridDimX, found.gridDimY, found.gridDimZ),
                block=(found.blockDimX, found.blockDimY, found.blockDimZ),
            )
        )
    return kernels


def named_kernels(
    launch: Launch,
    described: Callable[[Sequence[LaunchedKernel]], dict[str, Any]] = lambda found: found[-1].cells(),
) -> dict[str, Any]:
    """Table cells: the names of a call's kernels, and by default the grid of the last one, which multiplies."""
    try:
        kernels = launched_kernels(launch)
    except (KernelError, RuntimeError) as error:
        # The call itself is good: its time counts, whatever it ran.
        return {"detail": f"its kernels cannot be named: {str(error).splitlines()[0]}"}
    if not kernels:
        return {"detail": "it launched no kernel"}
    return {**described(kernels), "kernel_name": " + ".join(kernel.name for kernel in kernels)}
