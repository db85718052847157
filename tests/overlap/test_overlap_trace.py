import numpy as np
import pytest

from gemm_model.overlap.config import KernelBuild
from gemm_model.overlap.views import PREVIOUS_KERNEL, trace_of_events
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.trace import read_trace_table, write_trace_table

BUILD = KernelBuild(a_type="e4m3", b_type="e4m3", tile_n=16, split_k=2, stages=4, clusters=1)
EVENTS = np.array(
    [
        # start, previous kernel done, loaded, end [ns], SM, prefetched k tiles.
        [5_000, 6_500, 8_000, 9_000, 7, 0],
        [5_400, 6_600, 8_200, 9_600, 3, 2],
    ]
)


def test_the_overlapping_kernel_writes_the_one_format(tmp_path):
    trace = trace_of_events(EVENTS, (128, 16, 2048), BUILD, "h200")
    # 2048 elements of 1 byte in k tiles of 128, shared by two CTAs.
    assert trace.info.k_tiles == 8
    assert trace.info.runtime_us == pytest.approx(4.6)
    write_trace_table(trace, tmp_path / "t.csv.gz")
    rows = read_trace_table(tmp_path / "t.csv.gz").rows
    resident = rows[rows["activity"] == "resident"]
    assert resident["sm"].tolist() == [7, 3]
    assert resident["end_us"].tolist() == pytest.approx([4.0, 4.6])
    waits = rows[rows["detail"] == PREVIOUS_KERNEL]
    assert (waits["end_us"] - waits["start_us"]).tolist() == pytest.approx([1.5, 1.2])
    loads = rows[rows["activity"] == "load"]
    assert loads["end_us"].tolist() == pytest.approx([3.0, 3.2])
    assert phases_of(trace)["start skew"] == pytest.approx(0.4)
