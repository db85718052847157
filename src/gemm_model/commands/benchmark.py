"""`gemm-model benchmark`: time real GEMM kernels on this machine's GPU."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gemm_model.bench import runner, sweep
from gemm_model.bench.absent import without_packages
from gemm_model.bench.device import TimingSettings, timing_settings
from gemm_model.bench.provider import PROVIDERS, Provider, load_provider
from gemm_model.bench.row_log import KeptTable, provenance
from gemm_model.bench.rows import Row, padded
from gemm_model.bench.worker_process import WorkerProcess
from gemm_model.commands import attention, common
from gemm_model.commands.options import check_suffix
from gemm_model.config import load_config
from gemm_model.config.numbers import room_numbers
from gemm_model.core.dtypes import operand_type
from gemm_model.core.fields import counted
from gemm_model.core.files import check_folder_writable
from gemm_model.core.kernel_config import SCHEDULES, KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem
from gemm_model.core.settings import load_settings
from gemm_model.errors import InputError, PartialResultError
from gemm_model.fleet.cluster import joined
from gemm_model.report.document import Document
from gemm_model.report.page.html import write_page as write
from gemm_model.report.progress import Progress

L2_OF_REGIME = {
    "sustained": ("warm", "launches back to back find a warm L2"),
    "counters": ("cold", "the profiler flushes caches before each launch"),
    "graph": ("rotated", "what L2 holds follows from the rotation"),
}
"""The state of L2 in regimes with only one, and the reason."""

PAIRED = "paired"
"""Both ways of launching in one row, replayed in turn."""

DRY_RUN_CAPABILITY = (9, 0)


MOST_DIGITS = 18
"""Most digits of a whole number [1]; options; chosen: Python refuses numbers of thousands of digits."""


def run(args: argparse.Namespace) -> Document | None:
    if args.cluster is None:
        if args.output is not None and args.output.suffix == ".gz":
            # Rows are appended as they come: plain text.
            check_suffix("--output", args.output, (".csv",))
        common.check_outputs(args.output)
    elif args.output is not None:
        check_folder_writable(args.output)
    if attention.is_table(args.rows):
        return attention.benchmark(args)
    # Bad options are refused before a GPU is looked for.
    _l2_state(args)
    _chain_options(args)
    _use_kernel_cache()
    if args.dry_run:
        return _dry_run(args)
    if args.output is None and not args.compile_only:
        raise InputError("no --output given; expected the CSV to write")

    if args.cards is not None and args.cluster != "local":
        raise InputError("--cards has no effect without --cluster local; expected it left out")
    options = runner.RunOptions(
        settings=_timing(args),
        device=args.device or runner.TORCH_DEVICE,
        compile_jobs=args.jobs or runner.default_compile_jobs(),
        time_budget_s=args.time_budget,
    )
    if args.cluster is not None:
        _run_on_cluster(args, options)
        return None
    # Rows of a table name their libraries, which the worker loads with their first rows.
    ahead = [] if args.compile_only or args.rows is not None else common.listed(args.kernels)
    worker = WorkerProcess(options.device, ahead)
    with closing(worker), closing(Progress("benchmark", 1)) as bar:
        _run_here(worker, args, options, bar.tell)
    return None


def _run_on_cluster(args: argparse.Namespace, options: runner.RunOptions) -> None:
    """One sweep over all cards of a cluster, into a data set. Rows are asked for once the cards are known."""
    from gemm_model.dataset.storage import DataSet
    from gemm_model.fleet.journal import begun, taken_up
    from gemm_model.fleet.sweep import cards_of, crew_of

    common.refuse_given(args, ("compile_only", "html"), "with --cluster")
    if args.output.suffix in (".csv", ".gz"):
        raise InputError(
            f"--output is {args.output}; with --cluster expected the folder of a data set "
            "(`gemm-model data export` makes a CSV of it)"
        )
    dataset = DataSet(args.output) if args.resume else DataSet.create(args.output)
    cluster = joined(args.cluster, cards=args.cards, compilers=options.compile_jobs)
    with closing(Progress("benchmark", 1)) as bar, cluster as client:
        common.words(f"dashboard {client.dashboard_link}")
        cards = cards_of(client, options, common.listed(args.kernels))
        common.words(f"{len(cards)} cards: {', '.join(sorted(cards))}")
        rows = _rows_for(args, next(iter(cards.values())))
        name = sweep.digest(rows)
        began = provenance(name, asdict(options.settings), len(rows))
        with taken_up(dataset, name) if args.resume else begun(dataset, began) as journal:
            crew = crew_of(client)
            fleet = runner.Sweep(rows, journal, cards, crew, options, bar.tell, by_shape=True)
            fleet.go({} if args.compiled else _providers_of(rows))
    remarks = journal.record.card_remarks
    said = [f"warning: card {card}: {remark}; its rows are marked" for card, remark in remarks.items()]
    _tell(args, fleet, {"run": journal.record.run, "card_remarks": dict(remarks)}, said)


def _rows_for(args: argparse.Namespace, card: Mapping[str, Any]) -> list[Row]:
    """The rows for a card. Rows of a table hold their configurations: no library is loaded for them."""
    major, minor = card["compute_capability"]
    return _rows(
        args, _loaded(common.listed(args.kernels)) if args.rows is None else {}, (int(major), int(minor))
    )


def _providers_of(rows: Sequence[Row]) -> dict[str, Provider]:
    """The libraries of some rows; only compiling needs them."""
    return _loaded(sorted({row.kernel for row in rows}))


def _run_here(
    worker: WorkerProcess, args: argparse.Namespace, options: runner.RunOptions, progress: runner.Progress
) -> None:
    """One sweep on the card of this machine, into a table."""
    card = runner.Card(worker)
    crew, found = runner.crew_of(card), card.description
    rows = _rows_for(args, found)
    if args.compile_only:
        job = runner.job_of(rows, found, options)
        failures = runner.compile_all(list(enumerate(rows)), _providers_of(rows), job, crew, progress)
        print(f"{len(failures)} of {len(rows)} rows have a kernel that does not compile", file=sys.stderr)
        return
    table, name = KeptTable(args.output, rows, found), sweep.digest(rows)
    began = provenance(name, asdict(options.settings), len(rows))
    with table.taken_up(name) if args.resume else table.begun(began):
        own = runner.Sweep(rows, table, {found["gpu_uuid"]: found}, crew, options, progress)
        own.go({} if args.compiled else _providers_of(rows))
    said = []
    if own.drift > runner.SENTINEL_DRIFT_LIMIT:
        said.append(f"warning: the sentinel drifted by {own.drift:.1%} during this run")
    _tell(args, own, {"sentinel_drift": own.drift}, said)


def _tell(args: argparse.Namespace, run: runner.Sweep, more: dict[str, Any], said: Sequence[str]) -> None:
    """How a sweep ended. Raises PartialResultError where rows are left."""
    rows, done = len(run.rows), len(run.kept.done)
    result = {
        "file": args.output,
        "rows": rows,
        "done": done,
        "dispositions": dict(run.dispositions),
        **more,
    }
    if args.format == "json":
        common.show(args, Document(result=result, apart=True))
    counts = ", ".join(f"{count} {name}" for name, count in sorted(run.dispositions.items()))
    name = f" run {more['run']}:" if "run" in more else ""
    common.words(f"{args.output}:{name} {done} of {rows} rows ({counts})")
    for sentence in (*(f"{count} rows: {words}" for words, count in sorted(run.remarks.items())), *said):
        common.words(sentence)
    if args.html is not None:
        write_page(args)
    if done < rows:
        raise PartialResultError(f"{args.output}: time budget spent; go on with --resume")


def write_page(args: argparse.Namespace) -> None:
    """The page of the output, its rows against predictions for the configured GPU."""
    from gemm_model.report.page.table import table_page
    from gemm_model.report.table_job import predict_file

    # Overrides of `timing` are no model options.
    words = [word for word in args.overrides if word.lstrip("+").startswith(("gpu", "model"))]
    chosen = load_settings(words, {})
    report = predict_file(args.output, None, chosen, lambda _step: None)
    page = table_page(report.rows, args.output.name, chosen.gpu, chosen.model, report.notes)
    write(page, args.html)
    common.words(f"wrote {args.html}")


def _loaded(names: Iterable[str]) -> dict[str, Provider]:
    return {name: load_provider(name) for name in names}


def _use_kernel_cache() -> None:
    """One cache of compiled kernels for all processes, wherever their temporary files are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-model" / "quack"
    os.environ.setdefault("QUACK_CACHE_DIR", str(cache))


