"""One product of a served layer: tokens that go to experts, or to one matrix, quantized or not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemm_model.core.dtypes import element_type
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError, require_one_of

MOE, BLOCK_FP8 = "triton_moe", "triton_block_fp8"
FAMILIES = (MOE, BLOCK_FP8)
"""The kernels of vLLM and SGLang that read files of tuned configurations."""
INT4, INT4_BYTES = "int4", 0.5
OPERANDS = ("bf16", "fp16", "e4m3", "int8", INT4)
"""Types of the weights; int4 is unpacked to 16 bits before it is multiplied, as are weights-only int8."""
SCALINGS = ("none", "tensor", "channel", "block128x128")
"""Weights and activations that share a scale: all, a row each, or blocks of 128 x 128 (1 x 128 of A)."""
BLOCK = 128
"""Elements of K, and of N, that share a scale [elements]; block scaling; DeepSeek-V3's checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProduct:
    """C[rows, n] = A[rows, k] x B[expert of the row, n, k]^T for `tokens` tokens, `topk` experts each.

    `experts` are held here, of `experts_total` that the router chooses from (expert parallelism); a dense
    layer is one expert, chosen by every token.
    """

    tokens: int
    n: int
    k: int
    experts: int = 1
    topk: int = 1
    experts_total: int = 0
    in_dtype: str = "bf16"
    scaling: str = "none"
    weights_only: bool = False
    """Whether activations keep 16 bits (w8a16, w4a16)."""
    gathered: bool = True
    """Whether the rows of A are tokens (first product) rather than one row a token and expert (second)."""

    def __post_init__(self) -> None:
        for name in ("tokens", "n", "k", "experts", "topk"):
            size_of(name, getattr(self, name))
        total = self.experts_total or self.experts
        object.__setattr__(self, "experts_total", total)
        if total < self.experts or self.topk > total:
            raise InputError(
                f"{self.topk} experts a token and {self.experts} here, of {total}; expected at most as many"
            )
        name = INT4 if self.in_dtype == INT4 else element_type(self.in_dtype).name
        require_one_of(f"in_dtype is {self.in_dtype!r}", name, OPERANDS)
        object.__setattr__(self, "in_dtype", name)
        require_one_of(f"scaling is {self.scaling!r}", self.scaling, SCALINGS)

    @property
    def weight_bytes(self) -> float:
        """Bytes of one element of B."""
        return INT4_BYTES if self.in_dtype == INT4 else element_type(self.in_dtype).bytes_per_element

    @property
    def math_type(self) -> str:
        """The type that the tensor cores multiply."""
        return "bf16" if self.weights_only or self.in_dtype == INT4 else self.in_dtype

    @property
    def activation_bytes(self) -> float:
        return element_type(self.math_type).bytes_per_element

    @property
    def rows(self) -> float:
        """Rows that this card multiplies, expected [rows]: those of its experts."""
        return self.tokens * self.topk * self.experts / self.experts_total

    @property
    def flop(self) -> float:
        """FLOP of this card's rows."""
        return 2.0 * self.rows * self.n * self.k

    @property
    def block_scaled(self) -> bool:
        return self.scaling == "block128x128"

    @property
    def smallest(self) -> ServedProduct:
        """The smallest product of the same kernel: what one k step of a tile costs, it costs there too."""
        experts = min(self.experts_total, 2)
        return replace(
            self, tokens=1, n=1, k=1, experts=experts, topk=1, experts_total=experts, gathered=True
        )
