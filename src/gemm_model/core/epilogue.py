"""Fused epilogues: what a kernel does with a tile's accumulators before it stores them."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.records import require_kind
from gemm_model.errors import InputError

SCALARS = ("alpha", "output_scale")
"""One factor for all outputs."""
SOURCES = ("beta", "residual")
"""Another matrix of the output's type is read and added: C times beta, or a residual."""
VECTORS = ("bias_n", "bias_m")
"""One value for each column of the sums, or for each row."""
ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
GATED_ACTIVATIONS = ("gated_relu", "gated_gelu", "gated_silu")
"""Columns alternate gate and up; the output activation(gate) x up has half as many."""
QUANTIZED = "quantize_1x128"
"""Outputs of 8 bits, with an fp32 scale factor for every 128 of a row."""
REDUCTIONS = ("row_sum", "col_sum")
"""Sums of the outputs over a row or over a column, stored beside them."""
EPILOGUE_WORDS = (*SCALARS, *SOURCES, *VECTORS, *ACTIVATIONS, *GATED_ACTIVATIONS, QUANTIZED, *REDUCTIONS)
ALIASES = {"bias": "bias_n"}
QUANTIZED_COLUMNS = 128
"""Outputs that share one scale factor [elements]; `QUANTIZED`; by definition."""
QUANTIZED_SCALE_BITS = 32
"""Width of a scale factor [bit]; quantized outputs; fp32, by definition."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Words of a fused epilogue, applied in their order; without `words`, the plain store.

    Raises InputError for an unknown word, one that comes twice, and for two activations.

    >>> from gemm_model import Epilogue, GemmProblem
    >>> Epilogue.parse("gated_silu,bias").words
    ('gated_silu', 'bias_n')
    >>> GemmProblem.of(512, 1024, 256, epilogue="gelu").epilogue.name
    'gelu'
    """

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
        """Outputs for each accumulator: 1, or 1/2 behind a gate."""
        return 0.5 if self.gated else 1.0

    @property
    def source_share(self) -> float:
        """Elements of source matrices read for each accumulator; half as many behind a gate."""
        share, read = 1.0, 0.0
        for word in self.words:
            if word in GATED_ACTIVATIONS:
                share = self.output_share
            if word in SOURCES:
                read += share
        return read

    @property
    def tangents(self) -> float:
        """Hyperbolic tangents for each accumulator: gelu takes one, a gated gelu one for two accumulators.

        relu takes none: a maximum with zero costs no more than converting the accumulators.
        """
        return self.output_share * self._count(("gelu", "tanh", "gated_gelu"))

    @property
    def sigmoids(self) -> float:
        """Sigmoids for each accumulator: silu multiplies with one."""
        return self.output_share * self._count(("silu", "gated_silu"))

    @property
    def vectors(self) -> int:
        return self._count(VECTORS)

    @property
    def reductions(self) -> int:
        """Number of sums over columns. Sums over a row stay within a few threads and cost no more than a
        store.
        """
        return self._count(("col_sum",))

    def _count(self, words: tuple[str, ...]) -> int:
        return sum(word in words for word in self.words)
