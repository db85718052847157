"""Texts for the terminal: one kernel's explanation, and the accuracy of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gemm_model.config import read_toml
from gemm_model.core.fields import number_text, signed_text
from gemm_model.core.prediction import RESIDUAL_PHASE, Prediction
from gemm_model.kernel_model.explanation import WhatIf
from gemm_model.report.document import text_table

if TYPE_CHECKING:
    import pandas as pd


INDENT = "    "
MOST_GROUPS = 8
"""Groups of rows that a text of accuracy has beside each other [1]; beyond, those of all types; chosen."""


def prediction_fields(prediction: Prediction) -> dict[str, Any]:
    """A prediction as fields of a result; its time is `predicted_us`, a measured time is `runtime_us`."""
    values = asdict(prediction)
    return {"predicted_us": values.pop("runtime_us"), **values, "residual_share": prediction.residual_share}


def prediction_row(prediction: Prediction) -> dict[str, Any]:
    """A prediction as columns of a table."""
    row = {"predicted_us": prediction.runtime_us, "limiter": prediction.limiter}
    row |= {"error_band": prediction.error_band}
    row |= {f"phase_{name}_us": value for name, value in prediction.phases_us.items()}
    row |= {f"{level}_bytes": value for level, value in prediction.bytes_by_level.items()}
    return {**row, **prediction.details}


def explanation(kernel: Mapping[str, Any], prediction: Prediction, actual_us: float | None = None) -> str:
    """A kernel's prediction in the manner of the classic readme: sizes, ratio, phases, further figures.

    `kernel` holds m, n, k and, where known, cta_m, cta_n, cluster_m, cluster_n and schedule; or a `title`.
    """
    lines = [kernel.get("title") or "MNK {m} {n} {k}".format(**kernel)]
    for name, part in (("CTA", "cta"), ("CLUSTER", "cluster")):
        extents = [kernel.get(f"{part}_{extent}") for extent in "mn"]
        if all(extents):
            lines.append("{} ({} {})".format(name, *extents))
    if kernel.get("schedule"):
        lines.append(f"SCHEDULE {kernel['schedule']}")
    if actual_us is not None:
        lines.append(f"RATIO: {prediction.runtime_us / actual_us:.6g}")
    lines.append(f"{INDENT}predicted: {number_text(prediction.runtime_us, 6)} us")
    if actual_us is not None:
        lines.append(f"{INDENT}actual: {number_text(actual_us, 6)} us")
    if prediction.error_band is not None:
        lent = any("borrowed from" in caveat or "numbers are" in caveat for caveat in prediction.caveats)
        whose = "90 % of measured rows launched alone, held out of the fit"
        whose = "90 % of rows elsewhere that were predicted with numbers lent like these" if lent else whose
        lines.append(f"{INDENT}error band: +-{prediction.error_band:.1%} ({whose})")
    lines.append(f"{INDENT}limiter: {prediction.limiter}")
    lines.append("PHASES (us)")
    lines += [
        f"{INDENT}{name}: {number_text(value, 6)}"
        for name, value in prediction.phases_us.items()
        if name != RESIDUAL_PHASE
    ]
    if prediction.residual_share is not None:
        added_us = prediction.phases_us[RESIDUAL_PHASE]
        lines.append(
            f"{INDENT}{RESIDUAL_PHASE}: {signed_text(added_us, 6)} ({prediction.residual_share:+.1%})"
        )
    for title, figures in {"DETAILS": prediction.details, "BYTES": prediction.bytes_by_level}.items():
        lines += [title] if figures else []
        lines += [f"{INDENT}{name}: {number_text(value, 6)}" for name, value in figures.items()]
    lines += [f"caveat: {caveat}" for caveat in prediction.caveats]
    return "\n".join(lines)


def change_rows(found: Sequence[WhatIf]) -> list[dict[str, Any]]:
    """What-ifs as fields of a result."""
    cells = [(each.change, each.runtime_us, each.relative) for each in found]
    return [dict(zip(("change", "predicted_us", "relative"), each, strict=True)) for each in cells]


def changes(found: Sequence[WhatIf]) -> str:
    """A table of what-ifs, with what each saves of the runtime."""
    rows = [(each.change, each.runtime_us, f"{1 - each.relative:+.1%}") for each in found]
    return text_table([dict(zip(("change", "us", "saves"), each, strict=True)) for each in rows])


def extreme_rows(frame: pd.DataFrame, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows with the highest and with the lowest ratio predicted / measured, most extreme first."""
    by_ratio = frame.sort_values("ratio", kind="stable")
    return by_ratio.tail(count).iloc[::-1], by_ratio.head(count)


def accuracy_summary(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Error and choice figures of a predicted table: over all rows, then for each operand type."""
    groups = [("all", frame)]
    if "in_dtype" in frame and frame["in_dtype"].nunique() > 1:
        groups += [(str(name), rows) for name, rows in frame.groupby("in_dtype", observed=True)]
    return [{"rows of": name, **_figures(rows)} for name, rows in groups]


def _figures(frame: pd.DataFrame) -> dict[str, Any]:
    from gemm_model.tables.accuracy import best_single_config, choice_figures, error_figures, top1_efficiency

    times = (frame[name].to_numpy() for name in ("predicted_us", "runtime_us"))
    figures: dict[str, Any] = asdict(error_figures(*times))
    choices = {"top1": top1_efficiency(frame)}
    single = best_single_config(frame) if "cta_m" in frame else None
    if single is not None:
        choices["best_single"] = single
    for name, efficiency in choices.items():
        found = choice_figures(efficiency)
        figures["shapes" if name == "top1" else f"{name}_shapes"] = found.shapes
        figures |= {name: found.mean, f"{name}_p5": found.p5, f"{name}_min": found.minimum}
    return figures


def accuracy_text(summary: list[dict[str, Any]]) -> str:
    """The accuracy table: one line for each figure, one column for each group of rows."""
    columns = {str(row["rows of"]): {key: row[key] for key in row if key != "rows of"} for row in summary}
    if len(columns) > MOST_GROUPS:
        columns = {group: figures for group, figures in columns.items() if group.endswith("all")}
    names: dict[str, str] = read_toml("shown")["accuracy"]
    table = {
        group: [_cell(name, figures.get(key)) for key, name in names.items()]
        for group, figures in columns.items()
    }
    import pandas as pd

    return pd.DataFrame(
        table, index=pd.Index([name.removesuffix(" %") for name in names.values()])
    ).to_string()


def _cell(name: str, value: Any) -> str:
    if value is None or value != value:
        return "-"
    if name.endswith(" %"):
        return f"{value:.2%}"
    return f"{value:.4f}" if isinstance(value, float) else f"{value}"
