"""The cells of a model: products of its layers that a framework runs by a Triton kernel with a file."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import LatentAttention, ModelShapes
from gemm_model.serving.problem import BLOCK, ServedProduct


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Cards that share a layer: `tensor` ranks, of which `expert` hold whole experts each.

    `data` groups of `tensor` cards have sequences of their own; experts may be spread over several groups.
    """

    tensor: int = 1
    expert: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "expert", "data"):
            size_of(f"{name} parallelism", getattr(self, name))
        larger, smaller = max(self.tensor, self.expert), min(self.tensor, self.expert)
        if larger % smaller:
            raise InputError(
                f"tensor parallelism {self.tensor} with expert parallelism {self.expert}; "
                "expected one to divide the other"
            )

    @property
    def cards(self) -> int:
        """Cards in all."""
        return self.tensor * self.data

    @property
    def of_an_expert(self) -> int:
        """Cards that share one expert: none where each holds whole ones."""
        return max(self.tensor // self.expert, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeCell:
    """The experts that one card holds: E and N of a file, and what its kernels multiply."""

    experts: int
    experts_total: int
    topk: int
    size: int
    """Width of an expert on this card."""
    hidden: int
    gated: bool
    dtype: str
    scaling: str
    weights_only: bool

    @property
    def dtype_word(self) -> str:
        """The type as file names hold it."""
        if self.dtype in ("bf16", "fp16"):
            return ""
        kind = "fp8" if self.dtype == "e4m3" else self.dtype
        return f",dtype={kind}_w8a{16 if self.weights_only else 8}"

    def product(self, tokens: int, *, down: bool) -> ServedProduct:
        """The first product (gate and up together) or the second one."""
        width = self.size * (2 if self.gated else 1)
        return ServedProduct(
            tokens=tokens,
            n=self.hidden if down else width,
            k=self.size if down else self.hidden,
            experts=self.experts,
            topk=self.topk,
            experts_total=self.experts_total,
            in_dtype=self.dtype,
            scaling=self.scaling,
            weights_only=self.weights_only,
            gathered=not down,
        )


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DenseCell:
    """One matrix of fp8 weights in scaled blocks: N and K of a file."""

    n: int
    k: int

    def product(self, tokens: int) -> ServedProduct:
        return ServedProduct(tokens=tokens, n=self.n, k=self.k, in_dtype="e4m3", scaling="block128x128")


def moe_cells(shapes: ModelShapes, parallel: Parallelism, *, fused_shared: bool = False) -> list[MoeCell]:
    """Cells of a model's experts; with `fused_shared` also that where the shared expert is one among them.

    SGLang fuses shared experts of a routed expert's width into the routed ones, by version and options.
    Raises InputError where the cards do not divide heads or experts, or for weights that Triton does not multiply.
    """
    experts = shapes.experts
    if experts is None:
        return []
    share_of(shapes.attention.heads, parallel.tensor, "heads")  # no framework starts where this fails
    dtype, scaling, weights_only = weights_of(shapes)
    shared = experts.shared_size // experts.size if experts.shared_size % experts.size == 0 else 0
    layouts = [0] + ([shared] if fused_shared and shared and parallel.expert == 1 else [])
    return [
        MoeCell(
            experts=share_of(experts.count, parallel.expert, "experts") + more,
            experts_total=experts.count + more,
            topk=experts.top_k + more,
            size=share_of(experts.size, parallel.of_an_expert, "width of an expert"),
            hidden=shapes.hidden,
            gated=shapes.gated,
            dtype=dtype,
            scaling=scaling,
            weights_only=weights_only,
        )
        for more in layouts
    ]


def weights_of(shapes: ModelShapes) -> tuple[str, str, bool]:
    """Type of the quantized weights, how they are scaled, whether activations keep 16 bits."""
    quantized = shapes.quantization
    if quantized is None:
        return shapes.dtype, "none", False
    if quantized.dtype not in ("e4m3", "int8"):
        raise InputError(
            f"{shapes.model_type}: weights of {quantized.dtype}, which another kernel multiplies; "
            "expected bf16, fp16, fp8 or int8"
        )
    if quantized.weights_only:
        return quantized.dtype, "channel", True
    if quantized.block is None:
        return quantized.dtype, "channel" if quantized.dtype == "int8" else "tensor", False
    if quantized.block != (BLOCK, BLOCK):
        rows, columns = quantized.block
        raise InputError(f"{shapes.model_type}: scales of {rows}x{columns} weights; expected 128x128")
    return quantized.dtype, "block128x128", False


def dense_cells(shapes: ModelShapes, parallel: Parallelism) -> list[DenseCell]:
    """Matrices of fp8 weights in blocks of 128 x 128, without doubles; none where a model has no such.

    Raises InputError where the cards do not divide heads or widths.
    """
    quantized = shapes.quantization
    if quantized is None or quantized.block != (BLOCK, BLOCK) or quantized.weights_only:
        return []
    found = [] if quantized.experts_only else [*projections(shapes, parallel.tensor).values()]
    widths = [shapes.dense_size] if shapes.dense_layers and not quantized.experts_only else []
    widths += (
        [shapes.experts.shared_size] if shapes.experts is not None and shapes.experts.shared_size else []
    )
    for width in widths:
        part = share_of(width, parallel.tensor, "width of a layer")
        found += [(part * (2 if shapes.gated else 1), shapes.hidden), (shapes.hidden, part)]
    return sorted({DenseCell(n=n, k=k) for n, k in found})


def projections(shapes: ModelShapes, ranks: int) -> dict[str, tuple[int, int]]:
    """N and K of attention's projections on one of `ranks` cards by part, as the frameworks fuse them."""
    attention, hidden = shapes.attention, shapes.hidden
    heads = share_of(attention.heads, ranks, "heads")
    output = {"output projection": (hidden, heads * attention.v_head_dim)}
    if isinstance(attention, LatentAttention):
        latent = attention.q_rank + attention.kv_rank + attention.rope_dim
        return {
            "latents": (latent, hidden),
            "queries": (heads * attention.head_dim, attention.q_rank or hidden),
            "keys and values": (heads * (attention.nope_dim + attention.v_head_dim), attention.kv_rank),
            **output,
        }
    # A rank holds one head of keys and values at least.
    kv_heads = max(attention.kv_heads // ranks, 1)
    width = heads * attention.head_dim + kv_heads * (attention.head_dim + attention.v_head_dim)
    return {"qkv": (width, hidden), **output}


def share_of(size: int, ranks: int, what: str) -> int:
    """What one of `ranks` cards holds of a size; raises InputError where they do not divide it."""
    if size % ranks:
        raise InputError(f"{what}: {size} over {ranks} cards; expected a parallelism that divides it")
    return size // ranks
