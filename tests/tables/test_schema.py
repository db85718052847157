"""One schema: every table that a verb writes is read by every verb with the same answer; names with care."""

import gzip
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from gemm_model import InputError, Ranker, predict_table
from gemm_model.choice.table_ranking import problems_of_table, rank_table
from gemm_model.tables.schema import KNOWN, PROBLEM_COLUMNS, understood
from gemm_model.tables.table import read_table
from tests.cases import cases
from tests.conftest import ROOT

MEASUREMENTS = ROOT / "data" / "measurements"
NET = "from torch import empty, nn\nbuild = lambda: (nn.Linear(8192, 28672, False).half(), empty(64, 8192).half())\n"

PROBLEMS = pd.DataFrame(
    {
        "m": [16, 4096, 512, 128, 64, 3000],
        "n": [7168, 4096, 28672, 8192, 512, 1000],
        "k": [2048, 4096, 8192, 28672, 7168, 256],
        "in_dtype": ["fp8", "bf16", "fp8", "bf16", "fp8", "fp16"],
    }
)
ROOFS = (
    ["--gpu", "h100_sxm"],
    ["--gpu", "b200_sxm"],
    ["--regime", "graph"],
    ["--sms", "66", "--residual", "off"],
    ["gpu.sm_clk_mhz=1200", "--calibration", "h100_sxm:quack"],
    *(["--family", name] for name in ("cutlass", "triton")),
    pytest.param(["--family", "any"], marks=pytest.mark.slow),
)


def predicted(frame):
    return pd.to_numeric(frame["predicted_us"]).to_numpy()


def written(gemm_model, path, *words):
    found = gemm_model(*words, "--output", path, "--format", "csv")
    assert found.code == 0, found.err
    return pd.read_csv(path)


def read_again(gemm_model, path, *words):
    found = gemm_model("predict", "--input", path, "--format", "csv", *words)
    assert found.code == 0, found.err
    return pd.read_csv(io.StringIO(found.out))


@pytest.mark.parametrize("options", [[], *ROOFS], ids=lambda words: "-".join(words) or "default")
def test_a_ranked_table_is_predicted_with_the_same_times(gemm_model, tmp_path, options):
    problems = tmp_path / "problems.csv"
    PROBLEMS.to_csv(problems, index=False)
    ranked = written(gemm_model, tmp_path / "best.csv", "rank", "--input", problems, *options)
    again = read_again(gemm_model, tmp_path / "best.csv")
    assert predicted(again) == pytest.approx(predicted(ranked), rel=1e-9)
    # What was ranked is ranked again without another answer.
    family = options if options[:1] == ["--family"] else []
    twice = written(gemm_model, tmp_path / "twice.csv", "rank", "--input", tmp_path / "best.csv", *family)
    assert predicted(twice) == pytest.approx(predicted(ranked), rel=1e-9)
    assert twice.columns.tolist() == ranked.columns.tolist()


@pytest.mark.parametrize("options", [[], ["--gpu", "b200_sxm"]], ids=["h200", "b200_sxm"])
def test_a_portfolios_table_is_predicted_and_ranked_with_the_same_times(gemm_model, tmp_path, options):
    problems, best, served_by = (tmp_path / f"{name}.csv" for name in ("problems", "best", "served"))
    PROBLEMS.assign(in_dtype="fp8").to_csv(problems, index=False)
    ranked = written(gemm_model, best, "rank", "--input", problems, *options)
    served = written(gemm_model, served_by, "portfolio", "--input", best, "--max-kernels", 6)
    assert predicted(served) == pytest.approx(predicted(ranked), rel=1e-3)
    assert predicted(read_again(gemm_model, served_by)) == pytest.approx(predicted(served), rel=1e-9)
    again = written(gemm_model, tmp_path / "again.csv", "rank", "--input", served_by)
    assert predicted(again) == pytest.approx(predicted(ranked), rel=1e-9)


