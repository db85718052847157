"""Where the matrices of a batch lie in memory: strides, as strided-batched GEMM takes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from gemm_model.core.sizes import is_whole
from gemm_model.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayout:
    """An operand or the output of a batch: `matrices` matrices of `rows` rows with `columns` contiguous
    elements.
    """

    matrices: int
    rows: int
    columns: int
    stride: int
    """From one matrix to the next [elements]; 0 if all share one."""
    pitch: int
    """From one row to the next [elements]."""

    @property
    def row_step(self) -> int:
        """The largest step such that all rows start at its multiples if the first one does [elements]."""
        return gcd(self.pitch, self.stride)

    @property
    def elements(self) -> int:
        """Extent in memory, from the first element to behind the last [elements]."""
        return (self.matrices - 1) * self.stride + (self.rows - 1) * self.pitch + self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStrides:
    """Strides from one matrix of a batch to the next, for A, B and the output [elements]; 0 shares one
    matrix.

    A stride shorter than a matrix interleaves rows: the first row of each matrix, then the second of each, as
    heads lie in a sequence of tokens. The pitch of a row is then the sum of all matrices' strides.
    """

    a: int
    b: int
    out: int

    @classmethod
    def parse(cls, text: str) -> BatchStrides:
        """Strides of A, B and the output from '8192,0,4096'; raises InputError for others."""
        words = [word.strip() for word in text.split(",")]
        if len(words) != 3 or not all(map(is_whole, words)):
            raise InputError(
                f"batch_strides is {text[:40]!r}; expected those of A, B and the output in elements, such as "
                "8192,0,4096"
            )
        return cls(a=int(words[0]), b=int(words[1]), out=int(words[2]))

    @property
    def name(self) -> str:
        """The strides as `parse` takes them."""
        return f"{self.a},{self.b},{self.out}"


def strided(name: str, matrices: int, rows: int, columns: int, stride: int) -> MatrixLayout:
    """Matrices with a stride between them. Raises InputError if two of them would overlap."""
    if 0 < stride < columns:
        raise InputError(f"batch_strides of {name} is {stride}; expected 0 or at least a row, {columns}")
    taking_turns = 0 < stride < rows * columns
    pitch = stride * matrices if taking_turns else columns
    distinct = matrices if stride else 1
    return MatrixLayout(matrices=distinct, rows=rows, columns=columns, stride=stride, pitch=pitch)
