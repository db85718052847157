"""Validity of configurations, against the rules worked out by hand."""

import copy
from dataclasses import replace
from functools import reduce
from operator import getitem

import numpy as np
import pandas as pd
import pytest
import yaml

import gemm_model as gm
from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.choice.selection import Ranker
from gemm_model.core.batch import batch_of, kernel_of, numbers_of
from gemm_model.errors import InputError, RefusedKernelError
from gemm_model.kernels.compiled_code import COMPILED_CODE, compiled_code, load_compiled_code
from gemm_model.kernels.feasibility import (
    check,
    feasible_mask,
    refuse_impossible,
    resources_of,
)
from gemm_model.kernels.registry import family_of
from gemm_model.kernels.triton import mmas_ahead
from gemm_model.tables.table import batch_from_frame
from tests.cases import cases
from tests.conftest import ROOT
from tests.typed_numbers import calibration

H200, B200 = load_gpu("h200"), load_gpu("b200_1300mhz")


def config(cta_m, cta_n, **more):
    return KernelConfig(cta_m=cta_m, cta_n=cta_n, **more)


def found(dtype, kernel, gpu=H200):
    return resources_of(
        batch_of([(GemmProblem.of(4096, 4096, 4096, dtype), kernel)]), gpu, family_of(kernel.kernel, gpu)
    )


@pytest.mark.parametrize(*cases(__file__, "test_stages_are_what_shared_memory_holds"))
def test_stages_are_what_shared_memory_holds(tile, schedule, stages):
    assert found("bf16", config(*tile, schedule=schedule)).stages[0] == stages


@pytest.mark.parametrize(("kernel", "rows"), [("triton", 473), ("cutlass", 415)])
def test_shared_memory_is_what_the_profiler_read(kernel, rows):
    counted = pd.read_csv(ROOT / "data/measurements/h200/counters_libraries.csv.gz", low_memory=False)
    counted = counted[(counted["kernel"] == kernel) & (counted["disposition"] == "ok")].reset_index(drop=True)
    assert len(counted) == rows
    resources = resources_of(batch_from_frame(counted, needs_tile=True), H200, family_of(kernel, H200))
    predicted = resources.stage_bytes * resources.stages + resources.epilogue_bytes
    np.testing.assert_allclose(predicted, counted["smem_bytes_per_cta"], rtol=0.006)


@pytest.mark.parametrize(*cases(__file__, "test_warpgroups_that_share_a_tile"))
def test_warpgroups_that_share_a_tile(tile, schedule, warpgroups):
    assert found("bf16", config(*tile, schedule=schedule)).warpgroups[0] == warpgroups


def pair(cta_n, cta_m=128, **more):
    """A 2-CTA kernel of Blackwell."""
    return config(cta_m, cta_n, schedule="2cta", cluster_m=2, **more)


@pytest.mark.parametrize(*cases(__file__, "test_scale_factors_take_shared_and_tensor_memory"))
def test_scale_factors_take_shared_and_tensor_memory(cta_n, scale_bytes, stage_bytes, columns, stages):
    problem = GemmProblem.of(4096, 4096, 4096, "nvfp4", out_dtype="fp32")
    taken = resources_of(batch_of([(problem, pair(cta_n))]), B200, family_of("quack", B200))
    assert (taken.scale_bytes[0], taken.stage_bytes[0]) == (scale_bytes, stage_bytes)
    assert (taken.tmem_columns[0], taken.scale_columns[0]) == (cta_n, columns)
    # Two buffers of 128 x 32 outputs of 4 bytes: 232448 - 1024 - 32768 = 198656 bytes are left.
    assert taken.stages[0] == stages


def test_operands_without_scales_take_no_room_for_them():
    taken = found("fp8", pair(256), B200)
    assert (taken.scale_bytes[0], taken.scale_columns[0]) == (0, 0)
    assert taken.stage_bytes[0] == (128 + 128) * 128


