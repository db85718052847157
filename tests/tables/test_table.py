"""Reading tables, and refusing damaged ones in one sentence."""

import gzip
import string

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemm_model import GemmProblem, InputError, KernelConfig, predict_table
from gemm_model.core.batch import batch_of
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


HEAD = "in_dtype,cta_m,cta_n,cluster_m,cluster_n,m,n,k,runtime_us\n"


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
