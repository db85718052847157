"""Documentation says what is so: its commands and its Python run, its links lead somewhere.

A block with the comment `<!-- not run: reason -->` before it is checked as far as that goes: the options of
its commands are parsed, its Python is compiled. `<!-- needs PACKAGE -->` skips a block where that is missing."""

import contextlib
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pandas as pd
import pytest

from gemm_model.cli import OneSentenceParser, main
from gemm_model.commands.options import add_verb
from gemm_model.config.mechanisms import MECHANISM_NAMES, NUMBERS
from gemm_model.config.numbers import room_numbers
from gemm_model.fleet.cluster import _batch_jobs
from gemm_model.serving import planner_tables

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
GENERATED = ("commands.md", "api.md", "configuration.md", "numbers.md")
"""Pages of docs/reference, which scripts/docs_reference.py makes while the site is built."""
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
SHIPPED = ("data", "testlists", "examples")


class Block(NamedTuple):
    """A fenced block of a page."""

    mark: str
    language: str
    code: str

    @property
    def run(self):
        return not self.mark.startswith("not run")


def documents():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [Block(found["mark"] or "", found["language"], found["code"]) for found in FENCE.finditer(text)]


def commands(block):
    """The commands of a console block: lines after '$ ', continued lines joined, remarks left out."""
    joined = re.sub(r"\\\n\s*", " ", block.code)
    lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def missing_package(block):
    needed = re.fullmatch(r"needs (\w+)", block.mark)
    return needed[1] if needed and find_spec(needed[1]) is None else None


def name_of(page):
    return str(page.relative_to(ROOT))


PAGES_WITH = {
    language: [page for page in documents() if any(block.language == language for block in blocks(page))]
    for language in ("console", "python")
}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty folder in which the repository's data stand where they stand in a clone."""
    for name in SHIPPED:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES_WITH["console"], ids=name_of)
def test_commands_run(page, workplace, capsys):
    for block in blocks(page):
        for command in commands(block) if block.language == "console" else ():
            words = shlex.split(command.removeprefix("uvx "))
            if words[0] == "gemm-model" and block.run:
                assert main(_with_files(words[1:])) == 0, f"{command}\n{capsys.readouterr().err}"
            elif words[0] == "gemm-model":
                check_options(words[1:])
            elif words[0] == "make":
                assert words[1] in targets(), command
            else:
                assert words[0] in ("python", "pip", "podman", "ncu"), command
                ours = [word for word in words if word.startswith(("scripts/", "benchmarks/", "examples/"))]
                assert all((ROOT / script).is_file() for script in ours), command


def test_the_ranking_that_the_readme_shows_is_todays(capsys):
    """Its columns, and its times in order to 1 %: kernels that tie may change places."""
    block = next(each for each in blocks(ROOT / "README.md") if "\nrank ties" in each.code)
    command, head, *shown = block.code.strip().splitlines()
    assert main(shlex.split(command)[2:]) == 0
    today = capsys.readouterr().out.splitlines()
    assert today[0] == head
    column = head.split().index("predicted_us")
    printed, found = (
        [float(row.split()[column]) for row in rows if row.strip()] for rows in (shown, today[1:])
    )
    assert printed == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("page", documents(), ids=name_of)
def test_a_block_that_no_test_runs_is_no_code(page):
    """What is neither run nor checked is a formula or a list of files: no line of it is a command."""
    for block in blocks(page):
        assert block.language in ("console", "python", "yaml", "text", ""), block.code
        if block.language in ("text", ""):
            assert not re.search(r"^\s*(\$ |gemm-model |python |pip |make )", block.code, re.MULTILINE), (
                block.code
            )
    fences = re.findall(r"^ *(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))


def test_yaml_blocks_are_clusters_that_the_fleet_starts(workplace, monkeypatch):
    started = []

    class Jobs(contextlib.nullcontext):
        def __init__(self, **options):
            super().__init__(self)
            started.append(options)

        def scale(self, jobs):
            started.append(jobs)

    jobqueue = SimpleNamespace(SLURMCluster=Jobs)
    monkeypatch.setattr("gemm_model.fleet.cluster.import_module", lambda _name: jobqueue)
    found = [block for page in documents() for block in blocks(page) if block.language == "yaml"]
    assert len(found) == 1
    (workplace / "cluster.yaml").write_text(found[0].code, encoding="utf-8")
    with _batch_jobs(workplace / "cluster.yaml"):
        assert started[0]["worker_extra_args"] == ["--resources", "gpu=1"]
        assert started[1] == 4


def _with_files(words):
    """Words in which patterns of file names stand for the files, as a shell would have it."""
    return [
        name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]


def check_options(words):
    verb, *rest = words
    parser = OneSentenceParser(exit_on_error=False)
    add_verb(parser, verb)
    parser.parse_args(parser.apart(rest)[1])


def targets():
    return re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES_WITH["python"], ids=name_of)
def test_python_runs(page, workplace):
    """The blocks of a page run one after another, as a reader types them; a notebook is such a page."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language != "python" or missing_package(block):
            continue
        code = compile(block.code, str(page), "exec")
        if block.run:
            exec(code, names)


def test_notebooks_are_notebooks():
    jupytext = pytest.importorskip("jupytext", reason="notebooks are read by jupytext")
    for page in sorted((ROOT / "docs/notebooks").glob("*.md")):
        cells = jupytext.read(page).cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        assert code == [block.code.rstrip("\n") for block in blocks(page)], page.name
        assert code


@pytest.mark.parametrize("page", documents(), ids=name_of)
def test_links_lead_somewhere(page):
    for found in LINK.finditer(page.read_text(encoding="utf-8")):
        target, _, anchor = (found[1] or found[2]).partition("#")
        if target.startswith(("http:", "https:")) or Path(target).name in GENERATED:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def anchors(page):
    """What a link to a section of a page may name: its headings as the site and GitHub spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.strip().replace(" ", "-") for text in plain}


