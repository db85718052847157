"""The best (overlap_ratio, prefetch_ratio) of a layer: from the model, refined by a few measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import Chains, LayerCase, OverlapModel, Timeline, chains_of

OVERLAP_RATIOS = (-1.0, 0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PREFETCH_RATIOS = (-1.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
EARLY, HALFWAY, NEVER = 0.25, 0.5, -1.0
"""Triggers that the tuner considers (`considered_triggers`)."""
NO_PREFETCH, BEST_EFFORT = 0.0, -1.0
FEW_TILES = 0.0625
"""Small fixed prefetch ratio [1]; the tuner, in place of best effort where it brings little; chosen, of
`PREFETCH_RATIOS`."""
CANDIDATES = 6
"""Settings that a refinement measures [1]; the tuner on a GPU; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The tuner's proposal."""

    setting: OverlapSetting
    layer_us: float
    no_overlap_us: float
    """The same layer without any overlap."""
    candidates: tuple[OverlapSetting, ...]
    """Settings worth measuring, the proposed one first."""
    measured: bool = False
    """Whether the times are measured or predicted."""


def considered_triggers(early_share: float, previous_share: float = 0.0) -> tuple[float, ...]:
    """Triggers worth considering, the default first.

    `early_share` of the next layer fits beside this one; the previous kernel takes `previous_share` of the
    SMs. If the grid fills the card, nothing starts before this layer's CTAs leave, and the next layer's
    should be ready then. If slots are free, they start at once and their ring fill delays this layer's first
    loads, which are over half-way. Without a trigger, a previous kernel of many tokens takes its SMs first.
    """
    numbers = room_numbers("overlap")
    default = EARLY if early_share <= numbers.room_beside else HALFWAY
    return (default, NEVER) if previous_share <= numbers.few_tokens else (default,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Predictions of a grid of settings of one layer; arrays have one value per setting."""

    overlap: FloatArray
    prefetch: FloatArray
    layer_us: FloatArray
    prefetched_tiles: FloatArray
    """K tiles that a CTA brings into L2."""
    rings_wait_us: FloatArray
    """How long full rings wait for the previous kernel."""
    tiles_beyond_ring: float
    """K tiles of a CTA that its ring does not hold."""
    early_share: float
    """Share of the next layer that fits beside this one."""
    previous_share: float
    """Share of the SMs that the previous kernel takes."""
    split_k: int

    def at(self, overlap: float, prefetch: float) -> list[int]:
        """Position of a setting, nothing where the grid lacks it."""
        return [int(i) for i in np.flatnonzero((self.overlap == overlap) & (self.prefetch == prefetch))]

    def plain(self, overlap: float) -> list[int]:
        """Positions of a trigger without a prefetch and with best effort."""
        return self.at(overlap, NO_PREFETCH) + self.at(overlap, BEST_EFFORT)

    def fastest(self, positions: Sequence[int]) -> int:
        return min(positions, key=lambda position: float(self.layer_us[position]))


def grid_of(settings: Sequence[OverlapSetting], chains: Chains, lines: Timeline) -> Grid:
    """The grid of one layer, from the rows of its settings and their timelines."""
    share = lines.prefetched_bytes[-1] / chains.weight_bytes
    ring = float(chains.ring_bytes[0] / chains.weight_bytes[0])
    return Grid(
        overlap=np.array([setting.overlap_ratio for setting in settings]),
        prefetch=np.array([setting.prefetch_ratio for setting in settings]),
        layer_us=lines.layer_us,
        prefetched_tiles=share * chains.steps,
        rings_wait_us=lines.gemm_waited[-1] - lines.ring_full[-1],
        tiles_beyond_ring=float(chains.steps[0]) * (1 - ring),
        early_share=float(chains.early_share[0]),
        previous_share=float(chains.previous_share[0]),
        split_k=int(chains.split_k[0]),
    )


def choose(grid: Grid) -> int:
    """Position of the setting to take.

    It considers two triggers (`considered_triggers`), each without a prefetch and with best effort. It leaves
    the default, the first trigger with best effort (or `FEW_TILES`), only for a promised gain. A larger fixed
    share would continue after the main loop has begun. Without the default in the grid, it takes the fastest
    prediction.
    """
    numbers = room_numbers("overlap")
    triggers = considered_triggers(grid.early_share, grid.previous_share)
    trigger = triggers[0]
    default = grid.at(trigger, BEST_EFFORT)
    if not default:
        return int(grid.layer_us.argmin())
    taken = default[0]
    beside = grid.early_share > numbers.room_beside
    if beside and grid.prefetched_tiles[taken] < min(numbers.tiles_worth_it, grid.tiles_beyond_ring):
        taken = (grid.at(trigger, FEW_TILES) or default)[0]
    best = grid.fastest([position for each in triggers for position in grid.plain(each)])
    if grid.layer_us[best] < grid.layer_us[taken] * (1 - numbers.needed_gain):
        return best
    late = grid.plain(NEVER) if NEVER in triggers else []
    if beside and late and grid.split_k >= numbers.large_cluster:
        same = grid.layer_us[grid.fastest(late)] <= grid.layer_us[taken] * (1 + numbers.no_difference)
        if same and grid.rings_wait_us[late[0]] > numbers.long_wait_us:
            return grid.fastest(late)
    return taken


def settings_of(overlap_ratios: Sequence[float], prefetch_ratios: Sequence[float]) -> list[OverlapSetting]:
    """Each pair of such ratios."""
    return [
        OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        for overlap, prefetch in product(overlap_ratios, prefetch_ratios)
    ]


def cases_of_grid(case: LayerCase) -> list[LayerCase]:
    """The layer with each setting of the grid."""
    settings = settings_of(OVERLAP_RATIOS, PREFETCH_RATIOS)
    return [replace(case, setting=setting, serialized=False) for setting in settings]


def tune(model: OverlapModel, case: LayerCase) -> Tuning:
    """The proposal from the model alone; `case.setting` does not matter."""
    cases = cases_of_grid(case)
    settings = [each.setting for each in cases]
    grid = grid_of(settings, chains_of(cases, model.gpu), model.timeline(cases))
    best = choose(grid)
    order = [best, *(int(i) for i in np.argsort(grid.layer_us, kind="stable") if i != best)]
    return Tuning(
        setting=settings[best],
        layer_us=float(grid.layer_us[best]),
        no_overlap_us=float(model.layer_us([replace(case, serialized=True)])[0]),
        candidates=tuple(settings[i] for i in order[:CANDIDATES]),
    )


def refine(
    proposal: Tuning,
    measure_us: Callable[[OverlapSetting], float],
    measure_no_overlap_us: Callable[[], float],
) -> Tuning:
    """The fastest of the proposal's candidates by measurement, each measured once.

    It also measures no trigger and the default triggers, each without a prefetch and with best effort.
    """
    plain = settings_of((NEVER, EARLY, HALFWAY), (NO_PREFETCH, BEST_EFFORT))
    times = {setting: measure_us(setting) for setting in dict.fromkeys([*proposal.candidates, *plain])}
    best = min(times, key=lambda setting: times[setting])
    return Tuning(
        setting=best,
        layer_us=times[best],
        no_overlap_us=measure_no_overlap_us(),
        candidates=tuple(sorted(times, key=lambda setting: times[setting])),
        measured=True,
    )
