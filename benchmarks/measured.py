"""The shipped measurements by campaign and role: `data/measurements/manifest.yaml` and its tables' rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import yaml

from gemm_model.config.numbers import room_numbers

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
MANIFEST = MEASUREMENTS / "manifest.yaml"
ROLES = {
    "fit": "a calibration is fitted to it",
    "fit_choices": "what libraries choose by themselves is fitted to it, no calibration",
    "held_out": "nothing is fitted to it",
    "repeat": "rows of other tables again, on further cards or in other ways",
    "micro": "no table of GEMM kernels",
}
REGIMES = ("burst", "counters", "sustained", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Rows that were measured together by one protocol, all of them or a part of a table."""

    gpu: str
    file: str
    name: str
    role: str
    protocol: str
    cards: int
    rows: int

    @property
    def path(self) -> Path:
        return MEASUREMENTS / self.gpu / self.file


@cache
def campaigns() -> tuple[Campaign, ...]:
    """Every campaign, in the order of the manifest."""
    return tuple(
        Campaign(gpu=gpu, file=file, name=name, **entry)
        for gpu, files in yaml.safe_load(MANIFEST.read_text()).items()
        for file, table in files.items()
        for name, entry in table["campaigns"].items()
    )


def kernels_of(*roles: str) -> list[Campaign]:
    """Those of some roles that time GEMM kernels in one regime."""
    return [each for each in campaigns() if each.role in roles and each.protocol in REGIMES]


def path_of(name: str, gpu: str = "h200") -> Path:
    """The table that holds a campaign."""
    (found,) = (each.path for each in campaigns() if (each.gpu, each.name) == (gpu, name))
    return found


def rows_of(name: str, gpu: str = "h200") -> pd.DataFrame:
    """The rows of a campaign as texts, without the columns that it left empty."""
    path = path_of(name, gpu)
    frame = _table(path)
    if "campaign" not in frame:
        return frame
    rows = frame[frame["campaign"] == name]
    rows = rows.loc[:, (rows != "").any()]
    rows.attrs["path"] = str(path)
    return rows


@cache
def _table(path: Path) -> pd.DataFrame:
    """What `read_table` gives of a table that is known to be whole, sooner."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame.index = pd.RangeIndex(2, len(frame) + 2, name="line")
    frame.attrs["path"] = str(path)
    return frame


def numbers_of(name: str, gpu: str = "h200") -> pd.DataFrame:
    """The rows of a campaign, numbers as numbers."""
    frame = pd.read_csv(path_of(name, gpu), low_memory=False)
    return frame[frame["campaign"] == name] if "campaign" in frame else frame


def beyond_band(errors: pd.Series, bands: pd.Series) -> float:
    """What 90 % of relative errors are beyond their bands, in squares [1]; 0 where 90 % lie within."""
    beyond = (errors**2 - pd.to_numeric(bands) ** 2).dropna()
    return math.sqrt(max(beyond.quantile(room_numbers("calibration").band_share), 0.0))
