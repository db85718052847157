from pathlib import Path

import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.bench.simt.ladder import LADDER
from gemm_model.core.batch import batch_of
from gemm_model.hierarchy.blocking import Blocking, blocking_of, parse_tiles
from gemm_model.hierarchy.cuda_core_runtime import runtime
from gemm_model.hierarchy.ladder_report import text_predictions
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import Grid, match
from gemm_model.hierarchy.model import runtime_parameters
from gemm_model.hierarchy.plots import plot_roofline
from gemm_model.hierarchy.solve import solve
from gemm_model.hierarchy.variants import bank_conflicts, exchange_clk, variant
from gemm_model.models import create_model, model_for
from tests.conftest import ROOT

H200 = load_gpu("h200")


def predict(problem, config, **options):
    return (
        create_model("MemoryHierarchyModel", H200, options)
        .predict_batch(batch_of([(problem, config)]))
        .row(0)
    )


def test_a_tile_that_matches_runs_whole_waves_at_the_peak():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=128, cta_n=256, cluster_m=2))
    # 512 tiles over 132 SMs are 4 waves of 128 x 256 x 4096 FMAs at 2048 a clock.
    assert found.runtime_us == pytest.approx(4 * 128 * 256 * 4096 / 2048 / 1980)
    assert found.limiter == "math"
    assert found.details["fraction_of_peak"] == pytest.approx(512 / (4 * 132))
    # Each tile reads 128 rows and 256 columns of 4096 two-byte elements.
    assert found.bytes_by_level["l2"] == pytest.approx(512 * (128 + 256) * 4096 * 2)


def test_a_narrow_tile_waits_for_l2():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=256, cta_n=32, cluster_n=2))
    # An SM's part of L2's 8873 GB/s is 33.95 bytes a clock. Two CTAs share A: each asks for 256 / 2 + 32
    # rows, so that a byte is used 2 x 256 x 32 / 160 times; the tensor cores demand 8192.
    fraction = 8873e3 / (132 * 1980) * 2 * 256 * 32 / 160 / 8192
    assert found.limiter == "l2"
    assert found.runtime_us == pytest.approx(16 * 256 * 32 * 4096 / (2048 * fraction) / 1980)


def test_without_reuse_in_l2_dram_limits():
    problem = GemmProblem.of(4096, 4096, 4096, "bf16")
    found = predict(problem, KernelConfig(cta_m=128, cta_n=128), reuse_in_l2=False)
    assert found.limiter == "dram"


def test_cuda_core_rows_are_the_ladder_s_runtime():
    kernel = next(k for k in LADDER if k.name == "pipelined_128x128x16_t8x8_w4x8i_s2")
    problem = GemmProblem.of(4096, 4096, 4096, "fp32")
    found = predict(problem, kernel.config, datapath="cuda_cores")
    machine = machine_of(H200, datapath_of(H200, "cuda_cores", "fp32"))
    expected = runtime(machine, kernel.blocking, (4096,) * 3, 2, runtime_parameters())
    assert found.runtime_us == pytest.approx(expected.runtime_us)
    assert found.limiter == expected.limiter == "issue"
    share = 4096**3 / (128 * 132 * 1980 * found.runtime_us)
    assert found.details["fraction_of_peak"] == pytest.approx(share)
    # 132 SMs x 2 tiles at once: 8.25 rows of 32 tiles, so 9 rows of A's tiles and all of B; outputs once.
    assert found.bytes_by_level["dram"] == pytest.approx(1024 / (9 * 32) * (9 + 32) * 128 * 4096 * 4 + 2**26)

    usual = predict(problem, KernelConfig(cta_m=128, cta_n=128, cta_k=16, stages=2), datapath="cuda_cores")
    assert usual.runtime_us == pytest.approx(expected.runtime_us)


def test_a_batch_is_its_rows():
    pairs = [
        (GemmProblem.of(m, 4096, 1024, dtype), KernelConfig(cta_m=128, cta_n=n))
        for m in (128, 4096)
        for n in (64, 256)
        for dtype in ("bf16", "fp8")
    ]
    model = model_for("MemoryHierarchyModel", "h200")
    whole = model.predict_batch(batch_of(pairs))
    single = [model.predict_batch(batch_of([pair])).row(0).runtime_us for pair in pairs]
    assert np.array_equal(whole.runtime_us, single)


def test_bad_options_and_rows():
    problem = GemmProblem.of(512, 512, 512, "bf16")
    config = KernelConfig(cta_m=128, cta_n=128)
    for options, part in (
        ({"datapath": "abacus"}, "datapath is 'abacus'"),
        ({"output": "twice"}, "output is 'twice'"),
        ({"lanes_m": 3}, "lanes_m is 3"),
        ({"issue_efficiency": 2}, "issue_efficiency is 2"),
        ({"nonsense": 1}, "nonsense"),
    ):
        with pytest.raises(InputError, match=part):
            predict(problem, config, **options)
    with pytest.raises(InputError, match="CUDA cores multiply fp32"):
        predict(problem, config, datapath="cuda_cores")
    with pytest.raises(InputError, match="warp tile of 2x128"):
        predict(
            GemmProblem.of(512, 512, 512, "fp32"),
            KernelConfig(cta_m=128, cta_n=128, mma_m=2),
            datapath="cuda_cores",
        )


