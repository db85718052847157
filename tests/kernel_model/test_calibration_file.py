"""Calibration files: found by GPU and family, borrowed in a stated order, refused in one sentence."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from gemm_model.core.gpu import ASSUMED_INTERVALS, load_gpu, with_sms
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import (
    as_mapping,
    borrowed_bands,
    calibration_for,
    calibration_names,
    load_calibration,
    regime_band,
)
from gemm_model.kernel_model.card_band import card_band, with_card_band
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernel_model.situation import situation
from gemm_model.kernels.registry import family_of
from tests.cases import cases
from tests.kernel_model.kernels import CUBE, H200, row
from tests.typed_numbers import calibration, calibration_file, numbers

PREDICT = ("predict", "--m", 512, "--n", 512, "--k", 512, "--cta", "128x128")


def test_a_file_gives_back_what_was_written(tmp_path):
    found = load_calibration(calibration_file(tmp_path / "c.yaml"))
    written = calibration()
    assert found.numbers == written.numbers
    assert found.intervals == written.intervals
    assert found.error_band == written.error_band
    assert found.name == "h200:quack"
    assert found.fitted == {"launch.kernel_us"}
    assert found.fingerprint() == written.fingerprint()
    answer = as_mapping(found)["numbers"]
    assert answer["launch.kernel_us"]["value"] == 3.0
    assert answer["launch.kernel_us"]["interval"] == 0.05
    assert answer["launch.full_grid_us"]["value"] == 0.4
    assert "interval" not in answer["launch.full_grid_us"]


def test_any_other_value_gives_another_fingerprint():
    prints = {calibration().fingerprint(), calibration(gpu="h100_sxm").fingerprint()}
    for name, value in (("launch.kernel_us", 3.001), ("spilling.sharing", 0.51), ("power.pj_per_flop", 1.01)):
        changed = {"fp16": numbers(), "fp8": numbers({name: value})}
        prints.add(calibration(numbers=changed).fingerprint())
    assert len(prints) == 5


@pytest.mark.parametrize(*cases(__file__, "test_the_nearest_class_serves_types_that_were_not_fitted"))
def test_the_nearest_class_serves_types_that_were_not_fitted(math_kind, served):
    assert calibration().kind_for(math_kind) == served


def test_shipped_calibrations_have_names_and_the_last_resort_is_first():
    assert calibration_names()[0] == "h200:quack"
    for name in calibration_names():
        found = load_calibration(name)
        assert found.name == name
        assert found.architecture == load_gpu(found.gpu).architecture
    assert load_calibration("h200") is load_calibration("h200:quack")


def test_a_pair_without_a_calibration_borrows_the_nearest(monkeypatch):
    known = {
        "h200:quack": calibration(),
        "h200:cublas": calibration(family="cublas"),
        "h100_sxm:triton": calibration(gpu="h100_sxm", family="triton"),
    }
    module = "gemm_model.kernel_model.calibration_file"
    monkeypatch.setattr(f"{module}.calibration_names", lambda: tuple(known))
    monkeypatch.setattr(f"{module}.load_calibration", known.__getitem__)
    asked = {
        ("h200", "quack"): ("h200:quack", "own"),
        ("h100_sxm", "quack"): ("h200:quack", "other_gpu"),
        ("h200", "triton"): ("h100_sxm:triton", "other_gpu"),
        ("h200", "cutlass"): ("h200:quack", "other_family"),
        ("h100_sxm", "cutlass"): ("h100_sxm:triton", "other_family"),
        ("b200_1300mhz", "cublas"): ("h200:cublas", "other_architecture"),
        ("b200_1300mhz", "cutlass"): ("h200:quack", "other_architecture"),
    }
    for (gpu, family), (name, borrowed) in asked.items():
        found, how = calibration_for(load_gpu(gpu), family)
        assert (found.name, how) == (name, borrowed), (gpu, family)


def predicted(gpu, dtype="bf16", **options):
    batch = row(CUBE, dtype, cta_m=128, cta_n=128, cluster_m=2)
    return KernelModel(gpu, **options).predict_row(batch)


def test_what_is_known_of_a_family_stands_in_for_a_donors_numbers():
    donor, own = calibration(), numbers()
    triton = family_of("triton", H200)
    adapted = donor.numbers_for("fp16", triton)
    assert adapted.round_trip.single_clk == 310.0 != own.round_trip.single_clk
    # The card's numbers are the same for all families.
    assert (adapted.latency, adapted.port, adapted.l2) == (own.latency, own.port, own.l2)
    assert adapted.tensor == own.tensor
    # Compilers before Hopper load without descriptors, by other round trips.
    assert donor.numbers_for("fp16", family_of("triton", load_gpu("a100_sxm_80gb"))) == own
    assert donor.numbers_for("fp8", family_of("quack", H200)) == own
    assert replace(donor, family="triton").numbers_for("fp16", triton) == own


def test_what_is_known_of_a_family_may_be_how_much_it_is_more_than_the_donors():
    cutlass = family_of("cutlass", H200)
    for tile_clk in (300.0, 480.0):
        of_donor = numbers().having({"epilogue.tile_clk": tile_clk})
        donor = replace(calibration(), numbers={"fp16": of_donor})
        adapted = donor.numbers_for("fp16", cutlass)
        # 317 clocks of instructions more between two tiles, in CUTLASS's SASS.
        assert adapted.epilogue.tile_clk == tile_clk + 317.0
        assert adapted.epilogue.apart == of_donor.epilogue.apart


def test_what_is_known_of_a_family_may_hold_for_some_rate_classes():
    donor = replace(calibration(), numbers={"fp16": numbers(), "fp8": numbers()})
    cublas = family_of("cublas", H200)
    sixteen, eight = (donor.numbers_for(kind, cublas).epilogue.tile_clk for kind in ("fp16", "fp8"))
    assert (sixteen, eight) == (numbers().epilogue.tile_clk, numbers().epilogue.tile_clk + 450.0)


def test_launches_of_a_borrowed_calibration_take_as_many_clocks():
    """3 us at the H200's 1980 MHz are 5940 clocks: 4.569 us at 1300 MHz, 3 us on a card of the same clock."""
    found = {"launch.kernel_us": 3.0, "chain.gap_us": 1.0, "chain.cold_us": 0.7, "first_loads.ramp_us": 0.9}
    donor = replace(calibration(), gpu="h200", numbers={"fp16": numbers(found)})
    family = family_of("quack", H200)
    locked = donor.numbers_on(load_gpu("b200_1300mhz"), "fp16", family)
    assert locked.launch.kernel_us == pytest.approx(4.569, abs=1e-3)
    assert locked.chain.gap_us == pytest.approx(1.523, abs=1e-3)
    # Waits for DRAM pass in ns, and what events add is the host's.
    assert (locked.chain.cold_us, locked.first_loads.ramp_us) == (0.7, 0.9)
    assert locked.launch.events_us == numbers(found).launch.events_us
    # Where both cards' small kernels are known, they tell: 2.52 us to the H200's 1.26.
    assert donor.numbers_on(replace(H200, name="a", small_kernel_us=2.52), "fp16", family).chain.gap_us == 2
    for same in ("h100_sxm", "h200"):
        assert donor.numbers_on(load_gpu(same), "fp16", family) == numbers(found)
    # A card's own energy of a 16-bit FLOP; of one of 8 bits in proportion.
    both = {kind: numbers({"power.pj_per_flop": pj}) for kind, pj in (("fp16", 1.5), ("fp8", 0.6))}
    hot = replace(donor, numbers=both), replace(H200, name="hot", pj_per_flop=3.0)
    found_pj = [hot[0].numbers_on(hot[1], kind, family).power.pj_per_flop for kind in both]
    assert found_pj == pytest.approx([3.0, 1.2])
    # Of a card that the package does not describe no clock is known.
    assert replace(donor, gpu="mine").numbers_on(load_gpu("b200_1300mhz"), "fp16", family) == numbers(found)


