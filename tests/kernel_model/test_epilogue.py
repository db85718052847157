"""The epilogue and the tile period, in clocks worked out by hand."""

from dataclasses import replace

import pytest

from gemm_model.kernel_model.epilogue import (
    between_loads_clk,
    epilogue_clk,
    exposed_clk,
    hidden_clk,
    period_beside_stores,
    stored_together,
    tile_period_clk,
    whole_epilogue_clk,
)
from gemm_model.kernels.tile_scheduler import STATIC_STRIDE
from tests.cases import cases
from tests.kernel_model.kernels import A100, B200, H200, kernel_of, pair_of_ctas, row


def period(batch, mainloop, epilogue):
    hidden = hidden_clk(kernel_of(batch), mainloop, epilogue)
    return tile_period_clk(kernel_of(batch), mainloop, epilogue, hidden)


def exposed(batch, mainloop, epilogue):
    return exposed_clk(kernel_of(batch), epilogue, hidden_clk(kernel_of(batch), mainloop, epilogue))


@pytest.mark.parametrize(
    ("batch", "clk"),
    [
        # Outputs of 2 bytes at 16 a clock; stores of 128 x 32 and of 64 x 32 outputs at 48 clocks each.
        (row(cta_m=128, cta_n=128), 2048 + 4 * 48),
        (row(cta_m=128, cta_n=128, schedule="pingpong"), 2048 + 8 * 48),
        (row(cta_m=128, cta_n=128, out_dtype="fp32"), 4096 + 4 * 48),
        # 208 columns are a multiple of 16 only: 13 stores.
        (row(cta_m=64, cta_n=208, schedule="pingpong"), 1664 + 13 * 48),
    ],
)
def test_clocks_of_an_epilogue(batch, clk):
    assert epilogue_clk(kernel_of(batch)) == pytest.approx(clk)


@pytest.mark.parametrize(("waves", "apart"), [(1, 1 / 7), (6, 1 / 2), (54, 9 / 10)])
def test_cooperative_warpgroups_drift_apart_until_they_hide_a_quarter_of_the_shorter_phase(waves, apart):
    batch = row((128, waves * 132 * 128, 4096), cta_m=128, cta_n=128)
    assert period(batch, 5000.0, 1000.0) == pytest.approx(6000 - 250 * apart + 400)
    assert period(batch, 600.0, 1000.0) == pytest.approx(1600 - 150 * apart + 400)
    # After the last tile nothing hides it.
    assert exposed(batch, 5000.0, 1000.0) == pytest.approx(250 * apart)
    alone = row(cta_m=64, cta_n=128)
    assert period(alone, 5000.0, 1000.0) == pytest.approx(6400)
    assert exposed(alone, 5000.0, 1000.0) == 0


def test_pingpong_takes_the_mainloop_in_turn():
    batch = row(cta_m=128, cta_n=128, schedule="pingpong")
    # The tensor cores go from tile to tile, or each consumer from its mainloop to its epilogue.
    assert period(batch, 5000.0, 1000.0) == pytest.approx(5400)
    assert period(batch, 100.0, 3000.0) == pytest.approx((3100 + 400 + 400) / 2)
    assert exposed(batch, 5000.0, 1000.0) == 1000


def test_a_cta_of_one_tile_waits_for_its_first_load_and_hides_nothing():
    kernel = kernel_of(row(cta_m=128, cta_n=256), None, A100, "cutlass")
    hidden = hidden_clk(kernel, 900.0, 300.0, 500.0)
    assert (tile_period_clk(kernel, 900.0, 300.0, hidden), exposed_clk(kernel, 300.0, hidden)) == (2100, 0)


@pytest.mark.parametrize(
    *cases(__file__, "test_accumulators_in_tensor_memory_are_double_buffered_beside_the_scales")
)
def test_accumulators_in_tensor_memory_are_double_buffered_beside_the_scales(cta_n, dtype, two):
    """2 x 256 columns fill the 512; with 48 columns of scales one accumulator is left; 2 x 192 + 48 fit."""
    kernel = kernel_of(pair_of_ctas(cta_n, dtype=dtype), gpu=B200)
    clk = tile_period_clk(kernel, 5000.0, 3000.0, 0.0)
    # One alone: mainloop and epilogue in turn, and asking for the next tile.
    assert clk == (5000 if two else 8400)
    assert exposed_clk(kernel, 3000.0, 0.0) == (3000 if two else 0)
    beside = period_beside_stores(kernel, 5000.0)
    assert beside == ((0 if two else 5000), 1.0)


@pytest.mark.parametrize(*cases(__file__, "test_ctas_that_end_together_store_as_l2_takes_it"))
def test_ctas_that_end_together_store_as_l2_takes_it(family, m, slower):
    """17.6 B/clk of 132 SMs are 4,600 GB/s at 1980 MHz; half of that takes twice as long, 64 SMs none longer."""
    gpu = replace(A100 if family == "cutlass" else H200, l2_write_gb_per_s=2300.0)
    kernel = kernel_of(row((m, 4096, 4096), cta_m=128, cta_n=128), None, gpu, family)
    assert stored_together(kernel) == pytest.approx(slower, rel=2e-3)


def test_stores_and_asking_come_before_the_next_loads_where_mmas_go_on():
    # 128 x 256 outputs of 4 bytes at 32 bytes a clock, and the fixed clocks of a tile.
    kernel = kernel_of(pair_of_ctas(256, dtype="nvfp4", out_dtype="fp32"), gpu=B200)
    assert between_loads_clk(kernel) == 4096 + 400
    # By a static stride nobody asks.
    order = replace(kernel.family.tile_order, scheduler=STATIC_STRIDE)
    assert between_loads_clk(replace(kernel, family=replace(kernel.family, tile_order=order))) == 4096
    hopper = kernel_of(row(cta_m=128, cta_n=256))
    assert between_loads_clk(hopper) == 0
    # Warps of their own drain tensor memory as fast as L2 takes it; MMA warps store 16 bytes a clock.
    assert whole_epilogue_clk(kernel) == (4096, 0)
    assert whole_epilogue_clk(hopper) == (4096 + 8 * 48, 0)


def test_threads_that_store_their_own_rows_fill_half_of_each_sector():
    """16 of 32 bytes: 128 x 256 outputs of 2 bytes take what twice as many do, at 32 and 16 B a clock."""
    batch = row(dtype="nvfp4", out_dtype="bf16", cta_m=128, cta_n=256, cta_k=768, kernel="cutlass")
    kernel = kernel_of(batch, gpu=replace(B200, architecture="sm103"), family="cutlass")
    assert between_loads_clk(kernel) == 4096 + 400
    # Stores of 128 x 32 outputs at 48 clocks each.
    assert epilogue_clk(kernel) == pytest.approx(2 * 4096 + 8 * 48)
