"""What the benchmark runs beyond one plain product: epilogues, groups, block scales, convolutions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Self

from gemm_model.core.errors import InputError
from gemm_model.core.problem import GemmProblem

ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
GATED = ("gated_relu", "gated_gelu", "gated_silu")
WORDS = (
    "alpha", "beta", "bias_n", "bias_m", "residual", *ACTIVATIONS, *GATED,
    "output_scale", "quantize_1x128", "row_sum", "col_sum",
)  # fmt: skip
ALIASES = {"bias": "bias_n"}
QUANTIZED_COLUMNS = 128
"""Columns that share one scale of a quantized output [elements]; `quantize_1x128`."""

ALPHA = 0.5
BETA = 0.75
OUTPUT_SCALE = 0.25
"""Factors of an epilogue [1]; every benchmark row that has them; their value costs no time."""

EXTRA_COLUMNS = ("epilogue", "groups", "block_scaling", "conv")
SCALES = ("1x128", "128x128")
EXAMPLE_CONVOLUTION = "fprop n=32 c=64 h=56 w=56 k=128 r=3 s=3 pad=1"
CONV_KINDS = ("fprop", "dgrad", "wgrad")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedProblem(GemmProblem):
    """A product with what is around it, in the words of the columns EXTRA_COLUMNS."""

    epilogue: str = ""
    groups: str = ""
    block_scaling: str = ""
    conv: str = ""

    def __post_init__(self) -> None:
        GemmProblem.__post_init__(self)
        words = epilogue_words(self)
        if self.groups and sum(group_rows(self)) != self.m:
            raise InputError(f"groups have {sum(group_rows(self))} rows; expected m, which is {self.m}")
        if gated(words) and self.n % 2:
            raise InputError(f"n is {self.n}; expected an even number of gate and up columns")
        if self.block_scaling:
            scale_blocks(self)
        if self.conv:
            convolution(self)

    @classmethod
    def around(cls, problem: GemmProblem, cells: Mapping[str, Any]) -> GemmProblem:
        """`problem` with the cells of EXTRA_COLUMNS; itself where they are all empty."""
        extras = {name: str(cells[name]) for name in EXTRA_COLUMNS if cells.get(name) not in (None, "")}
        if not extras:
            return problem
        known: dict[str, Any] = {field.name: getattr(problem, field.name) for field in fields(GemmProblem)}
        return cls(**(known | extras))


def extras(problem: GemmProblem) -> dict[str, str]:
    """The cells of EXTRA_COLUMNS; empty for a plain product."""
    if not isinstance(problem, ExtendedProblem):
        return {}
    return {name: getattr(problem, name) for name in EXTRA_COLUMNS}


def epilogue_words(problem: GemmProblem) -> tuple[str, ...]:
    """What is done to the product before it is stored, in order."""
    return _words(problem.epilogue) if isinstance(problem, ExtendedProblem) else ()


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    words = tuple(ALIASES.get(word.strip(), word.strip()) for word in text.split(",") if word.strip())
    for word in words:
        if word not in WORDS:
            raise InputError(f"epilogue has {word!r}; expected words of {', '.join(WORDS)}")
    if len(set(words)) < len(words):
        raise InputError(f"epilogue {text!r} has a word twice")
    if sum(word in (*ACTIVATIONS, *GATED) for word in words) > 1:
        raise InputError(f"epilogue {text!r} has two activations; expected at most one")
    return () if words == ("None",) else words


def gated(words: tuple[str, ...]) -> bool:
    """Whether gate and up columns are merged, so that the output has half of them."""
    return any(word in GATED for word in words)


def output_columns(problem: GemmProblem) -> int:
    return problem.n // 2 if gated(epilogue_words(problem)) else problem.n


def group_rows(problem: GemmProblem) -> tuple[int, ...]:
    """Rows of each group; empty for one product."""
    return _rows(problem.groups) if isinstance(problem, ExtendedProblem) else ()


@lru_cache(maxsize=4096)
def _rows(text: str) -> tuple[int, ...]:
    if text and not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"groups are {text!r}; expected rows such as 512,300,0,16")
    return tuple(int(rows) for rows in text.split(",")) if text else ()


def group_bounds(problem: GemmProblem) -> tuple[int, ...]:
    """First row of each group, and the end of the last."""
    return tuple(accumulate(group_rows(problem), initial=0))


def scale_blocks(problem: GemmProblem) -> tuple[str, str] | None:
    """Extents of a scale block of A (rows x k) and B (n x k); None without software scales."""
    if not isinstance(problem, ExtendedProblem) or not problem.block_scaling:
        return None
    parts = tuple(part.strip() for part in problem.block_scaling.split(","))
    if len(parts) != 2 or any(part not in SCALES for part in parts):
        raise InputError(f"block_scaling is {problem.block_scaling!r}; expected two of {', '.join(SCALES)}")
    return parts[0], parts[1]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A 2-D convolution in NHWC: sizes as the words of the column `conv` say."""

    kind: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, *words = text.split()
        pairs = [word.partition("=") for word in words]
        known = {field.name for field in fields(cls)} - {"kind"}
        if kind not in CONV_KINDS or any(
            name not in known or not value.isdigit() for name, _, value in pairs
        ):
            raise InputError(
                f"conv is {text!r}; expected words such as 'fprop n=32 c=64 h=56 w=56 k=128 r=3 s=3 pad=1'"
            )
        try:
            found = cls(kind=kind, **{name: int(value) for name, _, value in pairs})
        except TypeError:
            raise InputError(f"conv is {text!r}; expected each of n, c, h, w, k, r, s") from None
        if min(found.p, found.q) < 1:
            raise InputError(f"conv {text!r} has an empty output")
        return found

    def __str__(self) -> str:
        cells = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"}
        return " ".join([self.kind, *(f"{name}={value}" for name, value in cells.items())])

    @cached_property
    def p(self) -> int:
        """Rows of the output."""
        return (self.h + 2 * self.pad - self.dilation * (self.r - 1) - 1) // self.stride + 1

    @cached_property
    def q(self) -> int:
        """Columns of the output."""
        return (self.w + 2 * self.pad - self.dilation * (self.s - 1) - 1) // self.stride + 1

    @property
    def implicit_gemm(self) -> tuple[int, int, int]:
        """(m, n, k): pixels x channels x taps; wgrad sums over the pixels."""
        taps = self.r * self.s
        if self.kind == "fprop":
            return self.n * self.p * self.q, self.k, self.c // self.groups * taps
        if self.kind == "dgrad":
            return self.n * self.h * self.w, self.c, self.k // self.groups * taps
        return self.k, self.c // self.groups * taps, self.n * self.p * self.q


def convolution(problem: GemmProblem) -> Convolution | None:
    """None where the problem is no convolution."""
    if not isinstance(problem, ExtendedProblem) or not problem.conv:
        return None
    return _convolution(problem.conv)


@lru_cache(maxsize=1024)
def _convolution(text: str) -> Convolution:
    return Convolution.parse(text)


def beyond(problem: GemmProblem, *known: str) -> str:
    """A sentence where a provider that knows `known` of EXTRA_COLUMNS cannot run a problem; else empty."""
    for name, text in extras(problem).items():
        if text and name not in known:
            return f"this provider runs no {name} ({text[:60]})"
    return ""
