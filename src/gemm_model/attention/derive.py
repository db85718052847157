"""The best schedule of a CTA for given costs of a key block, found by pricing all schedules.

A schedule is the number of consumer groups, whether each group issues Q K^T of the next block before P V of
this one, and how many of 16 exponentials FMAs compute. The recurrence gives the period of each schedule: the
steady-state time of a key block, over the rows that it serves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from gemm_model.attention.kernels import THREAD_REGISTERS
from gemm_model.attention.model import EMULATION_SLOTS, LANES
from gemm_model.attention.pipeline import StageTimes, tile_ends
from gemm_model.config.numbers import room_numbers

EMULATED_SHARE_STEPS = 16
"""Steps from no emulated exponentials to all of them [1]; schedules to try; chosen."""
RINGS = 2
"""Slots of the rings of K and of V [slots]; schedules to try; Hopper, flash-attn-4 4.0.0b36."""
SETTLED_BLOCKS = 24
"""Key blocks after which the pipeline is periodic [blocks]; costs of attention; chosen: longer than the memory of
rings and groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts(StageTimes):
    """Costs of one key block for a group of `rows` rows of Q on one SM [clk], all exponentials on the SFU."""

    rows: int
    emulated: float = 0.0
    """All exponentials on FMAs, in parallel with the SFU."""

    def emulating(self, share: float) -> StageTimes:
        """The same if FMAs compute `share` of the exponentials [1]."""
        return replace(self, exponentials=max((1.0 - share) * self.exponentials, share * self.emulated))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule and its cost."""

    groups: int
    overlap: bool
    emulated_share: float
    clk_per_row: float
    """Steady-state time of a key block, over the rows of all groups."""
    tensor_busy: float
    """Share of the time in which the tensor cores work [1]."""

    @property
    def name(self) -> str:
        inside = "next scores before these outputs" if self.overlap else "one block after the other"
        emulated = f", {self.emulated_share:.0%} of exponentials by FMAs" if self.emulated_share else ""
        return f"{self.groups} group{'s' * (self.groups > 1)} in turn, {inside}{emulated}"


def schedules(costs: BlockCosts, *, emulate: bool = False) -> tuple[Schedule, ...]:
    """All schedules of a CTA, fastest first; equal ones by fewer groups, less emulation, overlap in a group."""
    shares = [step / EMULATED_SHARE_STEPS for step in range(EMULATED_SHARE_STEPS + 1)] if emulate else [0.0]
    found = [_priced(costs, *order) for order in product(THREAD_REGISTERS, (False, True), shares)]
    return tuple(sorted(found, key=_rank))


def _rank(each: Schedule) -> tuple[float, int, float, bool]:
    return round(each.clk_per_row, 9), each.groups, each.emulated_share, not each.overlap


def _priced(costs: BlockCosts, groups: int, overlap: bool, share: float) -> Schedule:
    shape = {"groups": groups, "stages": RINGS, "blocks": 2 * SETTLED_BLOCKS}
    ends = tile_ends(costs.emulating(share), overlap=overlap, **shape)
    period = (float(ends[-1]) - float(ends[SETTLED_BLOCKS - 1])) / SETTLED_BLOCKS
    return Schedule(
        groups=groups,
        overlap=overlap,
        emulated_share=share,
        clk_per_row=period / (groups * costs.rows),
        tensor_busy=float(groups * (costs.qk + costs.pv) / period),
    )


def hopper(tile_n: int = 128, head_dim: int = 128) -> BlockCosts:
    """Costs at the peak rates of Hopper: 4,096 FLOP and 16 exponentials a clock and SM, 64 rows a group."""
    return _at_peak(64, tile_n, head_dim, flop_per_clk=4096.0)


def blackwell(tile_n: int = 128, head_dim: int = 128) -> BlockCosts:
    """Costs at the peak rates of B200: 8,192 FLOP and 16 exponentials a clock and SM, 128 rows a group."""
    return _at_peak(128, tile_n, head_dim, flop_per_clk=8192.0)


def _at_peak(rows: int, tile_n: int, head_dim: int, *, flop_per_clk: float) -> BlockCosts:
    numbers = room_numbers("attention")
    scores = rows * tile_n
    product_clk = 2.0 * scores * head_dim / flop_per_clk
    return BlockCosts(
        rows=rows,
        qk=product_clk,
        pv=product_clk,
        softmax=scores * numbers.score_slots / LANES,
        exponentials=scores / room_numbers("gpu").exponentials_per_clk,
        emulated=scores * EMULATION_SLOTS / LANES,
        correction=rows * head_dim * numbers.output_slots / LANES,
    )


def gain_of_emulation(costs: BlockCosts) -> tuple[Schedule, float]:
    """The fastest schedule with emulation, and its gain over the fastest one without [1]."""
    best, plain = schedules(costs, emulate=True)[0], schedules(costs)[0]
    return best, plain.clk_per_row / best.clk_per_row - 1.0
