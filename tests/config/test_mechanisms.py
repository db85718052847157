"""The mechanisms as data: every number is explained and bounded, and each mechanism can be switched off."""

import math
from dataclasses import replace

import pytest

from gemm_model.config.mechanisms import MECHANISMS, NUMBERS, kernel_numbers, start_values
from gemm_model.errors import InputError
from gemm_model.kernels.registry import family_of
from tests.kernel_model.kernels import B200, H200
from tests.typed_numbers import VALUES, numbers

NEUTRAL = {
    "launch": {"kernel_us": 0.0, "full_grid_us": 0.0, "clusters_us": 0.0},
    "tensor": {"efficiency": math.inf, "issue_clk": 0.0},
    "spilling": {"register_clk": 0.0, "wait_clk": 0.0, "l2_bytes_per_byte": 0.0},
    "whole_waves": {"quantized": 0.0},
    "scale_factors": {"row_bytes": 16.0},
    "edge_tiles": {"row_clk": 0.0, "shared_cost": 1.0, "two_way_cost": 1.0, "two_way_hidden": 0.0},
}


def test_quack_has_at_most_30_mechanisms_and_80_numbers():
    own = [each for each in MECHANISMS if each.name not in family_of("quack", H200).absent_mechanisms]
    assert len(own) <= 30
    assert sum(len(each.numbers) for each in own) <= 80


def test_every_number_is_explained_and_bounded():
    assert set(NUMBERS) == set(VALUES)
    for mechanism in MECHANISMS:
        assert mechanism.meaning
        assert len({number.name for number in mechanism.numbers}) == len(mechanism.numbers)
    for number in NUMBERS.values():
        assert number.low <= number.start <= number.high
        assert number.unit
        assert number.meaning
        assert number.source


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_mechanism_that_is_off_has_neutral_numbers_and_leaves_the_others_alone(name):
    known = numbers()
    expected = replace(known, **{name: replace(getattr(known, name), **NEUTRAL[name])})
    assert known.without([name]) == expected


def test_values_are_those_of_the_records():
    assert numbers().values() == VALUES
    assert kernel_numbers(VALUES) == numbers()
    assert kernel_numbers(start_values()).values() == start_values()


def test_families_lack_what_their_hardware_does_not_have():
    never = {
        "software_scales",
        "scaled_outputs",
        "pointer_stores",
        "slow_division",
        "device_descriptors",
        "matrix_scales",
    }
    assert family_of("quack", H200).absent_mechanisms == {"scale_factors", *never}
    edges = {"k_tail", "edge_tiles"}
    expected = {"narrow_mma", "promotion", "round_trip", "spilling", *edges, *never}
    assert family_of("quack", B200).absent_mechanisms == expected


def test_a_missing_number_is_named():
    with pytest.raises(InputError, match="number launch.kernel_us is missing"):
        kernel_numbers({name: value for name, value in VALUES.items() if name != "launch.kernel_us"})


@pytest.mark.parametrize("resource", sorted({spec.resource for spec in NUMBERS.values() if spec.resource}))
def test_a_faster_resource_has_higher_rates_and_shorter_times(resource):
    before, after = numbers(), numbers().faster(resource, 2.0)
    factors = {"us": 0.5, "clk": 0.5, "B/clk": 2.0, "1/clk": 2.0}
    for spec in NUMBERS.values():
        factor = factors.get(spec.unit, 1.0) if spec.resource == resource else 1.0
        assert after.values()[spec.name] == pytest.approx(before.values()[spec.name] * factor), spec.name
