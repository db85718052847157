"""What lies between two launches of a chain, by hand."""

import pytest

from tests.persistent.kernels import row, times_of

SIZES = (128, 4096, 1024)


def launch_us(*, pdl, schedule="cooperative", **options):
    batch = row(SIZES, cta_m=128, cta_n=128, schedule=schedule, pdl=pdl)
    return times_of(batch, regime="graph", **options).launch_us


def test_a_dependent_launch_spares_the_gap_and_waits_for_warpgroups_that_end_together():
    alone = launch_us(pdl=False)
    # 0.8 us of a launch that waits for the whole kernel before it, against 0.5 us of shared tiles.
    assert alone - launch_us(pdl=True) == pytest.approx(0.8 - 0.5)
    assert launch_us(pdl=False, schedule="pingpong") == pytest.approx(alone)
    assert alone - launch_us(pdl=True, schedule="pingpong") == pytest.approx(0.8)


def test_a_family_launches_in_its_own_way_unless_told():
    # QuACK's kernels are launched dependently.
    assert launch_us(pdl=None) == launch_us(pdl=True)


def test_a_second_kernel_meets_a_boundary_of_its_own():
    def behind_whole_us(regime):
        whole, split = (
            times_of(row(SIZES, cta_m=128, cta_n=128, split_k=splits), regime=regime) for splits in (1, 2)
        )
        grid_us, ramp = 0.4 * 32 / 132, 0.8
        # Half the k tiles ramp less: 16 and 8 of them, of which 8 are half way.
        ramp_us = ramp * (8 / 16 - 16 / 24)
        return split.launch_us - whole.launch_us - grid_us - ramp_us

    # What starts alone takes 1.5 us; in a chain comes a boundary of 1.5 us.
    assert behind_whole_us("graph") - behind_whole_us("burst") == pytest.approx(1.5)


def test_operands_that_l2_holds_are_nearer():
    warm = launch_us(pdl=True, warm=True)
    assert launch_us(pdl=True) - warm == pytest.approx(0.25, rel=0.01)
