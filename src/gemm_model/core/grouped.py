"""Grouped GEMM: each group of rows has a B of its own, as in mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from gemm_model.core.records import require_kind
from gemm_model.core.sizes import is_whole
from gemm_model.errors import InputError, require_one_of

LAYOUTS = ("contiguous", "masked")
"""`contiguous`: the groups' rows follow each other; `masked`: `capacity` rows each, of which some are
used."""
MOST_GROUPS = 65536
"""Most groups of a problem [1]; grouped products; chosen: far more than any model has experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """Rows of each group; `n` and `k` of each group if they differ, else empty.

    A group without rows costs nothing but its entry in the table of groups.
    """

    rows: tuple[int, ...]
    n: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    layout: str = "contiguous"
    capacity: int | None = None
    """Rows that each group has in memory; masked layout."""

    def __post_init__(self) -> None:
        require_kind("rows", self.rows, tuple)
        if not 1 <= len(self.rows) <= MOST_GROUPS:
            raise InputError(f"groups has {len(self.rows)} groups; expected 1 to {MOST_GROUPS}")
        if not all(type(rows) is int and rows >= 0 for rows in self.rows):
            raise InputError("groups has a group of other than 0 or more rows; expected whole numbers")
        if sum(self.rows) == 0:
            raise InputError("groups has no rows at all; expected at least one")
        for name, sizes in (("n", self.n), ("k", self.k)):
            if sizes and (len(sizes) != len(self.rows) or min(sizes) < 1):
                raise InputError(
                    f"groups has other than a positive {name} for each group; expected MxNxK each"
                )
        require_one_of(f"group_layout is {self.layout!r}", self.layout, LAYOUTS)
        if (self.capacity is None) != (self.layout == "contiguous"):
            raise InputError("capacity and the masked layout come without each other; expected both or none")
        if self.capacity is not None and self.capacity < max(self.rows):
            largest = max(self.rows)
            raise InputError(f"capacity is {self.capacity}; expected at least the {largest} rows of a group")

    @classmethod
    def parse(cls, text: str, layout: str = "contiguous", capacity: int | None = None) -> GroupedGemm:
        """Groups from '512,300,0,16' (rows) or '512x4096x1024,256x4096x1024' (m x n x k each).

        Raises InputError for no groups, groups that are no such numbers, and none that has rows. A masked
        layout without `capacity` has room for the largest group.
        """
        require_kind("groups", text, str)
        words = [word.strip().lower().split("x") for word in text.split(",")]
        for parts in words:
            if len(parts) != len(words[0]) or len(parts) not in (1, 3) or not all(map(is_whole, parts)):
                raise InputError(
                    f"groups has {'x'.join(parts)[:40]!r}; expected the rows of each group, such as "
                    "512,300,0,16, or MxNxK of each"
                )
        sizes = [tuple(map(int, parts)) for parts in words]
        rows = tuple(size[0] for size in sizes)
        if layout == "masked" and capacity is None:
            capacity = max(rows)
        own = len(words[0]) == 3
        return cls(
            rows=rows,
            n=tuple(size[1] for size in sizes) if own else (),
            k=tuple(size[2] for size in sizes) if own else (),
            layout=layout,
            capacity=capacity,
        )

    @property
    def name(self) -> str:
        """The groups as `parse` takes them."""
        if self.alike:
            return ",".join(map(str, self.rows))
        return ",".join(f"{m}x{n}x{k}" for m, n, k in zip(self.rows, self.n, self.k, strict=True))

    @property
    def alike(self) -> bool:
        """Whether the groups share n and k."""
        return not self.n

    @property
    def total_rows(self) -> int:
        return sum(self.rows)

    @property
    def active(self) -> int:
        """Groups that have rows."""
        return sum(rows > 0 for rows in self.rows)

    @property
    def longest_k_share(self) -> float:
        """Longest k among groups with rows over the mean k (`sizes`)."""
        longest = max(k for rows, k in zip(self.rows, self.k, strict=True) if rows > 0)
        return longest / self.sizes(self.n[0], self.k[0])[2]

    def sizes(self, n: int, k: int) -> tuple[float, float, float, float]:
        """Rows, n and k of the mean group with rows, and the number of such groups: same outputs and FLOP.

        `n` and `k` are the shared sizes. The mean of different sizes is rounded to a multiple of their common
        divisor, so that rows in memory keep their alignment.
        """
        groups = float(self.active)
        if self.alike:
            return self.total_rows / groups, float(n), float(k), groups
        outputs = sum(m * n for m, n in zip(self.rows, self.n, strict=True))
        products = sum(m * n * k for m, n, k in zip(self.rows, self.n, self.k, strict=True))
        mean_n = _multiple_near(outputs / self.total_rows, gcd(*self.n))
        mean_k = _multiple_near(products / outputs, gcd(*self.k))
        return products / (mean_n * mean_k) / groups, mean_n, mean_k, groups


def _multiple_near(value: float, step: int) -> float:
    return float(max(round(value / step), 1) * step)
