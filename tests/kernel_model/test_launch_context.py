"""What lies between two launches of a chain, by hand."""

import pytest

from gemm_model.kernel_model import launch
from gemm_model.kernel_model.launch import spread_out
from gemm_model.kernel_model.launch_context import footprint_bytes
from tests.cases import cases
from tests.kernel_model.kernels import A100, H200, kernel_of, row, times_of
from tests.typed_numbers import numbers

SIZES = (128, 4096, 1024)


def launch_us(*, pdl, schedule="cooperative", sizes=SIZES, **options):
    batch = row(sizes, cta_m=128, cta_n=128, schedule=schedule, pdl=pdl)
    return times_of(batch, regime="graph", **options).launch_us


def test_a_dependent_launch_spares_the_gap_and_waits_for_warpgroups_that_end_together():
    alone = launch_us(pdl=False)
    # 0.8 us of a launch that waits for the whole kernel before it, against 0.5 us of shared tiles.
    assert alone - launch_us(pdl=True) == pytest.approx(0.8 - 0.5)
    # 132 CTAs, which leave no room for the next ones.
    full = {"sizes": (128, 132 * 128, 4096), "known": numbers({"overlap.math_loads_order": 32.0})}
    turns = launch_us(pdl=False, schedule="pingpong", **full)
    assert turns == pytest.approx(launch_us(pdl=False, **full))
    assert turns - launch_us(pdl=True, schedule="pingpong", **full) == pytest.approx(0.8)


def test_a_family_launches_in_its_own_way_unless_told():
    # QuACK's kernels are launched dependently.
    assert launch_us(pdl=None) == launch_us(pdl=True)


def cold_start_us(times):
    """Two cold starts of 0.25 us where DRAM is busy all the time, else one and a part of the other."""
    return 0.25 * (1.0 + (times.dram_us / times.waves_us) ** 2)


def test_a_second_kernel_meets_a_boundary_of_its_own():
    def behind_whole_us(regime):
        whole, split = (
            times_of(row(SIZES, cta_m=128, cta_n=128, split_k=splits), regime=regime) for splits in (1, 2)
        )
        # Half the k tiles ramp less: 16 and 8 of them, of which 8 are half way.
        ramp_us = 0.8 * (8 / 16 - 16 / 24)
        # 32 further CTAs of 132 start within 0.1 us, in a chain while the first loads are on their way.
        alone = regime == "burst"
        spread_us = 0.4 * 32 / 132 if alone else cold_start_us(split) - cold_start_us(whole)
        return split.launch_us - whole.launch_us - spread_us - ramp_us

    # What starts alone takes 1.5 us; in a chain come a boundary of 1.5 us and, without PDL, a gap of 0.8.
    assert behind_whole_us("graph") - behind_whole_us("burst") == pytest.approx(1.5 + 0.8)


@pytest.mark.parametrize(("gpu", "late_us"), [(H200, 0.0), (A100, 0.8 - 0.5)])
def test_sums_wait_like_the_successor_of_a_cooperative_kernel(gpu, late_us):
    """Before Hopper nothing launches dependently: a boundary of 1.5 us, and the gap of 0.8 less 0.5."""

    def of(splits):
        batch = row(cta_m=128, cta_n=128, split_k=splits)
        return launch.launch_us(kernel_of(batch, None, gpu, "cublas", regime="graph"), 0.0, 1.0)

    # 64 k tiles ramp more than 32 of them.
    assert of(2) - of(1) == pytest.approx(1.5 + late_us - (64 / 72 - 32 / 40))


def test_operands_that_l2_holds_are_nearer():
    batch = row(SIZES, cta_m=128, cta_n=128, pdl=True)
    cold, warm = (times_of(batch, regime="graph", l2=l2) for l2 in ("cold", "warm"))
    # 32 CTAs of 132 start within 0.4 x 32 / 132 us: that is what is left of a warm start.
    assert cold.launch_us - warm.launch_us == pytest.approx(cold_start_us(cold) - 0.4 * 32 / 132, rel=0.02)
    # After a pause a warm start is without the ramp of DRAM's first loads: two thirds of 1 us after 16 k tiles.
    cold, warm = (times_of(batch, l2=l2) for l2 in ("cold", "warm"))
    assert cold.launch_us - warm.launch_us == pytest.approx(16 / 24, rel=0.02)


def test_a_launch_of_a_chain_that_keeps_dram_busy_starts_cold_nearly_twice():
    # 64 rows against 64 MiB of weights: DRAM is busy for most of the time.
    streaming = times_of(row((64, 8192, 4096), cta_m=64, cta_n=128), regime="graph")
    computing = times_of(row((8192, 8192, 4096), cta_m=128, cta_n=256), regime="graph")
    assert streaming.dram_us / streaming.waves_us > 0.55
    assert computing.dram_us / computing.waves_us < 0.4
    busy = streaming.dram_us / streaming.waves_us
    assert cold_start_us(streaming) == pytest.approx(0.25 * (1 + busy**2), rel=1e-3)
    # What a launch takes beside: a ramp of 1.0 after 64 of 72 k tiles, boundary 1.5, shared tiles 0.5.
    beside_us = 1.0 * 64 / 72 + 1.5 + 0.5
    assert streaming.launch_us == pytest.approx(beside_us + cold_start_us(streaming))
    # All 132 CTAs start within 0.4 us, longer than a cold start of 0.25.
    assert computing.launch_us == pytest.approx(beside_us + 0.4)


@pytest.mark.parametrize(*cases(__file__, "test_grids_that_are_placed_beside_the_one_before"))
def test_grids_that_are_placed_beside_the_one_before(n, kernel, regime, expected):
    batch = row((64, n, 4096), cta_m=64, cta_n=128, **{"schedule": "pingpong", **kernel})
    assert spread_out(kernel_of(batch, regime=regime)) == expected


@pytest.mark.parametrize(
    ("regime", "l2", "expected"),
    [
        # The same operands again: what a launch touches lies between two uses of them.
        ("sustained", "cold", 5.0),
        ("graph", "warm", 5.0),
        # Weights of a layer's own, whether the clock has settled or not.
        ("graph", "cold", float("inf")),
        ("graph", "written", float("inf")),
        ("sustained", "written", float("inf")),
    ],
)
def test_a_kernel_after_another_one_of_a_model_finds_no_weights_in_l2(regime, l2, expected):
    kernel = kernel_of(row((64, 8192, 4096), cta_m=64, cta_n=128), regime=regime, l2=l2)
    assert footprint_bytes(kernel, 5.0) == expected


def test_a_trigger_before_the_last_store_hides_the_next_start():
    late_us, wide_us, narrow_us = (
        launch._boundary_us(
            kernel_of(row(SIZES, cta_m=128, cta_n=cta_n, pdl=True), family=family, regime="graph")
        )
        for family, cta_n in (("quack", 256), ("cutlass", 256), ("cutlass", 32))
    )
    # 0.5 us from the trigger to the next grid: CUTLASS stores a wide tile for longer, a narrow one for a part of it.
    assert late_us - wide_us == pytest.approx(0.5)
    assert 0.0 < late_us - narrow_us < 0.5
