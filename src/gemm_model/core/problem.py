"""A matrix multiplication: sizes, operand types, layouts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemm_model.core.dtypes import (
    BlockScale,
    DataType,
    element_type,
    math_kind,
    multiplier_share,
    operand_type,
)
from gemm_model.core.errors import InputError

MAX_SIZE = 2**40
"""Upper limit of one size, far beyond any real GEMM; it keeps products of sizes finite."""


def require_size(name: str, value: object) -> None:
    """Raise InputError unless `value` is a whole number between 1 and MAX_SIZE."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise InputError(f"{name} is {value!r}; expected a positive whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """D[m, n] = A[m, k] x B[n, k]^T, `batch` times, with fp32 accumulation unless said otherwise.

    Types are `DataType`s; `GemmProblem.of` takes their names. `a_major` / `b_major` is "k" or the other
    extent of the operand, `c_major` is "m" or "n": the extent that is contiguous in memory.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: DataType = field(default_factory=lambda: element_type("bf16"))
    b_dtype: DataType = field(default_factory=lambda: element_type("bf16"))
    out_dtype: DataType = field(default_factory=lambda: element_type("bf16"))
    acc_dtype: DataType = field(default_factory=lambda: element_type("fp32"))
    a_scale: BlockScale | None = None
    b_scale: BlockScale | None = None
    a_major: str = "k"
    b_major: str = "k"
    c_major: str = "n"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            require_size(name, getattr(self, name))
        for name, allowed in (("a_major", ("k", "m")), ("b_major", ("k", "n")), ("c_major", ("n", "m"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")

    @classmethod
    def of(
        cls,
        m: int,
        n: int,
        k: int,
        dtype: str = "bf16",
        out_dtype: str | None = None,
        *,
        b_dtype: str | None = None,
        acc_dtype: str = "fp32",
        batch: int = 1,
    ) -> GemmProblem:
        """A problem from type names ('bf16', 'fp8', 'nvfp4', ...); B takes A's type unless given.

        The output type defaults to the operand type for types of 16 or more bits, else to bf16.
        """
        a_type, a_scale = operand_type(dtype)
        b_type, b_scale = operand_type(b_dtype or dtype)
        default_out = a_type if a_type.bits >= 16 else element_type("bf16")
        return cls(
            m=m,
            n=n,
            k=k,
            batch=batch,
            a_dtype=a_type,
            b_dtype=b_type,
            out_dtype=element_type(out_dtype) if out_dtype else default_out,
            acc_dtype=element_type(acc_dtype),
            a_scale=a_scale,
            b_scale=b_scale,
        )

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiply and an add for each of m n k."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def math_kind(self) -> str:
        return math_kind(self.a_dtype, self.b_dtype)

    @property
    def multiplier_share(self) -> float:
        return multiplier_share(self.a_dtype, self.b_dtype)
