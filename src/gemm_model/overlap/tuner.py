"""The best (overlap_ratio, prefetch_ratio) of a layer: from the model, refined by a few measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gemm_model.batch import FloatArray
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import LayerCase, OverlapModel, chains_of

OVERLAP_RATIOS = (-1.0, 0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PREFETCH_RATIOS = (-1.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
EARLY, HALFWAY, NEVER = 0.25, 0.5, -1.0
"""Triggers that are considered (`considered_triggers`)."""
ROOM_BESIDE = 0.1
"""Share of the next layer's CTAs from which on they count as fitting beside this one's."""
NO_PREFETCH, BEST_EFFORT = 0.0, -1.0
NEEDED_GAIN = 0.01
"""What another setting must promise over the default."""
CANDIDATES = 6
"""Settings that a refinement measures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the tuner proposes."""

    setting: OverlapSetting
    layer_us: float
    no_overlap_us: float
    """The same layer without any overlap."""
    candidates: tuple[OverlapSetting, ...]
    """Settings worth measuring, the proposed one first."""
    measured: bool = False
    """Whether the times are measured or predicted."""


def considered_triggers(early_share: float) -> tuple[float, ...]:
    """Triggers worth considering, the default first, where that share of the next layer fits beside this one.

    Where the grid fills the card nothing starts before this layer's CTAs leave; the next layer's should stand
    ready then. Where slots are free they start at once, and their ring fill gets in the way of this layer's
    first loads: half-way these are over.
    """
    return (EARLY if early_share <= ROOM_BESIDE else HALFWAY), NEVER


def choose(
    overlap: FloatArray, prefetch: FloatArray, layer_us: FloatArray, triggers: tuple[float, ...]
) -> int:
    """Position of the setting to take, given predictions of a grid.

    Considered are `triggers`, each without a prefetch and with best effort; the default, the first of them
    with best effort, is left only for a promised gain. A fixed share goes on when the main loop has begun.
    A grid without the default: the fastest prediction.
    """
    default = np.flatnonzero((overlap == triggers[0]) & (prefetch == BEST_EFFORT))
    if not default.size:
        return int(layer_us.argmin())
    considered = np.flatnonzero(np.isin(overlap, triggers) & np.isin(prefetch, (NO_PREFETCH, BEST_EFFORT)))
    best = considered[layer_us[considered].argmin()]
    return int(best if layer_us[best] < layer_us[default[0]] * (1 - NEEDED_GAIN) else default[0])


def tune(
    model: OverlapModel,
    case: LayerCase,
    overlap_ratios: Sequence[float] = OVERLAP_RATIOS,
    prefetch_ratios: Sequence[float] = PREFETCH_RATIOS,
) -> Tuning:
    """The proposal from the model alone; `case.setting` does not matter."""
    settings = [
        OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        for overlap, prefetch in product(overlap_ratios, prefetch_ratios)
    ]
    cases = [replace(case, setting=setting, serialized=False) for setting in settings]
    times = model.layer_us([*cases, replace(case, serialized=True)])
    grid = times[:-1]
    early_share = float(chains_of(cases[:1], model.gpu).early_share[0])
    best = choose(
        np.array([s.overlap_ratio for s in settings]),
        np.array([s.prefetch_ratio for s in settings]),
        grid,
        considered_triggers(early_share),
    )
    order = [best, *(i for i in np.argsort(grid, kind="stable") if i != best)]
    return Tuning(
        setting=settings[best],
        layer_us=float(grid[best]),
        no_overlap_us=float(times[-1]),
        candidates=tuple(settings[i] for i in order[:CANDIDATES]),
    )


def refine(
    proposal: Tuning,
    measure_us: Callable[[OverlapSetting], float],
    measure_no_overlap_us: Callable[[], float],
) -> Tuning:
    """The fastest of the proposal's candidates by measurement, each measured once.

    Measured too: no trigger and those of the defaults, each without a prefetch and with best effort.
    """
    plain = [
        OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        for overlap, prefetch in product((NEVER, EARLY, HALFWAY), (NO_PREFETCH, BEST_EFFORT))
    ]
    times = {setting: measure_us(setting) for setting in dict.fromkeys([*proposal.candidates, *plain])}
    best = min(times, key=lambda setting: times[setting])
    return Tuning(
        setting=best,
        layer_us=times[best],
        no_overlap_us=measure_no_overlap_us(),
        candidates=tuple(sorted(times, key=lambda setting: times[setting])),
        measured=True,
    )
