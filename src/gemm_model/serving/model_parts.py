"""The parts of a pass through a transformer: every GEMM and attention that one card runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gemm_model.core.attention import AttentionProblem
from gemm_model.core.dtypes import element_type
from gemm_model.core.fields import ATTENTION, OK, SERVED, problem_fields
from gemm_model.core.problem import GemmProblem
from gemm_model.core.sizes import require_size
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import Attention, Experts, LatentAttention, ModelShapes
from gemm_model.serving.layers import Parallelism, moe_cells, projections, share_of, weights_of
from gemm_model.serving.problem import ServedProduct


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One pass of all cards: `batch` sequences with `queries` new tokens each, which see `keys` keys at most.

    The new tokens are among the keys. Raises InputError for a size of 0 and for more queries than keys.
    """

    batch: int = 1
    queries: int = 1
    keys: int

    def __post_init__(self) -> None:
        for name in ("batch", "queries", "keys"):
            require_size(self, name)
        if self.queries > self.keys:
            raise InputError(f"queries is {self.queries}; expected at most the {self.keys} keys")

    @property
    def tokens(self) -> int:
        """New tokens."""
        return self.batch * self.queries

    @property
    def phase(self) -> str:
        return "decode" if self.queries == 1 else "prefill"


@dataclass(frozen=True, slots=True)
class LatentDecode:
    """Attention of one query a sequence over latent keys, which are the values too (MLA with absorbed weights)."""

    batch: int
    heads: int
    keys: int
    kv_rank: int
    rope_dim: int
    dtype: str

    @property
    def name(self) -> str:
        sizes = f"batch={self.batch} heads={self.heads} keys={self.keys}"
        return f"latent {sizes} rank={self.kv_rank}+{self.rope_dim}"

    @property
    def flop(self) -> float:
        return 2.0 * self.batch * self.heads * self.keys * (2 * self.kv_rank + self.rope_dim)

    @property
    def dram_bytes(self) -> float:
        """The cache read once."""
        element_bytes = element_type(self.dtype).bits / 8
        return self.batch * self.keys * (self.kv_rank + self.rope_dim) * element_bytes


Work = GemmProblem | ServedProduct | AttentionProblem | LatentDecode


@dataclass(frozen=True, slots=True)
class Part:
    """One product or attention of a card, `count` times a pass (once for each layer that has it)."""

    name: str
    count: int
    work: Work

    @property
    def fields(self) -> dict[str, Any]:
        """Sizes of a product (of experts the mean rows of a card); of an attention its words; what is no GEMM."""
        work = self.work
        if isinstance(work, AttentionProblem | LatentDecode):
            words = {"attention": work.name, "in_dtype": getattr(work.dtype, "name", work.dtype)}
            return {**words, "disposition": ATTENTION}
        if isinstance(work, GemmProblem):
            return {**problem_fields(work), "in_dtype": work.a_dtype.name, "disposition": OK}
        experts = {"experts": work.experts} if work.experts_total > 1 else {}
        sizes = {"m": max(round(work.rows), 1), "n": work.n, "k": work.k, **experts}
        return {**sizes, "in_dtype": work.in_dtype, "disposition": SERVED}


