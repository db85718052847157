"""The registry of models: names in any case, options that a model has, and what may be kept."""

from importlib import import_module

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.core.batch import batch_of
from gemm_model.models import create_model, lasting, models, require_known
from tests.cases import cases

H200 = load_gpu("h200")
NAMES = [
    *("SOLModel", "WSPersistentGEMMModel", "PipelineModel", "KernelModel"),
    *("MemoryHierarchyModel", "OverlapModel"),
]


def test_the_module_is_called_like_its_function():
    assert models() == import_module("gemm_model.models")() == NAMES


@pytest.mark.parametrize("name", NAMES[:-1])
def test_each_model_is_made_by_its_name_in_any_case_and_predicts(name):
    model = create_model(name.upper(), H200)
    batch = batch_of([(GemmProblem.of(4096, 4096, 4096), KernelConfig(cta_m=128, cta_n=128))])
    assert type(model).__name__ == name
    # 2 x 4096^3 FLOP at 132 x 4096 FLOP a clock and 1980 MHz take 128.4 us.
    assert 128.3 < model.predict_batch(batch).runtime_us.item() < 500


@pytest.mark.parametrize(*cases(__file__, "test_unknown_names_options_and_values_are_named"))
def test_unknown_names_options_and_values_are_named(name, options, sentence):
    with pytest.raises(InputError, match=sentence):
        create_model(name, H200, options)


def test_a_model_of_plain_products_refuses_more():
    plain = create_model("PipelineModel", H200)
    require_known(plain, beyond_plain=False)
    require_known(create_model("SOLModel", H200), beyond_plain=True)
    with pytest.raises(InputError, match="PipelineModel knows plain products alone"):
        require_known(plain, beyond_plain=True)


def test_what_a_file_or_an_object_says_is_not_kept():
    assert lasting("h200", None)
    assert lasting(H200, {"regime": "graph", "residual": "off"})
    assert not lasting("card.yaml", None)
    assert not lasting("h200", {"calibration": "card.yaml"})
    assert not lasting("h200", {"without": ["clock"]})
    with pytest.raises(InputError, match="expected a mapping of a model's options"):
        lasting("h200", ["regime"])
