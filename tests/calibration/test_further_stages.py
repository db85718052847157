"""Rows that do more than a plain product: stages of a fit of their own, after the kernel's own numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gemm_model.calibration.observations import observe
from gemm_model.calibration.run import Choices, calibrate
from gemm_model.calibration.tables import further_mechanism
from gemm_model.persistent.calibration_file import as_mapping
from gemm_model.persistent.kernel_time import kernel_time
from tests.calibration.test_calibration import H200, NUMBERS, QUACK, measured
from tests.typed_numbers import VALUES, calibration, numbers

EPILOGUES = ("gelu", "residual", "bias", "row_sum", "gated_silu,residual")


def further_rows(seed=5):
    """Rows that the typed numbers made: 12 shapes with each of the epilogues, and 12 in groups."""
    plain = measured(shapes=12, seed=seed)
    epilogues = [plain.assign(epilogue=words, groups="") for words in EPILOGUES]
    random = np.random.default_rng(seed)
    texts = []
    for rows in plain["m"]:
        cuts = np.sort(random.integers(0, rows + 1, 15))
        texts.append(",".join(map(str, np.diff(np.concatenate([[0], cuts, [rows]])))))
    frame = pd.concat([*epilogues, plain.assign(epilogue="", groups=texts)], ignore_index=True)
    frame["runtime_us"] = kernel_time(observe(frame, H200, QUACK).shape, H200, NUMBERS).runtime_us
    return frame


def test_a_stage_finds_the_numbers_that_made_its_rows(tmp_path):
    plain = measured(shapes=12)
    pd.concat([plain.assign(epilogue="", groups=""), further_rows()]).to_csv(
        tmp_path / "rows.csv", index=False
    )
    wrong = {"fused_epilogue.activation_clk": 120.0, "fused_epilogue.source_bytes_per_clk": 200.0}
    wrong |= {"grouped.tile_clk": 1200.0, "grouped.start_us": 3.0}
    start = {kind: numbers(wrong) for kind in ("fp16", "fp8")}
    free = ("tensor.efficiency", *(name for name in VALUES if name.startswith(("fused_", "grouped."))))
    free = tuple(name for name in free if name != "fused_epilogue.quantize_clk")
    choices = Choices(
        family="quack",
        donor=calibration(numbers=start),
        free=free,
        with_residual=False,
        shapes_only=True,
    )
    told = []
    found = calibrate(
        [tmp_path / "rows.csv"],
        H200,
        choices,
        progress=lambda _step, done, total: told.append((done, total)),
    )
    # The fit to all plain rows and its eight folds, and as many of each of the two stages.
    assert told[0] == (0, 3 * (1 + 8))
    assert 1 + 8 < told[-1][0] <= told[-1][1] == 3 * (1 + 8)
    assert told == sorted(told)
    values = found.calibration.numbers["fp16"].values()
    for name in ("activation_clk", "source_bytes_per_clk", "reduction_clk", "vector_clk"):
        assert values[f"fused_epilogue.{name}"] == pytest.approx(VALUES[f"fused_epilogue.{name}"], rel=0.1), (
            name
        )
    assert values["grouped.tile_clk"] == pytest.approx(200.0, abs=30.0)
    assert values["tensor.efficiency"] == pytest.approx(0.8, rel=0.01)
    kind = found.kinds["fp16"]
    assert len(kind.rows) == len(plain)
    assert len(kind.later) == 2
    bands = found.calibration.error_band["fp16"]
    assert set(bands) - {"tiny", "memory_bound", "few_waves", "many_waves", "split_k"} == {
        "fused_epilogue",
        "grouped",
    }
    assert max(bands["fused_epilogue"], bands["grouped"]) < 0.02
    assert "fused_epilogue.activation_clk" in found.calibration.fitted
    assert as_mapping(found.calibration)["error_band"]["fp16"] == bands


def test_rows_tell_of_one_mechanism_each():
    frame = pd.DataFrame(
        {
            "in_dtype": ["bf16", "bf16", "bf16", "fp8", "bf16"],
            "m": [64, 64, 64, 64, 100], "n": 64, "k": [64, 64, 64, 128, 72],
            "epilogue": ["", "relu", "relu", "relu", ""],
            "groups": ["", "", "60,4", "", ""],
            "block_scaling": ["", "", "", "1x128,128x128", ""],
            "conv": ["", "", "", "", "fprop n=1 c=8 h=10 w=10 k=64 r=3 s=3 pad=1"],
        }
    )  # fmt: skip
    found = ["", "fused_epilogue", "grouped", "software_scales", "implicit_gemm"]
    assert further_mechanism(frame).tolist() == found
    assert further_mechanism(frame[["in_dtype", "m", "n", "k"]]).tolist() == [""] * 5
