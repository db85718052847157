"""What pages show against what is known: one kernel's roofs and its parts."""

import pytest

from gemm_model import GemmProblem, KernelConfig, explain, load_gpu
from gemm_model.report.page import kernel

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