def test_rows_of_several_places_are_answered_apart(gemm_model, tmp_path):
    places = {"gpu": ["h200", "", "h100_sxm", "NVIDIA H200", "", ""], "regime": ["", "graph", "", "", "", ""]}
    places |= {"l2": ["warm", "", "", "cold", "", ""], "settings": ["", "", "", "", "gpu.sm_count=66", ""]}
    PROBLEMS.assign(**places).to_csv(tmp_path / "problems.csv", index=False)
    ranked = written(gemm_model, tmp_path / "best.csv", "rank", "--input", tmp_path / "problems.csv")
    for row in range(len(PROBLEMS)):
        PROBLEMS[row : row + 1].to_csv(tmp_path / "one.csv", index=False)
        words = [f"model_opts.l2={places['l2'][row] or 'cold'}", "--regime", places["regime"][row] or "burst"]
        words += ["--gpu", "h100_sxm" if row == 2 else "h200", "--sms", 66 if row == 4 else 132]
        one = written(gemm_model, tmp_path / "two.csv", "rank", "--input", tmp_path / "one.csv", *words)
        assert predicted(one) == pytest.approx(predicted(ranked)[row], rel=1e-12)
    assert predicted(read_again(gemm_model, tmp_path / "best.csv")) == pytest.approx(
        predicted(ranked), rel=1e-12
    )
    shown = gemm_model("predict", "--input", tmp_path / "best.csv").out.splitlines()[0]
    assert {"gpu", "regime", "l2", "settings"} < set(shown.split())
    refused = gemm_model("portfolio", "--input", tmp_path / "best.csv", "--max-kernels", 2)
    assert refused.code == 2
    assert "best.csv: rows of h200 burst warm and of h200 graph cold and of" in refused.err


ONE = ["--m", "640", "--n", "4096", "--k", "4096", "--cta", "128x128"]


@pytest.mark.parametrize(*cases(__file__, "test_one_answer_is_a_table_too"))
def test_one_answer_is_a_table_too(gemm_model, tmp_path, words):
    one = written(gemm_model, tmp_path / "one.csv", *words)
    again = read_again(gemm_model, tmp_path / "one.csv")
    assert predicted(again) == pytest.approx(predicted(one), rel=1e-9)
    again.to_csv(tmp_path / "twice.csv", index=False)
    twice = read_again(gemm_model, tmp_path / "twice.csv")
    assert predicted(twice) == pytest.approx(predicted(one), rel=1e-9)


@pytest.mark.parametrize(
    "ending", ["jsonl", *(pytest.param(each, marks=pytest.mark.slow) for each in ("json", "parquet"))]
)
def test_tables_of_every_verb_are_read_in_every_format(gemm_model, tmp_path, ending):
    problems, served = tmp_path / "problems.csv", tmp_path / "served.csv"
    PROBLEMS.to_csv(problems, index=False)
    served.write_text("tokens,n,k,experts,topk\n16,4096,4096,8,2\n64,1024,4096,1,1\n")
    attention = "causal heads=32 kv_heads=8 seq_q=4096 head_dim=128"
    questions = [
        ("rank", "--input", problems),
        ("portfolio", "--input", problems.with_name("fp8.csv"), "--max-kernels", 2),
        ("rank", "--input", served),
        ("rank", "--attention", attention),
        ("predict", *ONE, "--kernel", "triton"),
    ]
    PROBLEMS.assign(in_dtype="fp8").to_csv(tmp_path / "fp8.csv", index=False)
    for number, words in enumerate(questions):
        table = written(gemm_model, tmp_path / f"{number}.csv", *words)
        path = tmp_path / f"{number}.{ending}"
        assert gemm_model(*words, "--output", path).code == 0
        assert predicted(read_again(gemm_model, path)) == pytest.approx(predicted(table), rel=1e-9)
        if "--input" in words:
            asked = ("rank", *words[3:]) if words[0] == "rank" else ("portfolio", *words[3:])
            again = written(gemm_model, tmp_path / "again.csv", *asked, "--input", path)
            assert predicted(again) == pytest.approx(predicted(table), rel=1e-3)


