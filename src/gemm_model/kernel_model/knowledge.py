"""Numbers, bands and residual for a family's kernels on a GPU and one rate class, and their origin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gemm_model.config.mechanisms import PROBLEM_KINDS, KernelNumbers
from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import FloatArray
from gemm_model.core.gpu import ASSUMED, LEFT_OUT, LENT, GpuSpec, is_as_described
from gemm_model.kernel_model.calibration_file import (
    OWN,
    SITUATIONS,
    WHOLE_SITUATIONS,
    Calibration,
    borrowed_bands,
)
from gemm_model.kernel_model.residual import Residual
from gemm_model.kernels.family import KernelFamily

OTHER_RATE_CLASS = "other_rate_class"
"""Way of borrowing that takes another rate class's numbers."""
OTHER_GPU = "other_gpu"
"""Way of borrowing a calibration of another card; also of a card whose numbers are not those measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Numbers, bands and residual used for a family's kernels, and their origin."""

    calibration: Calibration
    borrowed: str
    """How the calibration is borrowed; OWN if it is the pair's own."""
    served: str
    """The rate class whose numbers are used."""
    numbers: KernelNumbers
    residual: Residual | None
    """The residual that corrects these predictions; None if none was trained on such rows."""
    band_table: FloatArray | None
    """Error band by situation, NaN for situations without one; None if none was measured."""
    unfitted: tuple[str, ...]
    """PROBLEM_KINDS that the numbers were not fitted to."""
    caveats: tuple[str, ...]
    """Caveats about the GPU, the origin of the numbers, and the order of tiles."""


def knowledge(
    lent: tuple[Calibration, str], gpu: GpuSpec, family: KernelFamily, kind: str, residual: Residual | None
) -> Knowledge:
    """What serves `kind` operands.

    `lent` is the calibration and how it is borrowed, `residual` the calibration's, of any class.
    """
    calibration, borrowed = lent
    served = calibration.kind_for(kind)
    own = borrowed == OWN and served == kind
    measured = is_as_described(gpu)
    corrects = residual if own and residual is not None and kind in residual.forests else None
    return Knowledge(
        calibration=calibration,
        borrowed=borrowed,
        served=served,
        numbers=calibration.numbers_on(gpu, kind, family).without(family.absent_mechanisms),
        residual=corrects,
        band_table=_own_bands(calibration, corrects, kind)
        if own and measured
        else _borrowed_bands(borrowed if measured or borrowed != OWN else OTHER_GPU, served == kind),
        unfitted=tuple(
            name
            for name in PROBLEM_KINDS
            if name not in calibration.error_band.get(served, {})
            and not any(number.startswith(f"{name}.") for number in calibration.intervals.get(served, ()))
        ),
        caveats=(*_caveats(lent, gpu, family, kind), *_whose(corrects, kind)),
    )


def _whose(residual: Residual | None, kind: str) -> tuple[str, ...]:
    """A caveat that names the residual's origin, if it is another card's."""
    if residual is None or residual.taken_over is None:
        return ()
    share = residual.taken_over.shares[kind]
    return (f"residual of {residual.taken_over.donor}, {share:.2f} of it, as this GPU's own rows bear out",)


def _own_bands(calibration: Calibration, residual: Residual | None, kind: str) -> FloatArray | None:
    """Error bands of the calibration, or of the residual if it has them."""
    found = dict(calibration.error_band.get(kind, {}))
    if residual is not None:
        found |= residual.error_band.get(kind, {})
    return np.array([found.get(name, np.nan) for name in SITUATIONS]) if found else None


def _borrowed_bands(borrowed: str, same_kind: bool) -> FloatArray | None:
    """Error bands measured for such borrowing; None if it was not measured."""
    ways = [] if borrowed == OWN else [borrowed]
    ways += [] if same_kind else [OTHER_RATE_CLASS]
    costs = [borrowed_bands().get(way) for way in ways]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    # Errors of one way say nothing of another's, so they add in squares. Measured for plain GEMMs only.
    return np.where([name in WHOLE_SITUATIONS for name in SITUATIONS], math.hypot(*known), np.nan)


def _caveats(lent: tuple[Calibration, str], gpu: GpuSpec, family: KernelFamily, kind: str) -> tuple[str, ...]:
    (calibration, borrowed), caveats = lent, gpu.caveats
    served = calibration.kind_for(kind)
    if borrowed == OWN and not is_as_described(gpu):
        caveats += (f"GPU {gpu.name}: its numbers are not the measured card's, whose calibration serves it",)
    if borrowed != OWN:
        caveats += (f"calibration of {gpu.name}:{family.name} borrowed from {calibration.name}",)
    if served != kind:
        caveats += (f"{kind} is not calibrated; the numbers are those of {served}",)
    caveats += _incomplete(gpu, calibration.gpu)
    if family.tile_order.scheduler.evens_out and gpu.next_cluster_us is None:
        caveats += ("a query for the next tile (dynamic tile scheduler) is taken as hidden: not measured",)
    return caveats


def _incomplete(gpu: GpuSpec, donor: str) -> tuple[str, ...]:
    """A caveat that names the numbers missing of a card's description, and whose serve in their place."""
    if gpu.validated:
        return ()
    assumed = room_numbers("gpu")
    of_h200 = [
        name
        for name, number in ASSUMED.items()
        if name not in gpu.sources and getattr(gpu, name) == getattr(assumed, number)
    ]
    found = {"left out": [name for name in LEFT_OUT if not getattr(gpu, name)], "taken of h200": of_h200}
    lent = [name for name in LENT if getattr(gpu, name) is None and gpu.name != donor]
    found.setdefault(f"taken of {donor}", []).extend(lent)
    parts = [f"{', '.join(names)} ({what})" for what, names in found.items() if names]
    return (f"GPU {gpu.name}: numbers not measured: {'; '.join(parts)}",) if parts else ()
