"""Options that all verbs share, and the output of results."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.commands.options import check_suffix
from gemm_model.config import COMMAND_LINE
from gemm_model.core.dtypes import operand_type
from gemm_model.core.files import atomic_path, atomic_write, check_writable
from gemm_model.core.kernel_config import KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem
from gemm_model.core.regimes import SUSTAINED, regime_name
from gemm_model.core.settings import Settings, load_settings
from gemm_model.errors import InputError, PartialResultError
from gemm_model.kernels.registry import sums_stay
from gemm_model.report.document import FORMATS, Document, File, records
from gemm_model.report.page.content import Page
from gemm_model.report.page.html import write_page
from gemm_model.report.progress import Progress

if TYPE_CHECKING:
    import pandas as pd


PROBLEM = ("m", "n", "k", "batch", "dtype", "b_dtype", "out_dtype")
CONFIG = (
    *("cta", "cluster", "stages", "schedule", "raster", "swizzle", "split_k", "kernel", "scheduler"),
    "fast_accum",
)
GPU = ("gpu", "sms", "cfg")
SETTINGS = (*GPU, "model", "regime", "calibration", "residual")
OUTPUT = ("format", "output")
"""Options by the sets of `config/commands` that declare them."""

READ_WHEN_SETTLED = ("power_cap_w", "idle_power_w")
"""Numbers of a GPU that only a settled clock depends on."""


def settings(args: argparse.Namespace) -> Settings:
    """The configuration that options and `key=value` words choose, over the verb's own defaults."""
    chosen = {"model": args.default_model} if args.default_model else {}
    for key in ("gpu", "model"):
        value = getattr(args, key, None)
        word = next((word for word in args.overrides if word.lstrip("+").startswith(f"{key}=")), None)
        if value is None:
            continue
        if word is not None and word.partition("=")[2] != value:
            raise InputError(f"--{key} {value} comes with {word}; expected one of them")
        chosen[key] = value
    if args.sms is not None and any(word.lstrip("+").startswith("gpu.sm_count=") for word in args.overrides):
        raise InputError("--sms comes with gpu.sm_count; expected one of them")
    options = {
        name: value
        for name in ("regime", "calibration", "residual")
        if (value := getattr(args, name, None)) is not None
    }
    found = load_settings(args.overrides, chosen, sms=args.sms, options=options, parts=args.parts)
    power = [name for name in READ_WHEN_SETTLED if found.sources.get(f"gpu.{name}") == COMMAND_LINE]
    if power and found.options.get("regime", SUSTAINED) != SUSTAINED and not hasattr(args, "noted"):
        args.noted = True
        words(f"note: gpu.{power[0]} changes the clock of the regime {SUSTAINED} alone")
    return found


def no_overrides(args: argparse.Namespace) -> None:
    """Refuse `key=value` words if nothing reads the configuration."""
    if args.overrides:
        raise InputError(f"{args.overrides[0]} has no effect here; expected no key=value words")


def refuse_unused(args: argparse.Namespace, how: str, used: Iterable[str]) -> None:
    """Raise InputError for a given option that this use of the verb does not read."""
    refuse_given(args, args.given - set(used), how)


def refuse_given(args: argparse.Namespace, names: Iterable[str], how: str) -> None:
    """Raise InputError if one of some options was given; `how` says why it is not read."""
    given = sorted(args.given & set(names))
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} has no effect {how}; expected it left out")


def document(chosen: Settings, **parts: Any) -> Document:
    """An answer about the GPU and by the model that the options choose."""
    return Document(gpu=chosen.gpu.name, model=chosen.model, **parts)


def show(args: argparse.Namespace, document: Document) -> None:
    """Write an answer to --output, or to stdout; its notes go to stderr, then its files.

    Without --format, the ending of the output file decides.

    Raises PartialResultError, once all is written, if the answer is not whole.
    """
    output: Path | None = None if document.apart else getattr(args, "output", None)
    suffix = "" if output is None else output.suffix.removeprefix(".")
    asked = args.format or (suffix if suffix in (*FORMATS, "parquet") else "table")
    if output is None:
        sys.stdout.write(document.render(asked, args.verb))
    elif asked == "parquet":
        from gemm_model.dataset.schema import pyarrow

        with atomic_path(output) as unfinished:
            pyarrow().parquet.write_table(pyarrow().Table.from_pylist(records(document.rows)), unfinished)
    else:
        atomic_write(output, document.render(asked, args.verb))
    for note in document.notes:
        words(f"note: {note}")
    if output is not None:
        words(f"wrote {output}")
    for path, write in document.files:
        if path is not None:
            write(path)
            words(f"wrote {path}")
    if document.partial:
        raise PartialResultError(document.partial)


def check_document(args: argparse.Namespace, *others: Path | None) -> None:
    """Raise InputError if --output or another file is not writable, or its ending is no format."""
    suffixes = tuple(f".{name}" for name in (*FORMATS, "parquet", "txt"))
    if args.format is None and args.output is not None and args.output.suffix:
        check_suffix("--output", args.output, suffixes)
    check_outputs(args.output, *others)


