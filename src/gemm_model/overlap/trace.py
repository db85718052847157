"""Records of the overlapping GEMM's CTAs as a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gemm_model.overlap.config import TILE_M, TRACE_EVENTS, KernelBuild
from gemm_model.timeline.trace import Trace, TraceInfo, new_rows

PREVIOUS_KERNEL = "the previous kernel"
"""Cause of the wait of activation loads."""
NS_PER_US = 1e3


def trace_of_events(
    events: NDArray[np.int64], size: tuple[int, int, int], build: KernelBuild, gpu: str
) -> Trace:
    """The trace of one GEMM D[n, m] = B[n, k] A[m, k]^T from its events (CTAs x TRACE_EVENTS), in us.

    A CTA shows its life, its loads, and the wait for the previous kernel; tiles and k tiles have no events.
    """
    m, n, k = size
    start, previous_done, loaded, end, sm, _ = (events[:, TRACE_EVENTS.index(name)] for name in TRACE_EVENTS)
    zero = int(start.min())

    def us(times: NDArray[np.int64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (times - zero) / NS_PER_US
        return found

    cta = np.arange(len(events))

    def until(times: NDArray[np.int64], **texts: Any) -> pd.DataFrame:
        """Rows of all CTAs, from their start on."""
        return new_rows(len(events), sm=sm, cta=cta, start_us=us(start), end_us=us(times), **texts)

    rows = [
        until(end, role="CTA", activity="resident"),
        until(loaded, role="producer", activity="load", tile=cta),
        until(previous_done, role="B producer", activity="wait", detail=PREVIOUS_KERNEL),
    ]
    info = TraceInfo(
        source="measured",
        gpu=gpu,
        kernel={
            **{"m": m, "n": n, "k": k, "batch": 1, "a_dtype": build.a_type, "b_dtype": build.b_type},
            **{"out_dtype": "bf16", "cta_m": TILE_M, "cta_n": build.tile_n, "split_k": build.split_k},
            "kernel": "overlap",
        },
        k_tiles=-(-k // (build.tile_k * build.split_k)),
        stages=build.stages,
        runtime_us=float((end.max() - zero) / NS_PER_US),
    )
    return Trace(info=info, rows=pd.concat(rows, ignore_index=True))
