"""A matrix multiplication: sizes, operand types, layouts."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import SupportsIndex

from gemm_model.core.dtypes import (
    BlockScale,
    DataType,
    TypeName,
    element_type,
    math_kind,
    multiplier_share,
    operand_type,
)
from gemm_model.core.errors import InputError

MAX_SIZE = 2**40
"""Largest size [elements]; every problem; far beyond any real GEMM, and products of sizes stay finite."""


def size_of(name: str, value: SupportsIndex) -> int:
    """A size as Python's int, numpy's too; raises InputError unless it lies between 1 and MAX_SIZE."""
    try:
        whole = value if type(value) is int else operator.index(value)
    except TypeError:
        whole = 0
    if isinstance(value, bool) or not 1 <= whole <= MAX_SIZE:
        raise InputError(f"{name} is {value!r}; expected a positive whole number of at most 2^40")
    return whole


def require_size(record: object, name: str) -> None:
    """Make a frozen record's field a size in Python's own int; raises InputError where it is none."""
    value = getattr(record, name)
    whole = size_of(name, value)
    if whole is not value:
        object.__setattr__(record, name, whole)


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
            require_size(self, name)
        for name, allowed in (("a_major", ("k", "m")), ("b_major", ("k", "n")), ("c_major", ("n", "m"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")

    @classmethod
    def of(
        cls,
        m: int,
        n: int,
        k: int,
        dtype: TypeName = "bf16",
        out_dtype: TypeName | None = None,
        *,
        b_dtype: TypeName | None = None,
        acc_dtype: TypeName = "fp32",
        batch: int = 1,
    ) -> GemmProblem:
        """A problem from type names ('bf16', 'FP8', 'nvfp4', ...) or torch's dtypes; B's is A's unless given.

        The output type defaults to the operand type for types of 16 or more bits, else to bf16.
        """
        a_type, a_scale = operand_type(dtype)
        b_type, b_scale = operand_type(dtype if b_dtype is None else b_dtype)
        default_out = a_type if a_type.bits >= 16 else element_type("bf16")
        return cls(
            m=m,
            n=n,
            k=k,
            batch=batch,
            a_dtype=a_type,
            b_dtype=b_type,
            out_dtype=default_out if out_dtype is None else element_type(out_dtype),
            acc_dtype=element_type(acc_dtype),
            a_scale=a_scale,
            b_scale=b_scale,
        )

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiply and an add for each of m n k."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def a_bytes(self) -> float:
        """Bytes of A with its scale factors."""
        scale = self.a_scale.bytes_per_element if self.a_scale else 0.0
        return self.batch * self.m * self.k * (self.a_dtype.bytes_per_element + scale)

    @property
    def b_bytes(self) -> float:
        """Bytes of B with its scale factors."""
        scale = self.b_scale.bytes_per_element if self.b_scale else 0.0
        return self.batch * self.n * self.k * (self.b_dtype.bytes_per_element + scale)

    @property
    def output_bytes(self) -> float:
        return self.batch * self.m * self.n * self.out_dtype.bytes_per_element

    @property
    def math_kind(self) -> str:
        return math_kind(self.a_dtype, self.b_dtype)

    @property
    def multiplier_share(self) -> float:
        return multiplier_share(self.a_dtype, self.b_dtype)
