import json

import pytest

from gemm_model.core.errors import InputError
from gemm_model.integrations.huggingface import (
    Attention,
    Experts,
    LatentAttention,
    Quantization,
    read_config,
    shapes_of,
)

LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "hidden_act": "silu", "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "hidden_act": "silu",
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
GROUP = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"x": 1}}


def test_a_dense_model():
    shapes = shapes_of(LLAMA_3_8B)
    assert (shapes.hidden, shapes.layers, shapes.dense_size, shapes.vocabulary) == (4096, 32, 14336, 128256)
    assert shapes.attention == Attention(heads=32, kv_heads=8, head_dim=128, v_head_dim=128)
    assert (shapes.gated, shapes.experts, shapes.dense_layers, shapes.dtype) == (True, None, 32, "bf16")
    assert (shapes.quantization, shapes.windowed_layers) == (None, 0)


def test_experts():
    shapes = shapes_of(QWEN_3_30B)
    assert shapes.experts == Experts(count=128, top_k=8, size=768, shared_size=0)
    assert (shapes.moe_layers, shapes.dense_layers, shapes.windowed_layers) == (48, 0, 0)
    every_other = shapes_of({**QWEN_3_30B, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3]})
    assert every_other.moe_layers == 22  # layers 1, 3, 5, ... 47 without the first two


def test_latent_attention_with_shared_experts_in_blocks_of_fp8():
    shapes = shapes_of(DEEPSEEK_V3)
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
    shapes = shapes_of(
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "num_local_experts": 32, "num_experts_per_tok": 4, "layer_types": kinds, "sliding_window": 128,
            "quantization_config": {
                "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"],
            },
        }
    )  # fmt: skip
    assert (shapes.windowed_layers, shapes.window, shapes.experts.size) == (12, 128, 2880)
    assert shapes.quantization.experts_only
    # Gemma 2 alternates, from a layer with a window; its configuration does not say so.
    assert shapes_of({**LLAMA_3_8B, "model_type": "gemma2", "sliding_window": 4096}).windowed_layers == 16


def test_a_nested_model_with_experts_in_every_other_layer():
    text = {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048, "num_local_experts": 128,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "hidden_act": "silu",
    }  # fmt: skip
    shapes = shapes_of({"model_type": "llama4", "text_config": text, "vision_config": {"depth": 2}})
    assert shapes.left_out == ("vision_config",)
    assert shapes.experts == Experts(count=128, top_k=1, size=8192, shared_size=8192)
    assert (shapes.moe_layers, shapes.dense_size) == (24, 16384)


def test_a_vision_transformer_and_gpt_2_have_no_gate():
    vit = {
        "model_type": "vit", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "hidden_act": "gelu",
    }  # fmt: skip
    shapes = shapes_of(vit)
    assert (shapes.gated, shapes.vocabulary, shapes.attention.kv_heads) == (False, 0, 16)
    gpt_2 = shapes_of(
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new"}
    )
    assert (gpt_2.dense_size, gpt_2.gated) == (3072, False)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("int4", (1, 128), True)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP}}, ("e4m3", None, False)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", None, False)),
    ],
)
def test_quantized_weights(found, expected):
    quantization = shapes_of({**LLAMA_3_8B, "quantization_config": found}).quantization
    assert (quantization.dtype, quantization.block, quantization.weights_only) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "no hidden_size or n_embd"),
        ({"hidden_size": 0}, "hidden is 0; expected a positive whole number"),
        ({"num_hidden_layers": "many"}, "layers is 'many'"),
        ({"num_key_value_heads": 5}, "32 heads with 5 of keys"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization 'bitsandbytes'"),
        ({"num_experts": 8, "mlp_only_layers": 5}, "mlp_only_layers is '5'; expected a list"),
        ({"quantization_config": [1]}, "quantization_config is '.1.'; expected a mapping"),
        ({"num_hidden_layers": 10**12}, "1000000000000 layers; expected at most 10000"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; expected 32"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "5 experts a token of 4"),
    ],
)
def test_a_bad_configuration_is_one_sentence(tmp_path, change, words):
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_3_8B, **change}))
    with pytest.raises(InputError, match=rf"config\.json.*{words}"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["[1]", "{", '"x"'])
def test_a_file_that_is_no_configuration_is_named(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "missing.json")
