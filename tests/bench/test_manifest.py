"""The manifest of the shipped tables: complete, and true of the files."""

import gzip
import hashlib

import pytest

from tests.gate.manifest import MEASUREMENTS, ROLES, all_tables, tables

FEWEST_ROWS = 1000
FEWER_ROWS = {
    **{"h100_sxm/cublaslt.csv.gz": 987, "h200/masked.csv.gz": 396, "h200/convolutions.csv.gz": 696},
    **{"h200/conv_networks.csv.gz": 360, "h200/conv_networks_unseen.csv.gz": 360},
    **{"h200/conv_networks_later.csv.gz": 360, "h200/conv_beside.csv.gz": 180},
    **{"h200/conv_beside_unseen.csv.gz": 180, "h200/conv_networks_further.csv.gz": 360},
    **{"h200/conv_networks_fresh.csv.gz": 355, "h200/conv_few.csv.gz": 171},
    **{"h200/conv_few_unseen.csv.gz": 180, "h200/conv_networks_more.csv.gz": 359},
    **{"h200/conv_networks_last.csv.gz": 360},
}
"""Tables that hold fewer, with their rows: of 997 rows asked, cuBLASLt's kernels ran in 987; a
convolution has one row for a type, cuDNN's pick."""

TABLES = {f"{table.gpu}/{table.file}": table for table in all_tables()}


def test_every_shipped_table_is_listed_once():
    shipped = {str(path.relative_to(MEASUREMENTS)) for path in MEASUREMENTS.glob("*/*.csv*")}
    assert set(TABLES) == shipped
    assert len(TABLES) == len(all_tables())


@pytest.mark.parametrize("name", TABLES)
def test_rows_and_checksum_are_those_of_the_file(name):
    table = TABLES[name]
    assert table.role in ROLES
    assert table.protocol
    content = table.path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == table.sha256
    text = gzip.decompress(content) if name.endswith(".gz") else content
    # No field holds a line break; the header is no row.
    assert text.count(b"\n") - 1 == table.rows


def test_what_calibrations_are_fitted_to_and_judged_by_is_told_apart():
    assert {table.name for table in tables("fit")} >= {"burst", "wide", "counters", "sustained"}
    assert {table.name for table in tables("held_out")} >= {"unseen", "unseen_second", "unseen_layers"}
    shipped = [table for table in tables("fit", "held_out") if table.protocol == "burst"]
    for table in shipped:
        name = f"{table.gpu}/{table.file}"
        assert table.rows >= FEWER_ROWS.get(name, FEWEST_ROWS), name
    assert all(table.cards >= 1 for table in shipped)
