"""The command and the classic script, run as a user runs them."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from gemm_model.commands.common import words as remark
from tests.cases import cases
from tests.conftest import ROOT


def run_python(*words, cwd=ROOT):
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_classic_script_and_command_do_the_same_work(tmp_path, classic_table, gemm_model):
    script = run_python(
        ROOT / "predict_gemm.py",
        f"+input_csv={classic_table}",
        f"+output_dir={tmp_path / 'a'}",
        *("model=WSPersistentGEMMModel", "gpu=b200", "model_opts.l2_hit_rate=0.4"),
    )
    assert script.returncode == 0, script.stderr
    words = ("--model", "WSPersistentGEMMModel", "--gpu", "b200_1300mhz", "model_opts.l2_hit_rate=0.4")
    command = gemm_model("predict", "--input", classic_table, "--output", tmp_path / "b", *words)
    assert command.code == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [
        "predicted_vs_measured_WSPersistentGEMMModel_l2hit0.4.png",
        "predictions_WSPersistentGEMMModel_l2hit0.4.csv",
        "s_curve_WSPersistentGEMMModel_l2hit0.4.png",
        "summary_WSPersistentGEMMModel_l2hit0.4.json",
    ]
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    classic, today = (pd.read_csv(tmp_path / folder / names[1]) for folder in "ab")
    assert classic["predicted_runtime"].tolist() == today["predicted_us"].tolist()
    assert classic["actual_runtime"].tolist() == today["runtime_us"].tolist()
    assert (tmp_path / "a" / names[3]).read_text() == (tmp_path / "b" / names[3]).read_text()
    # The script prints each of the extreme kernels whole, the command a line of each.
    (kernels, accuracy), (lines, same) = (text.split("ACCURACY") for text in (script.stdout, command.out))
    assert (kernels.count("\nRATIO: "), lines.count("\nRATIO: "), accuracy) == (6, 0, same)


def test_unvalidated_gpus_carry_a_caveat(gemm_model):
    words = ("predict", "--m", 64, "--n", 64, "--k", 64, "--cta", "64x64", "--model", "SOLModel")
    assert "caveat: GPU rtx_4090: not validated" in gemm_model(*words, "--gpu", "rtx_4090").out
    assert "caveat" not in gemm_model(*words, "--gpu", "h200").out


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--m", "9" * 4400),
        ("predict", "--m", "4", "--n", "4", "--k", "4", "--cta", "64x64", "--dtype", "\udcff"),
        ("foretell",),
        (),
    ],
)
def test_bad_words_get_one_sentence_and_exit_code_2(gemm_model, words):
    result = gemm_model(*words)
    assert result.code == 2
    assert result.out == ""
    assert len(result.err.strip().splitlines()) == 1
    assert len(result.err) < 400
    assert result.err.startswith("gemm-model predict: " if words[:1] == ("predict",) else "gemm-model: ")


@pytest.mark.parametrize("verb", ["rank", "portfolio", "benchmark"])
def test_a_type_of_half_a_character_is_refused_for_tables_too(tmp_path, gemm_model, verb):
    if verb == "benchmark":
        pytest.importorskip("torch", reason="its provider needs torch")
    (tmp_path / "shapes.csv").write_text("m,n,k\n512,512,512\n")
    more = {"portfolio": ["--max-kernels", 1], "benchmark": ["--dry-run", "--kernels", "simt"]}.get(verb, [])
    outcome = gemm_model(verb, "--input", tmp_path / "shapes.csv", "--dtype", "\udcff", *more)
    assert outcome.code == 2
    assert "unknown data type" in outcome.err


SQUARE = ("--m", 512, "--n", 512, "--k", 512)
KERNEL = (*SQUARE, "--cta", "128x128")


@pytest.mark.parametrize(
    *cases(__file__, "test_a_file_whose_name_tells_no_format_that_it_can_have_is_refused")
)
def test_a_file_whose_name_tells_no_format_that_it_can_have_is_refused(
    tmp_path, gemm_model, words, named, endings
):
    path = tmp_path / named
    outcome = gemm_model(*words, path)
    assert outcome.code == 2
    assert f"{words[-1]} {path}: expected a name that ends in {endings}" in outcome.err
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    *cases(__file__, "test_a_card_with_less_shared_memory_than_a_kernel_needs_is_refused_by_key")
)
def test_a_card_with_less_shared_memory_than_a_kernel_needs_is_refused_by_key(
    tmp_path, gemm_model, words, needed
):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: h200\nsmem_bytes_per_cta: 17000\n")
    outcome = gemm_model(*words, "--gpu", path)
    assert outcome.code == 2
    assert needed in outcome.err
    assert "the 17000 bytes of smem_bytes_per_cta of GPU mine" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_format_that_is_told_and_text_to_paste_go_to_any_name(tmp_path, gemm_model):
    rows, kernel = tmp_path / "rows.data", tmp_path / "kernel.py"
    assert gemm_model("rank", *SQUARE, "--format", "csv", "--output", rows).code == 0
    assert rows.read_text().startswith("rank,")
    assert gemm_model("rank", *SQUARE, "--emit", "quack", "--output", kernel).code == 0
    assert "GemmConfig" in kernel.read_text()


def test_an_output_that_cannot_be_written_is_refused(tmp_path, classic_table, gemm_model):
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    result = gemm_model("predict", "--input", classic_table, "--output", blocker, "--gpu", "b200_1300mhz")
    assert result.code == 2
    assert "cannot be written" in result.err
    assert blocker.read_text() == "in the way"


def test_classic_script_asks_for_its_paths():
    result = run_python(ROOT / "predict_gemm.py", "gpu=b200_1300mhz")
    assert result.returncode == 2
    assert "+input_csv= is missing" in result.stderr


def test_the_start_of_any_verb_imports_nothing_that_takes_long():
    code = (
        "import sys; from gemm_model.cli import parser_of; parser_of(None);"
        "names = ('torch', 'pandas', 'scipy', 'matplotlib', 'distributed', 'pyarrow', 'triton', 'quack',"
        " 'cutlass', 'plotly', 'z3', 'catboost', 'rich', 'yaml');"
        "print([name for name in names if name in sys.modules])"
    )
    assert run_python("-c", code).stdout.strip() == "[]"


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    table = tmp_path / "long.csv"
    table.write_text("in_dtype,m,n,k\n" + "bf16,128,128,128\n" * 6_000)
    predict = f"'{sys.executable}' -m gemm_model.cli predict --input '{table}' --model SOLModel --format csv"
    command = f"{predict} | head -n 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ,
    )
    assert result.returncode == 0
    assert "Traceback" not in result.stderr


def test_lists_tell_the_types_that_are_multiplied(gemm_model):
    rows = json.loads(gemm_model("list", "gpus", "--format", "json").out)["rows"]
    types = {row["name"]: row["types"] for row in rows}
    assert types["v100_sxm2"] == "fp32, fp16"
    assert types["h200"] == "fp32, tf32, fp16, bf16, e4m3, e5m2, int8"
    rows = json.loads(gemm_model("list", "types", "--format", "json").out)["rows"]
    kinds = {row["name"]: row["rate_class"] for row in rows}
    assert [kinds[name] for name in ("bf16", "e2m1", "nvfp4", "int32", "e8m0")] == [
        *("fp16", "fp6", "fp4", None, None)
    ]


def test_a_power_cap_that_changes_nothing_is_said(gemm_model):
    words = ["predict", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x256", "gpu.power_cap_w=300"]
    note = "note: gpu.power_cap_w changes the clock of the regime sustained alone"
    assert gemm_model(*words).err.count(note) == 1
    assert note not in gemm_model(*words, "--regime", "sustained").err


def test_remarks_fit_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    remark(text := "note: " + "as many words as fit " * 15)
    lines = capsys.readouterr().err.splitlines()
    assert (" ".join(lines).split(), max(map(len, lines)) <= 60) == (text.split(), True)