def test_reference_tells_every_verb_and_unit():
    completed = subprocess.run(
        [sys.executable, "-c", "import docs_reference; print(*docs_reference.pages().values())"],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    for heading in ("## predict", "## rank", "## explore", "## calibrate"):
        assert f"\n{heading}\n" in completed.stdout
    for row in ("| `sm_clk_mhz` | MHz |", "| `l2_read_gb_per_s` | GB/s |", "| `l2_bytes` | bytes |"):
        assert row in completed.stdout
    for heading in ("## launch", "## split_k", "## power"):
        assert f"\n{heading}\n" in completed.stdout
    clusters = "| `clusters_us` | us | time to launch clusters of several CTAs"
    assert clusters in completed.stdout


@pytest.mark.parametrize("page", documents(), ids=name_of)
def test_pages_name_numbers_that_exist(page):
    found = re.findall(r"`([a-z0-9_]+\.(?!py`|yaml`)[a-z0-9_]+)`", page.read_text(encoding="utf-8"))
    assert {name for name in found if name.split(".")[0] in MECHANISM_NAMES} <= set(NUMBERS)


EXAMPLES = Path(__file__).parents[2] / "examples"
BURST = EXAMPLES.parent / "data/measurements/h200/burst.csv.gz"
TEMPLATE = r"\n  \{'template_id': 'aten::.*\n  \{'template_id': 'triton::mm'.*\n"
OUT = {
    "choose_for_a_model": r"qkv .*\nattention output .*\ngate and up .*\ndown .*\nall four: ",
    "prune_triton_autotuner": r"^18 configurations.*(\n.+){4}\n$",
    # Three linear layers: one GEMM forward and two backward each, 2 x 2048 x 4096 x 14336 FLOP a GEMM.
    "time_a_torch_model": r"9 GEMMs, 2.165e\+12 FLOP",
    "calibrate_from_a_table": r"shipped  mean error .*\nfitted   mean error",
    "add_a_gpu": r"(?s)h200: (.*?) us with .*half_h200: (.*?) us with ",
    "compile_without_tuning": rf"addmm{TEMPLATE}.*mm{TEMPLATE}$",
    # A kernel's scale comes in three shapes.
    "fill_flashinfer_cache": r"^36 keys for 12 products.*(\n\('fp4_gemm.*\n  \[\[(128|256), .*\]){4}\n$",
    "fill_quack_cache": r"(.* GemmConfig\(.*device_capacity=9.*\n){4}4 products, 8 files",
    "order_cutlass_operators": r"(gemm-model: .* us\n){4}(nvMatmulHeuristics: .* us\n){4}",
    "plan_a_deployment": r"first token (\d+) ms, then (.*) ms a token",
    "simulate_with_vidur": r"\n2048 tokens: (.*) ms\n8 tokens: (.*) ms\n$",
}
"""What each prints."""
PACKAGES = ("aiconfigurator", "cutlass.operators", "nvMatmulHeuristics", "quack", "torch", "triton", "vidur")
"""Which of them a script needs, its text says."""
ROOM = {
    # Half the SMs and two thirds of the memory.
    "add_a_gpu": lambda known, smaller: 1.5 < smaller / known < 2.5,
    # 2,048 tokens of 16 GFLOP at 90 to 362 TFLOP/s; 16 GB of weights at 864 GB/s and at half of it.
    "plan_a_deployment": lambda first, each: 90 < first < 370 and 18.5 < each < 37,
    # Without the tokens' vocabulary: 14 GFLOP a token, 14 GB of weights.
    "simulate_with_vidur": lambda first, each: 79 < first < 320 and 16.2 < each < 32.4,
}
"""What the numbers of a pattern lie in."""


def test_examples_are_short():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [path.stem for path in scripts] == sorted(OUT)
    assert [path.name for path in scripts if len(path.read_text(encoding="utf-8").splitlines()) > 40] == []


@pytest.mark.parametrize("name", OUT)
def test_an_example_prints_what_it_is_about(name, monkeypatch, capsys, tmp_path):
    script = EXAMPLES / f"{name}.py"
    for package in PACKAGES:
        if package in script.read_text(encoding="utf-8"):
            pytest.importorskip(package, reason=f"the example needs {package}")
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setenv("QUACK_CACHE_DIR", str(tmp_path))
    coarse = room_numbers("serving").having(vidur_sizes=1.0)
    monkeypatch.setattr(planner_tables, "room_numbers", lambda _: coarse)
    if name == "calibrate_from_a_table":
        rows = pd.read_csv(BURST, dtype=str, keep_default_na=False)
        rows = rows[(rows["cta_m"] != "") & (rows["in_dtype"] == "bf16")]
        few = rows.merge(rows[["m", "n", "k"]].drop_duplicates()[::14]).groupby(["m", "n", "k"]).head(6)
        few.to_csv(tmp_path / "few.csv", index=False)
        sys.argv.append(str(tmp_path / "few.csv"))
    runpy.run_path(str(script), run_name="__main__")
    found = re.search(OUT[name], capsys.readouterr().out)
    assert found
    assert name not in ROOM or ROOM[name](*map(float, found.groups()))
