"""Refresh rows, cards and checksums in data/measurements/manifest.yaml; protocols stay as they are.

python scripts/write_manifest.py

A table holds one campaign of its own name, or says in its columns `campaign` and `role` whose each row is.
A campaign that is not listed yet is added with the protocol that its rows tell; without a column `role` with
the role `repeat`, to be set by hand. `benchmarks/measured.py` says what the roles mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
MANIFEST = MEASUREMENTS / "manifest.yaml"
ROLE_OF_NEW = "repeat"
HEADER = """\
# Shipped tables by GPU, and the campaigns of each (columns campaign and role where there are several).
# protocol: the regime of `gemm-model benchmark`, or what else was measured; cards: how many are told apart, 0
# where the table does not tell. Cards, rows and sha256 are refreshed by `python scripts/write_manifest.py`.
"""


def campaigns(path: Path, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the manifest says of each campaign of a table."""
    rows = pd.read_csv(path, low_memory=False)
    if "campaign" not in rows:
        rows = rows.assign(campaign=path.name.split(".")[0])
    for name, part in rows.groupby("campaign", sort=False):
        said = known.get(name, {})
        regimes = part["regime"].dropna().unique() if "regime" in part else ["other"]
        yield (
            str(name),
            {
                "role": str(part["role"].iloc[0]) if "role" in part else said.get("role", ROLE_OF_NEW),
                "protocol": said.get("protocol", " and ".join(map(str, regimes))),
                "cards": int(part["gpu_uuid"].nunique()) if "gpu_uuid" in part else 0,
                "rows": len(part),
            },
        )


def main() -> None:
    known = yaml.safe_load(MANIFEST.read_text()) if MANIFEST.is_file() else {}
    listed: dict[str, dict[str, Any]] = {}
    for path in sorted(MEASUREMENTS.glob("*/**/*.csv*")):
        gpu, *folders = path.relative_to(MEASUREMENTS).parts
        name = "/".join(folders)
        said = known.get(gpu, {}).get(name, {}).get("campaigns", {})
        listed.setdefault(gpu, {})[name] = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "campaigns": dict(campaigns(path, said)),
        }
    text = yaml.safe_dump(listed, sort_keys=False, default_flow_style=None, width=110)
    MANIFEST.write_text(HEADER + text)


if __name__ == "__main__":
    main()
