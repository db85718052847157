"""The manifest of the shipped tables: complete, and true of the files."""

import gzip
import hashlib
from collections import Counter

import pytest
import yaml

from benchmarks.measured import MANIFEST, MEASUREMENTS, ROLES, campaigns, kernels_of, path_of, rows_of
from gemm_model.bench.sweep import rows_of_table

TABLES = {
    f"{gpu}/{file}": table
    for gpu, files in yaml.safe_load(MANIFEST.read_text()).items()
    for file, table in files.items()
}


def test_every_shipped_table_is_listed_once():
    assert set(TABLES) == {str(path.relative_to(MEASUREMENTS)) for path in MEASUREMENTS.glob("*/**/*.csv*")}
    names = Counter((each.gpu, each.name) for each in campaigns())
    assert max(names.values()) == 1


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_checksum_are_those_of_the_file(name):
    content = (MEASUREMENTS / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == TABLES[name]["sha256"]
    header, *lines = (gzip.decompress(content) if name.endswith(".gz") else content).decode().splitlines()
    # No field holds a line break. Columns campaign and role come first where there are several campaigns.
    answer = {each: (found["role"], found["rows"]) for each, found in TABLES[name]["campaigns"].items()}
    assert {role for role, _ in answer.values()} <= set(ROLES)
    if header.startswith("campaign,role,"):
        found = Counter(tuple(line.split(",", 2)[:2]) for line in lines)
        assert {each: (role, rows) for (each, role), rows in found.items()} == answer
    else:
        ((_, rows),) = answer.values()
        assert sum(not line.startswith("#") for line in lines) == rows


def test_what_calibrations_are_fitted_to_and_judged_by_is_told_apart():
    fitted, held_out = ({each.name for each in kernels_of(role)} for role in ("fit", "held_out"))
    assert fitted >= {"burst", "wide", "counters", "sustained"}
    assert held_out >= {"unseen", "unseen_second", "unseen_layers", "conv_networks_new"}
    assert not fitted & held_out - {"cublaslt", "cutlass"}  # of the H100 they are held out
    assert all(each.cards >= 1 for each in kernels_of("fit", "held_out"))


def test_the_rows_of_a_campaign_are_read_without_the_columns_of_others():
    rows = rows_of("graph_pairs_cutlass")
    assert path_of("graph_pairs_cutlass").name == "repeats.csv.gz"
    assert len(rows) == 60
    assert set(rows["campaign"]) == {"graph_pairs_cutlass"}
    assert "paired" in rows
    assert "paired" not in rows_of("graph_repeat")


@pytest.mark.parametrize("name", ["unseen_problems", "graph_pairs", "masked", "conv_few"])
def test_the_rows_of_a_shipped_table_can_be_measured_again(name, tmp_path):
    path = tmp_path / "plan.csv"
    rows_of(name).to_csv(path, index=False)
    assert len(rows_of_table(path, regime="", l2="")) >= 170
