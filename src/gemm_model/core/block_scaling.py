"""Block scales of fp8 operands in software: the kernel multiplies the sums of each block of K itself."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.errors import InputError

BLOCK_K = 128
"""Elements of K that share a scale factor [elements]; fp8 with fp32 scales; the recipe of DeepSeek-V3."""
BLOCK_ROWS = (1, 128)
"""Rows that share a scale factor [1]; blocks of 128 along K; one token, or a square block of weights."""
SCALE_BITS = 32
"""Width of a scale factor [bit]; operands scaled in software; fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScaling:
    """Rows of an operand that share an fp32 scale factor for every BLOCK_K of K."""

    a_rows: int = 1
    b_rows: int = 128

    def __post_init__(self) -> None:
        for name, rows in (("A", self.a_rows), ("B", self.b_rows)):
            if rows not in BLOCK_ROWS:
                raise InputError(f"block_scaling of {name} has blocks of {rows} rows; expected 1 or 128")

    @classmethod
    def parse(cls, text: str) -> BlockScaling:
        """Scale blocks, rows x k, of A and of B from '1x128,128x128'; raises InputError for other shapes."""
        blocks = {f"{rows}x{BLOCK_K}": rows for rows in BLOCK_ROWS}
        words = [word.strip().lower() for word in text.split(",")]
        if len(words) != 2 or not all(word in blocks for word in words):
            raise InputError(
                f"block_scaling is {text[:40]!r}; expected the scale blocks of A and of B, each one of "
                f"{', '.join(blocks)}, such as 1x128,128x128"
            )
        return cls(a_rows=blocks[words[0]], b_rows=blocks[words[1]])

    @property
    def name(self) -> str:
        """The blocks as `parse` takes them."""
        return f"{self.a_rows}x{BLOCK_K},{self.b_rows}x{BLOCK_K}"

    @property
    def a_bits(self) -> float:
        """Scale-factor bits that travel with one element of A."""
        return SCALE_BITS / (self.a_rows * BLOCK_K)

    @property
    def b_bits(self) -> float:
        return SCALE_BITS / (self.b_rows * BLOCK_K)
