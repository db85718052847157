"""The scripts of examples/ run as a user runs them, and stay short."""

import re
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from gemm_model.config.numbers import room_numbers
from gemm_model.serving import planner_tables

pytestmark = pytest.mark.slow
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
