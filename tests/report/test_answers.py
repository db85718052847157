"""Answers as text: a kernel's explanation, a screen of a table, the version."""

import json

import pytest

from gemm_model import GemmProblem, KernelConfig, explain, load_gpu, predict
from gemm_model.report.console import explanation
from gemm_model.report.page import kernel
from gemm_model.report.progress import Progress


def test_one_kernel_is_predicted_and_explained(gemm_model):
    words = ("--m", 4096, "--n", 4096, "--k", 4096, "--dtype", "fp8", "--cta", "128x256", "--cluster", "2x1")
    words += ("--gpu", "h200", "--model", "WSPersistentGEMMModel")
    text = gemm_model("predict", *words)
    assert text.code == 0
    assert "MNK 4096 4096 4096" in text.out
    assert "limiter: LOAD" in text.out
    result = json.loads(gemm_model("predict", *words, "--format", "json").out)["result"]
    assert (result["problem"]["a_dtype"], result["kernel"]["cta_n"]) == ("e4m3", 256)
    assert result["prediction"]["limiter"] == "LOAD"
    assert sum(result["prediction"]["phases_us"].values()) == pytest.approx(
        result["prediction"]["predicted_us"]
    )


def test_a_measured_time_stands_beside_the_predicted_one_with_their_ratio():
    config = KernelConfig(cta_m=128, cta_n=128)
    found = predict(GemmProblem.of(4096, 4096, 4096), config, "h200", "SOLModel")
    text = explanation({"m": 4096, "n": 4096, "k": 4096}, found, 2.0 * found.runtime_us)
    assert "RATIO: 0.5\n" in text
    assert f"actual: {2.0 * found.runtime_us:.6g} us" in text


def test_a_band_says_what_it_was_held_out_of_and_stands_only_where_there_was_any(gemm_model):
    words = ("predict", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x128")
    assert "(90 % of measured rows launched alone, held out of the fit)" in gemm_model(*words).out
    lent = gemm_model(*words, "--gpu", "a100_sxm_80gb").out
    assert "(90 % of rows elsewhere that were predicted with numbers lent like these)" in lent
    assert "error band" not in gemm_model(*words, "--model", "SOLModel").out


def test_long_times_are_told_without_exponents(gemm_model):
    sizes = ("--m", 32768, "--n", 32768, "--k", 32768)
    for words in (("rank", *sizes), ("predict", *sizes, "--cta", "128x256")):
        assert "e+0" not in gemm_model(*words).out


def test_a_table_of_kernels_is_told_on_a_screen_by_what_tells_its_rows_apart(gemm_model, tmp_path):
    path = tmp_path / "kernels.csv"
    rows = [f"64,64,64,bf16,128,128,1,1,{2 ** (place % 3)}" for place in range(100)]
    path.write_text("\n".join(["m,n,k,in_dtype,cta_m,cta_n,cluster_m,cluster_n,swizzle", *rows]))
    found = gemm_model("predict", "--input", path)
    assert len(found.out.splitlines()) <= 40
    assert "swizzle" in found.out.splitlines()[0]
    assert "cta_m" not in found.out
    assert "... and 62 rows more" in found.out


def test_version_has_fingerprints_of_data_and_calibrations(gemm_model):
    lines = gemm_model("--version").out.splitlines()
    assert lines[0].startswith("gemm-model ")
    names = [line.split()[0] for line in lines[1:]]
    assert names[:3] == ["gpu", "model", "pipeline"]
    assert "calibration" in names
    assert all(len(line.split()[1]) == 12 for line in lines[1:])


def test_long_work_tells_the_time_left_and_short_work_is_quiet(capsys):
    now = [10.0]
    bar = Progress("ranking", 100, clock=lambda: now[0])
    now[0] = 11.0
    bar.advance(10)
    assert capsys.readouterr().err == ""
    now[0] = 15.0
    bar.advance(15)  # a quarter in five seconds: three more times as long is left
    assert capsys.readouterr().err == "ranking: 25 of 100, 15 s left\n"
    now[0] = 18.0
    bar.advance(5)
    assert capsys.readouterr().err == ""
    now[0] = 25.0
    bar.advance(45)
    bar.close()
    assert capsys.readouterr().err == "ranking: 75 of 100, 5 s left\n"


def test_work_whose_parts_are_known_late_tells_its_time_left_too(capsys):
    now = [10.0]
    bar = Progress("reading", 1, clock=lambda: now[0])
    bar.tell("fit", 0, 12)
    now[0] = 12.0
    bar.tell("fit", 0, 12)
    assert capsys.readouterr().err == ""
    bar.tell("held out", 3, 12)
    assert capsys.readouterr().err == "held out: 3 of 12, 6 s left\n"


PROBLEM, GPU = GemmProblem.of(512, 1024, 2048), load_gpu("h200")
CONFIG = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, kernel="quack")


@pytest.fixture(scope="module")
def explained():
    return explain(PROBLEM, CONFIG, GPU)


def test_a_kernel_stands_below_its_roofs(explained):
    figure = kernel.level_roofline(PROBLEM, explained, GPU)
    moved, time_us = explained.prediction.bytes_by_level, explained.prediction.runtime_us
    peak, speed = GPU.flop_per_us("fp16") / 1e6, PROBLEM.flop / time_us / 1e6
    widths = {"dram": GPU.dram_bytes_per_us, "l2": moved["l2"] / explained.busy["L2"] / time_us}
    widths["smem"] = 128 * GPU.sm_count * GPU.sm_clk_mhz
    assert f"the peak is {peak:.4g} TFLOP/s" in figure.note
    assert len(figure.traces) == 2 * len(widths)
    for line, point, (level, width) in zip(
        figure.traces[::2], figure.traces[1::2], widths.items(), strict=True
    ):
        assert point["name"] == f"{level}, {width / 1e6:.3g} TB/s"
        assert point["x"] == [pytest.approx(PROBLEM.flop / moved[level])]
        assert point["y"] == [pytest.approx(speed)]
        roof = min(peak, width * point["x"][0] / 1e6)
        assert f"roof {roof:.4g} TFLOP/s" in point["text"][0]
        assert f"kernel: {speed:.4g} TFLOP/s, {speed / roof:.0%} of it" in point["text"][0]
        low, _, high = line["x"]
        assert low < point["x"][0] < high
        assert line["y"] == [pytest.approx(width * low / 1e6), peak, peak]


def test_parts_of_a_kernel_add_up(explained):
    page = kernel.kernel_page(PROBLEM, explained, GPU, "a kernel")
    shares, steps, _, saved = (figure.traces[0] for figure in page.figures[:4])
    assert sum(shares["x"]) == pytest.approx(100.0, abs=2.0)
    assert steps["base"][0] == 0.0
    for base, length, following in zip(steps["base"], steps["x"], [*steps["base"][1:], None], strict=True):
        end = explained.prediction.runtime_us if following is None else following
        assert base + length == pytest.approx(end)
    assert saved["x"] == tuple(100.0 * (1.0 - each.relative) for each in explained.what_if)
    phases = page.figures[4].traces
    ends_us = [at + width / 2 for one in phases for at, width in zip(one["x"], one["width"], strict=True)]
    starts_us = [at - width / 2 for one in phases for at, width in zip(one["x"], one["width"], strict=True)]
    assert [0.0, *ends_us] == pytest.approx([*starts_us, explained.prediction.runtime_us], abs=1e-9)
