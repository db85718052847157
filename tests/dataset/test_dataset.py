"""A data set: CSV in and out without loss, several writers, damage named, another schema refused."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from gemm_model.bench.rows import COLUMNS as BENCHMARK_COLUMNS
from gemm_model.bench.rows import TABLE_COLUMNS
from gemm_model.dataset.compare import compare
from gemm_model.dataset.schema import COLUMNS, typed
from gemm_model.errors import InputError
from tests.conftest import ROOT

pytest.importorskip("pyarrow", reason="the extra gemm-model[fleet] is not installed")

from gemm_model.dataset.storage import DataSet, RunRecord, new_run_name

SUSTAINED = ROOT / "data" / "measurements" / "h200" / "sustained.csv.gz"
HEADER = "gpu,gpu_uuid,kernel,regime,in_dtype,m,n,k,cta_m,runtime_us,stages,order"
LINES = (
    "Card,GPU-1,quack,burst,bf16,64,128,256,128,10.5,,0",
    "Card,GPU-1,quack,sustained,bf16,64,128,256,128,9.25,4,1",
    "Card,GPU-2,triton,burst,bf16,64,128,512,128,0.1,3,2",
)


@pytest.fixture
def small(tmp_path, gemm_model):
    """A data set of three rows, each in a partition of its own."""
    table = tmp_path / "rows.csv"
    table.write_text("\n".join([HEADER, *LINES]) + "\n")
    assert gemm_model("data", "import", tmp_path / "set", table).code == 0
    return tmp_path / "set"


def test_every_column_of_a_benchmark_is_known_with_unit_where_its_name_has_one():
    for columns in (BENCHMARK_COLUMNS, *TABLE_COLUMNS.values()):
        assert set(columns) <= set(COLUMNS)
    endings = {"_us": "us", "_mhz": "MHz", "_w": "W", "_bytes": "bytes", "_pct": "%"}
    for name, column in COLUMNS.items():
        for ending, unit in endings.items():
            assert not name.endswith(ending) or column.unit == unit, name


def test_a_shipped_table_comes_back_as_it_was(tmp_path, gemm_model):
    assert gemm_model("data", "import", tmp_path / "set", SUSTAINED).code == 0
    output = tmp_path / "back.csv"
    assert gemm_model("data", "export", tmp_path / "set", "--output", output).code == 0
    with gzip.open(SUSTAINED, "rt") as file:
        # Each family lies in a partition of its own.
        before = pd.read_csv(file).sort_values("kernel", kind="stable", ignore_index=True)
    after = pd.read_csv(output)
    assert set(after["run"]) == {path.stem for path in (tmp_path / "set" / "runs").glob("*.json")}
    filled = [name for name in before if before[name].notna().any()]
    assert len(filled) > 35
    pd.testing.assert_frame_equal(after[filled], before[filled], check_dtype=False)


def test_rows_lie_by_gpu_family_and_regime_and_are_chosen_by_them(small, gemm_model):
    assert sorted(str(path.parent.relative_to(small)) for path in small.rglob("*.parquet")) == [
        "gpu=Card/family=quack/regime=burst",
        "gpu=Card/family=quack/regime=sustained",
        "gpu=Card/family=triton/regime=burst",
    ]
    assert DataSet(small).read(family="quack", regime="burst")["runtime_us"].tolist() == [10.5]
    shown = json.loads(gemm_model("data", "show", small, "--regime", "burst", "--format", "json").out)
    assert sorted((row["family"], row["rows"]) for row in shown["rows"]) == [("quack", 1), ("triton", 1)]


def test_a_file_tells_units_and_each_run_its_provenance(small):
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(next(small.rglob("*.parquet")))
    assert schema.field("runtime_us").metadata[b"unit"] == b"us"
    (record,) = DataSet(small).runs()
    assert record.provenance["file"] == "rows.csv"
    assert record.provenance["packages"]["python"]
    assert sum(part.rows for part in record.parts) == 3


@pytest.mark.slow
def test_models_read_a_data_set_like_a_table(tmp_path, gemm_model):
    assert gemm_model("data", "import", tmp_path / "set", SUSTAINED).code == 0
    words = ("predict", "--format", "json", "--regime", "sustained", "--residual", "off")
    answers = [json.loads(gemm_model(*words, "--input", path).out) for path in (SUSTAINED, tmp_path / "set")]
    first, second = (answer["result"]["accuracy"][0] for answer in answers)
    assert first["rows"] == second["rows"] == 2220
    assert first["mape"] == pytest.approx(second["mape"], rel=1e-12)


def test_a_damaged_part_is_named_and_the_rest_is_readable(small, gemm_model, tmp_path):
    part = next((small / "gpu=Card" / "family=triton").rglob("*.parquet"))
    data = bytearray(part.read_bytes())
    data[40] ^= 0xFF
    part.write_bytes(bytes(data))
    found = gemm_model("data", "verify", small)
    assert found.code == 2
    assert "family=triton" in found.err
    assert "the other 2 parts are whole" in found.err
    output = tmp_path / "rest.csv"
    assert gemm_model("data", "export", small, "--output", output, "--skip-damaged").code == 4
    assert pd.read_csv(output)["runtime_us"].tolist() == [10.5, 9.25]
    part.unlink()
    refused = gemm_model("data", "export", small, "--output", tmp_path / "all.csv")
    assert refused.code == 2
    assert "is missing" in refused.err
    assert not (tmp_path / "all.csv").exists()


def test_rows_written_before_a_column_was_known_have_it_empty(small, gemm_model):
    import pyarrow.parquet as parquet

    part = next((small / "gpu=Card" / "family=triton").rglob("*.parquet"))
    table = parquet.read_table(part, partitioning=None)
    before = DataSet(small).read()
    parquet.write_table(table.drop_columns(["power_w"]), part)
    after = DataSet(small).read()
    assert after["runtime_us"].tolist() == before["runtime_us"].tolist()
    assert list(after.columns) == list(before.columns)
    parquet.write_table(table.rename_columns([f"x_{name}" for name in table.column_names]), part)
    assert "has other columns than schema" in gemm_model("data", "export", small, "--output", "x.csv").err


def test_diff_without_a_second_table_is_told(small, gemm_model):
    assert "data diff takes one other table after the first; got 0" in gemm_model("data", "diff", small).err


def test_what_is_no_data_set_of_this_schema_is_refused_in_a_sentence(small, gemm_model, tmp_path):
    (small / "dataset.json").write_text('{"schema": "gemm-model-measurements/9"}')
    found = gemm_model("data", "show", small)
    assert found.code == 2
    assert "'gemm-model-measurements/9'; expected 'gemm-model-measurements/1'" in found.err
    assert gemm_model("data", "show", tmp_path / "none").code == 2
    assert gemm_model("data", "import", tmp_path, tmp_path / "rows.csv").code == 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Card,GPU-1,quack,burst,bf16,64,128,256,128,fast,,0", "line 3: column runtime_us is 'fast'"),
        ("Card,GPU-1,quack,burst,bf16,64.5,128,256,128,1.0,,0", "line 3: column m is '64.5'"),
        ("Card,GPU-1,quack,burst,bf16,1e30,128,256,128,1.0,,0", "line 3: column m is '1e30'"),
        (
            "Card,GPU-1,quack,burst,bf16,64,128,256,128,inf,,0",
            "column runtime_us is 'inf'; expected a finite",
        ),
        (f"{'C' * 300},GPU-1,quack,burst,bf16,64,128,256,128,1.0,,0", "column gpu holds a name of 300"),
    ],
)
def test_a_bad_cell_leaves_the_data_set_as_it_was(small, gemm_model, tmp_path, line, sentence):
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([HEADER, LINES[0], line]) + "\n")
    found = gemm_model("data", "import", small, tmp_path / "rows.csv", bad)
    assert found.code == 2
    assert sentence in found.err
    assert sum(part.rows for part in DataSet(small).parts()) == 3


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    texts = pd.DataFrame([line.split(",") for line in LINES], columns=HEADER.split(","))

    def write(_):
        dataset = DataSet.create(tmp_path / "set")
        record = RunRecord(run=new_run_name())
        for number in range(3):
            record = dataset.add_rows(record, number, texts, "a test")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    dataset = DataSet(tmp_path / "set")
    assert len(dataset.read()) == 4 * 3 * 3
    assert dataset.damage(dataset.parts()) == {}


def test_a_journal_is_read_as_its_columns_say(tmp_path):
    path = tmp_path / "0.csv"
    path.write_text('order,m,runtime_us,detail,time\n7,40.0,1.5,"a, ""b""\nc",\n8,,,,2026-11-22T10:00:00Z\n')
    rows = typed(pd.read_csv(path, dtype=str, keep_default_na=False), "a run", "a test").select(
        ["run", *path.read_text().partition("\n")[0].split(",")]
    )
    assert rows.to_pylist() == [
        {"run": "a run", "order": 7, "m": 40, "runtime_us": 1.5, "detail": 'a, "b"\nc', "time": None},
        {
            "run": "a run", "order": 8, "m": None, "runtime_us": None, "detail": None,
            "time": "2026-11-22T10:00:00Z",
        },
    ]  # fmt: skip


def test_the_same_batch_again_takes_the_place_of_the_first(tmp_path):
    texts = pd.DataFrame([line.split(",") for line in LINES], columns=HEADER.split(","))
    dataset = DataSet.create(tmp_path / "set")
    record = dataset.add_rows(RunRecord(run=new_run_name()), 0, texts, "a test")
    dataset.add_rows(record, 0, texts, "a test")
    assert len(dataset.read()) == 3


def test_rows_of_a_remarked_card_are_marked(small):
    dataset = DataSet(small)
    (record,) = dataset.runs()
    dataset.write_record(
        RunRecord(run=record.run, parts=record.parts, card_remarks={"GPU-2": "sentinel drifted by 3.0%"})
    )
    rows = dataset.read()
    assert dict(zip(rows["gpu_uuid"], rows["card_remark"], strict=True)) == {
        "GPU-1": "",
        "GPU-2": "sentinel drifted by 3.0%",
    }


def test_differences_by_card_are_those_of_the_ratios():
    """Ratios 1.10 and 1.02 on one card, 0.90 on another; a row is only on one side, one has no time."""
    base = {"kernel": "quack", "in_dtype": "bf16", "m": 64, "k": 64}
    first = pd.DataFrame([{**base, "n": n, "gpu_uuid": "A", "runtime_us": 10.0} for n in (1, 2, 3, 4, 5)])
    times = {1: (11.0, "B"), 2: (10.2, "B"), 3: (9.0, "C"), 5: (None, "C"), 6: (1.0, "C")}
    second = pd.DataFrame(
        [{**base, "n": n, "gpu_uuid": card, "runtime_us": time} for n, (time, card) in times.items()]
    )
    found = compare(first, second)
    assert (found.only_first, found.only_second, found.other_disposition) == (1, 1, 1)
    by_card = {(each["first_card"], each["second_card"]): each for each in found.differences}
    assert by_card["all", "all"]["median"] == pytest.approx(0.10)
    assert by_card["A", "B"]["median_ratio"] == pytest.approx(1.06)
    assert by_card["A", "B"]["p95"] == pytest.approx(0.02 + 0.95 * 0.08)
    assert (by_card["A", "C"]["rows"], by_card["A", "C"]["worst"]) == (1, pytest.approx(0.10))
    with pytest.raises(InputError, match="no timed row in common"):
        compare(first, second[second["n"] == 6])
