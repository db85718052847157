"""The Python interface: predict one kernel, or a table of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.attention.model import attention_model
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.batch import numbers_of
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import require_kind
from gemm_model.errors import InputError
from gemm_model.kernels.feasibility import refuse_in_any_family
from gemm_model.models import DEFAULT_MODEL, model_for, require_known

if TYPE_CHECKING:
    import pandas as pd


def predict(
    problem: GemmProblem | AttentionProblem,
    config: KernelConfig | AttentionConfig,
    gpu: GpuSpec | str | Path,
    model: str = DEFAULT_MODEL,
    *,
    options: Mapping[str, Any] | None = None,
) -> Prediction:
    """Predict one kernel: runtime in us, limiter, phases, bytes by level, caveats (a `Prediction`).

    `gpu` is a GpuSpec, a name or a YAML file; `options` are the model's (`config/model/<model>.yaml`), such
    as regime: burst, graph, sustained or kernel-only. Raises InputError for a model, GPU, option or type that
    does not exist, or a kernel that cannot.

    >>> from gemm_model import GemmProblem, KernelConfig, predict
    >>> problem, kernel = GemmProblem.of(4096, 4096, 4096, "bf16"), KernelConfig(cta_m=128, cta_n=256)
    >>> burst = predict(problem, kernel, "h200")
    >>> hot = predict(problem, kernel, "h200", options={"regime": "sustained"})
    >>> hot.runtime_us > burst.runtime_us
    True
    >>> predict(problem, kernel, "pdp11")
    Traceback (most recent call last):
    gemm_model.errors.InputError: unknown GPU 'pdp11'; expected one of `gemm-model list gpus` (or a YAML file)
    """
    if isinstance(problem, AttentionProblem):
        if not isinstance(config, AttentionConfig):
            raise InputError(f"config is of type {type(config).__name__}; expected an AttentionConfig")
        return attention_model(as_gpu(gpu), model, options or {}).predict([(problem, config)]).row(0)
    if not isinstance(config, KernelConfig):
        raise InputError(f"config is of type {type(config).__name__}; expected a KernelConfig")
    chosen = model_for(model, gpu, options)
    row = numbers_of(problem, config)
    require_known(chosen, beyond_plain=not row.plain)
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
    """Predict the rows of a table (columns: `gemm_model.tables.schema`); all of them come back, in order.

    They have `predicted_us`, `limiter`, phases, details and bytes as further columns, `ratio` = predicted /
    measured where the table has `runtime_us`, and `disposition`: 'ok', or why there is no prediction (failed
    measurements, library kernels that do not tell their tile, kernels that cannot run). `attrs["notes"]` of
    the result says so in sentences, and how many rows were measured in another regime. Raises InputError
    naming the row and column of a bad value, for a column that looks misspelt, for rows measured on another
    GPU, and where no row can run.

    >>> import pandas as pd
    >>> from gemm_model import predict_table
    >>> kernels = {"m": [512, 4096], "n": 4096, "k": 4096, "in_dtype": "bf16"}
    >>> tiles = {"cta_m": 128, "cta_n": [128, 256], "cluster_m": 2, "cluster_n": 1}
    >>> found = predict_table(pd.DataFrame({**kernels, **tiles, "runtime_us": [26.0, None]}), "h200")
    >>> found["limiter"].tolist(), bool(0.8 < found["ratio"][0] < 1.2)
    (['TENSOR', 'TENSOR'], True)
    """
    import pandas as pd

    from gemm_model.tables import attention, schema, table

    require_kind("frame", frame, pd.DataFrame)
    frame = attention.understood_kernels(frame)
    if attention.is_attention_table(frame):
        attended = attention_model(as_gpu(gpu), model, options or {})
        card, needs_tile, regime = attended.gpu, False, None
        predict_rows = partial(attention.predict_attention_frame, model=attended)
    else:
        chosen = model_for(model, gpu, options)
        card, needs_tile, regime = chosen.gpu, chosen.needs_tile, chosen.regime
        predict_rows = partial(table.predict_frame, model=chosen)
    if "runtime_us" in frame:
        schema.require_card(frame, card)
    rows, notes = table.usable_rows(frame, needs_tile=needs_tile)
    frame, disposition = table.dispositions(frame, needs_tile=needs_tile)
    otherwise = [*table.measured_otherwise(rows, regime), *schema.card_notes(frame, card)]
    prediction, disposition, refused = table.predict_usable(frame, disposition, predict_rows)
    result = table.with_prediction(frame, prediction, disposition)
    result.attrs["notes"] = [*notes, *refused, *otherwise, *prediction.caveats]
    return result
