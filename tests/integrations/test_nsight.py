"""Exports of Nsight Compute: read, laid beside predictions, and explained by a fault."""

import json
import math
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.integrations.profile import METRICS, CountedKernel, beside, read_export, with_parts
from gemm_model.kernel_model.faults import COUNTS, FAULTS, counts_of, suspects
from gemm_model.kernel_model.question import World

HEADER = ("ID", "Kernel Name", "Grid Size", *METRICS)
UNITS = ("", "", "", "ns", "cycle", "byte", "byte", "sector", "sector", "byte/block")
NVJET = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
COUNTED = ["260,000", "420000", "70000000", "20000000", "16,000,000", "1572864", "230400"]
KERNEL = ("0", NVJET, "(132, 1, 1)", *COUNTED)


def export(path, *kernels, header=HEADER, units=UNITS):
    lines = [header, units, *kernels]
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    path.write_text(f"==PROF== Connected to process 7\n{text}\n", encoding="utf-8")
    return path


def world(**kernel):
    return World(
        problem=GemmProblem.of(4096, 4096, 4096),
        config=KernelConfig(**{"cta_m": 128, "cta_n": 256, "cluster_m": 2, "kernel": "quack", **kernel}),
        gpu=load_gpu("h200"),
        options={"regime": "counters"},
    )


def test_counts_are_read_in_base_units_and_the_longest_kernel_comes_first(tmp_path):
    short = ("1", "memset", "(1, 1, 1)", "900", "1000", "0", "0", "10", "10", "0")
    found = read_export(export(tmp_path / "a.csv", short, KERNEL))
    assert [each.name for each in found] == [NVJET, "memset"]
    assert found[0].counted == {
        "duration_us": 260.0, "sm_cycles": 420000.0, "dram_read_bytes": 70e6, "dram_write_bytes": 20e6,
        "l2_read_bytes": 512e6, "l2_write_bytes": 1572864 * 32.0, "smem_bytes_per_cta": 230400.0,
        "ctas": 132.0,
    }  # fmt: skip
    in_us = replace_cells(KERNEL, {3: "260"})
    adds = ("1", "void cublasLt::splitKreduce_kernel<32>", "(8, 1, 1)", "3000", *COUNTED[1:])
    (both,) = read_export(export(tmp_path / "c.csv", KERNEL, adds))
    assert (both.counted["duration_us"], both.counted["ctas"]) == (263.0, 132.0)
    found = read_export(export(tmp_path / "b.csv", in_us, units=("", "", "", "us", *UNITS[4:])))
    assert found[0].counted["duration_us"] == 260.0


def replace_cells(cells, changes):
    return tuple(changes.get(index, cell) for index, cell in enumerate(cells))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_a_fault_would_count_is_told_by_its_name(fault):
    meant = world()
    if fault.__name__ == "spills":
        problem = GemmProblem.of(4096, 4096, 4096, "e4m3", "bf16")
        meant = replace(world(fast_accum=True, cta_n=128), problem=problem)
    if fault.__name__ == "cold_l2":
        warm = {"regime": "counters", "l2": "warm"}
        meant = replace(meant, problem=GemmProblem.of(256, 2048, 4096), options=warm)
    if fault.__name__ == "bad_raster":
        meant = replace(meant, problem=GemmProblem.of(12288, 12288, 1024))
    with_fault = next(iter(fault(meant)))
    found = suspects(meant, counts_of(with_fault.composed()))
    assert found[0].fault == fault.__name__
    assert found[0].distance == pytest.approx(0.0, abs=1e-9)
    assert found[0].predicted_us == pytest.approx(with_fault.composed_us())


def test_a_kernel_as_it_was_meant_has_no_distance():
    meant = world()
    counted = counts_of(meant.composed())
    cycles = counted["duration_us"] * float(meant.composed().times.sm_clk_mhz)
    found = beside(meant, CountedKernel(name="meant", counted={**counted, "sm_cycles": 0.9 * cycles}))
    assert found.as_meant == pytest.approx(0.0, abs=1e-9)
    ratios = {row["what"]: row["ratio"] for row in found.rows}
    assert (ratios.pop("sm_cycles"), ratios.pop("sm_clk_mhz")) == pytest.approx((0.9, 0.9))
    assert list(ratios.values()) == pytest.approx([1.0] * (len(COUNTS) + 2))
    counts = {row["what"]: row["counted"] for row in found.rows}
    assert counts["ctas_per_sm"] == 1
    missed = counted["dram_read_bytes"] / counted["l2_read_bytes"]
    assert counts["l2_hit_share"] == pytest.approx(1.0 - missed)


