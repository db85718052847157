"""Trees of a library's heuristic choices: bounded, of their own calibration alone, and off where asked."""

import json
import math

import numpy as np
import pytest

import gemm_model as gm
from gemm_model import InputError, Ranker, load_gpu
from gemm_model.calibration.pick_residual_fit import Calls, errors, held_out, pick_residual
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernel_model.pick_residual import (
    FEATURES,
    PickResidual,
    features,
    load_pick_residual,
    picks_of,
    write_pick_residual,
)
from tests.typed_numbers import one_tree

CONV = gm.GemmProblem.of_conv("fprop n=8 c=96 h=28 w=28 k=256 r=3 s=3 stride=2 pad=1")
PLAIN = Ranker("h200", family="cudnn", options={"residual": "off"})


def leaves(fast, slow):
    """One tree: what it expects of calls of up to 100 channels, and of more, in 1e-5 of the logarithm."""
    return PickResidual(
        fingerprint="0123",
        forest=one_tree(FEATURES, "channels", 100.0, fast, slow),
        shift=0.0,
        error_band=0.25,
    )


def factor_of(residual, problem=CONV):
    best = PLAIN.rank(problem, 1).best
    return residual.factor(problem, best.candidate.config, best.prediction, 20.0)


def test_what_is_expected_too_long_becomes_shorter():
    # exp(-0.1) of a call that is expected 0.1 in the logarithm too long; its other leaf is another layer's.
    assert factor_of(leaves(10_000, 0)) == pytest.approx(math.exp(-0.1))
    wider = gm.GemmProblem.of_conv("fprop n=8 c=128 h=28 w=28 k=256 r=3 s=3 pad=1")
    assert factor_of(leaves(10_000, -5_000), wider) == pytest.approx(math.exp(0.05))


def test_the_correction_is_bounded():
    assert factor_of(leaves(32_000, 0)) == pytest.approx(0.8187, abs=1e-4)
    assert factor_of(leaves(-32_000, 0)) == pytest.approx(1.2214, abs=1e-4)


def test_what_the_trees_see():
    best = PLAIN.rank(CONV, 1).best
    seen = features(CONV, best.candidate.config, best.prediction, 2.0 * best.prediction.runtime_us)
    found = dict(zip(FEATURES, seen[:, 0].tolist(), strict=True))
    # 8 x 14 x 14 pixels, 9 taps of 96 channels; 96 = 3 x 32.
    assert (found["m"], found["n"], found["k"]) == (1568, 256, 864)
    assert (found["channels"], found["filters"], found["taps"], found["places"]) == (96, 256, 9, 4)
    assert (found["images"], found["output_pixels"], found["width"]) == (8, 196, 14)
    assert (found["channel_alignment"], found["filter_alignment"]) == (32, 256)
    assert (found["kind"], found["fp16"], found["expected_over_fastest"]) == (0, 0, 2)
    assert found["cta_m"] == best.candidate.config.cta_m
    # Of a convolution alone.
    product = gm.GemmProblem.of(512, 512, 512)
    with pytest.raises(ValueError, match="expected a convolution"):
        features(product, best.candidate.config, best.prediction, 1.0)


def test_a_file_gives_what_was_written(tmp_path):
    path = tmp_path / "cudnn.picks.npz"
    write_pick_residual(leaves(10_000, 0), path)
    found = load_pick_residual(path)
    assert (found.fingerprint, found.error_band) == ("0123", 0.25)
    assert factor_of(found) == pytest.approx(math.exp(-0.1))
    of_this_version = json.dumps({"version": 1, "features": FEATURES})
    for about in ('{"version": 0}', "[]", of_this_version):
        np.savez_compressed(path, about=np.array(about))
        load_pick_residual.cache_clear()
        with pytest.raises(InputError, match=r"cudnn\.picks\.npz: expected picks of format version 1"):
            load_pick_residual(path)


def test_trees_are_of_the_shipped_calibration():
    assert load_pick_residual(picks_of("h200", "cudnn")).fingerprint == (
        load_calibration("h200:cudnn").fingerprint()
    )


@pytest.mark.parametrize("options", [{"residual": "off"}, {"regime": "graph"}, {"without": ["clock"]}])
def test_they_correct_complete_predictions_of_launches_alone(options):
    corrected = Ranker("h200", family="cudnn").heuristic_choice_of(CONV)
    assert corrected.factor != 1.0
    assert 0.1 < corrected.error_band < 0.5
    assert Ranker("h200", family="cudnn", options=options).heuristic_choice_of(CONV).factor == 1.0


def test_another_card_is_not_corrected():
    assert Ranker("h100_sxm", family="cudnn").heuristic_choice_of(CONV).factor == 1.0


@pytest.mark.parametrize("dtype", ["tf32", "e4m3", "int8"])
def test_types_that_they_have_not_seen_are_not_corrected(dtype):
    ranker = Ranker("h200", family="cudnn")
    pick = ranker.heuristic_choice_of(gm.GemmProblem.of_conv(CONV.conv, dtype))
    assert (pick.factor, pick.error_band) == (1.0, None)
    half = ranker.heuristic_choice_of(gm.GemmProblem.of_conv(CONV.conv, "fp16"))
    assert half.factor != 1.0


@pytest.mark.slow
def test_training_finds_what_a_layer_hides():
    # Calls of 128 channels are expected 0.05 in the logarithm too long, whatever else they are.
    draw = np.random.default_rng(5)
    seen = draw.uniform(0.0, 200.0, (len(FEATURES), 400)).astype(np.float32)
    seen[FEATURES.index("channels")] = draw.choice((64.0, 128.0), 400)
    log_error = np.where(seen[FEATURES.index("channels")] > 100.0, 0.05, 0.0)
    calls = Calls(seen=seen, log_error=log_error, layer=tuple(map(str, range(400))))
    expected = held_out(calls)
    assert expected == pytest.approx(log_error, abs=0.02)
    found = pick_residual(calls, load_gpu("h200"), expected)
    assert (found.shift, found.error_band) == (0.0, pytest.approx(0.0, abs=0.02))
    assert found.forest.predict(seen) == pytest.approx(log_error, abs=0.02)


def test_errors_are_those_of_the_shortened_time():
    # Expected a tenth too long, and half of the time; then all a tenth shorter.
    seen = np.zeros((len(FEATURES), 3), dtype=np.float32)
    calls = Calls(seen=seen, log_error=np.log([1.1, 1.1, 0.5]), layer=("a", "b", "c"))
    assert errors(calls, np.zeros(3)) == pytest.approx([0.1, 0.1, 0.5])
    assert errors(calls, np.zeros(3), math.log(1.1)) == pytest.approx([0.0, 0.0, 1.0 - 0.5 / 1.1])
