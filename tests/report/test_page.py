"""Pages as files: what they hold, how large they are, and what they refuse."""

import base64
import gzip
import json
import re
from argparse import Namespace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, rank
from gemm_model.cli import main
from gemm_model.commands.benchmark import write_page
from gemm_model.config import read_toml
from gemm_model.errors import MissingExtraError
from gemm_model.report.page import html as page_html_module
from gemm_model.report.page.choice import tile_map
from gemm_model.report.page.content import Columns, Fact, Page
from gemm_model.report.page.html import page_html
from tests.cases import cases, compare, made
from tests.conftest import ROOT

pytest.importorskip("plotly", reason="pages need plotly (extra `page`)")

BURST = ROOT / "data/measurements/h200/burst.csv.gz"
SHAPE = ["--m", "512", "--n", "1024", "--k", "2048"]


def content(path):
    """What a page's script reads."""
    text = path.read_text(encoding="utf-8")
    return json.loads(
        re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)[1]
    )


def columns(path):
    """A page's columns, unpacked as its script unpacks them."""
    text = path.read_text(encoding="utf-8")
    blob = re.search(r'id="columns">(.*?)</script>', text, re.DOTALL)[1]
    data = gzip.decompress(base64.b64decode(blob))
    types = {"Float32Array": "<f4", "Uint8Array": "u1", "Uint16Array": "<u2"}
    head = content(path)["columns"]
    return {
        each["name"]: np.frombuffer(data, types[each["type"]], head["rows"], each["start"])
        for each in head["columns"]
    }


def table(path, rows=40, *, measured=True):
    frame = pd.read_csv(BURST, nrows=4 * rows, dtype=str, keep_default_na=False)
    frame = frame[frame["cta_m"] != ""].head(rows)
    frame.drop(columns=[] if measured else ["runtime_us"]).to_csv(path, index=False)
    return path


def test_page_of_a_table_holds_its_rows(tmp_path):
    source = table(tmp_path / "kernels.csv")
    assert main(["predict", "--input", str(source), "--html", str(tmp_path / "page.html")]) == 0
    found, rows = columns(tmp_path / "page.html"), pd.read_csv(source)
    assert found["measured_us"] == pytest.approx(rows["runtime_us"].to_numpy(), rel=1e-6)
    assert found["m"].tolist() == rows["m"].tolist()
    names = {
        each["name"]: each.get("names") for each in content(tmp_path / "page.html")["columns"]["columns"]
    }
    assert names["type"] == sorted(set(rows["in_dtype"]))
    assert "128x256" in names["tile"]
    kinds = [figure["kind"] for figure in content(tmp_path / "page.html")["figures"]]
    assert kinds == ["s_curve", "predicted_measured", "ratio_by_time", "throughput", "error_map"]


def test_page_without_measurements_leaves_out_their_plots_and_says_so(tmp_path):
    source = table(tmp_path / "kernels.csv", measured=False)
    assert main(["predict", "--input", str(source), "--html", str(tmp_path / "page.html")]) == 0
    kinds = [figure["kind"] for figure in content(tmp_path / "page.html")["figures"]]
    assert kinds == ["throughput", "speed_map"]
    assert "measured_us" not in columns(tmp_path / "page.html")
    assert "This table holds no measurements" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(*cases(__file__, "test_pages_of_other_verbs"), ids=lambda value: value[0])