MACHINE = machine_of(H200, datapath_of(H200, "tensor_cores", "bf16"))
BLOCKING = blocking_of(parse_tiles(["cta:128x256x64"]), H200, MACHINE.datapath, 4)
GRID = Grid(rows=8, columns=16, k=4096)


def fractions(machine):
    return {stage.name: stage.fraction for stage in match(machine, BLOCKING, GRID).stages}


def test_compression_and_bank_conflicts_change_the_rates_of_their_levels():
    plain, packed = fractions(MACHINE), fractions(variant(MACHINE, "compression 1.5"))
    twice = fractions(variant(MACHINE, "bank_conflicts 2"))
    for name, fraction in plain.items():
        packs = name in ("dram -> l2", "l2 -> all SMs")
        assert packed[name] == pytest.approx(fraction * (1.5 if packs else 1.0))
        assert twice[name] == pytest.approx(fraction / (2.0 if name == "smem -> mma" else 1.0))


def test_rows_a_word_longer_have_no_bank_conflicts():
    for row_bytes, clocks in ((128, 32), (132, 1), (136, 2), (64, 16), (4, 1)):
        banks = [row * row_bytes // 4 % 32 for row in range(32)]
        assert bank_conflicts(row_bytes) == clocks == max(banks.count(bank) for bank in banks)


def test_partial_sums_cost_less_through_a_cluster_than_through_l2():
    found = exchange_clk(MACHINE, BLOCKING, 4096, 4)
    assert found["math"] == pytest.approx(128 * 256 * 1024 / MACHINE.datapath.fma_per_clk)
    assert found["dsmem"] == pytest.approx(128 * 256 * 4 * 0.75 / H200.l2_read_bytes_per_clk_per_sm)
    assert found["dsmem"] < found["l2"] / 2


def test_hardware_that_is_enough_feeds_the_datapath():
    for stage in match(MACHINE, BLOCKING, GRID).stages:
        assert stage.enough_bytes_per_clk * stage.fraction == pytest.approx(stage.bytes_per_clk)


@pytest.fixture
def a100():
    gpu = load_gpu("a100_sxm_80gb")
    return machine_of(gpu, datapath_of(gpu, "cuda_cores", "fp32"))


def test_dram_share_of_one_a100_sm(a100):
    # 2039 GB/s over 108 SMs at 1.41 GHz; the text cuts 13.39 to 13.3.
    assert a100.level("dram").bytes_per_clk == pytest.approx(2039e9 / (108 * 1.41e9), rel=1e-3)


def test_cuda_cores_demand_512_bytes_a_clock_4_times_shared_memory_s(a100):
    assert a100.datapath.demand_bytes_per_clk == 64 * 2 * 4 == 4 * a100.level("smem").bytes_per_clk


def test_the_rates_on_the_page_are_the_machines(a100):
    page = (ROOT / "docs/models/throughput-matching.md").read_text()
    machines = [a100, machine_of(H200, datapath_of(H200, "cuda_cores", "fp32"))]
    for name, row in {"dram": "DRAM, required amplification", "l2": "L2 (share of an SM)"}.items():
        rates = [(each.level(name).bytes_per_clk, each.datapath.demand_bytes_per_clk) for each in machines]
        told = " | ".join(f"{rate:.1f} B/clk, {demand / rate:.0f}" for rate, demand in rates)
        assert f"| {row} | {told} |" in page


def blocking(side, thread):
    return Blocking(
        cta_m=side, cta_n=side, cta_k=8, warp_m=4 * thread, warp_n=8 * thread, thread_m=thread,
        thread_n=thread, vector=1,
    )  # fmt: skip


def test_a_4x4_thread_tile_matches_shared_memory_and_a_64x64_cta_tile_matches_dram(a100):
    grid = Grid(rows=1, columns=1, k=4096)
    matched = match(a100, blocking(64, 4), grid, reuse_in_l2=False)
    dram, smem = matched.stages[0], matched.stages[1]
    assert (dram.name, smem.name) == ("dram -> smem", "smem -> registers")
    assert smem.amplification == 4
    assert smem.fraction == 1
    assert dram.amplification == 64
    assert dram.fraction == pytest.approx(64 * 13.39 / 512, rel=1e-3)


def test_without_amplification_dram_gives_2_6_percent_and_shared_memory_a_quarter(a100):
    # 13.39 / 512 and 128 / 512.
    unstaged = Blocking(
        cta_m=1, cta_n=32, cta_k=1, warp_m=1, warp_n=32, thread_m=1, thread_n=1, stages=0, vector=1,
        b_major="n",
    )  # fmt: skip
    naive = match(a100, unstaged, Grid(rows=1, columns=1, k=4096), reuse_in_l2=False)
    assert naive.stages[0].fraction == pytest.approx(13.39 / 512, rel=1e-3)
    shared = match(a100, blocking(32, 1), Grid(rows=1, columns=1, k=4096), reuse_in_l2=False)
    assert shared.stages[1].fraction == 0.25


def test_the_inverse_finds_tiles_that_amplify_enough(a100):
    found = solve(a100, (4096, 4096, 4096), stages=2, target=1.0, reuse_in_l2=False)
    assert found.smallest is not None
    tile = found.smallest.blocking
    assert 2 * tile.cta_m * tile.cta_n / (tile.cta_m + tile.cta_n) >= 512 / 13.39
    assert (tile.thread_m, tile.thread_n) == (4, 4)


def test_the_three_v100_kernels():
    gpu = load_gpu("v100_sxm2")
    rows = text_predictions(machine_of(gpu, datapath_of(gpu, "cuda_cores", "fp32")), runtime_parameters())
    naive, shared, registers = rows
    assert [round(100 * row["measured_of_cublas"]) for row in rows] == [16, 31, 88]
    # One line of A and one of B for 32 FMAs, or two loads from shared memory: 16 of 64 FMA/clk.
    assert naive["bound_tflops"] == shared["bound_tflops"] == pytest.approx(0.25 * 15.6672)
    # 4 x 4 outputs a thread match 128 B/clk to 512.
    assert registers["bound_tflops"] == pytest.approx(15.6672)
    # The parameters are the H200's. The naive kernel is predicted twice too fast: the text does not say which
    # threads it uses, so only its bound is asserted.
    assert shared["predicted_tflops"] == pytest.approx(3.7, rel=0.15)
    assert registers["predicted_tflops"] == pytest.approx(10.7, rel=0.15)
    assert naive["measured_tflops"] < naive["bound_tflops"]


TABLE = Path(__file__).parents[2] / "data/measurements/h200/simt.csv.gz"


def test_the_picture_as_json(answer):
    found = answer("hierarchy", "--gpu", "a100_sxm_80gb", "--no-l2", "--tile", "thread:4x4")
    result = found["result"]
    assert [level["level"] for level in result["levels"]] == ["dram", "l2", "smem", "registers"]
    assert found["rows"][0]["required"] == pytest.approx(38.24, rel=1e-3)
    assert result["figures"]["intensity_fma_per_byte"] == pytest.approx(4096 / 12)
    modes = result["fraction_of_peak_by_output_mode"]
    assert modes["ignored"] >= modes["once"] >= modes["each_slice"]


def test_the_picture_as_table_and_csv(gemm_model):
    tensor_cores = ("--datapath", "tensor_cores", "--dtype", "bf16", "--tile", "cta:128x32")
    assert "smem -> mma" in gemm_model("hierarchy", *tensor_cores).out
    out = gemm_model("hierarchy", "--format", "csv").out
    assert out.splitlines()[0].startswith("stage,bytes_per_clk,tile")


def test_solve(answer, tmp_path):
    plot = tmp_path / "frontier.svg"
    document = answer("hierarchy", "--solve", "--plot", plot)
    assert document["result"]["smallest"]["fraction_of_peak"] >= 0.9
    assert document["rows"][-1]["limiting_stage"] == "instruction slots"
    assert plot.read_text().count("<svg") == 1
    assert "frontier.svg" in document["err"]


def test_solve_says_what_to_change(gemm_model):
    found = gemm_model("hierarchy", "--solve", "--target", "1.0")
    assert "FRONTIER" in found.out
    assert "no tile reaches 100% of peak" in found.err


def test_ladder_against_measurements(gemm_model, tmp_path):
    if not TABLE.is_file():
        pytest.skip("the measurements are not beside this checkout")
    plot = tmp_path / "ladder.png"
    assert "BY RUNG" in gemm_model("hierarchy", "--ladder", "--measurements", TABLE, "--plot", plot).out
    assert plot.stat().st_size > 10_000


def test_the_text_s_kernels(answer):
    rows = answer("hierarchy", "--text")["rows"]
    assert [row["measured_tflops"] for row in rows] == [1.9, 3.7, 10.7]


def test_ladder_of_another_gpu(answer):
    rows = answer("hierarchy", "--ladder", "--gpu", "a100_sxm_80gb")["rows"]
    assert {row["rung"] for row in rows} == {"naive", "shared", "registers", "pipelined"}


def test_a_roofline_s_dots_are_the_kernel_s_rate_and_grow_where_they_may_meet(monkeypatch):
    drawn = []
    monkeypatch.setattr("gemm_model.hierarchy.plots.save_figure", lambda figure, _: drawn.append(figure))
    matched = match(MACHINE, BLOCKING, GRID)
    plot_roofline(MACHINE, matched, Path("roofline.png"))
    axes = drawn[0].axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [dot.get_markersize() for dot in dots] == [6, 10, 14, 18]
    assert {dot.get_ydata()[0] for dot in dots} == {MACHINE.peak_tflops * matched.fraction_of_peak}
    assert (
        axes.texts[0].get_text().startswith(f"{MACHINE.peak_tflops * matched.fraction_of_peak:.1f} TFLOP/s")
    )
    tops = [max(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) > 2]
    assert tops == [MACHINE.peak_tflops] * 4