def page(path: Path | None, content: Callable[[], Page]) -> File:
    """The page of --html, among an answer's files."""
    return path, lambda place: write_page(content(), place)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr with the time left, for work longer than QUIET_S; yields `advance(parts)`."""
    bar = Progress(what, total)
    try:
        yield bar.advance
    finally:
        bar.close()


def words(text: str) -> None:
    """Print a remark on stderr, so that stdout holds only data: on a terminal in lines of its width."""
    if sys.stderr.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent="  ")
    print(text, file=sys.stderr)


def check_outputs(*paths: Path | None) -> None:
    """Raise InputError if files are not writable, or two are the same; called before the work."""
    given = [path for path in paths if path is not None]
    for path in given:
        check_writable(path)
    files = [path.resolve() for path in given if path.is_file() or not path.exists()]
    for path in files:
        if files.count(path) > 1:
            raise InputError(f"{path}: named for two outputs; expected a file for each")


def listed(text: str) -> list[str]:
    """The words of an option that takes several, such as bf16,fp8."""
    return [word.strip() for word in text.split(",") if word.strip()]


def problem(args: argparse.Namespace) -> GemmProblem:
    missing = [name for name in ("m", "n", "k") if getattr(args, name) is None]
    if missing:
        raise InputError(f"--{missing[0]} is missing; expected --m, --n and --k")
    return GemmProblem.of(
        args.m, args.n, args.k, args.dtype, args.out_dtype, b_dtype=args.b_dtype, batch=args.batch
    )


def problem_table(args: argparse.Namespace) -> pd.DataFrame:
    """The table of --input, with the type of --dtype if it has none."""
    from gemm_model.tables.schema import card_notes, kernels_unread, understood
    from gemm_model.tables.table import gemms_of, read_table

    weight = getattr(args, "weight", None)
    frame = gemms_of(understood(read_table(args.input), () if weight is None else (weight,)))
    if "in_dtype" not in frame and "a_dtype" not in frame:
        operand_type(args.dtype)  # refused here where it is none: a table takes no text with half a character
        frame["in_dtype"] = args.dtype
    elif "dtype" in args.given:
        raise InputError(f"{args.input} has types of its own; expected no --dtype")
    notes = frame.attrs.setdefault("notes", [])
    notes += kernels_unread(frame, "chosen anew")
    notes += card_notes(frame, settings(args).gpu) if gpu_given(args) else []
    return frame


def of_rows(args: argparse.Namespace, cells: Mapping[str, str]) -> Settings:
    """The options for rows of a table: their card, regime, L2 and settings, unless the command line names them."""
    from gemm_model.tables.schema import card_named

    try:
        words = [word for word in shlex.split(cells.get("settings", "")) if not _chosen(args, word)]
    except ValueError as error:
        raise InputError(f"column settings: {error}; expected key=value words") from None
    found = but(args, overrides=[*args.overrides, *words])
    if cells.get("gpu") and not gpu_given(found):
        found.gpu = card_named(cells["gpu"])
    known = settings(found).options
    if cells.get("regime") and not _chosen(args, "model_opts.regime") and "regime" in known:
        found.regime = regime_name(cells["regime"])
    # Rotated weights are cold ones.
    if (
        cells.get("l2", "") not in ("", "rotated")
        and not _overridden(args, "model_opts.l2")
        and "l2" in known
    ):
        found.overrides += [f"model_opts.l2={cells['l2']}"]
    return settings(found)


def _chosen(args: argparse.Namespace, word: str) -> bool:
    """Whether the command line names what a word of a row's settings does."""
    key = word.partition("=")[0]
    given = {f"model_opts.{name}": getattr(args, name) for name in ("regime", "calibration", "residual")}
    given |= {"gpu.sm_count": args.sms, "model": args.model}
    card = key.partition(".")[0] == "gpu" and gpu_given(args)
    return given.get(key) is not None or _overridden(args, key) or card


def but(args: argparse.Namespace, **changes: Any) -> argparse.Namespace:
    """The options with others in their place."""
    return argparse.Namespace(**{**vars(args), **changes})


def take_card(args: argparse.Namespace, frames: Sequence[pd.DataFrame]) -> None:
    """The one card that the rows of tables name, where the command line names none."""
    from gemm_model.tables.schema import card_named, cards_of, table_name

    if not gpu_given(args):
        named = sorted({card_named(name) for frame in frames for name in cards_of(frame)})
        if len(named) > 1:
            paths = ", ".join(map(table_name, frames))
            raise InputError(f"{paths}: rows of {', '.join(named)}; expected those of one card")
        args.gpu = next(iter(named), None)


def gpu_given(args: argparse.Namespace) -> bool:
    """Whether the command line names a GPU."""
    return args.gpu is not None or _overridden(args, "gpu")


def _overridden(args: argparse.Namespace, key: str) -> bool:
    return any(word.lstrip("+").startswith(f"{key}=") for word in args.overrides)


def place(chosen: Settings, *names: str) -> dict[str, Any]:
    """Where an answer holds, as columns of a table: the card, options of that name, and what else was chosen."""
    found = {name: chosen.options[name] for name in names if name in chosen.options}
    return {"gpu": chosen.gpu.name, **found, **chosen.changes}


def config(args: argparse.Namespace) -> KernelConfig:
    if args.cta is None:
        raise InputError("--cta is missing; expected the output tile of a CTA, such as --cta 128x256")
    if args.dtype is not None and operand_type(args.dtype)[0].bits > 8:
        refuse_given(args, ("fast_accum",), f"with {args.dtype}")
    given: dict[str, Any] = {name: getattr(args, name) for name in CONFIG[2:-1]}
    given |= zip(("cta_m", "cta_n", "cta_k"), parse_extent(args.cta, "--cta", (2, 3)), strict=False)
    given |= zip(("cluster_m", "cluster_n"), parse_extent(args.cluster, "--cluster"), strict=True)
    return KernelConfig(**given, fast_accum=args.fast_accum or args.kernel in sums_stay())
