"""The models that this package lists: `config/serving_models.yaml`."""

from __future__ import annotations

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.integrations.huggingface import ModelShapes, shapes_of

ATTENTION = {"num_hidden_layers": 1, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
"""One layer, and heads that every parallelism divides: the list is of experts, not of attention."""


def listed_models() -> list[ModelShapes]:
    """Each listed model twice: with weights of 16 bits, and quantized to fp8 as its checkpoints are."""
    listed = read_yaml_mapping(CONFIG_DIR / "serving_models.yaml", "list of models")
    found = []
    for name, description in listed["models"].items():
        config = {**ATTENTION, "hidden_act": "silu", "model_type": name}
        config |= {key: value for key, value in description.items() if key != "fp8"}
        found.append(shapes_of(config, name))
        config["quantization_config"] = listed["fp8"][description["fp8"]]
        found.append(shapes_of(config, name))
    return found
