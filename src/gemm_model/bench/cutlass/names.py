"""What the mangled name of a CUTLASS grouped kernel says: tile, stages, cluster, schedule."""

from __future__ import annotations

import re
from typing import Any

GROUPED = re.compile(
    r"MainloopSm90ArrayTmaGmmaWarpSpecializedILi(?P<stages>\d+)E.*?Li(?P<cluster_m>\d+)E+.*?Li(?P<cluster_n>\d+)E"
    r".*?KernelPtrArrayTmaWarpSpecialized(?P<schedule>Pingpong|Cooperative)"
    r".*?Li(?P<cta_m>\d+)E+.*?Li(?P<cta_n>\d+)E+(?:S\w*_E|\w{1,5}_ILi(?P<cta_k>\d+)E)"
)


def grouped_cells(name: str) -> dict[str, Any]:
    """The columns of a benchmark table that the name fills; none where the grammar does not know it."""
    found = GROUPED.search(name)
    if found is None:
        return {}
    sizes = ("cta_m", "cta_n", "cluster_m", "cluster_n", "stages")
    cells: dict[str, Any] = {size: int(found[size]) for size in sizes}
    # An extent that repeats the one before it is a reference in the mangled name.
    cells["cta_k"] = int(found["cta_k"] or found["cta_n"])
    cells |= {"mma_m": cells["cta_m"], "mma_n": cells["cta_n"]}
    return cells | {"schedule": found["schedule"].lower(), "scheduler": "static"}
