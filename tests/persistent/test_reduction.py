"""Split-K: partial sums that are added up in turn, by hand."""

import pytest

from gemm_model.persistent.reduction import setup_us, turns_clk, workspace_bytes
from tests.persistent.kernels import row, times_of
from tests.typed_numbers import numbers

SPLIT = numbers().split_k


@pytest.mark.parametrize(("split_k", "turns"), [(1, 0), (2, 1), (4, 3)])
def test_splits_wait_for_each_other(split_k, turns):
    batch = row((512, 512, 4096), cta_m=128, cta_n=128, split_k=split_k)
    # 800 clocks to take a turn, and 128 x 128 sums of 4 bytes at 16 a clock.
    assert turns_clk(batch, SPLIT) == pytest.approx(turns * (800 + 4096))
    assert setup_us(batch, SPLIT) == (1.5 if turns else 0)
    # Written and read again.
    assert workspace_bytes(batch) == turns * 512 * 512 * 8


def test_a_split_kernel_takes_its_setup_and_its_turns_longer():
    batch = row((512, 512, 16384), cta_m=128, cta_n=128, split_k=4)
    memory = ["port", "latency", "l2", "dram", "clock"]
    with_turns = times_of(batch, numbers().without(memory))
    free = times_of(batch, numbers().without([*memory, "split_k"]))
    assert with_turns.launch_us - free.launch_us == pytest.approx(1.5)
    assert with_turns.waves_us - free.waves_us == pytest.approx(3 * 4896 / 1980)
