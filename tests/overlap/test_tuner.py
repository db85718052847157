"""The choice of both ratios."""

import numpy as np
import pytest

from gemm_model.config import load_config
from gemm_model.gpu import load_gpu
from gemm_model.models import model_for
from gemm_model.overlap.config import OverlapSetting, plan_build
from gemm_model.overlap.model import LayerCase
from gemm_model.overlap.tuner import choose, considered_triggers, refine, tune


@pytest.fixture(scope="module")
def model():
    options = load_config([], {"gpu": "h200", "model": "OverlapModel"})["model_opts"]
    return model_for("OverlapModel", load_gpu("h200"), options)


def layer(extra_us=0.0, m=8192, k=8192):
    return LayerCase(
        m=m,
        n=16,
        k=k,
        build=plan_build(m, 16, k, "e4m3", "e5m2"),
        setting=OverlapSetting(overlap_ratio=0.5, prefetch_ratio=0.5),
        extra_us=extra_us,
    )


def test_the_default_is_left_for_a_gain_only():
    overlap, prefetch = np.array([0.25, 0.25, -1.0, -1.0]), np.array([-1.0, 0.0, 0.0, -1.0])
    triggers = (0.25, -1.0)
    assert choose(overlap, prefetch, np.array([20.0, 19.85, 19.85, 19.85]), triggers) == 0
    assert choose(overlap, prefetch, np.array([20.0, 19.5, 19.7, 19.7]), triggers) == 1
    assert choose(overlap, prefetch, np.array([20.0, 19.5, 19.4, 19.7]), triggers) == 2


def test_triggers_follow_the_room_for_the_next_layer(model):
    assert considered_triggers(4 / 128) == (0.25, -1.0)
    assert considered_triggers(52 / 80) == (0.5, -1.0)
    assert considered_triggers(1.0) == (0.5, -1.0)
    # 80 clusters of two fill 80 of the card's 132 places for them; 128 of 132 leave next to none.
    for m, k, allowed in ((5120, 5120, {0.5, -1.0}), (8192, 8192, {0.25, -1.0})):
        assert tune(model, layer(m=m, k=k)).setting.overlap_ratio in allowed


def test_other_triggers_and_fixed_shares_are_not_proposed():
    overlap, prefetch = np.array([0.9, 0.25, 0.25]), np.array([-1.0, 0.5, -1.0])
    assert choose(overlap, prefetch, np.array([10.0, 10.0, 20.0]), (0.25, -1.0)) == 2
    # A grid without the default: the fastest prediction.
    assert choose(overlap[:2], prefetch[:2], np.array([10.0, 9.0]), (0.25, -1.0)) == 1


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
