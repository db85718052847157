"""Join the tables of several cards, and their environments, into one table that is shipped.

    python scripts/merge_measurements.py burst0.csv burst1.csv --output data/measurements/h200/burst.csv.gz

Rows keep their card (gpu_uuid) and their place in its run (order). The JSON beside each table, an entry or a
list of them, is joined into one list, a card an entry.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import sys
from pathlib import Path

from gemm_model.bench.environment import environment_path
from gemm_model.core.files import atomic_path, atomic_write


def merge(tables: list[Path], output: Path) -> int:
    """Write the joined table and environment; the number of rows."""
    rows: list[dict[str, str]] = []
    columns: list[str] = []
    environments = []
    for table in tables:
        with table.open(newline="") as file:
            reader = csv.DictReader(file)
            rows.extend(reader)
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
    arguments = parser.parse_args()
    print(f"{arguments.output}: {merge(arguments.tables, arguments.output)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