def test_loads_on_another_architecture_take_longer_by_what_its_dram_does():
    """559 ns at 1965 MHz are 1098 clocks, 384 at 1980 MHz 760; of the b200 no latency is known."""
    donor = replace(calibration(), gpu="h200", numbers={"fp16": numbers()})
    clk = {
        name: donor.numbers_on(load_gpu(name), "fp16", family_of("quack", H200)).latency.load_clk
        for name in ("b200_sxm", "b200_1300mhz", "h100_sxm")
    }
    assert clk["b200_sxm"] == pytest.approx(400 + 1098.4 - 760.3, abs=0.1)
    assert clk["b200_1300mhz"] == clk["h100_sxm"] == 400


def test_own_numbers_have_the_held_out_band_and_no_caveat(tmp_path):
    mine = replace(H200, name="mine")
    own = predicted(mine, calibration=calibration(gpu="mine"))
    assert own.caveats == ()
    # MMAs take longer than L2, and there are four waves and more.
    assert own.error_band == 0.07
    # A file is the pair's own too.
    path = str(calibration_file(tmp_path / "c.yaml"))
    assert predicted(H200, calibration=path).runtime_us == own.runtime_us


def test_a_card_tells_each_number_that_is_missing_and_whose_was_taken():
    bare = replace(H200, name="mine", validated=False, sources={}, tpc_rounds=(), mma_clk_share=0.9)
    said = "GPU mine: numbers not measured: l2_write_gb_per_s, l2_unwritten_share, dram_launch_bytes, tpc_rounds "
    said += "(left out); graph_launch_us, event_pair_us (taken of h200)"
    for gpu, more in (("mine", ""), ("h100_sxm", "; pj_per_flop (taken of h100_sxm)")):
        assert predicted(bare, calibration=calibration(gpu=gpu)).caveats[-1] == said + more


