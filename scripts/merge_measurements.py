"""Join the tables of several cards, and their environments, into one table that is shipped.

    python scripts/merge_measurements.py burst0.csv burst1.csv --output data/measurements/h200/burst.csv.gz

Rows keep their card (gpu_uuid) and their place in its run (order). The JSON beside each table, an entry or a
list of them, is joined into one list, a card an entry. `--kind` keeps the rows of one plan of
`scripts/plan_problem_measurements.py`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from gemm_model.bench.environment import environment_path
from gemm_model.core.files import atomic_path, atomic_write

KINDS = ("epilogues", "grouped", "block_scaled", "convolutions")


def kind_of(cells: Mapping[str, str]) -> str:
    """The plan that a row is from; plain products of fp8 by cuBLAS are there beside block-scaled ones."""
    if cells["conv"]:
        return "convolutions"
    if cells["groups"]:
        return "grouped"
    plain_fp8 = cells["kernel"] == "cublas" and cells["in_dtype"] == "e4m3"
    return "block_scaled" if cells["block_scaling"] or plain_fp8 else "epilogues"


def merge(tables: list[Path], output: Path, kind: str | None = None) -> int:
    """Write the joined table and environment; the number of rows."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    environments = []
    for table in tables:
        with table.open(newline="") as file:
            reader = csv.DictReader(file)
            rows.extend(cells for cells in reader if kind is None or kind_of(cells) == kind)
            if columns and list(reader.fieldnames or ()) != columns:
                raise SystemExit(f"{table}: its columns are not those of {tables[0]}")
            columns = list(reader.fieldnames or ())
        found = json.loads(environment_path(table).read_text())
        environments += found if isinstance(found, list) else [found]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_path(output) as path:
        # A fixed time in the header: the same rows give the same file.
        path.write_bytes(gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))
    atomic_write(output.with_suffix("").with_suffix(".json"), json.dumps(environments, indent=1) + "\n")
    return len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kind", choices=KINDS, help="keep the rows of one kind of problem")
    arguments = parser.parse_args()
    print(f"{arguments.output}: {merge(arguments.tables, arguments.output, arguments.kind)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
