"""The verb serve-configs: files, refusals in one sentence, nothing overwritten."""

import json
from dataclasses import replace
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_model.commands import serve_configs
from gemm_model.core.gpu import load_gpu
from gemm_model.errors import MissingExtraError
from gemm_model.serving.choose import Chosen, choices_of, confirmed
from gemm_model.serving.frameworks import SGLANG, VLLM, framework_of
from gemm_model.serving.layers import DenseCell
from gemm_model.serving.model_list import listed_models
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.tile_config import TileConfig
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


@pytest.mark.parametrize(*cases(__file__, "test_models_that_cannot_be_served_are_refused"))
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


DEFAULT, FIRST, SECOND = TileConfig(16, 64, 128, 1), TileConfig(16, 128, 128, 1), TileConfig(32, 64, 128, 16)
CHOSEN = Chosen(tokens=16, configs=(FIRST,), predicted_us=8.0, default=DEFAULT, default_us=10.0,
                best=((FIRST, 8.0), (SECOND, 9.0)))  # fmt: skip


class Given:
    """A timer that is told the time of each configuration."""

    def __init__(self, time_us):
        self.time_us, self.asked = time_us, []  # type: ignore[var-annotated]

    def times_us(self, product, configs):
        self.asked.append((product.tokens, product.n, list(configs)))
        return list(map(self.time_us, configs))


@pytest.mark.parametrize(
    ("times", "config", "predicted_us", "gain"),
    [
        ((7.0, 6.0, 5.0), SECOND, 9.0, 0.4),
        ((5.0, 6.0, 7.0), DEFAULT, 10.0, 0.0),
        ((7.0, inf, 7.5), DEFAULT, 10.0, 0.0),
    ],
)
def test_the_fastest_is_kept(times, config, predicted_us, gain):
    timer = Given(dict(zip((DEFAULT, FIRST, SECOND), times, strict=True)).__getitem__)
    found = confirmed(DenseCell(n=512, k=512), CHOSEN, timer)
    assert (found.configs, found.predicted_us) == ((config,), predicted_us)
    assert found.gain == pytest.approx(gain)
    assert timer.asked == [(16, 512, [DEFAULT, FIRST, SECOND])]


def test_the_best_are_no_twins():
    for chosen in choices_of((DenseCell(n=2112, k=7168), load_gpu("h200"), "vllm", "uniform", 6)):
        configs, times = zip(*chosen.best, strict=True)
        assert len({replace(config, group_m=1) for config in configs}) == 6
        assert list(times) == sorted(times)
        assert chosen.gain == 0 or configs[0] == chosen.configs[0]


def test_files_hold_what_was_confirmed(gemm_model, tmp_path, monkeypatch):
    timer = Given(lambda config: 1.0 if config.group_m == 64 else 2.0)
    monkeypatch.setattr(serve_configs, "_timer", lambda args, server: timer)
    asked = words(config_file(tmp_path), tmp_path / "out", confirm="5")
    rows = json.loads(gemm_model(*asked, "--format", "json").out)["rows"]
    assert len(timer.asked) == 2 * len(rows)
    assert {len(configs) for _, _, configs in timer.asked} <= {5, 6}
    (path,) = (tmp_path / "out").iterdir()
    written = json.loads(path.read_text(encoding="utf-8"))
    for row in rows:
        # Both products of a layer count, and the default is chosen where nothing is faster.
        assert row["timed_us"] == (2.0 if row["group_m"] == 64 else 4.0)
        assert row["gain"] == row["default_timed_us"] / row["timed_us"] - 1
        assert written[str(row["tokens"])]["GROUP_SIZE_M"] == row["group_m"]


def vllm_timer():
    """The module, which imports torch."""
    return pytest.importorskip("gemm_model.serving.vllm_timer")


def test_without_a_gpu_it_says_so(gemm_model, tmp_path):
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    outcome = gemm_model(*words(config_file(tmp_path), tmp_path / "out", confirm="4"))
    assert outcome.code == 3
    assert "--confirm needs a GPU" in outcome.err