def test_slow_fp8_accumulation_keeps_two_sets_of_accumulators():
    slow = found("fp8", config(128, 256, fast_accum=False))
    fast = found("fp8", config(128, 256, fast_accum=True))
    assert slow.accumulator_registers[0] == 2 * fast.accumulator_registers[0] == 256
    assert slow.spilled_registers[0] > 0
    assert fast.spilled_registers[0] == 0


@pytest.mark.parametrize(*cases(__file__, "test_what_cannot_run_says_why_in_one_sentence"))
def test_what_cannot_run_says_why_in_one_sentence(dtype, tile, others, name, word):
    gpu, kernel = load_gpu(name), config(*tile, **others)
    problem = GemmProblem.of(4096, 4096, 4096, dtype)
    reason = check(problem, kernel, gpu)
    assert reason is not None
    assert word in reason
    assert "\n" not in reason
    assert not feasible_mask(batch_of([(problem, kernel)]), gpu, family_of(kernel.kernel, gpu))[0]


def test_stream_k_leaves_no_k_to_split():
    shared = {"kernel": "cutlass", "scheduler": "stream_k"}
    problem = GemmProblem.of(4096, 4096, 4096)
    assert check(problem, config(128, 128, **shared), H200) is None
    assert check(problem, config(128, 128, split_k=2, **shared), H200) == (
        "scheduler stream_k with split_k 2; expected 1"
    )


def test_check_and_mask_agree_over_many_configurations():
    problem = GemmProblem.of(1000, 3000, 520, "fp8")
    kernels = [
        config(cta_m, cta_n, cluster_m=cluster, schedule=schedule)
        for cta_m in (64, 96, 128, 192, 256, 320)
        for cta_n in (16, 64, 100, 128, 160, 208, 256)
        for cluster in (1, 2, 8)
        for schedule in ("cooperative", "pingpong", "2cta")
    ]
    mask = feasible_mask(batch_of([(problem, kernel) for kernel in kernels]), H200, family_of("quack", H200))
    expected = [check(problem, kernel, H200) is None for kernel in kernels]
    assert mask.tolist() == expected
    assert 0 < np.count_nonzero(mask) < len(kernels)


@pytest.mark.parametrize("stages", [0, 4, 100])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_what_says_nothing_of_the_kernel_changes_neither_resources_nor_validity(dtype, stages):
    def answers(*sizes, **call):
        row = numbers_of(GemmProblem.of(*sizes, dtype), config(128, 192, stages=stages))
        for name, value in call.items():
            setattr(row, name, value)
        resources = resources_of(row, H200, family_of("quack", H200))
        try:
            refuse_impossible(row, H200, family_of("quack", H200), resources)
        except RefusedKernelError as refused:
            return kernel_of(row), resources, refused.reason
        return kernel_of(row), resources, None

    usual = answers(4096, 4096, 4096)
    assert usual[0] == kernel_of(numbers_of(GemmProblem.of(1, 1, 1, dtype), config(128, 192, stages=stages)))
    assert answers(1, 8, 16) == answers(2**40, 2**40, 2**40) == answers(64, 64, 64, batch=9.0) == usual
    assert answers(64, 64, 64, empty_kernel_us=4.0, footprint_bytes=1e9)[1:] == usual[1:]
    other = numbers_of(GemmProblem.of(4096, 4096, 4096, dtype), config(128, 160, stages=stages))
    assert kernel_of(other) != usual[0]


def test_deep_k_tiles_of_sm103_leave_no_room_to_outputs():
    """Three loads of 384 rows of 128 bytes with 16 of scales: (232448 - 1024) // 55296 of them fit."""
    deep, gb300 = config(128, 256, cta_k=768, kernel="cutlass"), load_gpu("gb300")
    resources = found("nvfp4", deep, gb300)
    assert resources.cta_k[0] == 256
    assert (resources.stages[0], resources.epilogue_bytes[0]) == (4, 0)
    # Beside two buffers of 128 x 32 outputs: (231424 - 16384) // 55296.
    assert found("nvfp4", config(128, 256, kernel="cutlass"), gb300).stages[0] == 3
    assert "do not hold 2 stages" in check(GemmProblem.of(4096, 4096, 4096, "nvfp4"), deep, B200)
    assert "do not hold 2 stages" in check(GemmProblem.of(4096, 4096, 4096, "e2m1"), deep, gb300)


