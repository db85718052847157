"""What the intervals of a card's numbers cost in a prediction."""

from __future__ import annotations

from collections.abc import Mapping

from gemm_model.config.mechanisms import LAUNCH, RESOURCES
from gemm_model.core.elementwise import Values, sqrt
from gemm_model.core.gpu import ASSUMED_INTERVALS, GpuSpec

NUMBERS_OF = {
    name: tuple(each for each in (*found.gpu_rates, *found.gpu_times) if each in ASSUMED_INTERVALS)
    for name, found in RESOURCES.items()
} | {LAUNCH: ("graph_launch_us",)}
"""The numbers of a description that a resource's time follows, by resource."""


def card_band(gpu: GpuSpec, elasticities: Mapping[str, Values]) -> Values:
    """Relative error that the card's own numbers stay within nine times in ten [1]; 0 of a measured card.

    Numbers are off independently, so that what each moves adds in squares: its interval times the elasticity
    of the resource whose time it is, to first order; the widest one where a resource has several.
    """
    widths = {name: max(map(gpu.interval, numbers), default=0.0) for name, numbers in NUMBERS_OF.items()}
    return sqrt(sum((share * widths[name]) ** 2 for name, share in elasticities.items()))


def with_card_band(band: Values, gpu: GpuSpec, elasticities: Mapping[str, Values]) -> Values:
    """A band of borrowed kernels' numbers together with that of the card's."""
    return sqrt(band**2 + card_band(gpu, elasticities) ** 2)
