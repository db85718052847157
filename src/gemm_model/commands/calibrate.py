"""`gemm-model calibrate`: fit the kernel model's parameters to measured tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gemm_model.bench.rows import write_plan
from gemm_model.calibration.planning import designed_rows
from gemm_model.calibration.report import report_text, validation_table, write_calibration, write_numbers
from gemm_model.calibration.run import Choices, calibrate, extend, full_names
from gemm_model.commands import common
from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.processes import RunAll, local_processes
from gemm_model.errors import InputError
from gemm_model.fleet.cluster import joined, refuse_other_versions
from gemm_model.kernel_model.calibration_file import Calibration, calibration_for, load_calibration
from gemm_model.kernel_model.residual import Residual, load_residual, residual_beside
from gemm_model.kernels.registry import family_of
from gemm_model.report.document import Document, File
from gemm_model.report.page.content import Page
from gemm_model.report.page.table import calibration_page
from gemm_model.report.progress import Progress
from gemm_model.tables.table import read_table

MOST_PROCESSES = 4096
"""Most processes of one machine [1]; `--cluster`; chosen: folds are far fewer."""

TIMING = ("timing.repeats=24", "timing.row_budget_ms=20", "timing.placements=24")
"""Timing of each row; `--quick`; chosen: a third shorter than in a large benchmark, as few rows judge no choice."""


def run(args: argparse.Namespace) -> Document | None:
    if args.quick == bool(args.input):
        raise InputError("expected either --input with measurements or --quick on a machine with a GPU")
    beside = None if args.output is None else residual_beside(args.output)
    common.check_outputs(args.output, beside, args.report, args.html)
    if args.input:
        common.take_card(args, [read_table(path) for path in args.input])
    if args.output is None:
        raise InputError("--output is missing; expected the calibration file to write")
    if args.quick:
        common.refuse_unused(args, "with --quick", ("quick", "output"))
        quick_calibration(args.output, args.run_words)
        return None
    chosen = common.settings(args)
    if args.extend is not None:
        return _extend(args, chosen.gpu)
    named = vars(args)["from"]
    donor = None if named is None else load_calibration(named)
    choices = Choices(
        family=args.family,
        donor=donor,
        free=full_names(common.listed(args.fit)) or None,
        frozen=full_names(common.listed(args.freeze)),
        hold_out_lists=args.hold_out,
        seed=args.seed,
        with_residual=args.residual == "auto",
        donor_residual=_donor_residual(donor) if args.residual == "donor" else None,
        keeps_donor=args.keep,
        shapes_only=args.hold_outs == "shapes",
    )
    bar = Progress("reading", 1)
    with _folds_at_once(args.cluster) as run_all, closing(bar):
        result = calibrate(args.input, chosen.gpu, choices, progress=bar.tell, run_all=run_all)
    text = report_text(result)
    files = [*write_calibration(result, args.output)]
    if args.report is not None:
        atomic_write(args.report, text + "\n")
        files.append(args.report)

    def page() -> Page:
        return calibration_page(result, chosen.gpu, args.output)

    return _answer(chosen.gpu, files, text, common.page(args.html, page))


def _answer(gpu: GpuSpec, written: Sequence[Path], text: str, *files: File) -> Document:
    for path in written:
        common.words(f"wrote {path}")
    result = {"files": written, "report": text}
    return Document(gpu=gpu.name, result=result, text=lambda: text, files=files, apart=True)


def _donor_residual(donor: Calibration | None) -> Residual:
    """The residual beside the donor's file."""
    path = None if donor is None or donor.path is None else residual_beside(donor.path)
    if donor is None or path is None or not path.is_file():
        reason = "there is no --from" if donor is None else f"{donor.name} has none"
        raise InputError(
            f"--residual donor: {reason}; expected --from with a calibration that has a residual"
        )
    return load_residual(path, donor)


def _extend(args: argparse.Namespace, gpu: GpuSpec) -> Document:
    """Fit what is no plain GEMM, and leave the rest of a calibration as it is."""
    common.refuse_unused(
        args, "with --extend", (*common.GPU, "input", "output", "extend", "seed", "cluster", "format")
    )
    base = load_calibration(args.extend)
    bar = Progress("reading", 1)
    with _folds_at_once(args.cluster) as run_all, closing(bar):
        found, validations = extend(args.input, gpu, base, seed=args.seed, progress=bar.tell, run_all=run_all)
    write_numbers(found, args.output)
    return _answer(gpu, [args.output], validation_table(validations.values()).to_string(index=False))


@contextmanager
def _folds_at_once(where: str) -> Iterator[RunAll]:
    """The `map` of `where`'s processes."""
    if where.isdecimal():
        count = int(where[: len(str(MOST_PROCESSES)) + 1])
        if not 1 <= count <= MOST_PROCESSES:
            raise InputError(f"--cluster is {where[:12]}; expected 1 to {MOST_PROCESSES} processes")
        with local_processes(count) as executor:
            yield map if count == 1 else executor.map
    else:
        with joined(where) as client:
            refuse_other_versions(client)
            yield client.get_executor(pure=False).map


def quick_calibration(output: Path, run_words: Callable[[Sequence[str]], int]) -> None:
    """Characterize, measure the designed rows, adapt the nearest calibration; the files lie beside `output`.

    Each step is a command that `run_words` runs; its files stay if a later step fails. Raises InputError if a
    file could not be written.
    """

    def run(*words: str | Path) -> None:
        run_words([str(word) for word in words])

    gpu_file, plan_file, rows_file = (
        output.with_name(output.stem + ending) for ending in ("_gpu.yaml", "_plan.csv", "_rows.csv")
    )
    common.check_outputs(gpu_file, plan_file, rows_file)
    if rows_file.exists():
        raise InputError(f"{rows_file}: already there; expected another --output, or that it is removed")
    run("characterize", "--output", gpu_file)
    gpu = load_gpu(str(gpu_file))
    donor, _ = calibration_for(gpu, family_of("auto", gpu).name)
    write_plan(designed_rows(gpu, donor), plan_file)
    run("benchmark", "--rows", plan_file, "--output", rows_file, *TIMING)
    residual = "donor" if donor.path is not None and residual_beside(donor.path).is_file() else "off"
    adapt = ("--from", donor.name, "--residual", residual, "--keep", "--hold-outs", "shapes")
    run("calibrate", *adapt, "--input", rows_file, "--gpu", gpu_file, "--output", output)
    common.words(f"predict with --gpu {gpu_file} model_opts.calibration={output}")