@pytest.mark.parametrize(("tile", "instructions"), [((128, 64), 8), ((128, 128), 16), ((256, 128), 32)])
def test_math_that_the_tensor_cores_queue_waits_for_no_load(tile, instructions):
    cta_m, cta_k = tile
    share = found("bf16", config(cta_m, 128, kernel="triton", cta_k=cta_k)).math_in_round_trip
    assert share == pytest.approx(max(1.0 - mmas_ahead() / instructions, 0.0))


def problem(words):
    return gm.GemmProblem.of(256, 4096, 1024, "bf16", "e4m3", epilogue=words)


@pytest.mark.parametrize(
    *cases(__file__, "test_a_tile_holds_whole_blocks_of_outputs_that_are_scaled_together")
)
def test_a_tile_holds_whole_blocks_of_outputs_that_are_scaled_together(words, cta_n, fits):
    config = gm.KernelConfig(cta_m=64, cta_n=cta_n, cta_k=64, stages=3, warps=4, kernel="triton")
    reason = check(problem(words), config, gm.load_gpu("h200"))
    assert (reason is None) == fits, reason
    assert fits or ("64x" in reason and "128 columns of output" in reason)


def test_no_other_tile_is_ranked():
    ranker = Ranker(gm.load_gpu("h200"), family="triton", options={"residual": "off"})
    found = ranker.rank(problem("gated_silu,quantize_1x128"), 8)
    assert {choice.candidate.config.cta_n for choice in found.choices} == {256}


SHIPPED = yaml.safe_load(COMPILED_CODE.read_text())


def test_quack_has_counts_of_its_own_and_others_have_those_of_nvcc():
    quack = compiled_code("quack")
    assert quack.tiles() == [
        (256, 256, 137, 18),
        (288, 96, 99, 3),
        (320, 160, 162, 7),
        (384, 128, 202, 24),
        (384, 192, 218, 53),
        (400, 80, 203, 7),
        (416, 208, 247, 76),
    ]
    assert (quack.waits["others"], quack.working_registers) == (2, 30)
    assert (quack.split_waits, quack.beside_drain_clk) == (3, 28)
    for family in ("cutlass", "cublas", "triton"):
        assert compiled_code(family).tiles() == []
        assert (compiled_code(family).waits, compiled_code(family).working_registers) == ({"others": 3}, 30)
        # What is not given of a family is no part of its calibrations' fingerprints.
        assert set(compiled_code(family).values()) == {"working_registers", "moved_registers", "waits"}


@pytest.mark.parametrize(*cases(__file__, "test_a_wrong_file_is_refused_in_a_sentence"))
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, changes, said):
    """Each change puts a value in place of another one; null leaves it out."""
    found = copy.deepcopy(SHIPPED)
    for place, value in changes.items():
        *folders, name = place.split("/")
        of = reduce(getitem, folders, found["compiled_code"])
        of.pop(name, None)
        of |= {} if value is None else {name: value}
    path = tmp_path / "compiled_code.yaml"
    path.write_text(yaml.safe_dump(found))
    with pytest.raises(InputError, match=said) as refused:
        load_compiled_code(path)
    assert "\n" not in str(refused.value)


def test_another_count_gives_a_calibration_another_fingerprint(monkeypatch):
    before = calibration().fingerprint()
    known = compiled_code("quack")
    others = replace(known, waits={**known.waits, "others": 2.5})
    monkeypatch.setattr("gemm_model.kernel_model.calibration_file.compiled_code", lambda _family: others)
    assert calibration().fingerprint() != before
