import json
import os
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from gemm_model.cli import VERBS, main
from gemm_model.commands import options
from gemm_model.report import table_job
from scripts.try_package import COMMANDS, FILES, MISSING_EXTRA, NEED_AN_EXTRA

ROOT = Path(__file__).parents[1]
CPU_SECONDS = {"import": 0.15, "--help": 0.3, "predict": 0.8}
PREDICT = ["predict", "--m", "4096", "--n", "4096", "--k", "4096", "--cta", "128x128"]
MAIN = "import sys; from gemm_model.cli import main; sys.exit(main(sys.argv[1:]))"


def cpu_seconds(*words):
    """User and system time of a new process; a busy machine does not make it longer, unlike its duration."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("import", ["-c", "import gemm_model"]),
        ("--help", ["-c", MAIN, "--help"]),
        ("predict", ["-c", MAIN, *PREDICT]),
    ],
)
def test_it_starts_fast(name, words):
    assert any(cpu_seconds(*words) < CPU_SECONDS[name] for _ in range(3))


def test_importing_the_package_imports_no_other():
    script = "import sys, json; import gemm_model; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    others = {
        "numpy",
        "pandas",
        "scipy",
        "torch",
        "matplotlib",
        "yaml",
        "cutlass",
        "quack",
        "triton",
        "numba",
    }
    assert not (others | {"hydra"}) & set(json.loads(done.stdout))


@pytest.mark.slow
def test_all_tests_run_where_all_packages_are():
    """`make check` skips none for want of a package."""
    extras = ("baselines", "bench", "dev", "plot", "smt", "test", "torch")
    for each in map(Requirement, requires("gemm-model")):
        if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras):
            assert each.specifier.contains(version(each.name), prereleases=True), each


def test_every_verb_is_tried_from_the_wheel():
    tried = {words.split()[0] for words in (*COMMANDS, *NEED_AN_EXTRA)}
    assert set(VERBS) <= tried


def test_without_matplotlib_a_table_has_no_plots_and_a_plot_names_its_extra(tmp_path, monkeypatch, capsys):
    for module in (table_job, options):
        monkeypatch.setattr(module, "find_spec", lambda _name: None)
    table = tmp_path / "measured.csv"
    table.write_text(FILES["measured.csv"])
    assert main(["predict", "--input", str(table), "--output", str(tmp_path / "results")]) == 0
    assert "pip install 'gemm-model[plot]'" in capsys.readouterr().err
    assert not list((tmp_path / "results").glob("*.png"))
    words = ["simulate", *PREDICT[1:], "--plot", str(tmp_path / "plot.png")]
    assert main(words) == MISSING_EXTRA
    assert "gemm-model[plot]" in capsys.readouterr().err


def test_a_release_needs_no_stored_secret():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert "secrets." not in json.dumps(workflow, default=str)
    assert any("uv publish" in step.get("run", "") for step in publish["steps"])


def test_the_citation_file_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
