"""The shipped tables by their role, as `data/measurements/manifest.yaml` tells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

MEASUREMENTS = Path(__file__).parents[2] / "data" / "measurements"
MANIFEST = MEASUREMENTS / "manifest.yaml"
ROLES = ("fit", "held_out", "repeat", "micro")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One entry of the manifest."""

    gpu: str
    file: str
    role: str
    protocol: str
    cards: int
    rows: int
    sha256: str

    @property
    def name(self) -> str:
        return self.file.split(".")[0]

    @property
    def path(self) -> Path:
        return MEASUREMENTS / self.gpu / self.file


@cache
def all_tables() -> tuple[Table, ...]:
    listed = yaml.safe_load(MANIFEST.read_text())
    return tuple(
        Table(gpu=gpu, file=file, **entry) for gpu, files in listed.items() for file, entry in files.items()
    )


def tables(*roles: str) -> list[Table]:
    """Those of some roles that hold timings of GEMM kernels in one regime."""
    regimes = ("burst", "counters", "sustained", "graph")
    return [table for table in all_tables() if table.role in roles and table.protocol in regimes]
