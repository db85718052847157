"""A CUDA graph of launches back to back, and how they depend on each other."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gemm_model.bench.provider import KernelError, Launch


def captured(launches: Iterable[Launch], *, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """A graph of the launches in their order. Raises KernelError if they cannot be captured.

    With `keep_graph` the graph is left for `programmatic_edges` to read.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=keep_graph)
    try:
        with torch.cuda.graph(graph):
            for launch in launches:
                launch()
        if keep_graph:
            graph.instantiate()
    except (RuntimeError, ValueError, TypeError) as error:
        raise KernelError(f"cannot be captured in a CUDA graph: {str(error).splitlines()[0]}") from error
    return graph


def elapsed_us(work: Launch) -> float:
    """Time on an idle GPU from the start to the end of what `work` launches [us]."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def programmatic_edges(graph: torch.cuda.CUDAGraph) -> int | None:
    """Number of launches that depend programmatically on the one before; None if the driver does not report
    it.

    The graph must have been captured with `keep_graph`.
    """
    try:
        from cuda.bindings import runtime

        from gemm_model.bench.cuda_program import ask

        raw = graph.raw_cuda_graph()
        count = ask(runtime.cudaGraphGetEdges(raw, 0))[-1]
        kinds = ask(runtime.cudaGraphGetEdges(raw, count))[2]
        programmatic = int(runtime.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic)
        return sum(int(kind.type) == programmatic for kind in kinds)
    except (ImportError, AttributeError, RuntimeError, KernelError, TypeError, ValueError, IndexError):
        return None