WRITERS = {
    "rank": ["rank", "--input", "problems.csv"],
    "predict": ["predict", "--input", "rank.csv"],
    "portfolio": ["portfolio", "--input", "problems.csv", "--max-kernels", 2],
    "ranking": ["rank", "--m", 512, "--n", 28672, "--k", 8192, "--dtype", "fp8", "--top", 1],
    "prediction": ["predict", *ONE, "--dtype", "fp8"],
    "plan": ["plan", "--budget", "1s", "--dtype", "fp8", "--input", "problems.csv"],
    "warm": ["rank", "--input", "problems.csv", "model_opts.l2=warm"],
    "model": ["model", ROOT / "examples" / "llama_8b.json", "--context", 64],
    "torch": ["torch", "net.py:build"],
}
READERS = {
    "predict": [],
    "rank": [],
    "portfolio": ["--max-kernels", 9],
    "plan": ["--budget", "1s"],
    "benchmark": ["--dry-run", "--kernels", "quack,cublaslt"],
}


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_what_each_verb_writes_each_verb_reads_with_the_same_answer(
    gemm_model, tmp_path, monkeypatch, writer
):
    monkeypatch.chdir(tmp_path)
    PROBLEMS.assign(in_dtype="fp8")[:2].to_csv("problems.csv", index=False)
    Path("net.py").write_text(NET)
    pytest.importorskip("torch" if writer == "torch" else "pandas")
    for name in dict.fromkeys(("rank", writer)):
        table = gemm_model(*WRITERS[name], "--output", f"{name}.csv")
        assert table.code == 0, table.err
    table = pd.read_csv(f"{writer}.csv")
    options = {name: table[name][0] for name in ("regime", "l2") if name in table}
    kernels = predict_table(table, "h200", options=options)
    asked = table.loc[table["m"].notna(), [name for name in PROBLEM_COLUMNS if name in table]]
    best = rank_table(asked, Ranker("h200", options=options))
    expected = {"predict": predicted(kernels), "rank": predicted(best), "portfolio": predicted(best)}
    if writer in ("model", "torch"):
        assert predicted(kernels) == pytest.approx(predicted(table), rel=1e-12, nan_ok=True)
    elif writer not in ("plan", "prediction"):
        assert predicted(kernels) == pytest.approx(predicted(best), rel=1e-3)
    for reader, words in READERS.items():
        sink = [] if reader == "benchmark" else ["--output", f"{reader}_again.csv"]
        found = gemm_model(reader, "--input", f"{writer}.csv", *words, *sink)
        assert found.code == 0, (reader, found.err)
        if reader in expected:
            again = pd.read_csv(f"{reader}_again.csv")
            assert predicted(again) == pytest.approx(expected[reader], rel=1e-9, nan_ok=True), reader


@pytest.mark.parametrize(*cases(__file__, "test_a_file_that_holds_no_table_is_refused"))
def test_a_file_that_holds_no_table_is_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_table(tmp_path / name)


def test_dtype_means_in_dtype(gemm_model, tmp_path):
    path, named = tmp_path / "dtype.csv", tmp_path / "in_dtype.csv"
    path.write_text("m,n,k,dtype\n4096,4096,8192,fp8\n")
    named.write_text("m,n,k,in_dtype\n4096,4096,8192,fp8\n")
    found = written(gemm_model, tmp_path / "found.csv", "rank", "--input", path)
    assert predicted(found) == predicted(written(gemm_model, tmp_path / "same.csv", "rank", "--input", named))
    assert "dtype" not in found
    assert found["in_dtype"].tolist() == ["fp8"]
    served = written(gemm_model, tmp_path / "p.csv", "portfolio", "--input", path, "--max-kernels", "1")
    assert predicted(served) == pytest.approx(predicted(found))
    assert served["a_dtype"].tolist() == ["e4m3"]


