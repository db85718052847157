from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from gemm_model.bench.rows import COLUMNS, COUNTERS_TABLE_COLUMNS, row_from_columns
from gemm_model.bench.sweep import row_key

FOLDER = Path(__file__).parents[2] / "data" / "measurements" / "h200"
TABLES = ("burst", "repeat", "counters", "sustained")


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv.gz", dtype=str, keep_default_na=False)


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_whole_unique_and_name_their_card(name: str) -> None:
    rows = table(name)
    expected = COUNTERS_TABLE_COLUMNS if name == "counters" else COLUMNS
    assert tuple(rows.columns) == expected
    cards = {entry["gpu_uuid"]: entry for entry in json.loads((FOLDER / f"{name}.json").read_text())}
    assert set(rows["gpu_uuid"]) == set(cards)
    assert set(rows["regime"]) == {"burst" if name == "repeat" else name}
    assert set(rows["disposition"]) == {"ok"}
    assert (rows["runtime_us"].astype(float) > 0).all()
    identity = [column for column in expected if column in ("kernel", "in_dtype", "m", "n", "k", "swizzle")]
    identity += ["cta_m", "cta_n", "cluster_m", "cluster_n", "schedule"]
    assert not rows.duplicated(identity).any()
    assert set(rows["in_dtype"]) == {"bf16", "fp16", "e4m3"}


def test_every_burst_row_comes_back_as_a_row_of_its_own() -> None:
    rows = table("burst").sample(500, random_state=1)
    keys = {
        row_key(row_from_columns({str(k): v for k, v in cells.items()})) for cells in rows.to_dict("records")
    }
    assert len(keys) == len(rows)


def test_the_repeated_rows_are_burst_rows_on_another_card() -> None:
    burst, repeat = (table(name).drop(columns=["order", "time"]) for name in ("burst", "repeat"))
    keys = [
        "kernel",
        "in_dtype",
        "m",
        "n",
        "k",
        "swizzle",
        "cta_m",
        "cta_n",
        "cluster_m",
        "cluster_n",
        "schedule",
    ]
    pairs = repeat.merge(burst, on=keys, suffixes=("", "_first"), validate="one_to_one")
    assert len(pairs) == len(repeat) > 3000
    assert (pairs["gpu_uuid"] != pairs["gpu_uuid_first"]).all()


def test_an_in_kernel_clock_is_cycles_over_duration() -> None:
    rows = table("counters")
    clock = rows["sm_cycles"].astype(float) / rows["duration_us"].astype(float)
    assert (clock - rows["sm_mhz"].astype(float)).abs().max() < 0.01
    assert clock.between(1000, 1985).all()
