"""Split-K: partial sums that are added up in turn, by hand."""

from types import SimpleNamespace

import pytest

from gemm_model.kernels.family import TileOrder
from gemm_model.persistent.reduction import (
    last_turns,
    second_kernel_us,
    turn_clk,
    turns_per_wave,
    workspace_bytes,
)
from tests.persistent.kernels import row, times_of
from tests.typed_numbers import numbers

SPLIT = numbers().split_k


@pytest.mark.parametrize(("split_k", "extra"), [(1, 0), (2, 1), (4, 3)])
def test_what_a_split_adds(split_k, extra):
    batch = row((512, 512, 4096), cta_m=128, cta_n=128, split_k=split_k)
    schedule = SimpleNamespace(sharers=float(split_k), partial_sums=split_k - 1.0)
    # 800 clocks to take a turn, and 128 x 128 sums of 4 bytes at 16 a clock.
    assert turn_clk(batch, SPLIT) == pytest.approx(800 + 4096)
    in_turn = TileOrder(name="any", splits="stay")
    assert second_kernel_us(batch, schedule, in_turn, SPLIT, 132, 1800.0) == (1.5 if extra else 0)
    # Written and read again.
    assert workspace_bytes(batch, schedule) == extra * 512 * 512 * 8


def test_a_second_kernel_that_adds_up_reads_all_partial_sums():
    batch = row((512, 1024, 4096), cta_m=128, cta_n=128, split_k=4)
    schedule = SimpleNamespace(sharers=4.0, partial_sums=4.0)
    order = TileOrder(name="any", splits="apart")
    # 4 x 512 x 1024 sums of 4 bytes, 16 bytes a clock on each of 132 SMs at 1800 MHz.
    added_us = 8388608 / (16 * 132 * 1800)
    found = second_kernel_us(batch, schedule, order, SPLIT, 132, 1800.0)
    assert found == pytest.approx(1.5 + added_us)


@pytest.mark.parametrize(
    ("split_k", "places", "waves", "in_wave", "after"),
    [
        (1, "move", 3, 0, 0),
        (
            4,
            "move",
            3,
            1,
            2,
        ),  # 132 clusters are 33 whole tiles: each keeps its place, and its own turn counts
        (
            8,
            "move",
            3,
            4,
            3,
        ),  # 16 whole tiles and half of one: the last waits for the four it was moved before
        (8, "stay", 1, 1, 6),
        (8, "stay", 5, 1, 2),  # five turns of each cluster run beside the chain of seven
        (8, "stay", 9, 1, 0),
        (1, "stay", 3, 0, 0),
        (8, "apart", 3, 0, 0),
    ],
)
def test_turns_of_a_wave_and_after_the_last(split_k, places, waves, in_wave, after):
    batch = row((8192, 8192, 4096), cta_m=128, cta_n=128, split_k=split_k)
    schedule = SimpleNamespace(resident=132.0, waves=float(waves), sharers=float(split_k))
    order = TileOrder(name="any", splits=places)
    assert turns_per_wave(batch, schedule, order) == in_wave
    assert last_turns(batch, schedule, order) == after


def test_a_split_kernel_takes_its_setup_and_its_turns_longer():
    batch = row((512, 512, 16384), cta_m=128, cta_n=128, split_k=4)
    memory = ["port", "latency", "l2", "dram", "clock"]
    with_turns = times_of(batch, numbers().without(memory))
    free = times_of(batch, numbers().without([*memory, "split_k"]))
    assert with_turns.launch_us - free.launch_us == pytest.approx(1.5)
    assert with_turns.waves_us - free.waves_us == pytest.approx(4896 / 1980)
    assert with_turns.runtime_us - free.runtime_us == pytest.approx(1.5 + 3 * 4896 / 1980)


def test_turns_hold_up_the_loads_of_a_memory_bound_kernel_too():
    batch = row((16, 16384, 16384), cta_m=128, cta_n=128, split_k=2)
    free = times_of(batch, numbers().without(["split_k", "clock"]))
    with_turns = times_of(batch, numbers().without(["clock"]))
    assert free.dram_us > free.tensor_us
    # 256 pieces on 132 SMs are two waves, each with one turn; both splits of the last tiles are then done.
    assert with_turns.waves_us - free.waves_us == pytest.approx(2 * 4896 / 1980, rel=0.02)
