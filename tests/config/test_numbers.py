"""Numbers of rooms: what the package ships, and files that are refused in a sentence."""

import ast
import re
import time
from pathlib import Path

import pytest
import yaml

import gemm_model
from gemm_model import InputError, load_gpu
from gemm_model.config import CONFIG_DIR, resolve_config
from gemm_model.config.numbers import NUMBERS_DIR, room_numbers
from gemm_model.config.plain_yaml import parse_yaml, read_yaml_mapping
from gemm_model.core.settings import load_settings
from tests.cases import calls, cases
from tests.gate.numbers import ROOMS, recorded, shipped
from tests.typed_numbers import calibration

test_calls = calls(__file__)


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
    assumed = {name: value for name, value in vars(room_numbers("gpu")).items() if "_interval" not in name}
    assert assumed.pop("idle_power_share") == round(h200["idle_power_w"] / h200["power_cap_w"], 3)
    # What tensor loads gain over bulk loads is assumed of the H200 too.
    assert assumed.pop("tensor_load_gain") == 1.26
    # The latency of attention's models is that of the cards for which one was published; eight numbers are all cards'.
    assert assumed.pop("published_l2_latency_clk") == 262.0
    division = ("division_clk", "division_slots", "zero_division_clk", "zero_division_slots")
    assert [assumed.pop(name) for name in division] == [50.1, 9.0, 267.1, 43.0]
    rates = ("exponentials_per_clk", "copy_bytes_per_clk", "mma_sync_flop_per_clk", "copies_per_clk")
    assert [assumed.pop(name) for name in rates] == [16.0, 36.5, 2674.0, 2.9]
    stored = h200["l2_write_gb_per_s"] * 1e3 / (h200["sm_count"] * h200["sm_clk_mhz"])
    assert assumed.pop("stored_bytes_per_clk") == round(stored, 1)
    assert assumed == {name: h200[name] for name in assumed}


@pytest.mark.parametrize(*cases(__file__, "test_another_number_gives_a_calibration_another_fingerprint"))
def test_another_number_gives_a_calibration_another_fingerprint(monkeypatch, room, name):
    before = calibration().fingerprint()
    others = room_numbers(room).having(**{name: shipped(room)[name] * 1.1})
    monkeypatch.setattr(
        "gemm_model.kernel_model.calibration_file.room_numbers",
        lambda which: others if which == room else room_numbers(which),
    )
    assert calibration().fingerprint() != before


HOLDING = ("attention", "serving")
"""Packages whose records have a field `numbers`, which holds those of their room."""


def read_through_names(function, package):
    """Room and name of each number that a function reads through a name or a field that holds a room's."""
    arguments = (*function.args.args, *function.args.kwonlyargs)
    held = {
        each.arg: package for each in arguments if each.annotation and "Numbers" in names_in(each.annotation)
    }
    for each in ast.walk(function):
        if isinstance(each, ast.Assign):
            target, value = each.targets[0], each.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            for name, part in zip(target.elts, value.elts, strict=False) if several else [(target, value)]:
                held[ast.unparse(name)] = room_of(part, held, package)
    for each in ast.walk(function):
        if isinstance(each, ast.Attribute) and (room := room_of(each.value, held, package)):
            yield room, each.attr


