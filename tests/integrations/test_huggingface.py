import json
from pathlib import Path

import pytest
import yaml

from gemm_model.integrations.huggingface import (
    Attention,
    Experts,
    LatentAttention,
    Quantization,
    read_config,
    shapes_of,
)
from tests.cases import cases

CONFIGS = yaml.safe_load(Path(__file__).with_name("huggingface.yaml").read_text())


def test_a_dense_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama_3_8b"]))
    shapes = read_config(tmp_path)
    assert (shapes.hidden, shapes.layers, shapes.dense_size, shapes.vocabulary) == (4096, 32, 14336, 128256)
    assert shapes.attention == Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128)
    assert (shapes.gated, shapes.experts, shapes.dense_layers, shapes.dtype) == (True, None, 32, "bf16")
    assert (shapes.quantization, shapes.windowed_layers) == (None, 0)


def test_experts():
    shapes = shapes_of(CONFIGS["qwen_3_30b"])
    assert shapes.experts == Experts(count=128, top_k=8, size=768, shared_size=0)
    assert (shapes.moe_layers, shapes.dense_layers, shapes.windowed_layers) == (48, 0, 0)
    every_other = shapes_of({**CONFIGS["qwen_3_30b"], "decoder_sparse_step": 2, "mlp_only_layers": [1, 3]})
    assert shapes_of({**CONFIGS["qwen_3_30b"], "num_experts": 1}).experts is None
    assert every_other.moe_layers == 22  # layers 1, 3, 5, ... 47 without the first two


def test_latent_attention_with_shared_experts_in_blocks_of_fp8():
    shapes = shapes_of(CONFIGS["deepseek_v3"])
    ranks = {"q_rank": 1536, "kv_rank": 512}
    latent = LatentAttention(heads=128, **ranks, nope_dim=128, rope_dim=64, v_head_dim=128)
    assert shapes.attention == latent
    assert latent.head_dim == 192
    assert shapes.experts == Experts(count=256, top_k=8, size=2048, shared_size=2048)
    assert (shapes.moe_layers, shapes.dense_layers, shapes.dense_size) == (58, 3, 18432)
    whole = {"weights_only": False, "experts_only": False}
    assert shapes.quantization == Quantization(dtype="e4m3", block=(128, 128), **whole)


def test_windows_and_experts_of_four_bits():
    kinds = ["sliding_attention", "full_attention"] * 12
    shapes = shapes_of({**CONFIGS["gpt_oss"], "layer_types": kinds})
    assert (shapes.windowed_layers, shapes.window, shapes.experts.size) == (12, 128, 2880)
    assert shapes.quantization.experts_only
    # Gemma 2 alternates, from a layer with a window; its configuration does not say so.
    assert (
        shapes_of({**CONFIGS["llama_3_8b"], "model_type": "gemma2", "sliding_window": 4096}).windowed_layers
        == 16
    )


def test_a_nested_model_with_experts_in_every_other_layer():
    shapes = shapes_of(
        {"model_type": "llama4", "text_config": CONFIGS["llama4_text"], "vision_config": {"depth": 2}}
    )
    assert shapes.left_out == ("vision_config",)
    assert shapes.experts == Experts(count=128, top_k=1, size=8192, shared_size=8192)
    assert (shapes.moe_layers, shapes.dense_size) == (24, 16384)


def test_a_vision_transformer_and_gpt_2_have_no_gate():
    shapes = shapes_of(CONFIGS["vit"])
    assert (shapes.gated, shapes.vocabulary, shapes.attention.kv_heads) == (False, 0, 16)
    gpt_2 = shapes_of(CONFIGS["gpt2"])
    assert (gpt_2.dense_size, gpt_2.gated) == (3072, False)


@pytest.mark.parametrize(*cases(__file__, "test_quantized_weights"))
def test_quantized_weights(found, expected):
    quantization = shapes_of({**CONFIGS["llama_3_8b"], "quantization_config": found}).quantization
    assert (quantization.dtype, quantization.block, quantization.weights_only) == expected