@pytest.mark.parametrize(*cases(__file__, "test_a_borrowed_calibration_is_named_with_what_borrowing_cost"))
def test_a_borrowed_calibration_is_named_with_what_borrowing_cost(gpu, changes, words, way):
    found = predicted(load_gpu(gpu), calibration=calibration(**changes))
    assert words in found.caveats
    known = borrowed_bands()[way]
    assert 0.09 < known <= found.error_band < known + 0.1
    assert (found.error_band == known) == load_gpu(gpu).validated


def test_a_class_that_was_not_fitted_says_so():
    found = predicted(H200, "tf32", calibration=calibration())
    assert "tf32 is not calibrated; the numbers are those of fp16" in found.caveats
    # An H200 whose numbers are not those measured: two ways at once add in squares.
    both = math.hypot(borrowed_bands()["other_gpu"], borrowed_bands()["other_rate_class"])
    assert found.error_band == pytest.approx(both)


def test_without_held_out_rows_there_is_no_band():
    mine = replace(H200, name="mine")
    assert predicted(mine, calibration=calibration(gpu="mine", error_band={})).error_band is None


@pytest.mark.parametrize(*cases(__file__, "test_a_card_is_what_its_numbers_are_not_what_it_is_called"))
def test_a_card_is_what_its_numbers_are_not_what_it_is_called(numbers):
    changed = replace(load_gpu("h200"), **numbers)
    found, shipped = predicted(changed), predicted(load_gpu("h200"))
    assert shipped.error_band < found.error_band == borrowed_bands()["other_gpu"]
    assert any("its numbers are not the measured card's" in caveat for caveat in found.caveats)
    # Some of the SMs of the measured card are still that card.
    assert predicted(with_sms(load_gpu("h200"), 100)).error_band == shipped.error_band


def test_the_band_of_an_unmeasured_card_adds_its_numbers_intervals_in_squares():
    card = replace(load_gpu("gh200"), intervals={"dram_read_gb_per_s": 0.1, "flop_per_clk_per_sm": 0.2})
    shares = {"TENSOR": 0.4, "DRAM": 0.6, "SPILLING": 0.0}
    # sqrt((0.4 x 0.2)^2 + (0.6 x 0.1)^2), and with 0.24 for the kernels sqrt(0.01 + 0.0576).
    assert card_band(card, shares) == pytest.approx(0.1)
    assert with_card_band(0.24, card, shares) == pytest.approx(0.26)
    assert card_band(H200, shares) == 0.0
    sure = replace(load_gpu("gh200"), intervals=dict.fromkeys(ASSUMED_INTERVALS, 0.0))
    assert predicted(sure).error_band == pytest.approx(borrowed_bands()["other_gpu"])
    assert predicted(load_gpu("gh200")).error_band > predicted(sure).error_band


def test_the_band_of_another_regime_adds_what_its_rows_were_off_in_squares():
    alone, chained = (predicted(load_gpu("h200"), regime=regime).error_band for regime in ("burst", "graph"))
    assert chained == pytest.approx(math.hypot(alone, regime_band("graph")))
    assert regime_band("burst") == 0.0 < regime_band("graph") < regime_band("sustained") < 0.1


def test_unmeasured_cards_and_classes_have_a_band():
    for gpu, dtype in (("b200_sxm", "bf16"), ("gb300", "fp16"), ("b200_sxm", "nvfp4")):
        assert 0.2 < predicted(load_gpu(gpu), dtype).error_band < 0.4