def _rows(args: argparse.Namespace, providers: dict[str, Provider], capability: tuple[int, int]) -> list[Row]:
    l2, chain = _l2_state(args), _chain_options(args)
    if (args.input is None) == (args.rows is None):
        raise InputError("expected either --input with sizes or --rows with an earlier table")
    if args.rows is not None:
        rows = sweep.rows_of_table(args.rows, regime=args.regime, l2=l2)
    else:
        rows = _rows_of_input(args, providers, capability, l2)
    ordered = sweep.arranged(
        sweep.chained(rows, chain) if args.regime == "graph" else rows,
        seed=args.seed,
        sample=args.sample,
        sample_shapes=args.sample_shapes,
        shard=_shard(args.shard),
        in_order=args.in_order,
    )
    if not ordered:
        raise InputError(f"shard {args.shard} of {len(rows)} rows is empty")
    return ordered


def _l2_state(args: argparse.Namespace) -> str:
    """The state of `--l2`, or the only state of the regime."""
    if args.regime == "burst":
        if args.l2 == "rotated":
            raise InputError("--l2 rotated with --regime burst; expected cold or warm")
        return args.l2 or "cold"
    state, why = L2_OF_REGIME[args.regime]
    if args.l2 not in (None, state):
        raise InputError(f"--l2 {args.l2} with --regime {args.regime}; {why}")
    return state


