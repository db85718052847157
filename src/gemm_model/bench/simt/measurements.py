"""Tables of measured CUDA-core kernels, as `benchmarks/simt_ladder.py` writes them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gemm_model.hierarchy.ladder_report import COUNTER_OF_UNIT
from gemm_model.tables.columns import SIZE, TIME, NumberColumn, read_columns

NUMBERS = {
    **dict.fromkeys("mnk", SIZE),
    "runtime_us": TIME,
    "tflops": NumberColumn(low=0, high=1e9),
    # A counter may read a little beyond 100 %.
    **{column: NumberColumn(low=0, high=1000, optional=True) for column in COUNTER_OF_UNIT.values()},
}


def read_measurements(path: Path) -> pd.DataFrame:
    """The measured kernels; raises InputError naming file, line and column of what is wrong."""
    return read_columns(path, NUMBERS, texts=("kernel", "rung"))
