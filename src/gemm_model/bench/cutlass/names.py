"""What the name of a CUTLASS kernel says: tile, stages, cluster, schedule."""

from __future__ import annotations

import re
from typing import Any

GROUPED = re.compile(
    r"MainloopSm90ArrayTmaGmmaWarpSpecializedILi(?P<stages>\d+)E.*?Li(?P<cluster_m>\d+)E+.*?Li(?P<cluster_n>\d+)E"
    r".*?KernelPtrArrayTmaWarpSpecialized(?P<schedule>Pingpong|Cooperative)"
    r".*?Li(?P<cta_m>\d+)E+.*?Li(?P<cta_n>\d+)E+(?:S\w*_E|\w{1,5}_ILi(?P<cta_k>\d+)E)"
)
_SIZE = r"cute::C<(?:\(int\))?(\d+)>"
DEMANGLED = re.compile(
    r"MainloopSm90(?:Array)?TmaGmma\w*WarpSpecialized\w*<(?:\(int\))?(\d+), "
    rf"cute::tuple<{_SIZE}, {_SIZE}, {_SIZE} ?>, "
    rf"[\w:]*Kernel(?:PtrArray)?TmaWarpSpecialized(\w*)>, cute::tuple<{_SIZE}, {_SIZE}, {_SIZE} ?>"
)
"""A kernel of CUTLASS 3 as profilers tell it, for example torch's scaled and grouped products."""
PROFILER = re.compile(
    r"cutlass3x_sm90_\w+?_(\d+)x(\d+)x(\d+)_(\d+)x(\d+)x\d+_(\d+)_[tn]{3}_align\d+(?:_warpspecialized(\w*))?"
)
"""A procedural name of CUTLASS's own library."""


def cutlass_cells(name: str) -> dict[str, Any]:
    """The columns of a benchmark table that a kernel's name fills; none where no grammar knows it."""
    if found := DEMANGLED.search(name):
        stages, cluster_m, cluster_n, _, schedule, *tile = found.groups()
    elif found := PROFILER.search(name):
        *tile, cluster_m, cluster_n, stages, schedule = found.groups()
    else:
        return grouped_cells(name)
    words = (schedule or "").lower()
    cta_m, cta_n, cta_k = map(int, tile)
    return {
        **{"cta_m": cta_m, "cta_n": cta_n, "cta_k": cta_k, "mma_m": cta_m, "mma_n": cta_n},
        **{"cluster_m": int(cluster_m), "cluster_n": int(cluster_n), "stages": int(stages)},
        "schedule": "pingpong" if "pingpong" in words else "cooperative",
        "fast_accum": "fastaccum" in words,
        "scheduler": "static",
    }


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
