"""Refresh rows, cards and checksums in data/measurements/manifest.yaml; roles and protocols stay as they are.

python scripts/write_manifest.py

A table that is not listed yet is added with the role `repeat`, to be set by hand: `fit` for tables that a
calibration was fitted to, `held_out` for those that it never saw, `repeat` for the same rows again, `micro`
for microbenchmarks and what else is no table of kernels.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
MANIFEST = MEASUREMENTS / "manifest.yaml"
ROLE_OF_NEW = "repeat"
HEADER = """\
# Shipped tables by GPU. role: fit, held_out, repeat or micro; protocol: the regime of `gemm-model benchmark`,
# or what was measured instead; cards: how many are told apart, 0 where the table does not tell. Cards, rows
# and sha256 are refreshed by `python scripts/write_manifest.py`.
"""


def entry(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    """What the manifest says of a table."""
    rows = pd.read_csv(path, low_memory=False)
    regimes = rows["regime"].unique() if "regime" in rows else ["other"]
    return {
        "role": known.get("role", ROLE_OF_NEW),
        "protocol": known.get("protocol", " and ".join(map(str, regimes))),
        "cards": int(rows["gpu_uuid"].nunique()) if "gpu_uuid" in rows else 0,
        "rows": len(rows),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def main() -> None:
    known = yaml.safe_load(MANIFEST.read_text()) if MANIFEST.is_file() else {}
    listed: dict[str, dict[str, Any]] = {}
    for path in sorted(MEASUREMENTS.glob("*/*.csv*")):
        gpu = path.parent.name
        listed.setdefault(gpu, {})[path.name] = entry(path, known.get(gpu, {}).get(path.name, {}))
    MANIFEST.write_text(HEADER + yaml.safe_dump(listed, sort_keys=False))


if __name__ == "__main__":
    main()
