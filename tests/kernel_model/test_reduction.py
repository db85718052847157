"""Split-K: partial sums that are added up in turn, by hand."""

from types import SimpleNamespace

import pytest

from gemm_model.kernel_model.reduction import (
    exposed_turns,
    exposed_turns_us,
    fold_clk,
    moved_turns,
    profiled_second_us,
    second_kernel_us,
    turn_clk,
    turns_clk,
    workspace_bytes,
)
from gemm_model.kernels.family import TileOrder
from tests.cases import cases
from tests.kernel_model.kernels import row, times_of
from tests.typed_numbers import numbers

TILE_CLK = numbers().epilogue.tile_clk


def kernel(batch, splits="move", schedule=None, warpgroups=1.0):
    """On 132 SMs."""
    order = TileOrder(name="any", splits=splits)
    resources, family = SimpleNamespace(warpgroups=warpgroups), SimpleNamespace(tile_order=order)
    known = {"numbers": numbers(), "gpu": SimpleNamespace(sm_count=132)}
    return SimpleNamespace(batch=batch, resources=resources, family=family, schedule=schedule, **known)


@pytest.mark.parametrize(("split_k", "extra"), [(1, 0), (2, 1), (4, 3)])
def test_what_a_split_adds(split_k, extra):
    batch = row((512, 512, 4096), cta_m=128, cta_n=128, split_k=split_k)
    schedule = SimpleNamespace(
        sharers=float(split_k), partial_sums=split_k - 1.0, filled_m=0.5, filled_n=1.0, resident=132.0
    )
    # 800 clocks to take a turn, and 128 x 128 sums of 4 bytes at 16 a clock.
    assert turn_clk(kernel(batch)) == pytest.approx(800 + 4096)
    in_turn = kernel(batch, "rounds", schedule)
    assert turns_clk(in_turn) == pytest.approx(800 + 4096 + TILE_CLK if extra else 0)
    assert second_kernel_us(in_turn, 1800.0) == (1.5 if extra else 0)
    # Each split but the last adds to whole tiles, twice the matrix here; the last one reads the total.
    for splits in ("move", "rounds"):
        found = workspace_bytes(kernel(batch, splits, schedule))
        assert found == (extra + 1 if extra else 0) * 1024 * 512 * 4


def test_a_second_kernel_that_adds_up_reads_all_partial_sums():
    batch = row((512, 1024, 4096), cta_m=128, cta_n=128, split_k=4)
    schedule = SimpleNamespace(sharers=4.0, partial_sums=4.0)
    # 4 x 512 x 1024 sums of 4 bytes, 16 bytes a clock on each of 132 SMs at 1800 MHz.
    added_us = 8388608 / (16 * 132 * 1800)
    found = second_kernel_us(kernel(batch, "apart", schedule), 1800.0)
    assert found == pytest.approx(1.5 + added_us)


@pytest.mark.parametrize(*cases(__file__, "test_a_profiler_times_the_second_kernel_for_itself"))
def test_a_profiler_times_the_second_kernel_for_itself(splits, sharers, expected_us):
    found = profiled_second_us(kernel(None, splits, SimpleNamespace(sharers=sharers)), 1.5)
    assert found == expected_us


@pytest.mark.parametrize(("warpgroups", "expected"), [(1, 800 + 4096), (2, 800 + 2048)])
def test_two_warpgroups_read_the_sums_back_twice_as_fast(warpgroups, expected):
    # 128 x 128 sums of 4 bytes at 16 a clock.
    batch = row((512, 512, 4096), cta_m=128, cta_n=128, split_k=4)
    assert fold_clk(kernel(batch, warpgroups=float(warpgroups))) == pytest.approx(expected)


@pytest.mark.parametrize(*cases(__file__, "test_turns_of_those_that_a_cluster_was_moved_before"))
def test_turns_of_those_that_a_cluster_was_moved_before(split_k, moved):
    batch = row((8192, 8192, 4096), cta_m=128, cta_n=128, split_k=split_k)
    assert moved_turns(kernel(batch, schedule=SimpleNamespace(resident=132.0))) == moved


@pytest.mark.parametrize(*cases(__file__, "test_turns_of_a_wave"))
def test_turns_of_a_wave(split_k, places, turns_and_folds):
    """One warpgroup reads the sums back as fast as it adds them."""
    batch = row((8192, 8192, 4096), cta_m=128, cta_n=128, split_k=split_k)
    assert turns_clk(kernel(batch, places)) == pytest.approx(turns_and_folds * (4896 + TILE_CLK))
    # No MMAs restart after the last wave's; stream-K of equally many clusters a tile, 33 each, has a turn there too.
    schedule = SimpleNamespace(sharers=33.0, last_tiles=4.0, resident=132.0)
    expected = 0 if places == "apart" else 4896
    assert turns_clk(kernel(batch, places, schedule), last=True) == pytest.approx(expected)


