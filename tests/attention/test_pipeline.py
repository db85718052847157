"""The recurrence of the attention pipeline against the event simulation, and against sums by hand."""

import random

import numpy as np
import pytest

from gemm_model.attention.pipeline import StageTimes, tile_ends
from gemm_model.timeline.attention import simulate_tile

NAMES = ("load_k", "load_v", "latency", "qk", "softmax", "exponentials", "pv", "correction")


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_recurrence_equals_simulation_on_random_tiles(count):
    rng = random.Random(44)
    for _ in range(count):
        times = StageTimes(**{name: rng.uniform(1.0, 1000.0) for name in NAMES})
        shape = {name: rng.randint(1, most) for name, most in (("groups", 3), ("stages", 3), ("blocks", 9))}
        shape["overlap"] = rng.random() < 0.5
        end = tile_ends(times, **shape)[-1]
        simulated = max(span.end for span in simulate_tile(times, **shape))
        assert end == pytest.approx(simulated, rel=1e-9), (times, shape)


def test_rows_of_arrays_are_those_of_numbers():
    rng = np.random.default_rng(0)
    columns = {name: rng.uniform(1.0, 100.0, 20) for name in NAMES}
    ends = tile_ends(StageTimes(**columns), groups=2, stages=2, overlap=True, blocks=5)
    for row in range(20):
        times = StageTimes(**{name: float(values[row]) for name, values in columns.items()})
        alone = tile_ends(times, groups=2, stages=2, overlap=True, blocks=5)
        assert [float(end[row]) for end in ends] == pytest.approx(alone, rel=1e-12)


def test_products_alone_take_their_sum():
    # Nothing but products of 100 and 50: two groups of four blocks keep the tensor cores busy throughout.
    times = StageTimes(qk=100.0, pv=50.0)
    for overlap in (True, False):
        ends = tile_ends(times, groups=2, stages=2, overlap=overlap, blocks=4)
        assert ends == [2 * 150.0 * blocks for blocks in (1, 2, 3, 4)]


def test_one_group_without_overlap_does_everything_in_turn():
    times = StageTimes(qk=10.0, softmax=7.0, exponentials=5.0, correction=2.0, pv=20.0)
    # 10 + 7 + 5 + 2 + 20 for each block.
    assert tile_ends(times, groups=1, stages=2, overlap=False, blocks=3) == [44.0, 88.0, 132.0]


def test_overlap_hides_the_softmax_of_one_group_under_its_own_product():
    times = StageTimes(qk=10.0, softmax=15.0, pv=20.0)
    ends = tile_ends(times, groups=1, stages=4, overlap=True, blocks=3)
    # First QK 10 and softmax 15; each further block QK 10, then PV 20 over a softmax of 15; last PV 20.
    assert ends == [45.0, 75.0, 105.0]


def test_two_groups_hide_the_softmax_of_one_under_the_products_of_the_other():
    times = StageTimes(qk=100.0, softmax=150.0, pv=100.0)
    ends = tile_ends(times, groups=2, stages=2, overlap=True, blocks=30)
    assert ends[-1] - ends[-2] == 400.0  # two groups' products; the softmax costs nothing
    one = tile_ends(times, groups=1, stages=2, overlap=True, blocks=30)
    assert one[-1] - one[-2] == 250.0  # QK, then the softmax, which is longer than PV


def test_the_sfu_bounds_groups_that_share_it():
    times = StageTimes(qk=10.0, exponentials=100.0, pv=10.0)
    ends = tile_ends(times, groups=3, stages=2, overlap=True, blocks=20)
    assert ends[-1] - ends[-2] == pytest.approx(300.0)


def test_loads_bound_a_tile_of_cheap_products():
    times = StageTimes(load_k=30.0, load_v=40.0, latency=5.0, qk=1.0, pv=1.0)
    ends = tile_ends(times, groups=1, stages=2, overlap=True, blocks=10)
    assert ends[-1] - ends[-2] == 70.0
    assert ends[0] == 30.0 + 40.0 + 5.0 + 1.0