def parts_of(shapes: ModelShapes, step: Step, parallel: Parallelism) -> list[Part]:
    """The parts of a pass on each card, in the order in which they run.

    Every card of a data-parallel group has its share of the heads, of the widths and of the vocabulary; experts
    are whole on `parallel.expert` cards. Norms, activations and what cards send to each other are no parts,
    nor is linear attention. Raises InputError for a parallelism that does not divide the model or the batch.
    """
    own = replace(step, batch=share_of(step.batch, parallel.data, "batch"))
    parts = [*_attention(shapes, own, parallel.tensor)]
    if shapes.dense_layers:
        parts += _block(shapes, own, parallel.tensor, shapes.dense_size, "")
    if shapes.experts is not None:
        parts += _experts(shapes, shapes.experts, own, parallel)
    if shapes.vocabulary:
        rows = -(-shapes.vocabulary // parallel.tensor)
        parts.append(Part("lm_head", 1, GemmProblem.of(own.batch, rows, shapes.hidden, shapes.dtype)))
    return parts


def _attention(shapes: ModelShapes, step: Step, ranks: int) -> Iterator[Part]:
    """Projections and attention of the layers that have softmax attention."""
    layers = shapes.layers - shapes.linear_layers
    if not layers:
        return
    attention, dtype = shapes.attention, shapes.dtype
    heads = share_of(attention.heads, ranks, "heads")
    found = projections(shapes, ranks)
    output = found.pop("output projection")
    absorbed = isinstance(attention, LatentAttention) and step.phase == "decode"
    if absorbed:
        del found["keys and values"]
    for name, (n, k) in found.items():
        yield Part(name, layers, _linear(shapes, step.tokens, n, k))
    if isinstance(attention, LatentAttention) and absorbed:
        rank = attention.kv_rank
        keys = GemmProblem.of(step.tokens, rank, attention.nope_dim, dtype, batch=heads)
        yield Part("keys absorbed", layers, keys)
        latent = LatentDecode(step.batch, heads, step.keys, rank, attention.rope_dim, dtype)
        yield Part("attention", layers, latent)
        values = GemmProblem.of(step.tokens, attention.v_head_dim, rank, dtype, batch=heads)
        yield Part("values absorbed", layers, values)
    else:
        yield from _softmax(shapes, step, heads, ranks)
    yield Part("output projection", layers, _linear(shapes, step.tokens, *output))


def _softmax(shapes: ModelShapes, step: Step, heads: int, ranks: int) -> Iterator[Part]:
    """Attention of layers that see all keys, and of those that see a window."""
    attention = shapes.attention
    kv_heads = max(attention.kv_heads // ranks, 1) if isinstance(attention, Attention) else heads
    windowed = shapes.windowed_layers if shapes.window and shapes.window < step.keys else 0
    decode = step.phase == "decode"
    dims = {"head_dim": attention.head_dim, "head_dim_v": attention.v_head_dim, "dtype": shapes.dtype}
    sizes: dict[str, Any] = {"batch": step.batch, "heads": heads, "kv_heads": kv_heads, **dims}
    sizes |= {"seq_q": step.queries}
    whole = shapes.layers - shapes.linear_layers - windowed
    for name, layers, window in (("attention", whole, 0), ("windowed attention", windowed, shapes.window)):
        if layers:
            keys = min(step.keys, window) if decode and window else step.keys
            causal = not decode and bool(shapes.vocabulary or window)
            # A problem's window counts the keys before the query's own.
            before = max(window - 1, 0) if causal else 0
            yield Part(name, layers, AttentionProblem.of(seq_kv=keys, causal=causal, window=before, **sizes))


def _block(shapes: ModelShapes, step: Step, ranks: int, width: int, prefix: str) -> Iterator[Part]:
    """The products of a feed-forward block of dense layers, or of what experts share."""
    count = shapes.moe_layers if prefix else shapes.dense_layers
    part = share_of(width, ranks, "width of a layer")
    first, more = ("gate-up", 2) if shapes.gated else ("up", 1)
    yield Part(f"{prefix}{first}", count, _linear(shapes, step.tokens, part * more, shapes.hidden))
    yield Part(f"{prefix}down", count, _linear(shapes, step.tokens, shapes.hidden, part))


def _experts(shapes: ModelShapes, experts: Experts, own: Step, parallel: Parallelism) -> Iterator[Part]:
    """Router, shared and routed experts; tokens of several groups meet where these share their experts."""
    sharing = max(parallel.tensor, parallel.expert)
    if parallel.cards % sharing:
        expected = f"a number that divides tensor x data parallelism, {parallel.cards}"
        raise InputError(f"expert parallelism is {parallel.expert}; expected {expected}")
    router = GemmProblem.of(own.tokens, experts.count, shapes.hidden, shapes.dtype)
    yield Part("router", shapes.moe_layers, router)
    if experts.shared_size:
        yield from _block(shapes, own, parallel.tensor, experts.shared_size, "shared ")
    cell = moe_cells(shapes, parallel)[0]
    tokens = own.tokens * sharing // parallel.tensor
    first = "experts' gate-up" if shapes.gated else "experts' up"
    for name in (first, "experts' down"):
        yield Part(name, shapes.moe_layers, cell.product(tokens, down=name != first))


def _linear(shapes: ModelShapes, tokens: int, n: int, k: int) -> GemmProblem | ServedProduct:
    """A projection of a layer: a GEMM, or one of the served kernels where scales or weights ask for them."""
    quantized = shapes.quantization
    if quantized is None or quantized.experts_only:
        return GemmProblem.of(tokens, n, k, shapes.dtype)
    # Tensor cores multiply these with their scales.
    if quantized.dtype in ("nvfp4", "mxfp4") and not quantized.weights_only:
        return GemmProblem.of(tokens, n, k, quantized.dtype, shapes.dtype)
    dtype, scaling, weights_only = weights_of(shapes)
    if weights_only or scaling == "block128x128":
        how: dict[str, Any] = {"in_dtype": dtype, "scaling": scaling, "weights_only": weights_only}
        return ServedProduct(tokens=tokens, n=n, k=k, **how)
    return GemmProblem.of(tokens, n, k, dtype, shapes.dtype)
