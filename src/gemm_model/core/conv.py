"""Convolutions as implicit GEMM: sizes of the GEMM, and the bytes that it reads from memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from gemm_model.core.records import require_kind
from gemm_model.core.sizes import require_size, size_of
from gemm_model.errors import InputError, require_one_of

FPROP, DGRAD, WGRAD = KINDS = ("fprop", "dgrad", "wgrad")
"""Forward; the gradient of the input; that of the weights."""
PACKED_CHANNELS = 64
"""Channels of 16 bits in a row of 128 bytes [1]; groups of few channels; the k tile and the narrowest tile of
Hopper's kernels."""
EXAMPLE = "fprop n=32 c=64 h=56 w=56 k=128 r=3 s=3 stride=1 pad=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvProblem:
    """A convolution of `images` of NHWC (or NDHWC) layout; extents are (h, w) or (d, h, w).

    Channels and filters are those of all groups together.
    """

    kind: str = FPROP
    images: int
    channels: int
    filters: int
    size: tuple[int, ...]
    """Extents of an input image."""
    filter_size: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def __post_init__(self) -> None:
        require_one_of(f"conv is {self.kind!r}", self.kind, KINDS)
        for name in ("images", "channels", "filters", "groups"):
            require_size(self, name)
        dims = len(self.size)
        if dims not in (2, 3):
            raise InputError(f"conv has images of {dims} dimensions; expected h and w, or d, h and w")
        for name, low in (("size", 1), ("filter_size", 1), ("stride", 1), ("pad", 0), ("dilation", 1)):
            values = getattr(self, name)
            if len(values) != dims:
                raise InputError(f"conv has {len(values)} numbers of {name}; expected {dims}")
            for value in values:
                size_of(f"conv {name}", value + 1 - low)
        if self.channels % self.groups or self.filters % self.groups:
            raise InputError(
                f"conv has {self.channels} channels and {self.filters} filters in {self.groups} groups; "
                "expected multiples of the groups"
            )
        if min(self.output_size) < 1:
            found = "x".join(map(str, self.output_size))
            raise InputError(
                f"conv has an empty output ({found}); expected filters that fit the padded image"
            )

    @classmethod
    def parse(cls, text: str) -> ConvProblem:
        """A convolution from EXAMPLE's words; 3-D ones add d= and t=.

        stride (1), pad (0) and dilation (1) are one number or one for each extent, such as 1x2. Raises
        InputError for missing, unknown or impossible words.
        """
        require_kind("conv", text, str)
        kind, *words = text.split() or [""]
        values: dict[str, str] = {}
        for word in words:
            name, separator, value = word.partition("=")
            good = name in WORDS and ("x" not in value or name not in _SIZES)
            if (
                not (separator and good and re.fullmatch(r"\d{1,13}(x\d{1,13}){0,2}", value))
                or name in values
            ):
                raise InputError(f"conv has the word {word[:40]!r}; expected words as in '{EXAMPLE}'")
            values[name] = value
        return _from_words(kind, values)

    @property
    def name(self) -> str:
        """The convolution as `parse` takes it."""
        sizes = dict(zip(_IMAGE[-len(self.size) :], self.size, strict=True))
        taps = dict(zip(_FILTER[-len(self.size) :], self.filter_size, strict=True))
        words = {"n": self.images, "c": self.channels, **sizes, "k": self.filters, **taps}
        given = [f"{name}={value}" for name, value in words.items()]
        given += [
            f"{name}={'x'.join(map(str, getattr(self, name)))}" for name in ("stride", "pad", "dilation")
        ]
        return " ".join((self.kind, *given, f"groups={self.groups}"))

    @property
    def output_size(self) -> tuple[int, ...]:
        """Extents of an output image."""
        axes = zip(self.size, self.filter_size, self.stride, self.pad, self.dilation, strict=True)
        return tuple((x + 2 * pad - dilation * (f - 1) - 1) // step + 1 for x, f, step, pad, dilation in axes)

    @property
    def pointwise(self) -> bool:
        """Whether it is a plain GEMM: a filter of one tap on each pixel, in one group."""
        ones = self.filter_size + self.stride
        return prod(ones) == 1 and max(self.pad) == 0 and self.groups == 1

    @property
    def taps(self) -> int:
        return prod(self.filter_size)

    @property
    def places(self) -> int:
        """Number of GEMMs in a strided data gradient: one for each place of a pixel in the stride."""
        return prod(self.stride) if self.kind == DGRAD else 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """m, n, k of the implicit GEMM of one group, and the number of such GEMMs.

        A strided data gradient has `places` GEMMs; m is the mean number of pixels at a place, k the mean
        number of taps that such a pixel meets. Pixels may meet no tap if the filter is narrower than the
        stride.
        """
        channels, filters = self.channels // self.groups, self.filters // self.groups
        inputs = max(round(self.images * prod(self.size) / self.places), 1)
        outputs = self.images * prod(self.output_size)
        return {
            FPROP: (outputs, filters, channels * self.taps, self.groups),
            DGRAD: (inputs, channels, max(round(filters * self.k_runs), 1), self.groups * self.places),
            WGRAD: (filters, channels * self.taps, outputs, self.groups),
        }[self.kind]

    @property
    def k_runs(self) -> float:
        """Number of runs along k, one for each tap that is met; a k tile lies within one run."""
        return {FPROP: float(self.taps), DGRAD: self.taps / self.places, WGRAD: 1.0}[self.kind]

    @property
    def n_runs(self) -> float:
        """Number of runs along n: a tile of a weight gradient lies within the channels of one tap."""
        return float(self.taps) if self.kind == WGRAD else 1.0

    @property
    def packed(self) -> int:
        """Groups that share a tile of PACKED_CHANNELS columns: a power of two that divides the groups."""
        room = PACKED_CHANNELS * self.groups // max(self.channels, self.filters)
        return gcd(1 << max(room, 1).bit_length() - 1, self.groups)

    @property
    def distinct_share(self) -> tuple[float, float]:
        """Elements of A and B in memory over those of the GEMM: the filter reads each pixel several times."""
        m, n, k, batch = self.sizes
        # A filter narrower than the stride skips pixels.
        axes = zip(self.size, self.output_size, self.filter_size, strict=True)
        touched = prod(min(x, out * f) for x, out, f in axes)
        image = self.images * touched * self.channels
        gradient = self.images * prod(self.output_size) * self.filters
        weights = self.taps * self.channels * self.filters / self.groups
        a, b = {FPROP: (image, weights), DGRAD: (gradient, weights), WGRAD: (gradient, image)}[self.kind]
        return min(a / (m * k * batch), 1.0), min(b / (n * k * batch), 1.0)

    @property
    def row_steps(self) -> tuple[int, int, int]:
        """Steps whose multiples rows of A, B and the output start at [elements].

        Pixels hold the channels of all groups, a filter the weights of one.
        """
        weights = self.channels // self.groups
        if self.kind == FPROP:
            return self.channels, weights * self.taps, self.filters
        if self.kind == DGRAD:
            return self.filters, weights, self.channels
        return self.filters, self.channels, weights

    @property
    def majors(self) -> tuple[str, str]:
        """`a_major` and `b_major` of the product in NHWC: channels, or filters, are contiguous."""
        return {FPROP: ("k", "k"), DGRAD: ("k", "n"), WGRAD: ("m", "n")}[self.kind]


_IMAGE, _FILTER = ("d", "h", "w"), ("t", "r", "s")
_SIZES = ("n", "c", "k", "groups", *_IMAGE, *_FILTER)
WORDS = (*_SIZES, "stride", "pad", "dilation")
"""What a convolution has numbers of, as `ConvProblem.parse` calls them."""


def _from_words(kind: str, values: Mapping[str, str]) -> ConvProblem:
    """The convolution of checked words."""
    dims = 3 if "d" in values or "t" in values else 2
    image, taps = _IMAGE[-dims:], _FILTER[-dims:]
    for name in ("n", "c", "k", *image, *taps):
        if name not in values:
            raise InputError(f"conv lacks {name}=; expected words as in '{EXAMPLE}'")

    def each(name: str, default: int) -> tuple[int, ...]:
        numbers = tuple(map(int, values.get(name, str(default)).split("x")))
        return numbers * dims if len(numbers) == 1 else numbers

    return ConvProblem(
        kind=kind,
        images=int(values["n"]),
        channels=int(values["c"]),
        filters=int(values["k"]),
        size=tuple(int(values[name]) for name in image),
        filter_size=tuple(int(values[name]) for name in taps),
        stride=each("stride", 1),
        pad=each("pad", 0),
        dilation=each("dilation", 1),
        groups=int(values.get("groups", "1")),
    )
