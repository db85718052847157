"""Data types of GEMM operands, with their width, their tensor-core rate class and their block scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from gemm_model.config import read_toml
from gemm_model.errors import InputError, require_one_of

MATH_KINDS = ("fp32", "tf32", "fp16", "fp8", "int8", "fp6", "fp4")
"""Rate classes of the math units: the keys of `GpuSpec.flop_per_clk_per_sm`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataType:
    """One element type: its name, its width in bits and the rate class that multiplies it."""

    name: str
    bits: int
    significand_bits: int
    """With the leading one that a normal number does not store; the digits of an integer type."""
    math_kind: str

    def __post_init__(self) -> None:
        if self.bits not in (4, 6, 8, 16, 32):
            raise InputError(f"data type {self.name}: {self.bits} bits; expected 4, 6, 8, 16 or 32")
        require_one_of(f"data type {self.name}: math kind {self.math_kind!r}", self.math_kind, MATH_KINDS)

    @property
    def bytes_per_element(self) -> float:
        return self.bits / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScale:
    """One scale factor of type `dtype` for every `vec_size` elements along K."""

    dtype: DataType
    vec_size: int

    def __post_init__(self) -> None:
        if self.vec_size < 1:
            raise InputError(f"scale vector size {self.vec_size}; expected a positive whole number")

    @property
    def bytes_per_element(self) -> float:
        """Scale bytes that travel with one element of the operand."""
        return self.dtype.bytes_per_element / self.vec_size


_TYPES: Mapping[str, Any] = read_toml("types")
_NUMBERS = ("bits", "significand_bits", "math_kind")
ELEMENT_TYPES = MappingProxyType(
    {name: DataType(name=name, **{key: found[key] for key in _NUMBERS}) for name, found in _TYPES.items()}
)


def names_in(library: str) -> Mapping[str, str]:
    """Name of an element type by what a library calls it: 'torch', 'cpp', 'operators' or 'profiler'."""
    return {theirs: name for name, found in _TYPES.items() for theirs in found.get(library, ())}


ALIASES = MappingProxyType(names_in("aliases"))
BLOCK_SCALED_TYPES = MappingProxyType(
    {name: tuple(found) for name, found in read_toml("block_scaled_types").items()}
)
"""Element type, type of the scale, and elements that share one, of each name."""


TypeName = Any
"""A type's name in any case, or an object whose text is one, such as torch.bfloat16; or a `DataType`."""


def _plain_name(name: TypeName) -> str:
    text = name.name if isinstance(name, DataType) else str(name)
    return text.removeprefix("torch.").lower()


def element_type(name: TypeName) -> DataType:
    """The element type called `name` (aliases included); raises InputError for an unknown one."""
    found = ELEMENT_TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        plain = _plain_name(name)
        found = ELEMENT_TYPES.get(ALIASES.get(plain, plain))
    if found is None:
        raise _unknown(name, [*ELEMENT_TYPES, *ALIASES])
    return found


def operand_type(name: TypeName) -> tuple[DataType, BlockScale | None]:
    """Element type and block scale of an operand type: 'bf16' has none, 'nvfp4' has one."""
    plain = _plain_name(name)
    if plain in BLOCK_SCALED_TYPES:
        element, scale, vec_size = BLOCK_SCALED_TYPES[plain]
        return element_type(element), BlockScale(dtype=element_type(scale), vec_size=vec_size)
    try:
        return element_type(plain), None
    except InputError:
        raise _unknown(name, [*ELEMENT_TYPES, *ALIASES, *BLOCK_SCALED_TYPES]) from None


def _unknown(name: TypeName, known: list[str]) -> InputError:
    shown = name if isinstance(name, str) else str(name)
    return InputError(f"unknown data type {shown[:60]!r}; expected one of {', '.join(known)}")


def math_kind(a: DataType, b: DataType, *, scaled: bool = True) -> str:
    """Rate class of a product of two operand types: that of the wider operand.

    Mixed types run on the unit of the wider one (fp8 x fp4 runs at the fp8 rate on Blackwell:
    PTX ISA, tcgen05.mma kind::f8f6f4); so does fp4 whose operands are not both `scaled` in blocks, like fp6.
    """
    wider, narrower = (a, b) if a.bits >= b.bits else (b, a)
    kind = wider.math_kind if wider.bits != narrower.bits else narrower.math_kind
    return "fp6" if kind == "fp4" and not scaled else kind


def kind_said(kind: int, bits: float) -> str:
    """Name of a rate class (given by its position) in messages, for operands of `bits` bits."""
    return "fp4" if bits == 4 else MATH_KINDS[kind]


MULTIPLIED_TOGETHER = (
    *(("fp32", "tf32"), ("fp16",), ("bf16",), ("int8",)),
    ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"),
)
"""Types that one MMA instruction multiplies with each other (PTX ISA: mma, wgmma, tcgen05.mma)."""
OPERANDS = frozenset(name for names in MULTIPLIED_TOGETHER for name in names)


def require_number(found: DataType) -> DataType:
    """The type itself. Raises InputError for a type of scale factors (powers of two)."""
    if found.significand_bits == 1:
        raise InputError(f"{found.name} is a type of scale factors; expected one of numbers, such as bf16")
    return found


@cache
def require_product(a: DataType, b: DataType) -> None:
    """Raise InputError for operand types that no kernel multiplies.

    A type of 8 bits or fewer may be converted to one of 16 or more before the MMA.
    """
    for each in (a, b):
        if each.name not in OPERANDS:
            raise InputError(f"no MMA multiplies {each.name}; expected one of {', '.join(sorted(OPERANDS))}")
    converted = min(a.bits, b.bits) <= 8 and max(a.bits, b.bits) >= 16
    if not converted and not any({a.name, b.name} <= set(names) for names in MULTIPLIED_TOGETHER):
        raise InputError(f"no MMA multiplies {a.name} by {b.name}; expected operands of one type")


_WIDEST_SIGNIFICAND = MappingProxyType(
    {
        kind: max(
            found.significand_bits
            for name, found in ELEMENT_TYPES.items()
            if name in OPERANDS and found.math_kind == kind
        )
        for kind in MATH_KINDS
    }
)


def multiplier_share(a: DataType, b: DataType) -> float:
    """Current of an MMA over that of the widest type in its rate class, at the same rate.

    It is the ratio of significand bits. Tensor-bound kernels on an H200 settle at 1.58 GHz in bf16 and at
    1.47 GHz in fp16, and keep 4 % more of a rested clock in bf16.
    """
    widest = 2 * _WIDEST_SIGNIFICAND[math_kind(a, b)]
    return min((a.significand_bits + b.significand_bits) / widest, 1.0)
