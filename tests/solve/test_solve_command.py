import pytest

PROBLEM = ["solve", "--m", 512, "--n", 512, "--k", 512, "--machine"]
LARGE = ["solve", "--m", 4096, "--n", 4096, "--k", 4096, "--gpu"]


def test_both_methods_with_the_reason(answer):
    found = answer(*PROBLEM, "balanced", "--method", "both")
    best, runner_up = found["rows"]
    assert best["tile"] == "64x64x128"
    assert runner_up["predicted_us"] >= best["predicted_us"]
    assert "proven optimal" in found["err"]
    assert "bound by" in found["err"]


def test_waiting_as_the_goal(gemm_model):
    assert "64x64x32" in gemm_model(*PROBLEM, "math_bound", "--objective", "wait", "--method", "smt").out


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_a_gpus_own_kernels(schedule, answer):
    best = answer(*LARGE, "h200", "--schedule", schedule)["rows"][0]
    tile_m, tile_n, _ = map(int, best["tile"].split("x"))
    # A tile that the Hopper kernels offer for the schedule, and that their registers hold.
    assert tile_m in ((64, 128, 192) if schedule == "pingpong" else (64, 128, 192, 256))
    assert tile_m * tile_n <= (128 * 208 if schedule == "pingpong" else 256 * 208)


def test_pairs_of_ctas(answer):
    best = answer(*LARGE, "b200_sxm", "--schedule", "2cta", "--dtype", "fp8")["rows"][0]
    assert best["tile"].startswith(("64x", "128x"))


def test_a_time_out_reports_the_best_so_far_with_exit_code_4(monkeypatch, gemm_model):
    from gemm_model.commands import solve
    from gemm_model.solve.smt import solve_smt

    def cut_short(*sizes, **options):
        from dataclasses import replace

        return replace(solve_smt(*sizes, **options), proven=False)

    monkeypatch.setattr(solve, "solve_smt", cut_short)
    found = gemm_model(*PROBLEM, "balanced", "--method", "smt")
    assert found.code == 4
    assert "64x64x128" in found.out
    assert "no proof within" in found.err
