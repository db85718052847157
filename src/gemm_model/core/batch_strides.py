"""Where the matrices of a batch lie in memory: strides, as strided-batched GEMM takes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from gemm_model.core.errors import InputError
from gemm_model.core.sizes import is_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayout:
    """An operand, or the output, of a batch: `matrices` of `rows` rows of `columns` contiguous elements."""

    matrices: int
    rows: int
    columns: int
    stride: int
    """From a matrix to the next [elements]; 0 where all share one."""
    pitch: int
    """From a row to the next [elements]."""

    @property
    def row_step(self) -> int:
        """The largest step whose multiples all rows start at [elements], if the first does."""
        return gcd(self.pitch, self.stride)

    @property
    def elements(self) -> int:
        """From the first element to behind the last."""
        return (self.matrices - 1) * self.stride + (self.rows - 1) * self.pitch + self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStrides:
    """From a matrix of a batch to the next, of A, B and the output [elements]; 0: all share one.

    Where a stride is shorter than a matrix, rows take turns: the first of each matrix, then the second of
    each, as heads do in a sequence of tokens. A row is then as far from the next as all matrices' strides.
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
    """Matrices with a stride between them. Raises InputError where two of them would overlap."""
    if 0 < stride < columns:
        raise InputError(f"batch_strides of {name} is {stride}; expected 0 or at least a row, {columns}")
    taking_turns = 0 < stride < rows * columns
    pitch = stride * matrices if taking_turns else columns
    distinct = matrices if stride else 1
    return MatrixLayout(matrices=distinct, rows=rows, columns=columns, stride=stride, pitch=pitch)
