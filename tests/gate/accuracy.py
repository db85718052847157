"""Accuracy of the shipped calibration on the shipped tables, by table, type, and with or without residual.

`make golden` records the figures; the gate compares with what was recorded, so that neither damage nor gain
goes unnoticed. Rows that the calibration was fitted to are included: this is no judgement of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import yaml

from benchmarks.measured import campaigns, kernels_of, rows_of
from gemm_model.core.batch import BoolArray, FloatArray, GemmBatch
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.kernel_model.calibration_file import Calibration
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernels.registry import families, families_of
from gemm_model.tables.accuracy import choice_figures, error_figures, shape_columns, top1_efficiency
from gemm_model.tables.table import batch_from_frame, runtimes_us, usable_rows

RECORDED = Path(__file__).parent / "accuracy.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "accuracy.md"
PAGE_HEAD = "| campaign, family | role | types | MAPE | p95 | first choice |\n|---|---|---|---:|---:|---:|\n"
"""Head of the page's table that `make golden` writes; an empty line ends it."""
MOST_SHAPES = 240
"""Shapes of a table that are judged; every so many where there are more."""
FEWEST_ROWS = 50
"""Rows of a family in a table from which on it is judged."""
POINTS = 0.02
"""Percentage points by which a figure may differ from the recorded one."""
DIGITS = 4

Figures = dict[str, dict[str, dict[str, float]]]
"""By table and family, by type with ' + residual' where one corrects it, by figure in per cent."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a table in one regime, whole shapes."""

    gpu: GpuSpec
    regime: str
    l2: str
    frame: pd.DataFrame
    batch: GemmBatch
    types: Mapping[str, BoolArray]
    runtime_us: FloatArray


@cache
def samples() -> Mapping[str, Sample]:
    """By campaign and family: what is judged of kernels measured for a fit or held out from it."""
    found: dict[str, Sample] = {}
    for campaign in kernels_of("fit", "held_out"):
        frame, _ = usable_rows(rows_of(campaign.name, campaign.gpu), needs_tile=True)
        gpu = load_gpu(campaign.gpu)
        for family, rows in _by_family(_plain_rows(frame), gpu).items():
            # A campaign that compares both states of L2 is judged by the cold one.
            one_state = rows if rows["l2"].nunique() == 1 else rows[rows["l2"] == "cold"]
            found[f"{campaign.gpu}/{campaign.name} {family}"] = _sample(gpu, one_state)
    return found


