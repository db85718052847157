"""The kernel families: which there are on which GPU, and what reads them."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError, load_gpu, predict, predict_table
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.core.kernel_config import KERNELS, KernelConfig
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernels.feasibility import check, resources_by_row, resources_of
from gemm_model.kernels.registry import families, family_of
from tests.cases import cases
from tests.typed_numbers import numbers

H200, B200, A100 = load_gpu("h200"), load_gpu("b200_1300mhz"), load_gpu("a100_sxm_80gb")
PROBLEM = GemmProblem.of(4096, 4096, 4096)
SQUARE = {"cta_m": 128, "cta_n": 128}
OLDER = ("v100_sxm2", "a100_sxm_80gb", "rtx_a6000", "rtx_4090", "l40s")
NEWER = ("h100_sxm", "h200", "b200_1300mhz", "rtx_5090")


def test_the_default_family_is_quack_where_quack_is():
    for name in NEWER:
        assert families(load_gpu(name)) == ("quack", "cublas", "cutlass", "triton", "cudnn")
        assert family_of("auto", load_gpu(name)).name == "quack"
    for name in OLDER:
        assert families(load_gpu(name)) == ("cublas", "cutlass", "triton", "cudnn")
        assert family_of("auto", load_gpu(name)).name == "cublas"
    assert set(families()) == set(KERNELS) - {"auto", "simt"}


@pytest.mark.parametrize(
    ("name", "gpu", "words"),
    [
        ("rocblas", H200, "unknown kernel family 'rocblas'; expected one of auto, quack, cublas, cutlass"),
        ("quack", A100, "'quack' is not described on a100_sxm_80gb .sm80.; expected one of auto, cublas"),
        ("simt", H200, "family 'simt' is not described on h200"),
    ],
)
def test_a_family_that_is_not_there_is_refused(name, gpu, words):
    with pytest.raises(InputError, match=words):
        family_of(name, gpu)


@pytest.mark.parametrize("name", [*OLDER, *NEWER])
def test_every_family_of_every_gpu_predicts(name):
    gpu = load_gpu(name)
    for family in families(gpu):
        kernel = KernelConfig(**SQUARE, kernel=family, stages=2)
        assert predict(GemmProblem.of(1024, 1024, 1024, "fp16"), kernel, gpu).runtime_us > 0


def taken(kernel, gpu=H200, dtype="bf16"):
    batch = batch_of([(GemmProblem.of(4096, 4096, 4096, dtype), kernel)])
    return resources_of(batch, gpu, family_of(kernel.kernel, gpu))


@pytest.mark.parametrize(*cases(__file__, "test_cutlass_takes_the_stages_of_its_auto_carveout"))
def test_cutlass_takes_the_stages_of_its_auto_carveout(cta_m, cta_n, schedule, stages):
    kernel = KernelConfig(cta_m=cta_m, cta_n=cta_n, schedule=schedule, kernel="cutlass")
    assert taken(kernel).stages[0] == stages


@pytest.mark.parametrize(*cases(__file__, "test_cublas_has_narrow_tiles_either_way"))
def test_cublas_has_narrow_tiles_either_way(gpu, cta_m, cta_n, schedule, runs):
    pair = {"cluster_m": 2} if schedule == "2cta" else {}
    kernel = KernelConfig(cta_m=cta_m, cta_n=cta_n, schedule=schedule, kernel="cublas", **pair)
    reason = check(PROBLEM, kernel, load_gpu(gpu))
    assert (reason is None) == runs
    assert runs or "is not one that cublas kernels on sm" in reason


def test_what_warpgroup_mmas_and_tma_have_is_no_part_of_other_kernels():
    for family in ("quack", "cublas", "cutlass"):
        found = family_of(family, load_gpu("b200_sxm")).mechanisms
        assert not {"narrow_mma", "promotion", "spilling", "edge_tiles"} & set(found)
    for family in ("cublas", "cutlass"):
        assert "edge_tiles" not in family_of(family, load_gpu("l40s")).mechanisms


@pytest.mark.parametrize(*cases(__file__, "test_which_stages_wait_for_mmas"))
def test_which_stages_wait_for_mmas(gpu, family, held, math):
    """Stages held beside the one that is multiplied, and whether a load comes behind its MMAs."""
    found = taken(KernelConfig(**SQUARE, kernel=family), load_gpu(gpu))
    assert (found.stages[0] - found.loads_under_way[0], found.math_in_round_trip) == (held, math)


def test_before_hopper_one_cta_takes_one_tile():
    for name in OLDER:
        for family in families(load_gpu(name)):
            found = family_of(family, load_gpu(name))
            assert not found.tile_period.persistent
            assert not found.tile_period.in_tensor_memory
            assert found.space.schedules == ("cooperative",)
    # Four warps hold 128 x 128 sums, 128 in each of 128 threads; 166912 bytes hold five stages of 32768.
    assert taken(KernelConfig(**SQUARE), A100).accumulator_registers[0] == 128
    assert taken(KernelConfig(**SQUARE), A100).stages[0] == 5
    # The V100 has no asynchronous copies: two stages.
    assert taken(KernelConfig(**SQUARE), load_gpu("v100_sxm2"), "fp16").stages[0] == 2


def test_resources_of_several_families_are_those_of_each():
    kernels = [KernelConfig(**SQUARE, kernel=name) for name in ("cutlass", "quack", "triton", "quack")]
    batch = batch_of([(PROBLEM, kernel) for kernel in kernels])
    together = resources_by_row(batch, H200)
    for row, kernel in enumerate(kernels):
        alone = taken(kernel)
        for name in ("stages", "epilogue_bytes", "warpgroups", "spilled_registers"):
            assert getattr(together, name)[row] == np.ravel(getattr(alone, name))[0], (name, kernel.kernel)


def frame(**columns):
    return pd.DataFrame(
        {"m": 4096, "n": 4096, "k": 1024, "in_dtype": "bf16", **SQUARE, **columns}
        | {"cluster_m": 1, "cluster_n": 1}
    )


def test_one_table_mixes_families():
    names = ["quack", "cutlass", "", "triton", "cublas", "quack"]
    mixed = predict_table(frame(kernel=names), "h200").predicted_us
    for row, name in enumerate(names):
        kernel = KernelConfig(**SQUARE, kernel=name or "quack")
        alone = predict(GemmProblem.of(4096, 4096, 1024), kernel, "h200").runtime_us
        assert mixed[row] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(*cases(__file__, "test_a_row_that_cannot_run_is_named"))
def test_a_row_that_cannot_run_is_named(columns, words):
    found = predict_table(frame(**columns), "h200")
    assert re.search(words, found.attrs["notes"][0])
    odd = int(re.search(r"row (\d)", found.attrs["notes"][0])[1])
    assert found["disposition"].tolist() == ["cannot_run" if row == odd else "ok" for row in range(2)]
    assert (found["predicted_us"] > 0).tolist() == [row != odd for row in range(2)]


def test_a_row_of_an_unknown_kernel_is_named():
    with pytest.raises(InputError, match="row 1, column kernel: 'nonsense'; expected one of auto, quack"):
        predict_table(frame(kernel=["quack", "nonsense"]), "h200")


@pytest.mark.parametrize(*cases(__file__, "test_what_cannot_run_gets_no_time"))
def test_what_cannot_run_gets_no_time(types, kernel, words):
    problem = GemmProblem.of(4096, 4096, 4096, **types)
    with pytest.raises(InputError, match=words):
        predict(problem, KernelConfig(**SQUARE | kernel), "h200")


def test_what_spills_is_predicted_with_that_said():
    problem = GemmProblem.of(4096, 4096, 4096, "fp8")
    slow = predict(problem, KernelConfig(cta_m=128, cta_n=256), "h200")
    # Two sets of 128 sums and 30 further registers, of 240 that a thread has.
    assert slow.details["spilled_registers"] == 46
    assert "up to 46 registers of a thread spill (spilled_registers)" in slow.caveats
    assert check(problem, KernelConfig(cta_m=128, cta_n=256), H200) is not None
    fine = predict(problem, KernelConfig(cta_m=128, cta_n=128), "h200")
    assert not any("spill" in caveat for caveat in fine.caveats)
    assert slow.runtime_us > 3 * fine.runtime_us


def test_a_query_that_was_not_measured_is_said():
    kernel = KernelConfig(cta_m=128, cta_n=256, cluster_m=2, schedule="2cta")
    known = replace(B200, next_cluster_us=0.5)
    assert any("a query for the next tile" in caveat for caveat in predict(PROBLEM, kernel, B200).caveats)
    assert not any("query" in caveat for caveat in predict(PROBLEM, kernel, known).caveats)
    assert not any("query" in caveat for caveat in predict(PROBLEM, KernelConfig(**SQUARE), "h200").caveats)


def test_a_triton_kernel_makes_its_descriptors_first():
    row = numbers_of(PROBLEM, KernelConfig(**SQUARE, kernel="triton"))
    rate = H200.flop_per_clk("fp16")
    triton = family_of("triton", H200)
    made = numbers().without(triton.absent_mechanisms)
    for regime in ("burst", "graph"):
        times = [
            kernel_time(geometry_of(row, rate, H200, triton), H200, known, regime=regime).launch_us
            for known in (made, made.without(["device_descriptors"]))
        ]
        assert times[0] - times[1] == pytest.approx(2.5)
    for family in ("quack", "cutlass", "cublas"):
        assert "device_descriptors" in family_of(family, H200).absent_mechanisms
