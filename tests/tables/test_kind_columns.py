"""Columns that ask for more than a plain product."""

import numpy as np
import pandas as pd
import pytest

import gemm_model as gm
from gemm_model.core.errors import InputError
from gemm_model.tables.table import batch_from_frame

CONV = "wgrad n=2 c=64 h=14 w=14 k=32 r=3 s=3 pad=1 groups=2"
ROWS = pd.DataFrame(
    [
        {"m": 512, "n": 256, "k": 128},
        {"m": 512, "n": 256, "k": 128, "epilogue": "gated_silu,bias"},
        {"m": 512, "n": 256, "k": 128, "groups": "300,0,212"},
        {"m": 512, "n": 256, "k": 128, "in_dtype": "fp8", "block_scaling": "1x128,128x128"},
        {"m": 16, "n": 288, "k": 392, "conv": CONV},
        {"m": 512, "n": 256, "k": 128, "groups": "512"},
        {"m": 512, "n": 256, "k": 128, "epilogue": "none"},
    ]
)
TABLE = ROWS.assign(
    in_dtype=ROWS["in_dtype"].fillna("bf16"), kernel="triton", cta_m=128, cta_n=64, cluster_m=1, cluster_n=1
)
PROBLEMS = (
    gm.GemmProblem.of(512, 256, 128),
    gm.GemmProblem.of(512, 256, 128, epilogue="gated_silu,bias"),
    gm.GemmProblem.of(512, 256, 128, groups="300,0,212"),
    gm.GemmProblem.of(512, 256, 128, "fp8", block_scaling="1x128,128x128"),
)


def test_rows_of_a_table_are_predicted_like_the_problems_they_say():
    config = gm.KernelConfig(cta_m=128, cta_n=64, kernel="triton")
    found = gm.predict_table(TABLE[:4], "h200")
    for time, problem in zip(found["predicted_us"], PROBLEMS, strict=True):
        assert time == pytest.approx(gm.predict(problem, config, "h200").runtime_us, rel=1e-12)


def test_cells_that_ask_for_nothing_more_are_plain_products():
    plain = gm.predict_table(TABLE[:1], "h200")["predicted_us"].iloc[0]
    with_others = gm.predict_table(TABLE.drop(index=4), "h200")["predicted_us"].to_numpy()
    np.testing.assert_array_equal(with_others[[0, 4, 5]], plain)


def test_a_convolution_brings_its_groups_and_layouts():
    batch = batch_from_frame(TABLE, needs_tile=True)
    assert (batch.batch[4], batch.a_k_major[4], batch.b_k_major[4]) == (2, False, False)
    assert batch.a_k_major[:4].all()


def test_a_table_of_plain_products_has_no_kind_columns():
    assert batch_from_frame(TABLE[["m", "n", "k", "in_dtype"]], needs_tile=False).plain
    assert batch_from_frame(TABLE[:1], needs_tile=True).plain


def test_models_of_plain_products_refuse_the_others():
    assert gm.predict_table(TABLE, "h200", "SOLModel")["predicted_us"].min() > 0
    for model in ("WSPersistentGEMMModel", "MemoryHierarchyModel"):
        with pytest.raises(InputError, match=f"{model} knows plain products alone; expected KernelModel"):
            gm.predict_table(TABLE[:2], "h200", model)
        with pytest.raises(InputError, match=f"{model} knows plain products alone"):
            gm.predict(PROBLEMS[1], gm.KernelConfig(cta_m=128, cta_n=128), "h200", model)
