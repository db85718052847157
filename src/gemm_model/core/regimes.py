"""Names of the regimes by which a time is taken."""

from __future__ import annotations

GRAPH = "graph"
"""The regime whose rows say whether their clock had settled."""

SUSTAINED = "sustained"
"""The regime of launches until clock and power have settled."""

REGIME_NAMES = ("burst", GRAPH, SUSTAINED, "counters")

REGIME_ALIASES = {"kernel-only": "counters"}
"""Other names of regimes: the field's word for a kernel timed without its launch."""


def regime_name(name: str) -> str:
    """The regime's own name where another one was given."""
    return REGIME_ALIASES.get(name, name)
