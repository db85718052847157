"""The page of a calibration: every row predicted by a fit that had not seen its shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_model.calibration.run import CalibrationResult, KindResult
from gemm_model.core.gpu import GpuSpec
from gemm_model.models import DEFAULT_MODEL, Model, create_model
from gemm_model.report.page.content import Page
from gemm_model.report.page.table import table_page
from gemm_model.tables.table import predict_frame, with_prediction


def calibration_page(result: CalibrationResult, gpu: GpuSpec, calibration: Path) -> Page:
    """The page of `calibrate`; limiters and bytes are those of the calibration file that was written."""
    model = create_model(DEFAULT_MODEL, gpu, {"calibration": str(calibration)})
    rows = pd.concat([_held_out(kind, model) for kind in result.kinds.values()], ignore_index=True)
    page = table_page(rows, f"Calibration {calibration.name}", gpu, "fits that had not seen the shape")
    return replace(page, notes=[*page.notes, *result.data.notes])


def _held_out(kind: KindResult, model: Model) -> pd.DataFrame:
    rows = with_prediction(kind.rows.frame, predict_frame(kind.rows.frame, model))
    rows["predicted_us"] = kind.predicted_us if kind.corrected_us is None else kind.corrected_us
    rows["ratio"] = rows["predicted_us"] / rows["runtime_us"]
    known: pd.DataFrame = rows[np.isfinite(rows["ratio"])]
    return known
