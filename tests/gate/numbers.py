"""The shipped numbers of each room, as `make golden` found them."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from gemm_model.config.numbers import NUMBERS_DIR, room_numbers

RECORDED = Path(__file__).parent / "numbers.yaml"
ROOMS = tuple(path.stem for path in sorted(NUMBERS_DIR.iterdir()))


def shipped(room: str) -> dict[str, float]:
    return vars(room_numbers(room))


def recorded() -> Mapping[str, Mapping[str, float]]:
    found: Mapping[str, Mapping[str, float]] = yaml.safe_load(RECORDED.read_text())
    return found


def write_numbers() -> None:
    header = "# Values of config/numbers/*.yaml, as `make golden` found them.\n"
    RECORDED.write_text(header + yaml.safe_dump({room: shipped(room) for room in ROOMS}, sort_keys=False))
