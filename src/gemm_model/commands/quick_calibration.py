"""`gemm-model calibrate --quick`: describe an unknown card and adapt a calibration to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gemm_model.bench.rows import write_plan
from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model.calibration_file import calibration_for
from gemm_model.kernel_model.residual import residual_beside
from gemm_model.kernels.registry import family_of

TIMING = ("timing.repeats=24", "timing.row_budget_ms=20", "timing.placements=24")
"""Timing of each row, a third shorter than in a large benchmark, because few rows judge no choice."""


def quick_calibration(output: Path, run_words: Callable[[Sequence[str]], int]) -> None:
    """Characterize, measure the designed rows, adapt the nearest calibration; the files lie beside `output`.

    Each step is a command that `run_words` runs; its files stay if a later step fails. Raises InputError if a
    file could not be written.
    """
    from gemm_model.calibration.quick import designed_rows

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