def test_sorted_ids_by_hand():
    # Expert 2 gets pairs 0 and 2, expert 0 pair 3, expert 1 pair 1; the card holds experts 0 and 1.
    torch = pytest.importorskip("torch")
    ids = torch.tensor([[2, 1], [2, 0]], dtype=torch.int32)
    sorted_ids, tiles, rows = (each.tolist() for each in vllm_timer().aligned(ids, 4, 2, 3))
    assert sorted_ids[:12] == [3, 4, 4, 4, 1, 4, 4, 4, 0, 2, 4, 4]
    assert (len(sorted_ids), tiles, rows) == (16, [0, 1, -1, -1], [12])


class Kernels:
    """vLLM's two modules: they note the tensors and refuse tiles of 256 rows."""

    def __init__(self):
        self.calls: list[tuple[Any, ...]] = []
        self.get_w8a8_block_fp8_configs = self.own = lambda *_: None

    def invoke_fused_moe_triton_kernel(self, *given):
        if given[11]["BLOCK_SIZE_M"] == 256:
            raise RuntimeError("out of resources")
        self.calls.append(given)

    def w8a8_triton_block_scaled_mm(self, *given):
        self.calls.append((*given, self.get_w8a8_block_fp8_configs(0, 0, 0, 0)))


def timer_of(kernels):
    def measure(launches):
        return float(len([launch() for launch in launches]))

    return vllm_timer().VllmTimer(kernels, kernels, measure, "cpu")


def test_experts_are_launched_as_vllm_launches_them(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(vllm_timer(), "COLD_BYTES", 3000)
    kernels = Kernels()
    scaled = {"in_dtype": "e4m3", "scaling": "block128x128"}
    product = ServedProduct(tokens=12, n=256, k=128, experts=4, topk=2, gathered=False, **scaled)
    times = timer_of(kernels).times_us(product, [TileConfig(16, 64, 128, 1), TileConfig(256, 64, 128, 1)])
    assert times == [8.0, inf]
    first = kernels.calls[0]
    shapes = [tuple(each.shape) for each in first[:6]]
    assert shapes == [(24, 128), (4, 256, 128), (12, 2, 256), (24, 1), (4, 2, 1), (12, 2)]
    ids, experts, rows, multiplies, topk, config = first[6:12]
    assert (multiplies, topk, config["BLOCK_SIZE_N"]) == (True, 1, 64)
    assert first[13:] == (True, False, False, False, False, [128, 128])
    assert sorted(ids[ids < 24].tolist()) == list(range(24))
    assert rows.item() <= len(ids)
    assert experts.max() < 4


def test_small_weights_of_dense_layers_take_turns(monkeypatch):
    monkeypatch.setattr(vllm_timer(), "COLD_BYTES", 3 * 256 * 128)
    kernels, config = Kernels(), TileConfig(64, 64, 128, 1)
    assert timer_of(kernels).times_us(DenseCell(n=256, k=128).product(16), [config]) == [3.0]
    assert len({call[1].data_ptr() for call in kernels.calls}) == 3
    assert kernels.calls[0][-1] == {1: config.as_mapping()}
    assert kernels.get_w8a8_block_fp8_configs is kernels.own


def test_an_even_drift_favours_no_configuration():
    clock = count(1)  # four readings of 1, 2, 3, 4 us: 1 and 4, 2 and 3
    timer = vllm_timer().VllmTimer(Kernels(), Kernels(), lambda launches: float(next(clock)), "cpu")
    assert timer.times_us(DenseCell(n=256, k=128).product(16), [FIRST, SECOND]) == [2.5, 2.5]


def test_a_kernel_that_never_runs_is_told():
    with pytest.raises(MissingExtraError, match="does not run here"):
        timer_of(SimpleNamespace()).times_us(ServedProduct(tokens=4, n=64, k=64, experts=2), [DEFAULT])
