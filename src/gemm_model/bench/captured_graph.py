"""A CUDA graph of launches back to back, and what its nodes and edges say about them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gemm_model.bench.provider import KernelError, Launch

NAMED_NODES = 16
"""The first nodes hold a whole link of any chain."""


def captured(launches: Iterable[Launch], *, keep_graph: bool = False) -> torch.cuda.CUDAGraph:
    """A graph of the launches in their order; KernelError where they cannot be captured.

    With `keep_graph` the graph is left for `graph_columns` to read.
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


def graph_columns(graph: torch.cuda.CUDAGraph) -> dict[str, Any]:
    """Edges with programmatic dependent launch, and the names of the kernels in their order, each once.

    Empty where the CUDA bindings of this machine do not tell.
    """
    try:
        raw = graph.raw_cuda_graph()
        return {"programmatic_edges": _programmatic_edges(raw), "kernel_name": "+".join(_kernel_names(raw))}
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError):
        return {}


def _programmatic_edges(graph: int) -> int:
    from cuda.bindings import runtime

    edges = _checked(runtime.cudaGraphGetEdges(graph, 0))[-1]
    kinds = _checked(runtime.cudaGraphGetEdges(graph, edges))[2]
    programmatic = int(runtime.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic)
    return sum(int(kind.type) == programmatic for kind in kinds)


def _kernel_names(graph: int) -> list[str]:
    from cuda.bindings import driver

    count = _checked(driver.cuGraphGetNodes(driver.CUgraph(graph), 0))[-1]
    nodes = _checked(driver.cuGraphGetNodes(driver.CUgraph(graph), count))[0]
    kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
    names: dict[str, None] = {}
    for node in nodes[:NAMED_NODES]:
        if _checked(driver.cuGraphNodeGetType(node))[0] == kernel:
            parameters = _checked(driver.cuGraphKernelNodeGetParams(node))[0]
            if int(parameters.func):
                name = _checked(driver.cuFuncGetName(parameters.func))[0]
            else:
                name = _checked(driver.cuKernelGetName(parameters.kern))[0]
            names[name.decode() if isinstance(name, bytes) else str(name)] = None
    return list(names)


def _checked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a CUDA call returned, without its status; RuntimeError where it failed."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"CUDA status {status}")
    return tuple(values)
