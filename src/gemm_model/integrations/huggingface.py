"""The shapes of a language or vision transformer, read from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemm_model.config import read_toml
from gemm_model.core.dtypes import element_type
from gemm_model.core.files import read_json
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError

NESTED = ("text_config", "llm_config", "language_config")
"""Where a multimodal model's configuration holds that of its language model."""

ALIASES: Mapping[str, Sequence[str]] = read_toml("other_names")["huggingface"]
"""Keys by what they mean; the first that a configuration holds counts."""

WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6}
"""Which of how many layers sees all keys [1]; by the first letters of the model's type, where a configuration leaves
it out; their code."""
OTHER_PARTS = ("vision_config", "audio_config")
"""Where a multimodal model's configuration holds what is no language model."""

GATED_ACTIVATIONS = ("silu", "swish", "swiglu")
GATED_TYPES = ("gemma", "t5gemma")
"""Model types that gate with an activation which elsewhere stands alone (GELU)."""

FEED_FORWARD_RATIO = 4
"""Width of a feed-forward block over that of the model [1]; models that leave it out (GPT-2); their code."""

MOST_LAYERS = 10_000
"""Layers of a model [1]; all; chosen: far more than any has."""

SLIDING, CHUNKED, LINEAR = "sliding_attention", "chunked_attention", "linear_attention"

QUANTIZED_TYPES: Mapping[str, str] = {"fp8": "e4m3", "fbgemm_fp8": "e4m3", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}
"""Type of the weights by the name of a method (or of modelopt's algorithm), without digits of its own."""
COMPRESSED_TYPES = {"8-bit float": "e4m3", "4-bit float": "nvfp4", "8-bit int": "int8", "4-bit int": "int4"}
"""Type of the weights by what compressed-tensors says of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention, whose projections are products of the hidden state (MHA, GQA, MQA)."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values are projected from a latent of `kv_rank`."""

    heads: int
    q_rank: int
    """Rank of the queries' latent; 0: queries are projected at once."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_head_dim: int

    @property
    def head_dim(self) -> int:
        """Elements of a query and a key in each head."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts: each token goes to `top_k` of `count`, and through what is shared."""

    count: int
    top_k: int
    size: int
    """Width of one expert (its intermediate size)."""
    shared_size: int
    """Width of all shared experts together; 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the weights of the linear layers are held; embeddings, router and head are not quantized."""

    dtype: str
    """Type of the weights: e4m3, int8, int4, mxfp4, nvfp4."""
    block: tuple[int, int] | None
    """Rows (n) and columns (k) of the weights that share a scale; None: one each tensor or channel."""
    weights_only: bool
    """Whether activations keep the model's type."""
    experts_only: bool
    """Whether attention and dense layers keep the model's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShapes:
    """What a transformer multiplies: widths, heads, experts, types; `read_config` makes it."""

    model_type: str
    hidden: int
    layers: int
    vocabulary: int
    """0 where the model has no head (a vision transformer)."""
    attention: Attention | LatentAttention
    windowed_layers: int
    """Layers whose attention sees the last `window` keys alone."""
    window: int
    linear_layers: int
    """Layers with linear attention in place of softmax attention."""
    dense_size: int
    """Width of the feed-forward block in layers without experts."""
    gated: bool
    """Whether feed-forward blocks and experts multiply a gate: the first product has twice their width."""
    experts: Experts | None
    moe_layers: int
    """Layers with experts."""
    dtype: str
    """Type of activations and of weights that are not quantized."""
    quantization: Quantization | None
    left_out: tuple[str, ...]
    """Keys of parts of the model that are no transformer of language."""

    @property
    def dense_layers(self) -> int:
        return self.layers - self.moe_layers


def read_config(path: Path | str) -> ModelShapes:
    """The shapes of the model that a `config.json` (or a folder with one) describes.

    Raises InputError naming the file and the key of what is missing or cannot be read.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    found = read_json(path, "a config.json")
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a mapping, as a model's config.json is")
    return shapes_of(found, str(path))


