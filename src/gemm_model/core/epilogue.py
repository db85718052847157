"""What a kernel does with a tile's sums before it stores them: words of a fused epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.errors import InputError
from gemm_model.core.records import require_kind

SCALARS = ("alpha", "output_scale")
"""One factor for all outputs."""
SOURCES = ("beta", "residual")
"""Another matrix of the output's type is read and added: C times beta, or a residual."""
VECTORS = ("bias_n", "bias_m")
"""One value for each column of the sums, or for each row."""
ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
GATED_ACTIVATIONS = ("gated_relu", "gated_gelu", "gated_silu")
"""Columns hold gate and up in turn; the activation of the one times the other leaves half of them."""
QUANTIZED = "quantize_1x128"
"""Outputs of 8 bits, with an fp32 scale factor for every 128 of a row."""
REDUCTIONS = ("row_sum", "col_sum")
"""Sums of the outputs over a row or over a column, stored beside them."""
EPILOGUE_WORDS = (*SCALARS, *SOURCES, *VECTORS, *ACTIVATIONS, *GATED_ACTIVATIONS, QUANTIZED, *REDUCTIONS)
ALIASES = {"bias": "bias_n"}
QUANTIZED_COLUMNS = 128
"""Outputs that share a scale factor [elements]; `QUANTIZED`; by definition."""
QUANTIZED_SCALE_BITS = 32
"""A scale factor of quantized outputs [bit]; fp32; by definition."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Words of a fused epilogue, applied in their order; without words, the plain store."""

    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_kind("words", self.words, tuple)
        for word in self.words:
            if word not in EPILOGUE_WORDS:
                known = ", ".join((*EPILOGUE_WORDS, *ALIASES))
                raise InputError(f"epilogue has the word {word!r}; expected some of {known}")
            if self.words.count(word) > 1:
                raise InputError(f"epilogue {self.name!r} says {word} twice; expected each word once")
        activations = [word for word in self.words if word in (*ACTIVATIONS, *GATED_ACTIVATIONS)]
        if len(activations) > 1:
            raise InputError(f"epilogue has {' and '.join(activations)}; expected at most one activation")

    @classmethod
    def parse(cls, text: str) -> Epilogue:
        """An epilogue from its words, such as 'gated_silu,bias'; '' and 'none' are the plain store.

        Raises InputError for an unknown word, one that comes twice, and for two activations.
        """
        require_kind("epilogue", text, str)
        words = [word.strip().lower() for word in text.split(",") if word.strip()]
        if words == ["none"]:
            return cls()
        return cls(tuple(ALIASES.get(word, word) for word in words))

    @property
    def name(self) -> str:
        """The words as `parse` takes them."""
        return ",".join(self.words)

    @property
    def gated(self) -> bool:
        return any(word in GATED_ACTIVATIONS for word in self.words)

    @property
    def quantized(self) -> bool:
        return QUANTIZED in self.words

    @property
    def output_share(self) -> float:
        """Outputs for each sum: a gate leaves one of two."""
        return 0.5 if self.gated else 1.0

    @property
    def source_share(self) -> float:
        """Elements of other matrices that are read for each sum; after a gate they are half as many."""
        share, read = 1.0, 0.0
        for word in self.words:
            if word in GATED_ACTIVATIONS:
                share = self.output_share
            if word in SOURCES:
                read += share
        return read

    @property
    def tangents(self) -> float:
        """Values of a hyperbolic tangent for each sum (gelu is made of one); a gate takes one for two sums.

        A maximum with zero is none: it costs no more than the conversion of the sums.
        """
        return self.output_share * self._count(("gelu", "tanh", "gated_gelu"))

    @property
    def sigmoids(self) -> float:
        """The same of a sigmoid, which silu multiplies with."""
        return self.output_share * self._count(("silu", "gated_silu"))

    @property
    def vectors(self) -> int:
        return self._count(VECTORS)

    @property
    def reductions(self) -> int:
        """Sums over columns. Those over a row stay within a few threads, and cost no more than a store."""
        return self._count(("col_sum",))

    def _count(self, words: tuple[str, ...]) -> int:
        return sum(word in words for word in self.words)
