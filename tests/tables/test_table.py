"""Reading tables, and refusing damaged ones in one sentence."""

import gzip
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gemm_model as gm
from gemm_model import GemmProblem, InputError, KernelConfig, predict_table
from gemm_model.core.batch import batch_of
from gemm_model.tables.accuracy import best_single_config, choice_figures, top1_efficiency
from gemm_model.tables.table import batch_from_frame, read_table
from tests.conftest import CLASSIC_HEADER, CLASSIC_ROWS

SIZES = {"m": 64, "n": 64, "k": 64, "cta_m": 128, "cta_n": 128, "cluster_m": 1, "cluster_n": 1}
MODELS = ("SOLModel", "WSPersistentGEMMModel", "KernelModel", "PipelineModel", "MemoryHierarchyModel")


def test_frame_and_objects_give_the_same_batch():
    frame = pd.DataFrame(
        {
            **{"in_dtype": ["nvfp4"], "out_dtype": ["bf16"], "m": [5], "n": [6], "k": [7], "batch": [2]},
            **{"cta_m": [128], "cta_n": [64], "cluster_m": [2], "cluster_n": [1], "stages": [3]},
            **{
                "schedule": ["pingpong"],
                "raster": ["along_n"],
                "swizzle": [4],
                "split_k": [2],
                "fast_accum": [0],
            },
        }
    )
    config = KernelConfig(
        **{"cta_m": 128, "cta_n": 64, "cluster_m": 2, "stages": 3, "schedule": "pingpong"},
        **{"raster": "along_n", "swizzle": 4, "split_k": 2, "fast_accum": False},
    )
    from_frame = batch_from_frame(frame.astype({"fast_accum": str}), needs_tile=True)
    from_objects = batch_of([(GemmProblem.of(5, 6, 7, "nvfp4", "bf16", batch=2), config)])
    for name in from_objects.__slots__:
        np.testing.assert_array_equal(getattr(from_frame, name), getattr(from_objects, name), err_msg=name)


def test_what_an_empty_kernel_reads_on_the_measuring_host():
    """The usual reading, 3.5 us on an H200, where a table or a cell does not tell; a bad one is refused."""
    rows = pd.DataFrame(
        {"m": 512, "n": 512, "k": 512, "in_dtype": "bf16", "cta_m": 128, "cta_n": 128}, [1, 2]
    )
    rows[["cluster_m", "cluster_n"]] = 1
    assert (batch_from_frame(rows, needs_tile=True).empty_kernel_us == -1.0).all()
    found = rows.assign(empty_kernel_us=["4.25", ""])
    assert batch_from_frame(found, needs_tile=True).empty_kernel_us.tolist() == [4.25, -1.0]
    off = {"residual": "off"}
    times = [predict_table(frame, "h200", options=off)["predicted_us"].to_numpy() for frame in (found, rows)]
    assert (times[0] - times[1]).tolist() == pytest.approx([4.25 - 3.5, 0.0])
    for bad in ("-1", "x", "1e9", "nan"):
        with pytest.raises(InputError, match="column empty_kernel_us: .* microseconds from 0 to 100"):
            batch_from_frame(rows.assign(empty_kernel_us=[bad, "3"]), needs_tile=True)


def test_gzip_comments_blank_lines_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "t.csv.gz"
    text = "\ufeff# a comment\nin_dtype,m,n,k\n\nbf16, 1 ,2,3\n"
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    frame = read_table(path)
    assert frame.columns.tolist() == ["in_dtype", "m", "n", "k"]
    assert frame.index.tolist() == [4]
    assert frame["m"].tolist() == ["1"]


def write(tmp_path, text):
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_directory_a_missing_file_and_a_wide_one_are_refused(tmp_path, gemm_model):
    assert "is a directory" in gemm_model("predict", "--input", tmp_path).err
    assert "no such file" in gemm_model("predict", "--input", tmp_path / "nowhere.csv").err
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(100_000))))
    assert (
        "100000 columns; expected at most 1000" in gemm_model("predict", "--input", tmp_path / "wide.csv").err
    )


FIELDS = CLASSIC_HEADER.split(",")
ODD = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1.5", "nan", "inf", "-inf", "1e308", "99999999999999999999", "k", "fp8", "\0", "é"]
    ),
    st.integers(-10, 10**7).map(str),
    st.text(alphabet=string.printable, max_size=6),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, len(FIELDS) - 1), ODD), max_size=3),
    cut=st.none() | st.integers(0, 400),
    model=st.sampled_from(MODELS),
)
def test_random_damage_gives_one_sentence_or_finite_positive_times(tmp_path, changes, cut, model):
    rows = [row.split(",") for row in CLASSIC_ROWS]
    for row, column, value in changes:
        rows[row][column] = value
    text = "\n".join([CLASSIC_HEADER, *(",".join(row) for row in rows)])
    path = tmp_path / "damaged.csv"
    path.write_text(text[:cut], encoding="utf-8")
    try:
        result = predict_table(read_table(path), "b200_1300mhz", model)
    except InputError as error:
        assert "\n" not in str(error).strip()
    else:
        times = result["predicted_us"][result["disposition"] == "ok"].to_numpy()
        assert np.isfinite(times).all()
        assert (times > 0).all()


def test_a_time_of_nothing_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{','.join(SIZES)},in_dtype,runtime_us\n{','.join(map(str, SIZES.values()))},bf16,0\n")
    with pytest.raises(InputError, match="line 2, column runtime_us: '0'; expected a positive number"):
        predict_table(read_table(path), "h200")


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


def choices():
    rows = [
        # shape 1: config 64 is measured best (10), config 128 is predicted best (measured 20)
        (1, 64, 10.0, 12.0),
        (1, 128, 20.0, 11.0),
        # shape 2: both are predicted alike, measured 10 and 40
        (2, 64, 40.0, 5.0),
        (2, 128, 10.0, 5.0),
    ]
    return pd.DataFrame(rows, columns=["m", "cta_m", "runtime_us", "predicted_us"]).assign(n=1, k=1)


def test_top1_efficiency_by_hand_with_ties_shared():
    efficiency = top1_efficiency(choices())
    assert efficiency.tolist() == pytest.approx([10 / 20, (10 / 40 + 10 / 10) / 2])
    figures = choice_figures(efficiency)
    assert (figures.shapes, figures.mean, figures.minimum) == (2, pytest.approx((0.5 + 0.625) / 2), 0.5)


def test_best_single_config_by_hand():
    # config 64: 1 and 1/4; config 128: 1/2 and 1.
    assert best_single_config(choices()).tolist() == pytest.approx([0.5, 1.0])


def test_rows_of_other_batches_are_other_shapes():
    assert top1_efficiency(choices().assign(batch=[1, 2, 1, 2])).tolist() == [1.0] * 4


def test_a_single_config_needs_half_of_the_shapes():
    # Config 64 on shape 1 of 3, config 128 on shape 2 of 3, config 256 on shapes 2 and 3.
    rows = [(1, 64, 10.0), (2, 128, 10.0), (2, 256, 20.0), (3, 256, 30.0)]
    frame = pd.DataFrame(rows, columns=["m", "cta_m", "runtime_us"]).assign(n=1, k=1)
    assert best_single_config(frame).tolist() == pytest.approx([0.5, 1.0])
    assert best_single_config(frame.iloc[[0, 1]].assign(m=[1, 2])).tolist() == [1.0]
    three_apart = frame.iloc[[0, 1, 3]]
    assert best_single_config(three_apart) is None