def shapes_of(config: Mapping[str, Any], where: str = "config") -> ModelShapes:
    """The shapes of a configuration's mapping; `where` begins the sentence of an InputError."""
    inner: Mapping[str, Any] = next(
        (config[name] for name in NESTED if isinstance(config.get(name), dict)), {}
    )
    reader = _Reader({**config, **inner}, where)
    hidden, layers = reader.size("hidden"), reader.size("layers")
    if layers > MOST_LAYERS:
        raise InputError(f"{reader.where}: {layers} layers; expected at most {MOST_LAYERS}")
    moe_layers = reader.moe_layers(layers)
    kinds = reader.layer_kinds(layers)
    return ModelShapes(
        model_type=str(reader.values.get("model_type", "unknown")),
        hidden=hidden,
        layers=layers,
        vocabulary=reader.optional("vocab_size"),
        attention=reader.attention(hidden),
        windowed_layers=sum(kind in (SLIDING, CHUNKED) for kind in kinds),
        window=reader.optional("sliding_window") or reader.optional("attention_chunk_size"),
        linear_layers=kinds.count(LINEAR),
        dense_size=reader.optional("dense_size") or FEED_FORWARD_RATIO * hidden,
        gated=reader.gated,
        experts=reader.experts() if moe_layers else None,
        moe_layers=moe_layers,
        dtype=reader.dtype,
        quantization=reader.quantization(),
        left_out=tuple(name for name in OTHER_PARTS if config.get(name)),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one configuration; `where` names its file."""

    values: Mapping[str, Any]
    where: str

    def raw(self, name: str) -> Any:
        """The value under the first of the keys that mean `name`; None without one."""
        keys = ALIASES.get(name, (name,))
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def optional(self, name: str) -> int:
        """A size, or 0 where the configuration has none."""
        value = self.raw(name)
        return 0 if value in (None, 0) or value is False else size_of(f"{self.where}: {name}", value)

    def size(self, name: str) -> int:
        value = self.raw(name)
        if value is None:
            keys = " or ".join(ALIASES.get(name, (name,)))
            raise InputError(f"{self.where}: no {keys}; expected a transformer's config.json")
        return size_of(f"{self.where}: {name}", value)

    def listed(self, values: Mapping[str, Any], name: str) -> list[Any]:
        """A list, or none where there is no such key."""
        if not isinstance(values.get(name) or [], list):
            raise InputError(f"{self.where}: {name} is {str(values[name])[:40]!r}; expected a list")
        return values.get(name) or []

    def attention(self, hidden: int) -> Attention | LatentAttention:
        heads = self.size("heads")
        if self.raw("kv_lora_rank") is not None:
            return LatentAttention(
                heads=heads,
                q_rank=self.optional("q_lora_rank"),
                kv_rank=self.size("kv_lora_rank"),
                nope_dim=self.size("qk_nope_head_dim"),
                rope_dim=self.size("qk_rope_head_dim"),
                v_head_dim=self.size("v_head_dim"),
            )
        kv_heads = 1 if self.values.get("multi_query") is True else self.optional("kv_heads") or heads
        head_dim = self.optional("head_dim") or hidden // heads
        if heads % kv_heads:
            raise InputError(f"{self.where}: {heads} heads with {kv_heads} of keys; expected a multiple")
        return Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=self.optional("v_head_dim") or head_dim,
        )

    def layer_kinds(self, layers: int) -> list[str]:
        """The kind of attention of each layer; every one slides where a window stands alone and is in use."""
        kinds = self.values.get("layer_types")
        if isinstance(kinds, list):
            if len(kinds) != layers:
                raise InputError(f"{self.where}: layer_types has {len(kinds)} entries; expected {layers}")
            return [str(kind) for kind in kinds]
        every, others = self.optional("full_attention_interval"), LINEAR
        if not every:
            slides = self.optional("sliding_window") and self.values.get("use_sliding_window", True)
            pattern = WINDOW_PATTERNS.get(str(self.values.get("model_type"))[:6], layers + 1)
            every, others = (self.optional("sliding_window_pattern") or pattern if slides else 1), SLIDING
        return ["full_attention" if (layer + 1) % every == 0 else others for layer in range(layers)]

    def moe_layers(self, layers: int) -> int:
        """How many layers have experts; a list (of layers, or a flag each) says which, else every n-th."""
        if self.optional("experts") <= 1:
            return 0
        flags = self.values.get("moe_layer_freq")
        if isinstance(flags, list):
            return sum(bool(flag) for flag in flags[:layers])
        if isinstance(self.values.get("moe_layers"), list):
            return len(self.values["moe_layers"])
        first = self.optional("first_dense")
        every = self.optional("moe_every") or 1
        dense = self.listed(self.values, "mlp_only_layers")
        # Qwen's and Llama 4's step puts experts into the last layer of each; DeepSeek's into the first.
        ends_step = self.values.get("moe_layer_freq") is None
        return sum(
            layer >= first and layer not in dense and (layer + ends_step) % every == 0
            for layer in range(layers)
        )

    def experts(self) -> Experts:
        size = self.size("expert_size")
        shared = self.optional("shared_size") or size * (
            self.optional("n_shared_experts") or self.optional("num_shared_experts")
        )
        if not shared and "llama4" in str(self.values.get("model_type")):
            shared = size
        count, top_k = self.size("experts"), self.size("top_k")
        if top_k > count:
            raise InputError(f"{self.where}: {top_k} experts a token of {count}; expected at most as many")
        return Experts(count=count, top_k=top_k, size=size, shared_size=shared)

    @property
    def gated(self) -> bool:
        activation = str(self.raw("activation") or "silu")
        model_type = str(self.values.get("model_type"))
        return activation in GATED_ACTIVATIONS or model_type.startswith(GATED_TYPES)

    @property
    def dtype(self) -> str:
        return element_type(self.raw("dtype") or "bf16").name

    def quantization(self) -> Quantization | None:
        found = self.values.get("quantization_config")
        if not found:
            return None
        if not isinstance(found, dict):
            raise InputError(f"{self.where}: quantization_config is {str(found)[:40]!r}; expected a mapping")
        method = str(found.get("quant_algo") or found.get("quant_method")).lower()
        dtype, block, weights_only = QUANTIZED_TYPES.get(method), None, method == "mxfp4"
        if isinstance(found.get("weight_block_size"), list):
            block = self._block(found["weight_block_size"])
        elif method in ("awq", "gptq", "gptq_marlin"):
            dtype, weights_only = f"int{found.get('bits', 4)}", True
            block = self._block((1, found["group_size"])) if found.get("group_size", -1) != -1 else None
        elif method == "compressed-tensors":
            dtype, block, weights_only = self._compressed(found)
        if dtype is None:
            raise InputError(
                f"{self.where}: quantization {method!r}; expected one of {', '.join(QUANTIZED_TYPES)}, "
                "awq, gptq, compressed-tensors"
            )
        kept = self.listed(found, "modules_to_not_convert") or self.listed(found, "ignore")
        return Quantization(
            dtype=dtype,
            block=block,
            weights_only=weights_only,
            experts_only=any("self_attn" in str(name) for name in kept),
        )

    def _compressed(self, found: Mapping[str, Any]) -> tuple[str, tuple[int, int] | None, bool]:
        """Type, block and whether activations stay, of the first group of compressed-tensors."""
        groups = found.get("config_groups")
        group: Any = next(iter(groups.values()), None) if isinstance(groups, dict) else None
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise InputError(f"{self.where}: config_groups without weights; expected one group at least")
        floats = weights.get("type") == "float"
        words = f"{weights.get('num_bits')}-bit {'float' if floats else 'int'}"
        if words not in COMPRESSED_TYPES:
            raise InputError(f"{self.where}: weights of {words}; expected {', '.join(COMPRESSED_TYPES)}")
        dtype, block = COMPRESSED_TYPES[words], None
        if isinstance(weights.get("block_structure"), list):
            block = self._block(weights["block_structure"])
        elif weights.get("group_size") and dtype != "nvfp4":
            block = self._block((1, weights["group_size"]))
        return dtype, block, not group.get("input_activations")

    def _block(self, sizes: Sequence[Any]) -> tuple[int, int]:
        """Rows and columns that share a scale."""
        if len(sizes) != 2:
            raise InputError(f"{self.where}: block of scales {sizes!r}; expected rows and columns")
        rows, columns = (size_of(f"{self.where}: block of scales", size) for size in sizes)
        return rows, columns