def _plain_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Without rows that no kernel of its own tells of: settled ones, splits unknown."""
    if "settled" in frame:
        frame = frame[frame["settled"].fillna("").astype(str) != "1"]
    if "kernel_name" in frame and "split_k" in frame:
        parts = pd.to_numeric(frame["split_k"], errors="coerce")
        frame = frame[~(parts.isna() & frame["kernel_name"].astype(str).str.contains("splitK"))]
    return frame


def _by_family(frame: pd.DataFrame, gpu: GpuSpec) -> Mapping[str, pd.DataFrame]:
    if "kernel" not in frame:
        return {"quack": frame}
    names = {name: name for name in families()}
    names |= {provider: family.name for family in families_of("any", gpu) for provider in family.providers}
    family_names = frame["kernel"].map(names)
    return {
        str(name): rows.assign(kernel=name)
        for name, rows in frame.groupby(family_names)
        if len(rows) >= FEWEST_ROWS
    }


def _sample(gpu: GpuSpec, frame: pd.DataFrame) -> Sample:
    shape = frame.groupby(shape_columns(frame), sort=False, dropna=False).ngroup()
    every = max(round((shape.max() + 1) / MOST_SHAPES), 1)
    frame = frame[shape % every == 0].reset_index(drop=True)
    runtime_us = runtimes_us(frame)
    assert runtime_us is not None
    (regime,) = set(frame["regime"])
    (l2,) = set(frame["l2"])
    types = {str(dtype): (frame["in_dtype"] == dtype).to_numpy() for dtype in frame["in_dtype"].unique()}
    batch = batch_from_frame(frame, needs_tile=True)
    # What a rotation leaves in L2 the footprint of each row tells.
    return Sample(gpu, regime, "cold" if l2 == "rotated" else l2, frame, batch, types, runtime_us)


def accuracy(calibration: str | Calibration = "auto") -> Figures:
    """The figures of every table; with the residual too where the calibration has one."""
    return {name: _of_sample(sample, calibration) for name, sample in samples().items()}


def _of_sample(sample: Sample, calibration: str | Calibration) -> dict[str, dict[str, float]]:
    result = {}
    for residual, suffix in (("off", ""), ("auto", " + residual")):
        options = {"regime": sample.regime, "l2": sample.l2, "calibration": calibration}
        model = KernelModel(sample.gpu, residual=residual, **options)
        if residual == "auto" and not model.corrects:
            continue
        predicted_us = model.predict_batch(sample.batch).runtime_us
        for dtype, rows in sample.types.items():
            result[dtype + suffix] = _figures(sample, predicted_us, rows)
    return result


def _figures(sample: Sample, predicted_us: FloatArray, rows: BoolArray) -> dict[str, float]:
    measured_us = sample.runtime_us[rows]
    errors = error_figures(predicted_us[rows], measured_us)
    frame = sample.frame[rows].assign(predicted_us=predicted_us[rows], runtime_us=measured_us)
    first = choice_figures(top1_efficiency(frame)).mean
    figures = {"mape": errors.mape, "p95": errors.p95, "first_choice": first}
    return {name: round(100.0 * value, DIGITS) for name, value in figures.items()}


def write_accuracy() -> None:
    header = "# Per cent, as `make golden` found them: tests/gate/accuracy.py says of which rows.\n"
    RECORDED.write_text(header + yaml.safe_dump(accuracy(), sort_keys=False))


def page_lines(figures: Figures) -> str:
    """By default, of chains and of campaigns that nothing was fitted to: a line for each and its family."""
    roles = {f"{each.gpu}/{each.name}": (each.role, each.protocol) for each in campaigns()}
    lines = []
    for place, kinds in figures.items():
        role, protocol = roles[place.split()[0]]
        types = sorted(name.split()[0] for name in kinds if name.endswith("residual"))
        if role == "held_out" or protocol in ("graph", "sustained"):
            cells = [
                ", ".join(f"{kinds[f'{name} + residual'][figure]:.1f}" for name in types)
                for figure in ("mape", "p95", "first_choice")
            ]
            held_out = "held out" if role == "held_out" else "fitted"
            lines.append(
                f"| {place.replace('/', ' ')} | {held_out} | {', '.join(types)} | {' | '.join(cells)} |\n"
            )
    return "".join(lines)


def write_page() -> None:
    before, _, rest = PAGE.read_text().partition(PAGE_HEAD)
    _, _, after = rest.partition("\n\n")
    PAGE.write_text(f"{before}{PAGE_HEAD}{page_lines(read_accuracy())}\n{after}")


def read_accuracy() -> Figures:
    recorded: Figures = yaml.safe_load(RECORDED.read_text())
    return recorded


def accuracy_differences(recorded: Figures, found: Figures) -> list[str]:
    """One line for each figure that is off the recorded one by more than POINTS."""
    was, now = _flat(recorded), _flat(found)
    lines = [f"{place}: recorded or found only once: run `make golden`" for place in was.keys() ^ now.keys()]
    lines += [
        f"{place}: {was[place]:.2f} % -> {now[place]:.2f} %"
        for place in was.keys() & now.keys()
        if abs(was[place] - now[place]) > POINTS
    ]
    return sorted(lines)


def _flat(figures: Figures) -> dict[str, float]:
    return {
        f"{table}, {kind}, {name}": value
        for table, kinds in figures.items()
        for kind, values in kinds.items()
        for name, value in values.items()
    }
