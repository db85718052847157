import json

import pytest

from gemm_model.cli import main

PROBLEM = ["--m", "512", "--n", "512", "--k", "512"]


def test_both_methods_with_the_reason(capsys):
    assert main(["solve", *PROBLEM, "--machine", "balanced", "--method", "both", "--format", "json"]) == 0
    captured = capsys.readouterr()
    best, runner_up = json.loads(captured.out)["rows"]
    assert best["tile"] == "64x64x128"
    assert runner_up["predicted_us"] >= best["predicted_us"]
    assert "proven optimal" in captured.err
    assert "bound by" in captured.err


def test_waiting_as_the_goal(capsys):
    assert main(["solve", *PROBLEM, "--machine", "math_bound", "--objective", "wait", "--method", "smt"]) == 0
    assert "64x64x32" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_a_gpus_own_kernels(schedule, capsys):
    words = ["solve", "--m", "4096", "--n", "4096", "--k", "4096", "--gpu", "h200", "--schedule", schedule]
    assert main([*words, "--format", "json"]) == 0
    best = json.loads(capsys.readouterr().out)["rows"][0]
    tile_m, tile_n, _ = map(int, best["tile"].split("x"))
    # A tile that the Hopper kernels offer for the schedule, and that their registers hold.
    assert tile_m in ((64, 128, 192) if schedule == "pingpong" else (64, 128, 192, 256))
    assert tile_m * tile_n <= (128 * 208 if schedule == "pingpong" else 256 * 208)


def test_pairs_of_ctas(capsys):
    words = ["solve", "--m", "4096", "--n", "4096", "--k", "4096", "--gpu", "b200_sxm", "--schedule", "2cta"]
    assert main([*words, "--dtype", "fp8", "--format", "json"]) == 0
    best = json.loads(capsys.readouterr().out)["rows"][0]
    assert best["tile"].startswith(("64x", "128x"))


def test_a_time_out_reports_the_best_so_far_with_exit_code_4(monkeypatch, capsys):
    from gemm_model.commands import solve
    from gemm_model.solve.smt import solve_smt

    def cut_short(*sizes, **options):
        from dataclasses import replace

        return replace(solve_smt(*sizes, **options), proven=False)

    monkeypatch.setattr(solve, "solve_smt", cut_short)
    assert main(["solve", *PROBLEM, "--machine", "balanced", "--method", "smt"]) == 4
    captured = capsys.readouterr()
    assert "64x64x128" in captured.out
    assert "no proof within" in captured.err
