import importlib.util
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.11")

from torch._inductor import config, ir
from torch._inductor.choices import InductorChoices
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel.mm import (
    aten__fp8_mm,
    aten_addmm,
    aten_bias_addmm,
    aten_mm,
    decompose_k_subgraph_template,
    mm_template,
)
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

import gemm_model
from gemm_model.errors import InputError
from gemm_model.integrations import inductor, inductor_autoload
from gemm_model.integrations.inductor import ModelChoices, Way, WayTimes, install, problem_of
from tests.cases import calls

test_calls = calls(__file__)

TEMPLATES = [aten_mm, mm_template, decompose_k_subgraph_template]


@pytest.fixture(autouse=True)
def graph():
    """A graph that is being lowered, with templates on offer; afterwards Inductor is as it was."""
    lowering = GraphLowering(torch.fx.symbolic_trace(lambda x: x))
    with config.patch(max_autotune_gemm=True, inductor_choices_class=None), V.set_graph_handler(lowering):
        yield
    V.set_choices_handler(InductorChoices())


def matrix(name, size, stride, dtype=torch.bfloat16):
    layout = ir.FixedLayout(torch.device("cuda", 0), dtype, size, stride)
    return ir.TensorBox.create(ir.InputBuffer(name=name, layout=layout))


def product(m, n, k):
    return MMKernelInputs([matrix("a", [m, k], [k, 1]), matrix("b", [k, n], [1, k])])


def biased(m, n, k):
    nodes = [matrix("c", [m, n], [0, 1]), matrix("a", [m, k], [k, 1]), matrix("b", [k, n], [1, k])]
    return MMKernelInputs(nodes, scalars={"alpha": 1, "beta": 1})


def scaled(m, n, k, bias):
    """Operands in fp8, a scale a tensor."""
    sizes = {"a": ([m, k], [k, 1]), "b": ([k, n], [1, k])}
    nodes = [matrix(name, *size, torch.float8_e4m3fn) for name, size in sizes.items()]
    nodes += [matrix(name, [], [], torch.float32) for name in ("scale_a", "scale_b")]
    if bias:
        nodes.append(matrix("bias", [n], [1]))
    return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=torch.bfloat16)


def kept(choices, inputs, templates, operator="mm"):
    offered = {template.uid: choices.get_ktc(inputs, template, operator) for template in templates}
    return choices._finalize_template_configs(offered, inputs, templates, operator)


def ways(found):
    return [Way.of(each.template.uid, each.params.to_kwargs()) for each in found]


@pytest.mark.parametrize("sizes", [(16, 4096, 4096), (512, 11008, 4096), (64, 64, 65536), (4096, 640, 640)])
def test_the_library_and_the_templates_of_least_predicted_time_are_kept(sizes):
    inputs = product(*sizes)
    every = ways(kept(InductorChoices(), inputs, TEMPLATES))
    times_us = dict(zip(every, WayTimes("h200").predict_us(problem_of(inputs, "mm"), every), strict=True))
    library = Way("aten::mm")
    templates = sorted((way for way in every if way != library), key=lambda way: times_us[way])
    assert len(templates) > 10
    found = ways(kept(ModelChoices(gpu="h200", confirm=3)(), inputs, TEMPLATES))
    assert [way for way in found if way != library] == templates[: 3 - found.count(library)]
    assert found[0] == library or times_us[found[0]] < times_us[library]
    assert ways(kept(ModelChoices(gpu="h200")(), inputs, TEMPLATES)) == found[:1]


def test_a_long_k_of_few_outputs_is_split_and_a_short_one_is_not():
    choices = ModelChoices(gpu="h200")()
    assert ways(kept(choices, product(64, 64, 65536), TEMPLATES))[0].template == "decompose_k"
    assert ways(kept(choices, product(64, 4096, 4096), TEMPLATES))[0].template == "aten::mm"


def test_an_addmm_that_comes_in_two_calls_gets_one_choice_in_all(monkeypatch):
    monkeypatch.setattr("torch._inductor.utils.is_big_gpu", lambda *_: True)
    inputs = biased(512, 11008, 4096)
    assert problem_of(inputs, "addmm").epilogue.words == ("bias_n",)
    choices = ModelChoices(gpu="h200")()
    library = kept(choices, inputs, [aten_addmm, aten_bias_addmm], "addmm")
    triton = kept(choices, inputs, [mm_template], "addmm")
    assert len(library) + len(triton) == 1


