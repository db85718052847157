"""The Python interface: predict one kernel, or a table of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.core.batch import numbers_of
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import require_kind
from gemm_model.kernels.feasibility import refuse_in_any_family
from gemm_model.models import DEFAULT_MODEL, model_for, require_known

if TYPE_CHECKING:
    import pandas as pd


def predict(
    problem: GemmProblem,
    config: KernelConfig,
    gpu: GpuSpec | str | Path,
    model: str = DEFAULT_MODEL,
    *,
    options: Mapping[str, Any] | None = None,
) -> Prediction:
    """Predict one kernel: runtime in us, limiter, phases, bytes by level, caveats.

    `gpu` is a GpuSpec, a name or a YAML file; `options` are the model's (`config/model/<model>.yaml`).
    Raises InputError for a model, GPU, option or type that does not exist, or a kernel
    that cannot.
    """
    chosen = model_for(model, gpu, options)
    row = numbers_of(problem, config)
    require_known(chosen, further=row.further is not None)
    if chosen.needs_tile:
        refuse_in_any_family(row, chosen.gpu)
    return chosen.predict_row(row)


def predict_table(
    frame: pd.DataFrame,
    gpu: GpuSpec | str | Path,
    model: str = DEFAULT_MODEL,
    *,
    options: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Predict the rows of a table (columns: `gemm_model.tables.table`), in their order.

    Returns them with `predicted_us`, `limiter`, phases, details and bytes as further columns, and `ratio` =
    predicted / measured where the table has `runtime_us`. Rows of failed measurements and of library kernels
    that do not tell their tile are left out: `attrs["notes"]` of the result says how many, and how many were
    measured in another regime. Raises InputError naming the row and column of a bad value.
    """
    import pandas as pd

    from gemm_model.tables.table import measured_otherwise, predict_frame, usable_rows, with_prediction

    require_kind("frame", frame, pd.DataFrame)
    chosen = model_for(model, gpu, options)
    rows, notes = usable_rows(frame, needs_tile=chosen.needs_tile)
    prediction = predict_frame(rows, chosen)
    result = with_prediction(rows, prediction)
    result.attrs["notes"] = [*notes, *measured_otherwise(rows, chosen.regime), *prediction.caveats]
    return result