def test_pages_of_other_verbs(words, titles, tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n512,1024,2048\n16,4096,4096\n8192,8192,1024\n", encoding="utf-8")
    words = [str(shapes) if word == "SHAPES" else word for word in words]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    figures = content(tmp_path / "page.html")["figures"]
    assert [figure["title"] for figure in figures] == [*titles]
    assert all(figure["height_px"] > 100 for figure in figures)
    assert (tmp_path / "page.html").stat().st_size < 4e6
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    own = re.sub(r'<script type="application/octet-stream".*?</script>', "", text, flags=re.DOTALL)
    assert "http" not in own, "a page needs no network"
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", own)


def test_a_page_explains_the_terms_that_it_shows_in_the_glossarys_words(tmp_path):
    page = tmp_path / "page.html"
    assert main(["explore", *SHAPE, "--html", str(page)]) == 0
    terms = re.findall(r"<dt>(.*?)</dt><dd>", page.read_text().partition("class=terms>")[2])
    told = {word for words in terms for word in words.split(", ")}
    drawn = {each["title"]: each["traces"] for each in content(page)["figures"]}
    bars = {word for name in ("Limited by", "Way to the peak") for word in drawn[name][0]["y"]}
    names = {each["name"] for name in ("Tile against cluster", "Waves") for each in drawn[name][-2:]}
    assert {word for words in bars | names for word in words.split(", ")} <= {*told, "waves"}
    assert {"cooperative", "swizzle", "tie", "error band", "quack", "TFLOP/s", "l2 warm"} <= told
    glossary = [row.strip("| ").split(" | ") for row in (ROOT / "docs/glossary.md").read_text().splitlines()]
    assert dict(glossary[4:]).items() <= read_toml("terms").items()


@pytest.fixture
def traces(tmp_path):
    """The traces of each figure of the page that a verb writes, by title."""

    def of(*words):
        assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
        return {each["title"]: each["traces"] for each in content(tmp_path / "page.html")["figures"]}

    return of


def test_kernels_of_a_portfolio_are_numbered_and_tell_a_split_where_there_is_one(traces, tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n16,256,16384\n8192,8192,1024\n")
    found = traces("portfolio", "--input", str(shapes), "--max-kernels", "2")
    names = sorted(each["name"] for each in found["Loss of each shape"])
    assert [name.split()[0] for name in names] == ["1.", "2."]
    assert ["split-K" in name for name in names].count(True) == 1


def test_a_timeline_names_the_first_k_tile_as_the_others(traces):
    found = traces("simulate", *SHAPE, "--cta", "128x256")["Timeline"]
    words = [word for each in found for word in each["text"]]
    assert any("tile 0, k tile 0, stage 0" in word for word in words)
    # 16 tiles on as many SMs: the first CTA has one.
    assert all("<br>tile 0" in word for word in words)
    assert not any("ring" in each["y"] for each in found)


def test_shares_of_an_attentions_units_are_of_its_runtime(traces):
    (found,) = traces("explore", "--attention", "full heads=8 kv_heads=8 seq_q=4096 head_dim=128")[
        "Limited by"
    ]
    assert 80.0 < sum(found["x"]) < 101.0


def test_parts_of_a_model_tell_calls_and_the_time_of_each(traces):
    words = [str(ROOT / "examples/llama_8b.json"), "--batch", "4", "--context", "100"]
    (found,) = next(iter(traces("model", *words).values()))
    assert all(re.match(r"\d+ x [\d.,]+ us, ", text) for text in found["text"])


@pytest.mark.parametrize(*cases(__file__, "test_plots_draw"))
def test_plots_draw(module, function, arguments, expected, monkeypatch):
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(f"gemm_model.report.{module}.save_figure", lambda figure, _: figures.append(figure))
    getattr(import_module(f"gemm_model.report.{module}"), function)(*map(made, arguments), None)
    compare(figures[0], expected)


def test_full_waves_are_drawn_alone_where_no_wave_is_partial(traces):
    # 132 tiles of 128 x 256 are a wave of an H200: four of them.
    words = ["--m", str(132 * 128), "--n", "1024", "--k", "2048", "--cta", "128x256"]
    assert [100.0] * 4 in [each["y"] for each in traces("explain", *words)["Waves"]]


def test_page_of_a_benchmark_compares_its_rows(tmp_path):
    source = table(tmp_path / "rows.csv")
    write_page(Namespace(output=source, html=tmp_path / "page.html", overrides=["gpu=h200"]))
    assert len(columns(tmp_path / "page.html")["measured_us"]) == 40
    assert "<h1>rows.csv</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_texts_of_a_page_cannot_end_its_script_or_become_markup():
    hostile = "</script><img src=x onerror=alert(1)>"
    page = Page(
        title=hostile,
        subtitle=hostile,
        facts=[Fact(label=hostile, value=hostile)],
        notes=[hostile],
        columns=Columns(numbers={"m": np.array([1.0])}, texts={"type": [hostile]}, filters={"type": "Type"}),
    )
    text = page_html(page)
    assert "<img" not in text.replace(json.dumps(hostile).replace("</", "<\\/"), "")
    assert text.count("</script>") == 4


def test_without_plotly_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(page_html_module, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"gemm-model\[plot\]"):
        page_html_module.plotly_script()


def test_tiles_without_a_kernel_have_no_text_on_the_map():
    figure = tile_map(rank(GemmProblem.of(512, 4096, 4096), "h200", 40))
    heat = figure.traces[0]
    missing = [place for row in heat["z"] for place in row].count(None)
    assert missing > 0
    for name in ("text", "hovertext"):
        cells = [cell for row in heat[name] for cell in row]
        assert None not in cells
        assert cells.count("") == missing