@pytest.mark.parametrize("bias", [False, True])
def test_a_scaled_product_keeps_what_is_predicted_to_be_the_fastest(bias):
    inputs = scaled(64, 4096, 4096, bias)
    problem = problem_of(inputs, "scaled_mm")
    assert (problem.sizes, problem.a_dtype.name) == ((64, 4096, 4096, 1), "e4m3")
    assert (problem.epilogue is not None) == bias
    every = ways(kept(InductorChoices(), inputs, [aten__fp8_mm, mm_template], "scaled_mm"))
    times_us = dict(zip(every, WayTimes("h200").predict_us(problem, every), strict=True))
    library, *templates = every
    assert len(templates) > 10
    assert min(times_us.values()) < np.inf
    choices = ModelChoices(gpu="h200", confirm=4)()
    found = ways(kept(choices, inputs, [aten__fp8_mm, mm_template], "scaled_mm"))
    best = sorted(templates, key=lambda way: times_us[way])
    assert [way for way in found if way != library] == best[: 4 - found.count(library)]


def test_a_template_that_needs_more_shared_memory_than_there_is_is_not_chosen():
    block = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "GROUP_M": 8, "num_stages": 5, "num_warps": 8}
    problem = problem_of(product(4096, 4096, 4096), "mm")
    assert WayTimes("h200").predict_us(problem, [Way.of("triton::mm", block)]) == [np.inf]


def test_the_librarys_outputs_keep_their_layout_as_without_tuning():
    choices, inputs = ModelChoices(gpu="h200")(), product(512, 11008, 4096)
    library, templates = (kept(InductorChoices(), inputs, [each]) for each in (aten_mm, mm_template))
    with config.patch(max_autotune_allow_flexible_layouts=False):
        assert InductorChoices()._need_to_fix_layout(library, "mm")
        assert not choices._need_to_fix_layout(library, "mm")
        assert choices._need_to_fix_layout(library, "addmm")
        assert choices._need_to_fix_layout([*library, *templates], "mm")
        assert ModelChoices(gpu="h200", tunes_otherwise=True)()._need_to_fix_layout(library, "mm")
    assert config.max_autotune_gemm


def test_what_is_not_ranked_stays_with_inductor_and_a_line_says_so(caplog, monkeypatch):
    inputs, choices = product(512, 4096, 4096), ModelChoices(gpu="h200")()
    with caplog.at_level(logging.WARNING):
        assert ways(kept(choices, inputs, TEMPLATES, "mm_plus_mm")) == [Way("aten::mm")]
        monkeypatch.setattr(WayTimes, "predict_us", lambda *_: 1 / 0)
        assert ways(kept(choices, inputs, TEMPLATES)) == [Way("aten::mm")]
        with config.patch(max_autotune=True):
            assert len(kept(choices, inputs, TEMPLATES)) > 10
    assert f"gemm-model leaves mm {inductor.INDUCTOR}: division by zero" in caplog.text


def test_convolutions_are_timed_only_where_they_would_be_without_us():
    def offered(tunes):
        return list(ModelChoices(gpu="h200", tunes_otherwise=tunes)().get_conv_configs("cuda")(64, 64, 64))

    assert not offered(tunes=False)
    assert offered(tunes=True) == list(InductorChoices().get_conv_configs("cuda")(64, 64, 64)) != []
    with config.patch(max_autotune=True):
        assert offered(tunes=False)


def test_a_second_install_replaces_the_first_and_uninstall_leaves_nothing():
    with config.patch(max_autotune_gemm=False):
        assert install("h200")
        assert install("h100_sxm", confirm=2)
        made = ModelChoices(gpu="h100_sxm", confirm=2, version=gemm_model.__version__)
        assert config.inductor_choices_class == made
        inductor.uninstall()
        assert not config.max_autotune_gemm
    assert config.inductor_choices_class is None


def test_a_torch_that_asks_in_another_way_is_left_alone(caplog, monkeypatch):
    def asks_more(self, template_choices, kernel_inputs, templates, op_name, more): ...

    monkeypatch.setattr(InductorChoices, "_finalize_template_configs", asks_more)
    assert not install("h200")
    assert f"takes no choices; written for torch {inductor.TORCH_VERSIONS}" in caplog.text
    monkeypatch.undo()
    monkeypatch.delattr(InductorChoices, "_need_to_fix_layout")
    assert not install("h200")
    assert config.inductor_choices_class is None