@pytest.mark.parametrize("verb", ["rank", "predict", "portfolio"])
def test_a_note_names_columns_that_nothing_reads(gemm_model, tmp_path, verb):
    path = tmp_path / "table.csv"
    path.write_text("m,n,k,in_dtype,cta_m,cta_n,cluster_m,cluster_n,layer\n64,64,64,bf16,128,128,1,1,up\n")
    words = ["--max-kernels", "1"] if verb == "portfolio" else []
    found = gemm_model(verb, "--input", path, *words, "--format", "csv")
    assert found.code == 0
    measured = gemm_model("benchmark", "--input", path, "--dry-run").err
    assert (
        "kernels are those of --kernels and more (--rows: the table's own), whatever the table says"
        in measured
    )
    assert "columns that nothing reads travel along: layer" in found.err
    assert pd.read_csv(io.StringIO(found.out))["layer"].tolist() == ["up"]


KERNEL = "m,n,k,in_dtype,kernel,cta_m,cta_n,cluster_m,cluster_n"
CELLS = "4096,4096,4096,fp8,triton,128,128,1,1"


def test_tritons_defaults_are_what_its_kernels_do():
    cells = dict(zip(KERNEL.split(","), CELLS.split(","), strict=True))
    given = {"fast_accum": ["1", "", "1"], "stages": ["3", "", "4"], "in_dtype": ["fp8", "fp8", "bf16"]}
    found = predict_table(pd.DataFrame({**cells, **given}), "h200")
    assert found["predicted_us"][0] == found["predicted_us"][1]
    assert "1 row of triton: fast_accum is 1, as of all its kernels" in found.attrs["notes"]
    assert "1 row: fast_accum has no effect on operands of more than 8 bits" in found.attrs["notes"]
    with pytest.raises(InputError, match="row 0: slow fp8 sums; those of triton kernels on sm90 stay"):
        predict_table(pd.DataFrame({**cells, "fast_accum": [0]}), "h200")


def test_others_names_are_read_and_never_written():
    frame = pd.DataFrame(
        {"M": [64], "N": [128], "K": [256], "gemm_dtype": ["fp8"], "BLOCK_M": [128], "block_size_n": [64]}
        | {"num_stages": [3], "num_warps": [4], "GROUP_SIZE_M": [8], "time_ms": [0.02]}
    )
    found = understood(frame)
    assert found.loc[0].to_dict() == {
        **{"m": 64, "n": 128, "k": 256, "in_dtype": "fp8", "cta_m": 128, "cta_n": 64},
        **{"stages": 3, "warps": 4, "swizzle": 8, "runtime_us": 20.0},
    }


def test_two_columns_that_say_one_thing_differently_are_refused():
    both = pd.DataFrame({"m": [1], "n": [1], "k": [1], "dtype": ["fp8"], "in_dtype": ["bf16"]})
    with pytest.raises(InputError, match="columns 'dtype' and 'in_dtype' both say in_dtype"):
        understood(both)
    assert "dtype" not in understood(both.assign(dtype="bf16"))
    filled = understood(pd.DataFrame({"num_warps": ["4", "", "8"], "warps": ["", "2", "8"]}))
    assert filled.to_dict("list") == {"warps": ["4", "2", "8"]}


def test_the_shipped_tables_hold_known_columns_alone():
    for path in MEASUREMENTS.glob("*/*.csv.gz"):
        with gzip.open(path, "rt") as lines:
            header = next(line for line in lines if not line.startswith("#")).strip().split(",")
        if {"m", "n", "k", "in_dtype", "runtime_us"} <= set(header):
            read = {"num_warps": "warps"}
            expected = {read.get(name, name) for name in header}
            assert set(understood(pd.DataFrame(columns=header)).columns) == expected, path


