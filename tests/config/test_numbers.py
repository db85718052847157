"""Numbers of rooms: what the package ships, and files that are refused in a sentence."""

import copy
from dataclasses import asdict, dataclass, replace

import pytest
import yaml

from gemm_model.config.numbers import NUMBERS_DIR, empirical, load_room_numbers
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import assumed_numbers
from gemm_model.kernel_model.numbers import kernel_model_numbers
from gemm_model.kernels.numbers import family_numbers
from tests.gate.numbers import ROOMS, recorded, shipped
from tests.typed_numbers import calibration


@pytest.mark.parametrize("room", ROOMS)
def test_what_the_package_ships_is_what_is_recorded(room):
    assert shipped(room) == recorded()[room], "numbers moved (make golden)"


def test_every_file_is_a_room_and_every_number_says_where_it_comes_from():
    assert {path.stem for path in NUMBERS_DIR.iterdir()} == set(ROOMS) == set(recorded())
    for path in NUMBERS_DIR.iterdir():
        for entry in yaml.safe_load(path.read_text())["numbers"].values():
            assert entry["meaning"]
            assert entry["source"]
            assert (entry["status"] == "chosen") == entry["source"].startswith("chosen")


def test_what_a_description_does_not_say_is_the_h200_s():
    h200 = yaml.safe_load((NUMBERS_DIR.parent / "gpu" / "h200.yaml").read_text())
    assumed = {name: value for name, value in asdict(assumed_numbers()).items() if "_interval" not in name}
    assert assumed.pop("idle_power_share") == round(h200["idle_power_w"] / h200["power_cap_w"], 3)
    # What tensor loads gain over bulk loads is assumed of the H200 too.
    assert assumed.pop("tensor_load_gain") == 1.26
    assert assumed == {name: h200[name] for name in assumed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """A share and a count."""

    share: float = empirical("1", 0.0, 1.0)
    tiles: int = empirical("k tiles", 1, 100, whole=True)


RIGHT = {
    "share": {"value": 1, "unit": "1", "status": "chosen", "meaning": "a share", "source": "chosen"},
    "tiles": {"value": 7, "unit": "k tiles", "status": "counted", "meaning": "a count", "source": "SASS"},
}


def loaded(tmp_path, entries):
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({"numbers": entries}))
    return load_room_numbers(path, Two)


def test_whole_numbers_stay_whole_and_others_are_floats(tmp_path):
    found = loaded(tmp_path, RIGHT)
    assert (repr(found.share), repr(found.tiles)) == ("1.0", "7")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("share"), "numbers share are missing or unknown; expected share, tiles"),
        (lambda found: found.update(more=dict(found["share"])), "numbers more are missing or unknown"),
        (lambda found: found["share"].pop("source"), "share is .*; expected a mapping of value, unit"),
        (lambda found: found["tiles"].update(unit="us"), "tiles has unit 'us'; expected 'k tiles'"),
        (
            lambda found: found["tiles"].update(status="guessed"),
            "tiles is 'guessed'; expected one of measured",
        ),
        (lambda found: found["share"].update(value=1.5), "share is 1.5; expected a number of 1 from 0 to 1"),
        (lambda found: found["share"].update(value="0.5"), "share is '0.5'; expected a number"),
        (lambda found: found["tiles"].update(value=2.5), "tiles is 2.5; expected a whole number of k tiles"),
        (lambda found: found["share"].update(value=float("nan")), "not finite|nan|number"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, change, said):
    entries = copy.deepcopy(RIGHT)
    change(entries)
    with pytest.raises(InputError, match=said) as refused:
        loaded(tmp_path, entries)
    assert "\n" not in str(refused.value)


def test_a_file_without_numbers_is_refused(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("values: {}\n")
    with pytest.raises(InputError, match=r"two.yaml: numbers None are missing or unknown"):
        load_room_numbers(path, Two)


@pytest.mark.parametrize(
    ("place", "numbers", "name"),
    [
        ("family_numbers", family_numbers, "four_warp_accumulators"),
        ("kernel_model_numbers", kernel_model_numbers, "lowest_clock_share"),
    ],
)
def test_another_number_gives_a_calibration_another_fingerprint(monkeypatch, place, numbers, name):
    before = calibration().fingerprint()
    others = replace(numbers(), **{name: asdict(numbers())[name] * 1.1})
    monkeypatch.setattr(f"gemm_model.kernel_model.calibration_file.{place}", lambda: others)
    assert calibration().fingerprint() != before
