"""An attention problem, and the configuration of a fused attention kernel."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import nan
from operator import index
from pathlib import Path
from typing import Any

from gemm_model.core.dtypes import DataType, element_type
from gemm_model.core.records import require_kind
from gemm_model.core.sizes import require_size
from gemm_model.errors import InputError, require_one_of

KERNELS = ("flash_attention", "cudnn_attention", "flash_attention_2", "flash_attention_3")
"""Kernels of fused attention: flash-attn-4's, the two that torch's own attention runs, and the servers' on Hopper."""
SCHEDULERS = ("auto", "in_order", "longest_first", "static")
"""How SMs get tiles of unequal work: the one that is free takes the next tile, in order or longest first; 'static':
each has one of every round; 'auto': as the kernel does."""
AUTO = 0
"""Value of `tile_m`, `tile_n`, `consumer_groups` and `cluster` [1]; the kernel's own rule chooses; by definition."""
BF16 = element_type("bf16")
OPERANDS = ("bf16", "fp16", "e4m3", "e5m2")
EXAMPLE = "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128"
MASKS = ("full", "causal")
SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v")
CHECKED = (*SIZES, "window", "page_size")
WORDS = (*CHECKED, "dtype", "softcap", "lengths")
FLAGS = ("causal", "overlap_in_group", "overlap_between_groups", "pv_from_registers", "pack_gqa")
FLAG_TEXTS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
REALS = ("softcap", "exp_emulated")
NUMBER = r"-?\d{1,19}(\.\d{0,9})?(e[+-]?\d{1,2})?"
MAY_BE_0 = ("seq_q", "seq_kv", "window", "page_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """O = softmax(Q K^T / sqrt(head_dim)) V for each of `batch` x `heads`; sizes in elements.

    `kv_heads` of 0 stand for `heads` (MHA), a `head_dim_v` of 0 for `head_dim`; sequences may be empty.
    Masks are aligned at the end: query i of `causal` sees keys up to i + seq_kv - seq_q, and with a `window`
    (0: none) the last window + 1 of them. `lengths` are (queries, keys) of each sequence where they differ;
    `batch`, `seq_q` and `seq_kv` then are their number and their longest. `page_size` of 0: a contiguous
    cache. Raises InputError for sizes that no attention has.
    """

    batch: int = 1
    heads: int
    kv_heads: int = 0
    seq_q: int = 0
    seq_kv: int = 0
    head_dim: int
    head_dim_v: int = 0
    dtype: DataType = BF16
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    page_size: int = 0
    lengths: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        self._fill_in()
        for name in CHECKED:
            if getattr(self, name) != 0 or name not in MAY_BE_0:
                require_size(self, name)
        require_one_of(f"in_dtype is {self.dtype.name}", self.dtype.name, OPERANDS)
        if self.heads % self.kv_heads:
            raise InputError(f"heads is {self.heads}; expected a multiple of the {self.kv_heads} kv_heads")
        if self.window and not self.causal:
            raise InputError(f"window is {self.window} without causal; expected a causal mask beside it")
        if not self.softcap >= 0.0:
            raise InputError(f"softcap is {self.softcap!r}; expected a number from 0 on")
        for seq_q, seq_kv in self.sequences:
            if self.causal and seq_q > seq_kv:
                raise InputError(f"seq_q is {seq_q} with causal; expected at most seq_kv, {seq_kv}")

    def _fill_in(self) -> None:
        """Put what 0 stands for in its place."""
        for name, other in (("kv_heads", "heads"), ("head_dim_v", "head_dim")):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, getattr(self, other))
        if not self.lengths:
            object.__setattr__(self, "lengths", ())
            return
        try:
            lengths = tuple((index(seq_q), index(seq_kv)) for seq_q, seq_kv in self.lengths)
        except (TypeError, ValueError):
            raise InputError(
                f"lengths is {str(self.lengths)[:40]}; expected pairs of queries and keys"
            ) from None
        values = (len(lengths), *map(max, zip(*lengths, strict=True)), lengths)
        for name, value in zip(("batch", "seq_q", "seq_kv", "lengths"), values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, *, dtype: str = "bf16", **sizes: Any) -> AttentionProblem:
        """A problem from sizes and a type's name; a `seq_kv` that is left out is `seq_q`."""
        sizes.setdefault("seq_kv", sizes.get("seq_q", 0))
        return cls(dtype=element_type(dtype), **sizes)

    @classmethod
    def parse(cls, text: str) -> AttentionProblem:
        """A problem from words such as EXAMPLE's, with blanks or commas between them.

        Words: the mask (full or causal), batch=, heads=, kv_heads=, seq_q=, seq_kv=, head_dim=,
        head_dim_v=, window=, page_size=, dtype=, softcap=, and lengths=Q:K+Q:K+..., the queries and keys of
        each sequence, or a CSV of them (seq_q, seq_kv). Raises InputError for a word that is missing, unknown or
        impossible.
        """
        require_kind("attention", text, str)
        words, known = re.split(r"[\s,]+", text.strip()), f"words as in '{EXAMPLE}'"
        masks = [words.pop(place) for place in reversed(range(len(words))) if words[place] in MASKS]
        if len(masks) != 1:
            raise InputError(f"attention names {len(masks)} masks; expected full or causal, as '{EXAMPLE}'")
        values = _words("attention", words, WORDS, known)
        for name in ("heads", "head_dim", "lengths" if "lengths" in values else "seq_q"):
            if name not in values:
                raise InputError(f"attention lacks {name}=; expected {known}")
        return cls.of(causal=masks == ["causal"], **values)

    @property
    def name(self) -> str:
        """The problem as `parse` takes it."""
        in_lengths = ("batch", "seq_q", "seq_kv") if self.lengths else ()
        given = {name: getattr(self, name) for name in CHECKED if name not in in_lengths}
        given |= {"lengths": self.lengths_text, "softcap": f"{self.softcap:g}" if self.softcap else ""}
        words = [f"{name}={value}" for name, value in given.items() if value]
        return " ".join((MASKS[self.causal], *words, f"dtype={self.dtype.name}"))

    @property
    def lengths_text(self) -> str:
        """Queries and keys of each sequence, as words and cells have them."""
        return "+".join(f"{seq_q}:{seq_kv}" for seq_q, seq_kv in self.lengths)

    @property
    def sequences(self) -> tuple[tuple[int, int], ...]:
        """Distinct (queries, keys) of the batch's sequences, or all of `lengths`."""
        return self.lengths or ((self.seq_q, self.seq_kv),)

    @property
    def group(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def element_bytes(self) -> float:
        return self.dtype.bits / 8

    @property
    def flop(self) -> float:
        """FLOP of both products over the scores that the mask leaves."""
        scores = sum(_scores(self, seq_q, seq_kv) for seq_q, seq_kv in self.sequences)
        each = self.heads * (1 if self.lengths else self.batch)
        return 2.0 * each * scores * (self.head_dim + self.head_dim_v)


def _scores(problem: AttentionProblem, seq_q: int, seq_kv: int) -> float:
    """Scores of one head and sequence that the mask leaves."""
    if not problem.causal:
        return float(seq_q) * seq_kv
    kept = min(problem.window + 1, seq_kv) if problem.window else seq_kv
    # Query i sees min(i + seq_kv - seq_q + 1, kept) keys: a ramp, then a plateau.
    first = seq_kv - seq_q + 1
    ramp = max(0, min(seq_q, kept - first))
    return ramp * (first + first + ramp - 1) / 2 + (seq_q - ramp) * float(kept)


def value_of(name: str, text: str) -> Any:
    """The value of a problem's or configuration's field from a word or cell; raises InputError for others."""
    if name in ("dtype", "in_dtype", "kernel", "scheduler"):
        return text
    if name == "lengths":
        return _lengths(text)
    if name in FLAGS:
        if text.lower() not in FLAG_TEXTS:
            raise InputError(f"{name} is {text[:40]!r}; expected 0 or 1")
        return FLAG_TEXTS[text.lower()]
    number = float(text) if re.fullmatch(NUMBER, text) else nan
    if number != number or (name not in REALS and number % 1.0):
        raise InputError(f"{name} is {text[:40]!r}; expected a {'' if name in REALS else 'whole '}number")
    return number if name in REALS else int(number)


def _lengths(given: str) -> tuple[tuple[int, ...], ...]:
    """Queries and keys of each sequence, from words or a CSV; raises InputError for others."""
    text = given
    if given.endswith(".csv"):
        try:
            lines = Path(given).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            raise InputError(f"lengths is {given}; expected a file that can be read") from None
        rows = csv.DictReader(lines, skipinitialspace=True)
        text = "+".join(f"{row.get('seq_q')}:{row.get('seq_kv')}" for row in rows)
    if not re.fullmatch(r"\d{1,13}:\d{1,13}(\+\d{1,13}:\d{1,13})*", text):
        known = "queries and keys as 512:512+1:9000, or a CSV of seq_q and seq_kv"
        raise InputError(f"lengths is {given[:40]!r}; expected {known}")
    return tuple(tuple(map(int, pair.split(":"))) for pair in text.split("+"))


def _words(what: str, words: Sequence[str], names: Sequence[str], example: str) -> dict[str, Any]:
    """Values by name of words such as seq_q=4096; raises InputError for unknown, repeated or impossible ones."""
    values: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        if name in values:
            raise InputError(f"{what} has the word {name} twice; expected it once")
        if name not in names or not text:
            raise InputError(f"{what} has the word {word[:40]!r}; expected {example}")
        values[name] = value_of(name, text)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """One attention kernel; sizes in elements.

    A CTA computes `tile_m` rows of O and walks over the keys in blocks of `tile_n`, which a producer warp
    loads into rings of `stages` slots for K and for V. Its `consumer_groups` hold as many rows each as the kernel
    has (a warpgroup's 64 on Hopper): they follow from `tile_m`, or it from them. `overlap_in_group` issues Q K^T of
    the next block before P V of this one; `overlap_between_groups` lets groups take turns, else they keep in step;
    `pv_from_registers` keeps P in registers rather than in shared memory;
    `pack_gqa` puts the query heads that share K and V into the rows of one tile; `num_splits` CTAs share the keys
    of a tile, whose parts a second kernel combines.
    `exp_emulated` is the share of the exponentials that FMAs compute in place of the SFU. One load brings K and V
    to the `cluster` CTAs of neighbouring tiles of queries. AUTO tiles, groups and clusters stand for the kernel's
    own; a `pack_gqa` of None for whether heads share keys.
    """

    kernel: str = KERNELS[0]
    tile_m: int = AUTO
    tile_n: int = AUTO
    stages: int = 2
    consumer_groups: int = AUTO
    overlap_in_group: bool | None = None
    overlap_between_groups: bool = True
    pv_from_registers: bool | None = None
    pack_gqa: bool | None = None
    num_splits: int = 1
    scheduler: str = SCHEDULERS[0]
    cluster: int = AUTO
    exp_emulated: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("kernel", KERNELS), ("scheduler", SCHEDULERS)):
            require_one_of(f"{name} is {getattr(self, name)!r}", getattr(self, name), known)
        for name in ("stages", "num_splits", "tile_m", "tile_n", "consumer_groups", "cluster"):
            if name in ("stages", "num_splits") or getattr(self, name) != AUTO:
                require_size(self, name)
        if not 0.0 <= self.exp_emulated <= 1.0:
            raise InputError(f"exp_emulated is {self.exp_emulated!r}; expected a share from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> AttentionConfig:
        """A configuration from words such as 'flash_attention tile=128x128 num_splits=4 pack_gqa=0'.

        The kernel comes first; what is left out is the kernel's own. Raises InputError for other words.
        """
        kernel, *words = re.split(r"[\s,]+", text.strip())
        return cls(kernel=kernel).having(*words)

    def having(self, *words: str) -> AttentionConfig:
        """The same but for words such as 'tile=128x128' and 'num_splits=4'; raises InputError for others."""
        words = tuple(re.sub(r"^tile=(\d{1,6})x(\d{1,6})$", r"tile_m=\1 tile_n=\2", word) for word in words)
        names = [spec.name for spec in fields(self)][1:]
        known = ", ".join(("tile", *names))
        values = _words("attention configuration", " ".join(words).split(), names, known)
        together = {"tile_m", "consumer_groups"}
        if len(named := together & values.keys()) == 1:
            values |= dict.fromkeys(together - named, AUTO)
        return replace(self, **values)

    @property
    def name(self) -> str:
        """Its tile, packing and splits in few words."""
        splits = f" {self.num_splits} splits" if self.num_splits > 1 else ""
        return f"{self.tile_m}x{self.tile_n}{' packed' if self.pack_gqa else ''}{splits}"

    @property
    def fields(self) -> Mapping[str, Any]:
        """By the names that columns of tables have; flags are 0 and 1."""
        return {name: int(cell) if isinstance(cell, bool) else cell for name, cell in asdict(self).items()}
