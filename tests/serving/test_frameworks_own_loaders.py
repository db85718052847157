"""vLLM's and SGLang's own code finds and reads the files that serve-configs writes."""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest

from gemm_model.cli import main
from tests.cases import cases
from tests.serving.framework_sources import StandIn, load_file, package_folder, stand_ins

BLOCK_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 4, "num_attention_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "quantization_config": BLOCK_FP8,
}  # fmt: skip
KEYS = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"}


def written(tmp_path, config, framework, device, *words):
    source, output = tmp_path / "config.json", tmp_path / "configs_written"
    source.write_text(json.dumps(config), encoding="utf-8")
    common = ["--framework", framework, "--device", device, "--output", str(output)]
    assert main(["serve-configs", "--config", str(source), *common, *words]) == 0
    return output


def vllm_loaders(monkeypatch, folder, device, tmp_path):
    """vLLM's two loaders; the second reads dense files beside its own source, so it is copied."""
    pytest.importorskip("torch")
    package = package_folder("vllm") / "vllm"
    with stand_ins("vllm"):
        import vllm.envs as envs  # type: ignore[import-not-found]
        import vllm.platforms as platforms  # type: ignore[import-not-found]
        import vllm.triton_utils as triton_utils  # type: ignore[import-not-found]
        import vllm.utils.torch_utils as torch_utils  # type: ignore[import-not-found]

        said: list[str] = []
        log = SimpleNamespace(
            info_once=lambda text, *args, **_: said.append(text % args),
            info=lambda text, *args: said.append(text % args),
            warning_once=lambda text, *args, **_: said.append(text % args),
            warning=lambda text, *args: said.append(text % args),
        )
        sys.modules["vllm.logger"] = logger = StandIn("vllm.logger")
        logger.init_logger = lambda _: log  # type: ignore[attr-defined]
        platforms.current_platform = SimpleNamespace(get_device_name=lambda _: device)
        triton_utils.triton = SimpleNamespace(jit=lambda kernel: kernel)
        triton_utils.tl = StandIn("tl")
        torch_utils.direct_register_custom_op = lambda **_: None
        activation = sys.modules["vllm.model_executor.layers.fused_moe.activation"] = StandIn("activation")
        activation.MoEActivation = SimpleNamespace(SILU="silu")  # type: ignore[attr-defined]
        envs.VLLM_TUNED_CONFIG_FOLDER, envs.VLLM_BATCH_INVARIANT = str(folder), False
        monkeypatch.setitem(sys.modules, "regex", re)
        own = load_file(package / "utils/platform_utils.py", "vllm.utils.platform_utils")
        monkeypatch.setattr(own, "current_platform", platforms.current_platform, raising=False)
        moe = load_file(package / "model_executor/layers/fused_moe/fused_moe.py", "vllm_fused_moe")
        copied = tmp_path / "fp8_utils.py"
        shutil.copy(package / "model_executor/layers/quantization/utils/fp8_utils.py", copied)
        if (folder / "dense").is_dir():
            shutil.copytree(folder / "dense", tmp_path / "configs")
        fp8 = load_file(copied, "vllm_fp8_utils")
        yield moe, fp8, said


@pytest.mark.parametrize(*cases(__file__, "test_vllm_finds_the_experts_file"))
def test_vllm_finds_the_experts_file(tmp_path, monkeypatch, config, words, device, asked):
    folder = written(tmp_path, config, "vllm", device, *words)
    for moe, _, said in vllm_loaders(monkeypatch, folder, device, tmp_path):
        found = moe.get_moe_configs(*asked)
        assert found is not None, said
        assert [text for text in said if text.startswith("Using configuration from")]
        assert 1 in found
        assert 4096 in found
        assert all(set(each) == KEYS for each in found.values())


def test_vllm_finds_the_dense_files(tmp_path, monkeypatch):
    folder = written(tmp_path, MLA, "vllm", "NVIDIA H200", "--tp", "8")
    for _, fp8, said in vllm_loaders(monkeypatch, folder, "NVIDIA H200", tmp_path):
        # N and K of DeepSeek-V3's layers over eight cards, by hand: 128 heads of 192, 1536 + 512 + 64, ...
        for n, k in (
            (2112, 7168), (3072, 1536), (4096, 512), (7168, 2048),
            (4608, 7168), (7168, 2304), (512, 7168), (7168, 256),
        ):  # fmt: skip
            found = fp8.get_w8a8_block_fp8_configs(n, k, 128, 128)
            assert found is not None, (n, k, said)
            assert all(set(each) == KEYS for each in found.values())


def test_vllm_finds_nothing_for_another_card(tmp_path, monkeypatch):
    folder = written(tmp_path, MOE, "vllm", "NVIDIA L40S")
    for moe, _, said in vllm_loaders(monkeypatch, folder, "NVIDIA L4", tmp_path):
        assert moe.get_moe_configs(128, 768, None) is None
        assert any("Performance might be sub-optimal" in text for text in said)


def sglang_loader(monkeypatch, folder, device, triton_version):
    pytest.importorskip("torch")
    path = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=triton_version))
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(folder))
    with stand_ins("sglang"):
        import sglang.srt.runtime_context as context  # type: ignore[import-not-found]
        import sglang.srt.utils as utils  # type: ignore[import-not-found]

        plain = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
        context.get_exec = lambda: plain
        utils.get_device_name, utils.is_hip = (lambda: device), (lambda: False)
        yield load_file(package_folder("sglang") / path, "sglang_config")


@pytest.mark.parametrize(*cases(__file__, "test_sglang_finds_both_files"))
def test_sglang_finds_both_files(tmp_path, monkeypatch, config, asked, folder_name):
    folder = written(tmp_path, config, "sglang", "NVIDIA H200", "--triton", "3.6.0")
    for loader in sglang_loader(monkeypatch, folder, "NVIDIA H200", "3.6.0"):
        up = loader.get_moe_configs(*asked)
        down = loader.get_moe_configs(*asked, down_moe=True)
        assert up is not None
        assert down is not None
        assert (folder / "configs" / folder_name).is_dir()
        # Both products share the sorted token ids: SGLang would override a row tile of its own.
        assert {t: each["BLOCK_SIZE_M"] for t, each in up.items()} == {
            t: each["BLOCK_SIZE_M"] for t, each in down.items()
        }
        assert all(set(each) == KEYS for each in (*up.values(), *down.values()))