def names_in(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def room_of(node, held, package):
    """The room whose numbers an expression is; None for any other expression."""
    if isinstance(node, ast.Name):
        return held.get(node.id)
    text = ast.unparse(node)
    if found := re.fullmatch(r"(?:\w+ or )?room_numbers\('(\w+)'\)", text):
        return found[1]
    return package if package in HOLDING and text.endswith(".numbers") else held.get(text)


def test_a_number_is_read_by_its_name_and_every_name_is_one_of_a_file():
    """Names are known to the files alone: no type checker sees a slip."""
    package, read = Path(gemm_model.__file__).parent, set()
    texts = (package / "config" / "explanations.toml").read_text()
    for path in package.rglob("*.py"):
        texts += (text := path.read_text())
        tree = ast.parse(text if "numbers" in text else "")
        functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
        read.update(*(read_through_names(each, path.relative_to(package).parts[0]) for each in functions))
    known = {room: {*shipped(room), "having"} for room in ROOMS}
    assert [(room, name) for room, name in read if name not in known[room]] == []
    by_text = {found[1] for found in re.finditer(r"\"(\w+)\"|\.(\w+_interval)", texts)}
    assert {name for room in ROOMS for name in shipped(room)} <= {name for _, name in read} | by_text


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(*cases(__file__, "test_values_are_those_of_yaml_1_2"))
def test_values_are_those_of_yaml_1_2(text, value):
    assert parse_yaml(text, "here") == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "line 1: an anchor or alias"),
        ("[" * 100_000, "nested more than 16 levels"),
        ("- " * 50_000, "nested more than 16 levels"),
        ("{a: " * 5_000, "nested more than 16 levels"),
        ("a: !!python/object/apply:os.system [id]", "tag tag:yaml.org,2002:python"),
        ("a: 1\na: 2", "key 'a' appears twice"),
        ("? [a]\n: 1", "a key is a list or a mapping"),
        ("null: 1", "expected a text or a whole number"),
        ("true: 1", "expected a text or a whole number"),
        ("a: .nan", "a is nan; expected a finite number"),
        ("a: [.inf]", "a[0] is inf; expected a finite number"),
        ("a: 1e400", "a is inf; expected a finite number"),
        ("a: " + "9" * 5_000, "Exceeds the limit"),
        ("a: 99999999999999999999", "a is a whole number beyond 2^53"),
        ("a: 'open", "not readable as YAML"),
        ("a: \0", "not readable as YAML"),
        ("- a", "expected a YAML mapping with a thing"),
        ("1: 2", "key 1; expected a text"),
    ],
)
def test_anything_else_is_one_sentence_at_once(tmp_path, text, sentence):
    path = tmp_path / "given.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(InputError) as refused:
        read_yaml_mapping(path, "a thing")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert time.process_time() - started < 2.0


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(InputError, match="expected a YAML file of at most"):
        read_yaml_mapping(path, "a thing")


@pytest.mark.parametrize(*cases(__file__, "test_a_gpu_of_wrong_values_is_refused"))
def test_a_gpu_of_wrong_values_is_refused(tmp_path, line, sentence):
    key = line.partition(":")[0]
    lines = (CONFIG_DIR / "gpu" / "v100_sxm2.yaml").read_text().splitlines()
    kept = [
        text
        for text in lines
        if not text.startswith(f"{key}:") and not (key == "sources" and text[:2] == "  ")
    ]
    path = tmp_path / "mine.yaml"
    path.write_text("\n".join([*kept, line]) + "\n")
    with pytest.raises(InputError, match=f"mine.yaml: GPU v100_sxm2: {sentence}"):
        load_gpu(path)


def test_each_value_tells_its_source(tmp_path):
    resolved = resolve_config(
        ["model_opts.l2_hit_rate=0.4"], {"gpu": "B200_1300MHZ", "model": "wspersistentgemmmodel"}
    )
    assert resolved.values["model"] == "WSPersistentGEMMModel"
    assert resolved.sources["gpu.sm_count"] == "config/gpu/b200_1300mhz.yaml"
    assert resolved.sources["model_opts.l2_hit_rate"] == "command line"
    assert resolved.sources["model_opts.fixed_overhead_cycles"] == "config/model/WSPersistentGEMMModel.yaml"
    assert resolved.changed("model_opts")
    assert not resolved.changed("gpu")


def test_fewer_sms_bring_what_follows_from_them():
    # 66 SMs hold 66 clusters of one CTA, 33 of two, 16 of four, 8 of eight and 4 of sixteen; measured limits
    # of the H200 are 30, 15 and 7 for the larger ones.
    gpu = load_settings(["gpu.sm_count=66"], {}).gpu
    assert gpu.sm_count == 66
    assert dict(gpu.resident_clusters) == {1: 66, 2: 33, 4: 16, 8: 8, 16: 4}
    assert gpu == load_settings([], {}, sms=66).gpu
    with pytest.raises(InputError, match="sms is 200; expected 1 to 132"):
        load_settings(["gpu.sm_count=200"], {})
