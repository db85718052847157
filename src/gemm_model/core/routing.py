"""Routings of tokens to experts: how many rows each group of a mixture of experts gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemm_model.core.grouped import MOST_GROUPS, GroupedGemm
from gemm_model.core.records import require_kind
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError

DISTRIBUTIONS = ("uniform", "balanced", "zipf")
"""uniform: all experts equally likely; balanced: the same rows each; zipf: expert i with weight
i^-exponent."""
MAX_TOKENS = 2**24
"""Most tokens of a routing [1]; every routing; chosen: sampling them takes seconds."""
LARGEST_EXPONENT = 4.0
"""Largest exponent [1]; zipf routings; chosen: nine of ten tokens then choose the same expert first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A random assignment of `tokens` to `top_k` different experts each."""

    experts: int
    tokens: int
    top_k: int = 1
    distribution: str = "uniform"
    exponent: float = 0.0
    """Exponent of 'zipf'; 0 for other distributions."""

    def __post_init__(self) -> None:
        for name, most in (("experts", MOST_GROUPS), ("tokens", MAX_TOKENS), ("top_k", self.experts)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"{name} is {value!r}; expected a whole number from 1 to {most}")
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(f"routing is {self.distribution!r}; expected uniform, balanced or zipf:EXPONENT")
        number = isinstance(self.exponent, int | float)
        if not number or not 0.0 <= self.exponent <= LARGEST_EXPONENT:
            raise InputError(f"routing has exponent {self.exponent!r}; expected 0 to {LARGEST_EXPONENT:g}")

    @classmethod
    def parse(cls, text: str, *, experts: int, tokens: int, top_k: int = 1) -> Routing:
        """A routing from 'uniform', 'balanced' or 'zipf:0.7'; raises InputError for other words."""
        require_kind("routing", text, str)
        name, separator, rest = text.partition(":")
        exponent = 0.0
        if separator or name == "zipf":
            try:
                exponent = float(rest)
            except ValueError:
                exponent = -1.0
            if name != "zipf" or not 0.0 <= exponent <= LARGEST_EXPONENT:
                raise InputError(
                    f"routing is {text!r}; expected uniform, balanced or zipf:EXPONENT such as zipf:0.7"
                )
        return cls(experts=experts, tokens=tokens, top_k=top_k, distribution=name, exponent=exponent)

    @property
    def name(self) -> str:
        """The distribution as `parse` takes it."""
        return f"zipf:{self.exponent:g}" if self.distribution == "zipf" else self.distribution

    @property
    def rows(self) -> int:
        """Rows of all groups together."""
        return self.tokens * self.top_k

    @property
    def likelihood(self) -> NDArray[np.float64]:
        """Probability of each expert to be a token's first choice, of shape (experts,)."""
        weights = np.arange(1, self.experts + 1, dtype=np.float64) ** -self.exponent
        likelihood: NDArray[np.float64] = weights / weights.sum()
        return likelihood

    def sample(self, count: int, seed: int = 0) -> NDArray[np.int64]:
        """Rows of each expert in `count` routings, of shape (count, experts); the same for the same seed.

        Each expert gets an exponential arrival time whose rate is its likelihood; a token takes the first
        `top_k`, which draws without replacement (Plackett-Luce). A balanced routing is always the same.
        """
        count = size_of("count of routings", count)
        if type(seed) is not int or seed < 0:
            raise InputError(f"seed is {seed!r}; expected a whole number, 0 or more")
        if self.distribution == "balanced":
            each, more = divmod(self.rows, self.experts)
            rows = each + (np.arange(self.experts) < more)
            return np.tile(rows.astype(np.int64), (count, 1))
        random = np.random.default_rng(seed)
        found = np.empty((count, self.experts), dtype=np.int64)
        mean_time = (1.0 / self.likelihood).astype(np.float32)
        for rows in found:
            rings = random.standard_exponential((self.tokens, self.experts), dtype=np.float32) * mean_time
            chosen = np.argpartition(rings, self.top_k - 1, axis=1)[:, : self.top_k]
            rows[:] = np.bincount(chosen.ravel(), minlength=self.experts)
        return found

    def groups(self, count: int, seed: int = 0) -> list[GroupedGemm]:
        """The groups of `count` routings."""
        return [GroupedGemm(rows=tuple(rows)) for rows in self.sample(count, seed).tolist()]