def _chain_options(args: argparse.Namespace) -> sweep.ChainOptions:
    """The launch context from the options. Raises InputError for another regime."""
    if args.regime != "graph":
        given = (args.pdl, args.rotation, args.partner, args.settled or None)
        if any(option is not None for option in given):
            raise InputError(
                f"--pdl, --rotation, --partner and --settled belong to --regime graph, not {args.regime}"
            )
        return sweep.ChainOptions()
    paired = args.pdl == PAIRED
    words = ["1"] if paired else common.listed(args.pdl or "")
    if not {"0", "1"}.issuperset(words):
        raise InputError(f"--pdl is {args.pdl!r}; expected 0, 1, 0,1 or {PAIRED}")
    return sweep.ChainOptions(
        pdl=tuple(word == "1" for word in words),
        rotation=args.rotation,
        partner=args.partner,
        settled=args.settled,
        paired=paired,
    )


def _rows_of_input(
    args: argparse.Namespace, providers: dict[str, Provider], capability: tuple[int, int], l2: str
) -> list[Row]:
    """The rows of the problems of --input; says which no provider runs. Raises InputError if none is left."""
    rows: list[Row] = []
    notes = []
    for problems in _problems(args):
        for name, provider in providers.items():
            chosen = _config_filter(args, name)
            rows += sweep.rows_of_problems(problems, provider, capability, chosen, regime=args.regime, l2=l2)
        run = {row.problem for row in rows}
        if left_out := [problem for problem in problems if padded(problem) not in run]:
            pairs = ((name, each.unsupported(left_out[0], capability)) for name, each in providers.items())
            reasons = (f"{name}: {reason}" for name, reason in pairs if reason)
            why = next(reasons, "no configuration is left to run; widen the selection")
            notes.append(f"note: {len(left_out)} of {len(problems)} problems are left out: {why}")
    if not rows:
        raise InputError(why)
    for sentence in notes:
        common.words(sentence)
    return rows


def _problems(args: argparse.Namespace) -> list[list[GemmProblem]]:
    """The distinct problems of --input: of its own types, or of each type of --dtype."""
    from gemm_model.choice.table_ranking import problems_of_table
    from gemm_model.tables.schema import kernels_unread, understood
    from gemm_model.tables.table import gemms_of, read_table

    frame = gemms_of(understood(read_table(args.input)))
    unread = kernels_unread(frame, "those of --kernels and more (--rows: the table's own)")
    for sentence in (*frame.attrs.get("notes", ()), *unread):
        common.words(f"note: {sentence}")
    typed = "in_dtype" in frame or "a_dtype" in frame
    for option, in_table in (("dtype", typed), ("out_dtype", "out_dtype" in frame)):
        if in_table and option in args.given:
            raise InputError(f"{args.input} has types of its own; expected no --{option.replace('_', '-')}")
    if args.out_dtype is not None:
        frame["out_dtype"] = args.out_dtype
    types = [] if typed else [name for name in common.listed(args.dtype) if operand_type(name)]
    frames = [frame] if typed else [frame.assign(in_dtype=name) for name in types]
    return [list(dict.fromkeys(problems_of_table(each))) for each in frames]