def test_rows_of_one_metric_each_are_the_same_kernels(tmp_path):
    """What ncu prints without `--page raw`, each metric in a unit of its own."""
    wide = read_export(export(tmp_path / "wide.csv", KERNEL))
    header = (*HEADER[:3], "Metric Name", "Metric Unit", "Metric Value")
    cells = [(*KERNEL[:3], *each) for each in zip(METRICS, UNITS[3:], COUNTED, strict=True)]
    cells[0] = (*cells[0][:4], "us", "260")
    asked = zip(METRICS, UNITS[3:], strict=True)
    others = [("1", "memset", "(1, 1, 1)", metric, unit, "7") for metric, unit in asked]
    path = export(tmp_path / "long.csv", *cells[1:], *others, header=header, units=cells[0])
    assert [each.name for each in read_export(path)] == [NVJET, "memset"]
    assert read_export(path)[0] == wide[0]
    path.write_text(path.read_text().replace("sm__cycles_elapsed.max", "x"))
    with pytest.raises(InputError, match="kernel 1: no column sm__cycles_elapsed.max; expected what this"):
        read_export(path)


def test_the_command_lays_counts_beside_predictions(tmp_path, gemm_model):
    path = export(tmp_path / "a.csv", KERNEL)
    words = ("explain", "--m", 4096, "--n", 4096, "--k", 4096, "--ncu", path)
    text = gemm_model(*words)
    assert text.code == 0, text.err
    assert "COUNTED BESIDE PREDICTED" in text.out
    found = json.loads(gemm_model(*words, "--format", "json").out)
    assert found["result"]["kernel_name"] == NVJET
    off = {row["what"]: row["spreads"] for row in found["rows"]}
    assert set(off) >= {"duration_us", "dram_read_bytes", "sm_clk_mhz"}
    most = max(off, key=lambda name: off[name] or 0.0)
    assert f"differs most: {most}; usual causes: " in text.out
    # The name tells the library where the words do not.
    export(tmp_path / "b.csv", replace_cells(KERNEL, {1: "matmul_persistent"}))
    predicted, said = (
        gemm_model(*words[:-1], tmp_path / "b.csv", "--cta", "128x256", *more).out
        for more in ((), ("--kernel", "triton"))
    )
    assert predicted == said


@pytest.mark.parametrize(("factor", "named"), [(1.05, None), (1.5, "no_multicast")])
def test_a_fault_is_named_beyond_the_spreads_of_kernels_without_one(factor, named):
    meant = world()
    counted = {**counts_of(meant.composed()), "sm_cycles": 1e5}
    counted["l2_read_bytes"] *= factor
    found = beside(meant, CountedKernel(name="", counted=counted))
    assert found.as_meant == pytest.approx(min(math.log(factor) / 0.1, 4.0) / math.sqrt(6))
    assert (found.fault and found.fault.fault) == named


def test_partial_sums_are_no_writes_to_a_profiler_and_no_name_tells_their_number():
    meant = world(kernel="cutlass", split_k=3, scheduler="split_k")
    counted = {**counts_of(meant.composed()), "sm_cycles": 1e5, "l2_write_bytes": 1e3}
    kernel = CountedKernel(name="", counted=counted)
    named = replace(meant, config=replace(meant.config, split_k=1))
    found = beside(with_parts(named, kernel), kernel)
    assert found.as_meant == 0.0
    assert "l2_write_bytes" not in {row["what"] for row in found.rows}


def test_the_command_compares_two_kernels_and_two_cards(gemm_model):
    words = ("explain", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x128", "--against")
    for against in ("128x256,cluster=2x1,kernel=cutlass", "h100_sxm", "cluster=2x1", "cublas"):
        found = json.loads(gemm_model(*words, against, "--format", "json").out)
        for by in ("setting", "resource"):
            added = sum(row["added_us"] for row in found["rows"] if row["by"] == by)
            assert added == pytest.approx(found["result"]["difference_us"])
