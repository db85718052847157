"""What trying all schedules finds: what people found by hand."""

import pytest

from gemm_model.attention.derive import BlockCosts, blackwell, gain_of_emulation, hopper, schedules


def test_hopper_needs_two_groups_in_turn_to_keep_its_tensor_cores_busy():
    best = schedules(hopper())[0]
    assert (best.groups, best.overlap) == (2, True)
    assert best.tensor_busy == pytest.approx(1.0)
    one = [each for each in schedules(hopper()) if each.groups == 1]
    # A group alone: the next scores run before these outputs, so that softmax runs under a product.
    assert one[0].overlap
    assert one[0].tensor_busy < 0.9
    assert one[0].clk_per_row < one[1].clk_per_row


def test_three_groups_for_heads_of_64():
    # Products of 256 clocks hide less: the library's own tile has 192 rows.
    assert schedules(hopper(head_dim=64))[0].groups == 3


def test_one_group_is_enough_where_its_product_covers_its_softmax():
    costs = BlockCosts(rows=64, qk=100.0, pv=300.0, exponentials=250.0)
    assert (schedules(costs)[0].groups, schedules(costs)[0].overlap) == (1, True)


def test_exponentials_bound_blackwell_and_emulating_some_helps():
    plain = schedules(blackwell())[0]
    # 128 x 128 exponentials at 16 a clock take 1,024 clocks, as the two products do.
    assert blackwell().exponentials == 1024.0 == blackwell().qk + blackwell().pv
    narrow = blackwell(head_dim=64)
    bound = schedules(narrow)[0]
    assert bound.clk_per_row * 128 == pytest.approx(1024.0)
    assert bound.tensor_busy == pytest.approx(0.5)
    best, gain = gain_of_emulation(narrow)
    assert 0.2 < best.emulated_share < 0.5
    assert gain > 0.4
    assert gain_of_emulation(hopper())[1] == pytest.approx(0.0)
    assert plain.tensor_busy > bound.tensor_busy
