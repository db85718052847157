"""`gemm-model benchmark --cluster`: one sweep over all cards of a cluster, into a data set."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gemm_model.bench.environment import command_line, package_versions, timestamp
from gemm_model.bench.provider import Provider, load_provider
from gemm_model.bench.rows import Row
from gemm_model.bench.runner import Progress, RunOptions
from gemm_model.bench.sweep import digest
from gemm_model.commands import common
from gemm_model.core.errors import InputError, PartialResultError
from gemm_model.fleet.cluster import joined
from gemm_model.report.document import Document

if TYPE_CHECKING:
    from gemm_model.fleet.sweep import Cards, FleetSweep

RowsOf = Callable[[tuple[int, int]], list[Row]]
"""The sweep's rows in their order, for cards of a compute capability."""


def fleet_benchmark(
    args: argparse.Namespace, options: RunOptions, kernels: Sequence[str], rows_of: RowsOf, progress: Progress
) -> None:
    """Measure on every card of `args.cluster`; `rows_of` is asked once the cards are known."""
    from gemm_model.dataset.storage import DataSet
    from gemm_model.fleet.journal import begun, taken_up
    from gemm_model.fleet.sweep import FleetSweep, cards_of

    if args.output.suffix in (".csv", ".gz"):
        raise InputError(
            f"--output is {args.output}; with --cluster expected the folder of a data set "
            "(`gemm-model data export` makes a CSV of it)"
        )
    dataset = DataSet(args.output) if args.resume else DataSet.create(args.output)
    with joined(args.cluster, cards=args.cards, compilers=options.compile_jobs) as client:
        common.words(f"dashboard {client.dashboard_link}")
        cards = cards_of(client, options, kernels)
        common.words(f"{len(cards)} cards: {', '.join(sorted(cards))}")
        rows = rows_of(_capability(cards))
        providers: dict[str, Provider] = {}
        if not args.compiled:
            providers = {name: load_provider(name) for name in sorted({row.kernel for row in rows})}
        sweep = digest(rows)
        provenance = {
            "sweep": sweep,
            "rows": len(rows),
            "settings": dataclasses.asdict(options.settings),
            "packages": package_versions(),
            "commands": [command_line()],
            "started": [timestamp()],
        }
        with taken_up(dataset, sweep) if args.resume else begun(dataset, provenance) as journal:
            if args.resume:
                known = journal.record.provenance
                again = {key: [*known[key], *provenance[key]] for key in ("commands", "started")}  # type: ignore[misc]
                journal.note(provenance={**known, **again})
            fleet = FleetSweep(client, rows, journal, cards, options, progress)
            fleet.go(providers)
    _report(args, fleet)


def _capability(cards: Cards) -> tuple[int, int]:
    major, minor = next(iter(cards.values()))["compute_capability"]
    return int(major), int(minor)


def _report(args: argparse.Namespace, fleet: FleetSweep) -> None:
    record, rows = fleet.journal.record, len(fleet.rows)
    done = len(fleet.journal.done)
    document = Document(
        result={"file": args.output, "run": record.run, "rows": rows, "done": done}
        | {"dispositions": dict(fleet.dispositions), "card_remarks": dict(record.card_remarks)},
        apart=True,
    )
    if args.format == "json":
        common.show(args, document)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(fleet.dispositions.items()))
    print(f"{args.output}: run {record.run}: {done} of {rows} rows ({counts})", file=sys.stderr)
    for card, remark in record.card_remarks.items():
        print(f"warning: card {card}: {remark}; its rows are marked", file=sys.stderr)
    if done < rows:
        raise PartialResultError(f"{args.output}: time budget spent; go on with --resume")