def test_a_torch_without_its_lookup_table_is_left_alone(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.lookup_table", None)
    spec = importlib.util.spec_from_file_location("inductor_elsewhere", inductor.__file__)
    other = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, other)
    spec.loader.exec_module(other)
    assert not other.install("h200")
    assert "written for torch" in caplog.text
    with pytest.raises(InputError, match="written for torch"):
        other.lookup_table(lambda x: x, [], "h200")
    other.uninstall()


def test_without_a_known_card_nothing_is_installed(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Somebody's Card")
    with caplog.at_level(logging.WARNING):
        assert not install()
    assert 'no description is of "Somebody\'s Card"' in caplog.text
    assert config.inductor_choices_class is None
    with pytest.raises(InputError, match="unknown GPU"):
        install("no_such_gpu")
    with pytest.raises(InputError, match="confirm is 0"):
        install("h200", confirm=0)


def test_the_key_of_inductors_caches_tells_settings_apart():
    one, other = ModelChoices(gpu="h200"), ModelChoices(gpu="h200", confirm=2)
    assert one().uuid() != other().uuid()
    assert one().uuid() == ModelChoices(gpu="h200")().uuid()


@pytest.mark.slow
def test_a_program_compiles_as_before_with_the_choices_installed():
    def program(x, w, bias):
        return torch.relu(torch.addmm(bias, x, w)) @ w

    inputs = [torch.randn(32, 64), torch.randn(64, 64), torch.randn(64)]
    assert install("h200")
    found = torch.compile(program)(*inputs)
    inductor.uninstall()
    torch.testing.assert_close(found, program(*inputs), rtol=1e-3, atol=1e-3)


def test_the_table_is_one_that_inductor_looks_up():
    on_meta = {"device": "meta", "dtype": torch.bfloat16}
    last = torch.nn.Linear(640, 512, bias=False)
    layers = torch.nn.Sequential(torch.nn.Linear(4096, 640), torch.nn.ReLU(), last).to(**on_meta)
    table = inductor.lookup_table(layers, [torch.empty(256, 4096, **on_meta)], "h200", confirm=2)

    class Reads(LookupTableChoices):
        def _get_lookup_table(self):
            return table

        @staticmethod
        def _get_device_key(device):
            return "a card"

    products = [(biased(256, 640, 4096), "addmm", aten_bias_addmm), (product(256, 512, 640), "mm", aten_mm)]
    for inputs, operator, library in products:
        found = Reads().lookup_template_configs(inputs, operator, [library.uid, mm_template.uid])
        assert sum(map(len, found.values())) == 2
        fastest = ModelChoices(gpu="h200", confirm=2)()
        expected = ways(kept(fastest, inputs, [library, mm_template], operator))
        got = [Way.of(uid, entry) for uid, entries in found.items() for entry in entries]
        assert set(got) == set(expected)


@pytest.mark.slow
def test_one_variable_installs_the_choices_as_torch_is_imported(tmp_path):
    info = tmp_path / "installed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\ngemm_model = gemm_model.integrations.inductor_autoload:autoload\n"
    )
    path = os.pathsep.join((str(tmp_path), *sys.path))
    words = "import torch; print(torch._inductor.config.inductor_choices_class)"
    environment = {**os.environ, "PYTHONPATH": path, inductor_autoload.VARIABLE: "h200,confirm=2"}
    found = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True)
    assert "gpu='h200', confirm=2" in found.stdout, found.stderr


@pytest.mark.parametrize(("asked", "confirm"), [("h200", 1), ("h200,confirm=2", 2)])
def test_a_variable_names_the_card_and_how_many_are_timed(asked, confirm, monkeypatch):
    monkeypatch.setenv(inductor_autoload.VARIABLE, asked)
    inductor_autoload.autoload()
    found = config.inductor_choices_class
    inductor.uninstall()
    assert (found.gpu, found.confirm) == ("h200", confirm)


@pytest.mark.parametrize("asked", ["no_such_gpu", "h200,confirm", "h200,confirm=0"])
def test_a_variable_that_says_nothing_known_has_no_effect(asked, monkeypatch, caplog):
    monkeypatch.setenv(inductor_autoload.VARIABLE, asked)
    with caplog.at_level(logging.WARNING):
        inductor_autoload.autoload()
    assert f"{inductor_autoload.VARIABLE}={asked} has no effect" in caplog.text
    assert config.inductor_choices_class is None
