"""YAML files of strangers: plain values within limits, or one sentence, at once."""

import math
import time

import pytest

from gemm_model import InputError, load_gpu
from gemm_model.config import CONFIG_DIR, load_config, resolve_config
from gemm_model.config.plain_yaml import parse_yaml, read_yaml_mapping
from gemm_model.core.settings import load_settings
from tests.cases import cases

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


def test_no_limit_is_a_number_where_it_means_something():
    assert parse_yaml("a: .inf", "here", infinite=True) == {"a": math.inf}


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


def test_overrides_change_what_is_there_and_add_what_is_asked():
    assert load_config(["model_opts.without=[clock, l2]"])["model_opts"]["without"] == ["clock", "l2"]
    assert load_config(["+gpu.ctas_per_sm=4"])["gpu"]["ctas_per_sm"] == 4
    for word in ("gpu.ctas_pr_sm=4", "nothing.at.all=1", "gpu.sm_count.x=1", "~gpu.sm_count=1"):
        with pytest.raises(InputError, match="override"):
            load_config([word])


def test_fewer_sms_bring_what_follows_from_them():
    # 66 SMs hold 66 clusters of one CTA, 33 of two, 16 of four, 8 of eight and 4 of sixteen; measured limits
    # of the H200 are 30, 15 and 7 for the larger ones.
    gpu = load_settings(["gpu.sm_count=66"], {}).gpu
    assert gpu.sm_count == 66
    assert dict(gpu.resident_clusters) == {1: 66, 2: 33, 4: 16, 8: 8, 16: 4}
    assert gpu == load_settings([], {}, sms=66).gpu
    with pytest.raises(InputError, match="sms is 200; expected 1 to 132"):
        load_settings(["gpu.sm_count=200"], {})


def test_parts_of_the_configuration_that_are_not_read_are_refused():
    with pytest.raises(InputError, match="not read here"):
        load_settings(["timing.repeats=3"], {})