def test_a_swapped_row_is_the_kernel_of_the_transposed_problem():
    row = {"m": 64, "n": 4096, "k": 1024, "a_dtype": "bf16", "b_dtype": "fp8", "cta_m": 256, "cta_n": 64}
    row |= {"cluster_m": 2, "cluster_n": 1, "c_major": "n", "b_major": "n"}
    other = row | {"m": 4096, "n": 64, "a_dtype": "fp8", "b_dtype": "bf16", "c_major": "m"}
    other |= {"a_major": "m", "b_major": "k"}
    one = predict_table(pd.DataFrame([{**row, "swap_ab": 1}, {**row, "swap_ab": 0}]), "b200_sxm", "SOLModel")
    same = predict_table(pd.DataFrame([other]), "b200_sxm", "SOLModel")
    assert one["predicted_us"][0] == same["predicted_us"][0]
    swapped = predict_table(pd.DataFrame([{**row, "b_dtype": "bf16", "swap_ab": 1}]), "h200")
    plain = predict_table(pd.DataFrame([{**other, "a_dtype": "bf16"}]), "h200")
    assert swapped["predicted_us"][0] == plain["predicted_us"][0]
    assert swapped[["m", "n"]].to_numpy().tolist() == [[64, 4096]]


def test_layouts_and_scales_of_a_table_are_ranked_as_they_are_predicted():
    rows = pd.DataFrame({"m": [4096], "n": [4096], "k": [4096], "in_dtype": ["bf16"], "a_major": ["m"]})
    (problem,) = problems_of_table(rows)
    assert (problem.a_major, problem.b_major) == ("m", "k")
    scaled = {"in_dtype": "e2m1", "sf_dtype": "e4m3", "sf_vec_size": "16"}
    (problem,) = problems_of_table(pd.DataFrame([{"m": 8, "n": 8, "k": 64, **scaled}]))
    assert problem.a_scale == problem.b_scale
    assert problem.a_scale.vec_size == 16


def test_a_ranked_table_says_nothing_of_another_kernel_and_its_time():
    row = {"m": 512, "n": 512, "k": 512, "in_dtype": "bf16", "mma_m": 64, "warps": 8, "runtime_us": -1.0}
    found = rank_table(pd.DataFrame([row | {"disposition": "ok", "note": "mine"}]), Ranker("h200"))
    assert not {"mma_m", "warps", "runtime_us", "disposition"} & set(found)
    assert found["note"].tolist() == ["mine"]


def test_all_rows_come_back_with_what_became_of_them(gemm_model, tmp_path):
    cells = ["quack,128,128,1,1,ok,9", "quack,128,128,1,1,compile_error,", "cublas,,,1,1,ok,8"]
    cells += ["quack,128,64,1,1,ok,", "quack,128,128,1,1,,7", "cutlass,512,512,1,1,cannot_run,"]
    names = [*KERNEL.split(","), "disposition", "runtime_us"]
    rows = pd.DataFrame([f"512,512,512,bf16,{row}".split(",") for row in cells], columns=names)
    found = predict_table(rows, "h200")
    assert found["disposition"].tolist() == ["ok", "compile_error", "no_tile", "ok", "failed", "cannot_run"]
    assert found["predicted_us"].notna().tolist() == [True, False, False, True, False, False]
    ratios = [found["predicted_us"][0] / 9.0, *[float("nan")] * 5]
    assert found["ratio"].tolist() == pytest.approx(ratios, nan_ok=True)
    assert found.index.tolist() == rows.index.tolist()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    written = gemm_model("predict", "--input", tmp_path / "rows.csv", "--format", "json")
    assert len(json.loads(written.out)["rows"]) == 6
    assert "1 row cannot run, no prediction: " in written.err
    assert "1 row of kernel cublas without a tile: no prediction" in written.err
    rows.assign(gpu=["h200", "h100_sxm", "l40s", "h200", "h100_sxm", "h200"]).to_csv(tmp_path / "rows.csv")
    again = gemm_model("predict", "--input", tmp_path / "rows.csv", "--format", "json")
    assert [row["disposition"] for row in json.loads(again.out)["rows"]] == found["disposition"].tolist()
    assert "no prediction on l40s" in again.err


def test_names_of_the_schema_are_no_slips_of_each_other():
    assert set(understood(pd.DataFrame(columns=sorted(KNOWN)))) == KNOWN
