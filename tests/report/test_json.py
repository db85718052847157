"""Every verb's JSON against the one schema, its JSON lines, and its figures that do not exist."""

import json
from importlib.resources import files

import jsonschema
import pandas as pd
import pytest

from gemm_model.cli import VERBS, parser_of
from gemm_model.report.document import records
from tests.cases import cases
from tests.conftest import ROOT

SCHEMA = json.loads(files("gemm_model.report").joinpath("schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
KERNEL = ("--m", 1024, "--n", 2048, "--k", 512, "--cta", "128x128", "--cluster", "2x1")
SIZES = KERNEL[:6]
SHAPES = ROOT / "testlists" / "square.csv"


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def document_of(gemm_model, *words):
    outcome = gemm_model(*words, "--format", "json")
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out, parse_constant=refuse)
    VALIDATOR.validate(document)
    assert document["verb"] == words[0]
    return document


@pytest.mark.parametrize(*cases(__file__, "test_every_verb_prints_one_kind_of_document"))
def test_every_verb_prints_one_kind_of_document(gemm_model, words):
    document = document_of(gemm_model, *words)
    assert document["rows"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_format_json(verb):
    _, child = parser_of(verb)
    (action,) = (action for action in child._actions if "--format" in action.option_strings)
    assert "json" in action.choices


def test_a_page_and_a_script_have_documents_too(gemm_model, tmp_path):
    page = tmp_path / "page.html"
    explored = document_of(gemm_model, "explore", *SIZES, "--html", page)
    assert explored["result"]["file"] == str(page)
    (best,) = explored["rows"]
    (first,) = document_of(gemm_model, "rank", *SIZES, "--top", 1)["rows"]
    assert (best["tile"], best["predicted_us"]) == (first["tile"], first["predicted_us"])
    assert "gemm-model" in document_of(gemm_model, "completion", "zsh")["result"]["script"]


def test_every_time_of_a_row_tells_its_unit(gemm_model):
    surface = document_of(gemm_model, "overlap", "--m", 4096, "--k", 4096)["rows"]
    assert set(surface[0]) == {"overlap_ratio", "prefetch_ratio", "predicted_us"}
    phases = document_of(gemm_model, "simulate", *KERNEL)["rows"]
    assert {row["phase"]: row["unit"] for row in phases}["runtime"] == "us"
    assert [row["phase"] for row in phases if row["unit"] != "us"] == ["waves"]


def test_tables_too(gemm_model, tmp_path, classic_table):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n128,4096,4096\n4096,4096,4096\n")
    assert len(document_of(gemm_model, "rank", "--input", shapes)["rows"]) == 2
    assert len(document_of(gemm_model, "portfolio", "--input", shapes, "--max-kernels", 1)["rows"]) == 2
    words = ("--input", classic_table, "--model", "WSPersistentGEMMModel", "--gpu", "b200_1300mhz")
    rows = document_of(gemm_model, "predict", *words)["rows"]
    assert [(row["m"], row["cta_n"]) for row in rows] == [(4096, 64), (4096, 256), (4096, 256)]
    assert records(pd.DataFrame({"name": ["a", ""]})) == [{"name": "a"}, {"name": None}]
    lines = gemm_model("predict", *words, "--format", "jsonl")
    assert [json.loads(line) for line in lines.out.splitlines()] == rows
    assert "predicting 3 kernels" in lines.err
    head, *cells = gemm_model("predict", *words, "--format", "csv").out.splitlines()
    assert (head.startswith("in_dtype,acc_dtype"), len(cells)) == (True, 3)


def test_a_profile_without_sizes_too(gemm_model, tmp_path):
    path = tmp_path / "sums.csv"
    path.write_text("Total Time (ns),Instances,Name\n7000,1,nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT\n")
    (row,) = document_of(gemm_model, "explain", "--profile", path)["rows"]
    assert (row["measured_us"], row["predicted_us"], row["m"]) == (7.0, None, None)


def test_a_correlation_of_one_row_is_null(gemm_model, tmp_path):
    table = tmp_path / "one.csv"
    table.write_text("in_dtype,m,n,k,runtime_us\nbf16,512,512,512,9\n")
    (accuracy,) = document_of(gemm_model, "predict", "--input", table, "--model", "SOLModel")["result"][
        "accuracy"
    ]
    assert accuracy["rank_correlation"] is None
    assert accuracy["rows"] == 1


def test_the_output_file_s_name_tells_its_format(gemm_model, tmp_path):
    answers = {}
    for suffix in ("json", "jsonl", "csv", "txt"):
        path = tmp_path / f"best.{suffix}"
        assert gemm_model("rank", *SIZES, "--top", 2, "--output", path).out == ""
        answers[suffix] = path.read_text()
    rows = json.loads(answers["json"])["rows"]
    assert [json.loads(line)["predicted_us"] for line in answers["jsonl"].splitlines()] == [
        row["predicted_us"] for row in rows
    ]
    assert answers["csv"].splitlines()[0].startswith("rank,ties,kernel,tile")
    assert answers["txt"].splitlines()[0].split()[:3] == ["rank", "ties", "kernel"]
