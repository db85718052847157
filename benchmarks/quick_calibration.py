"""What 250 designed rows are worth: calibrations adapted to `quick` tables, judged by other tables.

    python benchmarks/quick_calibration.py

For each card the other card's numbers as they are, those adapted to this card's 250 rows and its own
description, the shipped calibration, and the shipped one with the descriptions that cards gave of themselves.
All without a residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gemm_model.calibration.observations import observe
from gemm_model.calibration.run import Choices, calibrate
from gemm_model.calibration.tables import load_tables
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.calibration_file import Calibration, load_calibration
from gemm_model.persistent.kernel_time import kernel_time
from gemm_model.tables.accuracy import error_figures, top1_efficiency

MEASUREMENTS = Path(__file__).parents[1] / "data" / "measurements"
CARDS = {
    "h100_sxm": ("h200", "characterized_second_card", ("burst", "repeat_card"), ("characterized",)),
    "h200": ("h100_sxm", "characterized_sixth_card", ("burst", "unseen"), ("characterized_fifth_card",)),
}
"""GPU -> the other one; its description by the card that measured `quick`; tables; further descriptions."""


def described(gpu: str, name: str) -> GpuSpec:
    return load_gpu(str(MEASUREMENTS / gpu / f"{name}.yaml"))


def candidates(gpu: str) -> Iterator[tuple[str, GpuSpec, Calibration]]:
    """Name, GPU and numbers of all that is judged on a card."""
    other, own, _, further = CARDS[gpu]
    donor, shipped = load_calibration(f"{other}:quack"), load_calibration(f"{gpu}:quack")
    yield f"numbers of {other}", load_gpu(gpu), donor
    choices = Choices(donor=donor, with_residual=False, shapes_only=True)
    quick = calibrate([MEASUREMENTS / gpu / "quick.csv.gz"], described(gpu, own), choices)
    yield f"{other} adapted to 250 rows", described(gpu, own), quick.calibration
    yield "shipped", load_gpu(gpu), shipped
    for name in (own, *further):
        yield f"shipped, {name}", described(gpu, name), shipped


def judge(table: Path, gpu: GpuSpec, calibration: Calibration) -> Iterator[str]:
    """By rate class: rows, errors, and how much the first choice keeps."""
    family = family_of("quack", gpu)
    for kind, regimes in load_tables([table], gpu, family).by_kind.items():
        rows = observe(regimes["burst"], gpu, family)
        numbers = calibration.numbers[calibration.kind_for(kind)].without(family.absent_mechanisms)
        predicted_us = kernel_time(rows.shape, gpu, numbers).runtime_us
        errors = error_figures(predicted_us, rows.runtime_us)
        seen = rows.frame.assign(predicted_us=predicted_us, runtime_us=rows.runtime_us)
        kept = float(top1_efficiency(seen).mean())
        yield f"{kind} {len(seen)} rows: {errors.mape:.2%}, p95 {errors.p95:.2%}, first choice {kept:.2%}"


def main() -> None:
    for gpu, (_, _, tables, _) in CARDS.items():
        for name, spec, calibration in candidates(gpu):
            for table in tables:
                found = "; ".join(judge(MEASUREMENTS / gpu / f"{table}.csv.gz", spec, calibration))
                print(f"{gpu} {table}, {name}: {found}", flush=True)


if __name__ == "__main__":
    main()