@pytest.mark.parametrize(*cases(__file__, "test_situations"))
def test_situations(waves, waves_us, memory_us, tensor_us, split_k, expected):
    def found(alike, column):
        schedule = SimpleNamespace(waves=alike(waves), sharers=alike(split_k))
        times = {"waves_us": waves_us, "l2_us": memory_us, "dram_us": 0.0, "tensor_us": tensor_us}
        times = SimpleNamespace(**{name: column(value) for name, value in times.items()})
        geometry = SimpleNamespace(schedule=schedule, batch=SimpleNamespace(kinds=SimpleNamespace(kind=-1.0)))
        return situation(geometry, times).tolist()

    assert found(float, float) == [expected]
    assert found(np.atleast_1d, np.atleast_1d) == [expected]
    # Facts that all rows share are numbers beside the columns of the others.
    assert found(float, lambda value: np.full(3, value)) == [expected] * 3


def test_numbers_of_timelines_are_read_from_the_file_and_leave_the_runtime_alone(tmp_path):
    values = as_mapping(calibration())
    assert values["timeline"]["prologue_us"]["value"] == 0.5
    values["timeline"]["drain_us"] = {"value": 0.25, "unit": "us", "source": ""}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    found = load_calibration(tmp_path / "c.yaml")
    assert (found.within_phases.prologue_us, found.within_phases.drain_us) == (0.5, 0.25)
    assert found.fingerprint() == calibration().fingerprint()
    del values["timeline"]
    (tmp_path / "older.yaml").write_text(yaml.safe_dump(values))
    assert load_calibration(tmp_path / "older.yaml").within_phases.prologue_us == 0.67


BANDS = {"tiny": 0.1, "memory_bound": 0.1, "few_waves": 0.1, "many_waves": 0.1, "split_k": 0.2}


@pytest.mark.parametrize(*cases(__file__, "test_a_file_that_is_no_calibration_is_refused_in_one_sentence"))
def test_a_file_that_is_no_calibration_is_refused_in_one_sentence(tmp_path, gemm_model, place, value, words):
    *path, name = place
    inner = values = as_mapping(calibration())
    for part in path:
        inner = inner[part]
    inner[name] = list(value) if isinstance(value, tuple) else value
    if value == "gone":
        del inner[name]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(values))
    outcome = gemm_model(*PREDICT, f"model_opts.calibration={path}")
    assert outcome.code == 2
    assert words in outcome.err
    assert "c.yaml" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    *cases(__file__, "test_a_file_for_another_pair_is_refused_and_a_shipped_one_borrowed")
)
def test_a_file_for_another_pair_is_refused_and_a_shipped_one_borrowed(tmp_path, gemm_model, words, pair):
    path = calibration_file(tmp_path / "c.yaml")
    outcome = gemm_model(*PREDICT, *words, f"model_opts.calibration={path}")
    assert outcome.code == 2
    assert f"c.yaml: a calibration of h200:quack; expected one of {pair}" in outcome.err
    assert outcome.err.count("\n") == 1
    borrowed = gemm_model(*PREDICT, *words, "model_opts.calibration='h200:quack'")
    assert borrowed.code == 0
    assert f"calibration of {pair} borrowed from h200:quack" in borrowed.out


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "\x00"])
def test_a_file_of_something_else_is_refused(tmp_path, gemm_model, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    outcome = gemm_model(*PREDICT, f"model_opts.calibration={path}")
    assert outcome.code == 2
    assert "c.yaml" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", ["z80", "h200:nonsense", "nowhere.yaml"])
def test_an_unknown_calibration_is_refused(gemm_model, name):
    outcome = gemm_model(*PREDICT, f"model_opts.calibration='{name}'")
    assert outcome.code == 2
    assert name in outcome.err
    with pytest.raises(InputError, match=name):
        load_calibration(name)


def test_numbers_of_one_class_serve_the_other(tmp_path):
    one = calibration(
        numbers={"fp8": numbers()}, intervals={"fp8": {"launch.kernel_us": 0.05}}, error_band={"fp8": BANDS}
    )
    found = load_calibration(
        calibration_file(tmp_path / "c.yaml", numbers=one.numbers, intervals=one.intervals)
    )
    assert tuple(found.numbers) == ("fp8",)
    assert found.kind_for("fp16") == "fp8"
    assert replace(found, path=None).fingerprint() == one.fingerprint()
