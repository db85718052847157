"""Writers of calibration files, and the report of a calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from gemm_model.calibration.fit import Kind, Parameter
from gemm_model.calibration.run import DONOR_KEPT, CalibrationResult, Validation, rounded
from gemm_model.config.mechanisms import CARD_AND_TYPE, NUMBERS, SILICON_NUMBERS
from gemm_model.config.numbers import room_numbers
from gemm_model.core.files import atomic_write
from gemm_model.kernel_model.calibration_file import FORMAT_VERSION, Calibration, as_mapping
from gemm_model.kernel_model.residual import residual_beside, write_residual

WIDEST = 10_000
"""Longest line of a calibration file [characters]; all files; chosen: one number a line."""


def write_calibration(result: CalibrationResult, path: Path) -> list[Path]:
    """Write the YAML file that `KernelModel` reads, and the residual beside it; returns the paths.

    A result without a residual deletes the residual of an earlier calibration at that path.
    """
    found, residual_path = result.calibration, residual_beside(path)
    write_numbers(found, path)
    if result.residual is None:
        residual_path.unlink(missing_ok=True)
        return [path]
    write_residual(result.residual, residual_path)
    return [path, residual_path]


def write_numbers(found: Calibration, path: Path) -> None:
    """Write the YAML file alone."""
    header = f"# Calibration of {found.family} kernels on {found.gpu}, written by gemm-model calibrate.\n"
    atomic_write(path, header + _yaml(as_mapping(found)))


def write_silicon(
    gpu: str,
    numbers: Mapping[Kind, Mapping[str, float]],
    half_width: Mapping[Parameter, float],
    entries: Mapping[str, Mapping[str, Any]],
    path: Path,
) -> None:
    """The file of a card's own numbers.

    What direct measurements leave to each stays as in `entries`, and so does the interval of a number that
    was not fitted.
    """
    widths = {(each.number, each.kind): width for each, width in half_width.items() if each.family is None}
    found: dict[str, Any] = {}
    for name in SILICON_NUMBERS:
        values = {kind: values[name] for (_, kind), values in numbers.items()}
        value: Any = values if NUMBERS[name].of == CARD_AND_TYPE else next(iter(values.values()))
        entry = {"value": rounded(value), "unit": NUMBERS[name].unit}
        intervals = {kind: rounded(widths[name, kind]) for kind in values if (name, kind) in widths}
        if (name, None) in widths:
            entry["interval"] = rounded(widths[name, None])
        elif intervals:
            entry["interval"] = intervals
        kept = ("measured", "source") if "interval" in entry else ("interval", "measured", "source")
        found[name] = {**entry, **{key: entries[name][key] for key in kept if key in entries[name]}}
    header = (
        f"# Numbers of the {gpu} itself, which all kernel families share; fitted together by scripts/refit.py\n"
        "# within what direct measurements leave to them.\n"
    )
    document = {"version": FORMAT_VERSION, "gpu": gpu, "fitted_to": {}, "numbers": found}
    atomic_write(path, header + _yaml(document))


def _yaml(document: Mapping[str, Any]) -> str:
    """YAML text with one number a line."""
    lines = []
    for key, value in document.items():
        if key in ("numbers", "timeline"):
            lines.append(f"{key}:\n")
            for name, entry in value.items():
                text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=WIDEST)
                lines.append(f"  {name}: {text}")
        else:
            lines.append(yaml.safe_dump({key: value}, sort_keys=False))
    return "".join(lines)


def validation_table(validations: Iterable[Sequence[Validation]]) -> pd.DataFrame:
    """Held-out errors: one line for each way of holding out, each table and each type."""
    lines = []
    for found in validations:
        for each in found:
            line = {
                "held out": each.what,
                "table": each.table,
                "type": each.in_dtype,
                "rows": each.errors.rows,
                "MAPE": f"{each.errors.mape:.2%}",
                "median": f"{each.errors.median:.2%}",
                "p95": f"{each.errors.p95:.1%}",
                "worst": f"{each.errors.worst:.0%}",
            }
            for name, choice in (("top-1", each.top1), ("best of 4", each.top4)):
                line[name] = f"{choice.mean:.2%}" if choice else "-"
                line[f"{name} p5"] = f"{choice.p5:.1%}" if choice else "-"
            lines.append(line)
    return pd.DataFrame(lines)


def number_table(result: CalibrationResult) -> pd.DataFrame:
    """Each fitted number: unit, bounds, and by rate class its value and 90 % half-width."""
    lines = []
    fitted = result.calibration.fitted
    for name, spec in NUMBERS.items():
        if name not in fitted:
            continue
        line = {"number": name, "unit": spec.unit, "low": spec.low, "high": spec.high}
        for kind, found in result.kinds.items():
            value = result.calibration.numbers[kind].values()[name]
            width = result.calibration.intervals[kind].get(name)
            mark = " (at bound)" if name in found.fit.at_bound else ""
            line[kind] = f"{value:.4g} (kept)" if width is None else f"{value:.4g} +- {width:.2g}{mark}"
        line["meaning"] = spec.meaning
        lines.append(line)
    return pd.DataFrame(lines)


def report_text(result: CalibrationResult) -> str:
    """The whole report of a calibration as text."""
    parts = [
        "HELD-OUT ACCURACY, |predicted / measured - 1| in the burst regime",
        validation_table(found.validations for found in result.kinds.values()).to_string(index=False),
    ]
    parts += ["", "FITTED NUMBERS (90 % confidence)", number_table(result).to_string(index=False)]
    for kind, found in result.kinds.items():
        if found.fit.at_bound:
            parts.append(f"{kind}: at a bound: {', '.join(found.fit.at_bound)}")
    donor = result.calibration.fitted_to["donor"]
    for kind, found in result.kinds.items():
        if any(each.what == DONOR_KEPT for each in found.validations):
            parts.append(
                f"{kind}: moved nothing: held-out rows are not surely nearer by the fit than by {donor}"
            )
    parts += ["", "ERROR BANDS (90 % of held-out rows)"]
    parts.append(pd.DataFrame(result.calibration.error_band).map("{:.1%}".format).to_string())
    if result.residual is not None:
        parts += ["", "ERROR BANDS WITH THE RESIDUAL"]
        parts.append(pd.DataFrame(result.residual.error_band).map("{:.1%}".format).to_string())
    parts += [
        f"{kind}: {found.taken.share:.2f} of the donor's residual, as the rows bear out"
        for kind, found in result.kinds.items()
        if found.taken is not None
    ]
    parts += [
        f"{kind}: no residual, since it does not surely lower the errors of held-out shapes"
        for kind, found in result.kinds.items()
        if found.taken is None and found.corrected_us is not None and not found.residual_helps
    ]
    for kind, found in result.kinds.items():
        for regime, figures in found.chained.items():
            errors, short = figures.runtime, figures.short
            line = (
                f"{kind} {regime}, shapes held out: MAPE {errors.mape:.2%}, median {errors.median:.2%}, "
                f"p95 {errors.p95:.1%}"
            )
            line += (
                ""
                if short is None
                else f", kernels below {room_numbers('calibration').short_us:.0f} us {short.mape:.2%}"
            )
            parts.append(line + ("" if figures.clock is None else f", settled clock {figures.clock:.2%}"))
    if result.data.cards:
        parts += ["", f"cards: {', '.join(result.data.cards)}"]
    parts += [f"note: {note}" for note in result.data.notes]
    return "\n".join(parts)
