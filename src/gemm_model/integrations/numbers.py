"""The empirical numbers of this room: `config/numbers/integrations.yaml` has values, meanings and sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gemm_model.config.numbers import empirical, room_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrationNumbers:
    """Of kernels that other tools make, beside those that a kernel family describes."""

    inductor_pointers: float = empirical("1", 0.5, 3.0)
    inductor_persistent: float = empirical("1", 0.5, 3.0)
    inductor_band: float = empirical("1", 0.0, 2.0)


@cache
def integration_numbers() -> IntegrationNumbers:
    return room_numbers("integrations", IntegrationNumbers)
