"""The choice of both ratios."""

import numpy as np
import pytest

from gemm_model.config import load_config
from gemm_model.core.gpu import load_gpu
from gemm_model.models import model_for
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import LayerCase, chains_of
from gemm_model.overlap.plan import plan_build
from gemm_model.overlap.tuner import Grid, choose, considered_triggers, grid_of, refine, tune


@pytest.fixture(scope="module")
def model():
    options = load_config([], {"gpu": "h200", "model": "OverlapModel"})["model_opts"]
    return model_for("OverlapModel", load_gpu("h200"), options)


def layer(extra_us=0.0, m=8192, k=8192):
    return LayerCase(
        m=m, n=16, k=k, build=plan_build(m, 16, k, "e4m3", "e5m2", load_gpu("h200")),
        setting=OverlapSetting(overlap_ratio=0.5, prefetch_ratio=0.5), extra_us=extra_us,
    )  # fmt: skip


def grid(settings, layer_us, early_share=0.0, split_k=2, prefetched_tiles=5.0, rings_wait_us=0.0, tokens=16):
    """A grid of (overlap, prefetch) pairs; K has eight tiles beyond the ring."""
    ones = np.ones(len(settings))
    return Grid(
        overlap=np.array([overlap for overlap, _ in settings]),
        prefetch=np.array([prefetch for _, prefetch in settings]), layer_us=np.array(layer_us),
        prefetched_tiles=prefetched_tiles * ones, rings_wait_us=rings_wait_us * ones, tiles_beyond_ring=8.0,
        early_share=early_share, previous_share=tokens / 132, split_k=split_k,
    )  # fmt: skip


def test_the_default_is_left_for_a_gain_only():
    settings = [(0.25, -1.0), (0.25, 0.0), (-1.0, 0.0), (-1.0, -1.0)]
    assert choose(grid(settings, [20.0, 19.85, 19.85, 19.85])) == 0
    assert choose(grid(settings, [20.0, 19.5, 19.7, 19.7])) == 1
    assert choose(grid(settings, [20.0, 19.5, 19.4, 19.7])) == 2


def test_few_tiles_where_the_wait_ends_as_the_rings_are_full():
    settings = [(0.5, -1.0), (0.5, 0.0625), (0.5, 0.0)]
    times = [20.0, 20.2, 20.1]
    assert choose(grid(settings, times, early_share=0.3, prefetched_tiles=1.9)) == 1
    assert choose(grid(settings, times, early_share=0.3, prefetched_tiles=2.0)) == 0
    # Promised gains count against it; a grid without it keeps best effort.
    assert choose(grid(settings, [20.0, 21.0, 20.5], early_share=0.3, prefetched_tiles=0.0)) == 0
    assert choose(grid(settings[:1], [20.0], early_share=0.3, prefetched_tiles=0.0)) == 0
    settings = [(0.25, -1.0), (0.25, 0.0625)]
    assert choose(grid(settings, [20.0, 19.0], prefetched_tiles=0.0)) == 0


def test_no_trigger_where_large_clusters_have_all_the_time():
    settings = [(0.5, -1.0), (-1.0, -1.0)]
    long_wait = {"early_share": 0.3, "rings_wait_us": 3.0}
    assert choose(grid(settings, [20.0, 20.01], split_k=4, **long_wait)) == 1
    assert choose(grid(settings, [20.0, 20.1], split_k=4, **long_wait)) == 0
    assert choose(grid(settings, [20.0, 15.0], split_k=4, tokens=32, **long_wait)) == 0
    assert choose(grid(settings, [20.0, 20.01], split_k=2, **long_wait)) == 0
    assert choose(grid(settings, [20.0, 20.01], split_k=8, early_share=0.3, rings_wait_us=0.5)) == 0


def test_triggers_follow_the_room_for_the_next_layer(model):
    assert considered_triggers(4 / 128) == (0.25, -1.0)
    assert considered_triggers(52 / 80) == (0.5, -1.0)
    assert considered_triggers(1.0) == (0.5, -1.0)
    assert considered_triggers(1.0, 26 / 132) == (0.5, -1.0)
    assert considered_triggers(1.0, 32 / 132) == (0.5,)
    # 80 clusters of two fill 80 of the card's 132 places for them; 128 of 132 leave next to none.
    for m, k, allowed in ((5120, 5120, {0.5, -1.0}), (8192, 8192, {0.25, -1.0})):
        assert tune(model, layer(m=m, k=k)).setting.overlap_ratio in allowed


def test_other_triggers_and_fixed_shares_are_not_proposed():
    assert choose(grid([(0.9, -1.0), (0.25, 0.5), (0.25, -1.0)], [10.0, 10.0, 20.0])) == 2
    # A grid without the default: the fastest prediction.
    assert choose(grid([(0.9, -1.0), (0.25, 0.5)], [10.0, 9.0])) == 1


def test_full_rings_wait_for_the_rest_of_a_long_previous_kernel(model):
    """Of 500 us in which the previous kernel computes the rings take a few to fill."""
    one = layer(500.0)
    chains, lines = chains_of([one], model.gpu), model.timeline([one])
    assert 490 < grid_of([one.setting], chains, lines).rings_wait_us[0] < 500


def test_proposals(model):
    """Large layers prefetch; small ones, two of which fit beside each other, do not."""
    for m, k, extra, setting in (
        (8192, 8192, 0.0, (0.25, -1)),
        (8192, 8192, 8.6, (0.25, -1)),
        (2048, 7168, 0.0, (0.5, 0)),
    ):
        proposal = tune(model, layer(extra, m=m, k=k))
        assert (proposal.setting.overlap_ratio, proposal.setting.prefetch_ratio) == setting
        assert proposal.layer_us < proposal.no_overlap_us
        assert proposal.candidates[0] == proposal.setting
        assert not proposal.measured


def test_refinement_takes_the_fastest_measured(model):
    proposal = tune(model, layer())
    wanted = proposal.candidates[3]
    asked = []

    def measure(setting):
        asked.append(setting)
        return 10.0 if setting == wanted else 12.0

    refined = refine(proposal, measure, lambda: 14.0)
    assert refined.setting == wanted
    assert refined.measured
    assert (refined.layer_us, refined.no_overlap_us) == (10.0, 14.0)
    assert len(asked) == len(set(asked)) <= 12
    assert OverlapSetting(overlap_ratio=-1.0, prefetch_ratio=0.0) in asked
