"""The recipes of CONTRIBUTING.md, followed in a copy of the package: each names all that it touches."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemm_model import GemmProblem, KernelConfig, predict

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).parents[1] / "src" / "gemm_model"
FAMILY = """
[toy]
like = ["quack-sm90"]
name = "toy"
"""
MECHANISM = """
[toy]
meaning = "Every kernel waits for a toy."
resource = "LAUNCH"
of_code = true
wait_us = {unit = "us", start = 7.0, bounds = [0.0, 10.0], neutral = 0.0, meaning = "the wait", source = "a toy"}
"""
VERB = '''"""`gemm-model greet`: says what it is given."""

import argparse

from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    text = f"hello {args.who}"
    return Document(result={"text": text}, text=lambda: text)
'''
PROVIDER = '''"""A library with one kernel."""

from gemm_model.core.kernel_config import KernelConfig


class Library:
    name = "library:Library"

    def unsupported(self, problem, compute_capability):
        return "" if problem.a_dtype.name == "bf16" else "bf16 alone"

    def configs(self, problem, compute_capability):
        return [KernelConfig(cta_m=128, cta_n=256, kernel=self.name)]

    def kernel_key(self, problem, config):
        return config

    def compile(self, problem, config, compute_capability): ...

    def prepare(self, problem, config, operands): ...
'''


def edit(path, pattern, new):
    text, found = re.subn(pattern, new, path.read_text())
    assert found == 1, (path, pattern)
    path.write_text(text)


def copied(folder):
    package = folder / "gemm_model"
    shutil.copytree(SOURCES, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def verbs_of(folder):
    """`gemm-model` of the package that lies in a folder."""

    def run(*words):
        command = [sys.executable, "-m", "gemm_model.cli", *words]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`gemm-model` of a copy of the package to which a GPU, a family, a provider and a verb were added."""
    folder = tmp_path_factory.mktemp("package")
    package = copied(folder)
    card = (package / "config/gpu/h200.yaml").read_text().replace("name: h200", "name: toy_card", 1)
    (package / "config/gpu/toy_card.yaml").write_text(card)

    with (package / "config/families.toml").open("a") as families:
        families.write(FAMILY)
    edit(package / "core/kernel_config.py", r"(\nKERNELS = \([^)]*)\)", r'\1, "toy")')

    (package / "commands/greet.py").write_text(VERB)
    (package / "config/commands/greet.toml").write_text(
        'uses = ["answer"]\n\n[who]\nhelp = "whom to greet"\n'
    )
    with (package / "config/verbs.toml").open("a") as verbs:
        verbs.write('\n[greet]\nsummary = "greet somebody"\nexamples = ["world", "world --format json"]\n')
    (folder / "library.py").write_text(PROVIDER)
    (folder / "sizes.csv").write_text("m,n,k\n512,512,512\n")

    return verbs_of(folder)


def predicted_us(run, *words):
    sizes = ("--m", "4096", "--n", "4096", "--k", "4096", "--cta", "128x256", "--cluster", "2x1")
    document = json.loads(run("predict", *sizes, "--format", "json", *words))
    return document["result"]["prediction"]["predicted_us"]


def test_a_gpu_is_one_file(run):
    assert "toy_card" in run("list", "gpus")
    assert predicted_us(run, "--gpu", "toy_card", "--kernel", "quack") == pytest.approx(
        predicted_us(run, "--gpu", "h200", "--kernel", "quack"), rel=0.1
    )


def test_a_kernel_family_is_a_table_and_its_name_in_a_list(run):
    found = json.loads(
        run("rank", "--m", "512", "--n", "7168", "--k", "2048", "--family", "toy", "--format", "json")
    )
    assert found["result"]["candidates"] > 100
    assert predicted_us(run, "--kernel", "toy") > 0


def test_a_mechanism_is_a_table_a_formula_and_its_fit_and_can_be_switched_off(tmp_path):
    package, run = copied(tmp_path), verbs_of(tmp_path)
    with (package / "config/mechanisms.toml").open("a") as mechanisms:
        mechanisms.write(MECHANISM)
    for calibration in (package / "config/calibration").glob("*/[!s]*.yaml"):
        edit(
            calibration,
            r"\n(?=  launch\.kernel_us)",
            "\n  toy.wait_us: {value: 7.0, unit: us, source: a toy}\n",
        )
    edit(
        package / "kernel_model/launch.py", r"spread_us \+ launch\.kernel_us", r"\g<0> + numbers.toy.wait_us"
    )
    words = ("--kernel", "quack", "--residual", "off")
    known = predict(
        GemmProblem.of(4096, 4096, 4096),
        KernelConfig(cta_m=128, cta_n=256, cluster_m=2),
        "h200",
        options={"residual": "off"},
    ).runtime_us
    assert predicted_us(run, *words) == pytest.approx(known + 7.0, abs=0.1)
    assert predicted_us(run, *words, "model_opts.without=[toy]") == pytest.approx(known, rel=1e-3)


def test_a_provider_is_a_class_that_needs_no_list(run):
    words = ("--kernels", "library:Library", "--dry-run", "--input", "sizes.csv")
    assert "library:Library" in run("benchmark", *words)


def test_a_verb_is_a_module_its_options_and_a_line(run):
    assert run("greet", "world") == "hello world\n"
    assert json.loads(run("greet", "world", "--format", "json"))["verb"] == "greet"
