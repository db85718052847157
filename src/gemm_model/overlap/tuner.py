"""The best (overlap_ratio, prefetch_ratio) of a layer: from the model, refined by a few measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gemm_model.batch import FloatArray
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import LayerCase, OverlapModel

OVERLAP_RATIOS = (-1.0, 0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
PREFETCH_RATIOS = (-1.0, 0.0, 0.0625, 0.125, 0.25, 0.5, 0.75, 1.0)
SAFE_OVERLAP = 0.9
"""The trigger of the default, without a prefetch: late enough for the next layer's ring fill to keep out of
the way of this layer's main loop, early enough to hide the launch."""
LATE_OVERLAP = 0.75
"""Earlier triggers gain nothing that could be resolved: most lie within the ring and act at once."""
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


def choose(
    overlap: FloatArray, prefetch: FloatArray, layer_us: FloatArray, *, prefetch_pays: bool = True
) -> int:
    """Position of the setting to take, given predictions of a grid.

    The default (no prefetch, a late trigger) is left for the fastest prediction only where that promises a
    gain; considered are late triggers and none, without a prefetch and (if it pays) with best effort. A fixed
    share, issued in one burst, delays the kernel that it waits for and is never proposed.
    """
    late = (overlap < 0) | (overlap >= LATE_OVERLAP)
    pool = late & ((prefetch == 0) | ((prefetch < 0) & prefetch_pays))
    if not pool.any():
        return int(layer_us.argmin())
    considered = np.flatnonzero(pool)
    distance = np.where(overlap < 0, 1.0, np.abs(overlap - SAFE_OVERLAP))
    default = min(considered, key=lambda i: (prefetch[i] != 0, distance[i]))
    best = min(considered, key=lambda i: layer_us[i])
    return int(best if layer_us[best] < layer_us[default] * (1 - NEEDED_GAIN) else default)


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
    best = choose(
        np.array([s.overlap_ratio for s in settings]),
        np.array([s.prefetch_ratio for s in settings]),
        grid,
        prefetch_pays=bool(model.prefetch_pays([case])[0]),
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

    Four plain settings are measured too: a late trigger or none, no prefetch or best effort.
    """
    plain = [
        OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch)
        for overlap, prefetch in ((-1.0, 0.0), (SAFE_OVERLAP, 0.0), (-1.0, -1.0), (1.0, -1.0))
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
