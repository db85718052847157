"""How many kernels each family has on each GPU: rules that let kernels in or out move no time of the others.

`make golden` writes the counts; their diff shows a person which families gained or lost kernels.
"""

from collections import Counter
from itertools import product
from pathlib import Path

import yaml

from gemm_model import GemmProblem, InputError, load_gpu
from gemm_model.core.kernel_config import SCHEDULES
from gemm_model.kernels.candidates import candidate_spaces
from gemm_model.kernels.registry import families, family_of

SPACES = Path(__file__).parent / "spaces.yaml"
GPUS = ("h200", "b200_1300mhz", "rtx_5090", "l40s", "a100_sxm_80gb", "v100_sxm2")
"""One of each architecture whose kernels differ."""
TYPES = ("fp16", "e4m3", "mxfp8")

Spaces = dict[str, dict[str, dict[str, dict[str, int]]]]
"""By GPU, family, type and schedule."""


def spaces() -> Spaces:
    """Kernels, with those that split K; of combinations that no kernel runs nothing is said."""
    found: Spaces = {}
    for gpu, dtype in product(map(load_gpu, GPUS), TYPES):
        for name in families(gpu):
            family = family_of(name, gpu)
            try:
                offered = candidate_spaces(family, gpu, GemmProblem.of(4096, 4096, 4096, dtype))
            except InputError:
                continue
            counts: Counter[str] = Counter()
            for space in offered:
                of_kernels = space.kernel["schedule"][:: family.space.orders_per_kernel]
                counts.update(SCHEDULES[code] for code in of_kernels)
            found.setdefault(gpu.name, {}).setdefault(name, {})[dtype] = dict(sorted(counts.items()))
    return found


def write_spaces() -> None:
    SPACES.write_text(yaml.safe_dump(spaces(), sort_keys=False))


def read_spaces() -> Spaces:
    recorded: Spaces = yaml.safe_load(SPACES.read_text())
    return recorded


def space_differences(recorded: Spaces, found: Spaces) -> list[str]:
    """One line for each family, type and schedule that has more or fewer kernels than recorded."""
    was, now = _flat(recorded), _flat(found)
    places = [*was, *(place for place in now if place not in was)]
    return [
        f"{' '.join(place)}: {was.get(place)} -> {now.get(place)} kernels"
        for place in places
        if was.get(place) != now.get(place)
    ]


def _flat(counts: Spaces) -> dict[tuple[str, ...], int]:
    return {
        (gpu, family, dtype, schedule): kernels
        for gpu, of_gpu in counts.items()
        for family, of_family in of_gpu.items()
        for dtype, of_type in of_family.items()
        for schedule, kernels in of_type.items()
    }