def end_of_splits(split_k, tiles, resident, mainloop_us, turn_us):
    """The schedule written out: the end of each piece, in order; turns of all splits take equally long."""
    cluster_free, ended, last_us = [0.0] * resident, 0.0, 0.0
    for piece in range(tiles * split_k):
        cluster, split = piece % resident, piece % split_k
        ready = cluster_free[cluster] + mainloop_us
        ended = (max(ready, ended) if split else ready) + turn_us
        cluster_free[cluster] = ended
        last_us = max(last_us, ended)
    return last_us


@pytest.mark.parametrize("split_k", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize(("tiles", "resident"), [(5, 132), (40, 132), (77, 66), (200, 132), (51, 30)])
@pytest.mark.parametrize("mainloop_us", [0.5, 9.0])
def test_the_longest_chain_is_that_of_the_schedule_written_out(split_k, tiles, resident, mainloop_us):
    pieces = tiles * split_k
    resident = min(resident, pieces)
    waves = -(-pieces // resident)
    batch = row((64 * tiles, 64, 65536), cta_m=64, cta_n=64, split_k=split_k)
    schedule = SimpleNamespace(
        tiles=float(pieces), resident=float(resident), waves=float(waves), sharers=float(split_k)
    )
    waves_us = waves * (mainloop_us + 2.0)
    moving = kernel(batch, "move", schedule)
    behind_us = exposed_turns_us(moving, waves_us, 2.0, waves_us)
    # Clusters that wait leave what is shared to the others.
    assert 0.0 <= exposed_turns_us(moving, waves_us, 2.0, 0.0) <= behind_us + 1e-9
    assert waves_us + behind_us == pytest.approx(end_of_splits(split_k, tiles, resident, mainloop_us, 2.0))
    assert behind_us >= 2.0 * exposed_turns(moving) - 1e-9


def exposed(splits, *, split_k, waves_us, waves, resident=132.0, last=0.0, at_once=1.0, sharers=None):
    """In turns of 2 us, one a wave."""
    batch = row((8192, 8192, 4096), cta_m=128, cta_n=128, split_k=split_k)
    schedule = SimpleNamespace(
        tiles=resident * waves,
        resident=resident,
        waves=waves,
        last_tiles=last,
        splits_at_once=at_once,
        sharers=float(sharers or split_k),
    )
    return exposed_turns_us(kernel(batch, splits, schedule), waves_us, 2.0, waves_us) / 2.0


def test_splits_side_by_side_wait_for_each_other_behind_the_last_wave():
    assert exposed("move", split_k=4, waves_us=50.0, waves=3.0) == pytest.approx(3)
    assert exposed("move", split_k=1, waves_us=50.0, waves=3.0) == 0
    assert exposed("apart", split_k=8, waves_us=50.0, waves=3.0) == 0


def test_splits_in_rounds_wait_for_those_of_the_last_wave():
    # 33 tiles in 8 splits, two waves of four splits each.
    assert exposed("rounds", split_k=8, waves_us=50.0, waves=2.0, at_once=4.0) == 3
    # The last wave has half as many clusters, two splits of each tile.
    assert exposed("rounds", split_k=6, waves_us=50.0, waves=2.0, last=66.0, at_once=4.0) == 1
    # More tiles than clusters: no two splits of a tile meet.
    assert exposed("rounds", split_k=8, waves_us=500.0, waves=20.0) == 0


def test_the_chain_of_turns_bounds_splits_of_few_k_tiles():
    # Two waves of 1 us and a turn of 2 us; one mainloop and eight turns take 17 us, 11 more than the waves.
    assert exposed("rounds", split_k=8, waves_us=6.0, waves=2.0, at_once=4.0) == 5.5


def test_shares_of_stream_k_wait_in_the_last_wave():
    assert exposed("rounds", split_k=1, waves_us=50.0, waves=1.0, last=40.0, sharers=4) == 3
    assert exposed("rounds", split_k=1, waves_us=50.0, waves=3.0, last=40.0) == 0


def test_a_split_kernel_takes_its_setup_and_its_turns_longer():
    batch = row((512, 512, 16384), cta_m=128, cta_n=128, split_k=4)
    memory = ["port", "latency", "l2", "dram", "clock"]
    with_turns = times_of(batch, numbers().without(memory))
    free = times_of(batch, numbers().without([*memory, "split_k"]))
    assert with_turns.launch_us - free.launch_us == pytest.approx(1.5)
    # Two warpgroups read the sums of the last turn back: 800 + 4096 / 2 clocks.
    assert with_turns.waves_us - free.waves_us == pytest.approx(2848 / 1980)
    assert with_turns.runtime_us - free.runtime_us == pytest.approx(1.5 + (2848 + 3 * 4896) / 1980)


def test_turns_hold_up_the_loads_of_a_memory_bound_kernel_too():
    batch = row((16, 16384, 16384), cta_m=128, cta_n=128, split_k=2)
    free = times_of(batch, numbers().without(["split_k", "clock"]))
    with_turns = times_of(batch, numbers().without(["clock"]))
    assert free.dram_us > free.tensor_us
    # 256 pieces on 132 SMs are two waves, each with the last split's turn; that of the first comes behind.
    assert with_turns.waves_us - free.waves_us == pytest.approx(2 * 2848 / 1980, rel=0.02)
