"""The verb serve-configs: files, refusals in one sentence, nothing overwritten."""

import json

import pytest

from gemm_model.serving.frameworks import SGLANG, VLLM, framework_of
from gemm_model.serving.model_list import listed_models
from tests.cases import cases

MOE = {
    "model_type": "mixtral", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 3584, "num_local_experts": 8, "num_experts_per_tok": 2,
    "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip


def config_file(folder, config=MOE):
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path):
    return config_file(tmp_path)


def words(config, folder, **changed):
    asked = {
        "config": str(config), "device": "NVIDIA H200", "framework": VLLM, "output": str(folder),
    } | changed  # fmt: skip
    return ["serve-configs", *(word for key, value in asked.items() for word in (f"--{key}", value))]


def test_it_writes_names_gains_and_the_line_to_copy(gemm_model, config, tmp_path):
    folder = tmp_path / "written"
    outcome = gemm_model(*words(config, folder, tp="2"), "--format", "json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert document["result"]["variable"] == f"export VLLM_TUNED_CONFIG_FOLDER={folder.resolve()}"
    assert [path.name for path in folder.iterdir()] == ["E=8,N=1792,device_name=NVIDIA_H200.json"]
    assert [row["tokens"] for row in document["rows"]][:4] == [1, 2, 4, 8]
    assert all(row["gain"] >= -1e-9 for row in document["rows"])


def test_nothing_is_overwritten_without_force(gemm_model, config, tmp_path):
    folder = tmp_path / "written"
    assert gemm_model(*words(config, folder)).code == 0
    (path,) = folder.iterdir()
    path.write_text("{}", encoding="utf-8")
    refused = gemm_model(*words(config, folder))
    assert refused.code == 2
    assert "already there; expected --force" in refused.err
    assert path.read_text(encoding="utf-8") == "{}"
    assert gemm_model(*words(config, folder), "--force").code == 0
    assert "BLOCK_SIZE_M" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(*cases(__file__, "test_bad_words_are_refused_in_one_sentence"))
def test_bad_words_are_refused_in_one_sentence(gemm_model, config, tmp_path, changed, said):
    outcome = gemm_model(*words(config, tmp_path / "written", **changed))
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mystery"}, "no hidden_size or n_embd or d_model"),
        ({key: value for key, value in MOE.items() if "expert" not in key}, "expected a model with experts"),
    ],
)
def test_models_that_cannot_be_served_are_refused(gemm_model, tmp_path, config, said):
    outcome = gemm_model(*words(config_file(tmp_path, config), tmp_path / "written"))
    assert outcome.code == 2
    assert said in outcome.err


def test_every_listed_model_is_read_twice():
    models = listed_models()
    assert len(models) >= 60
    assert all(shapes.experts is not None for shapes in models)


def test_versions_of_layouts():
    framework_of(VLLM).require_version("0.33.0")
    framework_of(SGLANG).require_version("0.5.18.post1")