def _config_filter(args: argparse.Namespace, provider: str) -> sweep.ConfigFilter:
    schedules = tuple(common.listed(args.schedules))
    for schedule in schedules:
        if schedule not in SCHEDULES:
            raise InputError(f"--schedules has {schedule!r}; expected some of {', '.join(SCHEDULES)}")
    return sweep.ConfigFilter(
        tiles=_pairs("--tiles", args.tiles),
        clusters=_pairs("--clusters", args.clusters),
        schedules=schedules,
        swizzles=_numbers("--swizzles", args.swizzles),
        split_k=_numbers("--split-k", args.split_k),
        listed=sweep.configs_of_table(args.configs, provider) if args.configs else None,
    )


def _pairs(option: str, text: str) -> tuple[tuple[int, int], ...]:
    return tuple((m, n) for m, n in (parse_extent(word, option) for word in common.listed(text)))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = common.listed(text)
    if not all(word.isdecimal() and len(word) <= MOST_DIGITS and int(word) > 0 for word in words):
        raise InputError(f"{option} is {text[:60]!r}; expected positive whole numbers, such as 1,2,4")
    return tuple(int(word) for word in words)


def _shard(text: str) -> tuple[int, int]:
    index, separator, count = text.partition("/")
    whole = separator and len(text) <= MOST_DIGITS and index.isdecimal() and count.isdecimal()
    if not (whole and int(index) < int(count)):
        raise InputError(f"--shard is {text[:MOST_DIGITS]!r}; expected i/n with i from 0 to n-1")
    return int(index), int(count)


def _timing(args: argparse.Namespace) -> TimingSettings:
    """Timing settings: the configuration's `timing`, changed by `key=value` words and `--repeats`."""
    configured = timing_settings(load_config(args.overrides)["timing"])
    return configured if args.repeats is None else replace(configured, repeats=args.repeats)


def _dry_run(args: argparse.Namespace) -> Document:
    """What would run. Shipped providers say it without their libraries, which may be absent."""
    shipped = args.rows is not None or set(common.listed(args.kernels)) <= set(PROVIDERS)
    with without_packages() if shipped else nullcontext():
        providers = {} if args.rows is not None else _loaded(common.listed(args.kernels))
        rows = _rows(args, providers, DRY_RUN_CAPABILITY)
        named = {row.kernel for row in rows} & set(PROVIDERS)
        return _plan(rows, args, providers or _loaded(named))


def _plan(rows: Sequence[Row], args: argparse.Namespace, providers: dict[str, Provider]) -> Document:
    settings = _timing(args)
    shapes = {(row.problem.m, row.problem.n, row.problem.k) for row in rows}
    kernels = {
        sweep.kernel_key(row, providers)
        for row in rows
        if row.kernel in providers and isinstance(row.config, KernelConfig)
    }
    jobs = args.jobs or runner.default_compile_jobs()
    seconds = sum(sweep.estimated_row_ms(row, settings) for row in rows) / 1e3
    compile_s = len(kernels) * room_numbers("bench").compile_s / jobs
    listed = [_planned(row) for row in rows[:10]]
    lines = [
        f"rows      {len(rows)} ({args.regime}), {counted(len(shapes), 'shape')}, "
        f"{counted(len(kernels), 'kernel')} to compile",
        f"compile   about {compile_s:.0f} s with {jobs} processes",
        f"measure   about {seconds:.0f} s on a card of 300 TFLOP/s and 2 TB/s",
        *(f"  {row}" for row in listed),
    ]
    if len(rows) > len(listed):
        lines.append(f"  ... and {len(rows) - len(listed)} more")
    plan: dict[str, Any] = {"rows": len(rows), "shapes": len(shapes), "kernels": len(kernels)}
    plan |= {"compile_s": compile_s, "measure_s": seconds, "first": listed}
    return Document(result={"plan": plan}, text=lambda: "\n".join(lines), apart=True)


def _planned(row: Row) -> str:
    config, problem = row.config, row.problem
    tile = "library's choice"
    if isinstance(config, KernelConfig):
        tile = f"{config.cta_m}x{config.cta_n} {config.cluster_m}x{config.cluster_n} {config.schedule}"
        tile += f" stages {config.stages}" if config.stages else ""
    return f"{row.kernel} {problem.a_dtype.name} {problem.m}x{problem.n}x{problem.k} {tile}"
