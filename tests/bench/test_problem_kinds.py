"""Epilogues, groups, block scales and convolutions in the benchmark: rows, operands, references, kernels."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")

from gemm_model import GemmProblem, GroupedGemm, KernelConfig
from gemm_model.bench import quack_fused, triton_kernels
from gemm_model.bench.cublas import CublasProvider
from gemm_model.bench.cutlass import build
from gemm_model.bench.cutlass.names import grouped_cells
from gemm_model.bench.kind_tensors import results
from gemm_model.bench.provider import IncorrectResultError, UnsupportedError, load_provider
from gemm_model.bench.quack import QuackProvider
from gemm_model.bench.rows import Row, row_from_columns, write_plan
from gemm_model.bench.sweep import problem_key, rows_of_table, shape_key
from gemm_model.bench.tensors import OperandPool, compare, poison, references
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.core.fields import problem_of_row
from tests.cases import cases

HOPPER = (9, 0)
REFUSED = Path(__file__).with_name("not_run.yaml")
TILE = KernelConfig(cta_m=128, cta_n=128, cta_k=64, stages=3, warps=8, swizzle=4, kernel="triton")
MASKED = replace(GemmProblem.of(64, 128, 128), groups=GroupedGemm.parse("20,0,40,4", "masked", 48))
STRIDED = replace(GemmProblem.of(64, 128, 128, batch=3), batch_strides=BatchStrides.parse("128,0,8200"))
PROBLEMS = (
    GemmProblem.of(64, 256, 128, epilogue="bias_n,gated_silu"),
    GemmProblem.of(64, 256, 128, epilogue="silu,quantize_1x128"),
    GemmProblem.of(64, 128, 128, groups="20,0,40,4"),
    GemmProblem.of(64, 128, 128, groups="20,0,40,4", epilogue="gelu"),
    GemmProblem.of(64, 256, 512, "e4m3", block_scaling="1x128,128x128"),
    GemmProblem.of_conv("dgrad n=2 c=8 h=9 w=7 k=16 r=3 s=3 stride=2 pad=1"),
    GemmProblem.of_conv("fprop n=1 c=8 d=3 h=5 w=5 k=8 t=3 r=3 s=3 pad=1"),
    MASKED,
    STRIDED,
    GemmProblem.of(64, 128, 128, batch=3),
)


def row_of(problem, config=None):
    return Row(kernel="triton", problem=problem, config=config)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: str(problem.m))
def test_rows_come_back_from_their_columns(problem):
    cells = {name: str(value) for name, value in row_of(problem).columns().items()}
    assert row_from_columns(cells).problem == problem


def test_a_plan_has_kind_columns_only_where_a_row_needs_them(tmp_path):
    plain = row_of(GemmProblem.of(64, 128, 128))
    write_plan([plain], tmp_path / "plain.csv")
    write_plan([plain, *map(row_of, PROBLEMS)], tmp_path / "all.csv")
    with (tmp_path / "plain.csv").open() as file:
        assert "epilogue" not in next(csv.reader(file))
    read = rows_of_table(tmp_path / "all.csv", regime="burst", l2="cold")
    assert [row.problem for row in read] == [plain.problem, *(problem for problem in PROBLEMS)]


def test_epilogues_share_their_shape_and_not_their_result():
    plain, fused = (row_of(GemmProblem.of(64, 128, 128, epilogue=word)) for word in ("", "relu"))
    assert shape_key(plain) == shape_key(fused)
    assert problem_key(plain) != problem_key(fused)
    grouped = row_of(GemmProblem.of(64, 128, 128, groups="60,4"))
    assert shape_key(grouped) != shape_key(plain)


# --- operands and references ---------------------------------------------------------------------------


def operands_of(problem):
    return OperandPool("cpu", 1, 2**16).operands(problem, 3)


def test_an_epilogue_is_applied_in_its_order():
    problem = GemmProblem.of(8, 16, 32, "fp32", epilogue="alpha,beta,bias_n,relu,row_sum")
    operands = operands_of(problem)
    product = operands.a.double() @ operands.b.double().mT
    # alpha is 1/2 and beta 3/4.
    linear = 0.5 * product + 0.75 * operands.extras["beta"].double() + operands.extras["bias_n"].double()
    out, sums = references(problem, operands)
    torch.testing.assert_close(out, linear.clamp(min=0))
    torch.testing.assert_close(sums, linear.clamp(min=0).sum(dim=1))


def test_a_gate_merges_even_and_odd_columns():
    problem = GemmProblem.of(8, 16, 32, "fp32", epilogue="gated_relu")
    operands = operands_of(problem)
    assert operands.out.shape == (8, 8)
    product = operands.a.double() @ operands.b.double().mT
    (out,) = references(problem, operands)
    torch.testing.assert_close(out[:, 3], product[:, 6].clamp(min=0) * product[:, 7])


def test_quantized_outputs_are_read_with_their_scales():
    problem = GemmProblem.of(4, 256, 32, epilogue="quantize_1x128")
    operands = operands_of(problem)
    operands.out.copy_(torch.full((4, 256), 2.0))
    operands.extras["quantize_1x128"].copy_(torch.tensor([[1.0, 3.0]] * 4))
    (out,) = results(problem, operands)
    assert out[0, 127] == 2.0
    assert out[0, 128] == 6.0


def test_each_group_has_a_matrix_of_its_own():
    problem = GemmProblem.of(24, 16, 32, "bf16", groups="8,0,16")
    operands = operands_of(problem)
    assert operands.b.shape == (3, 16, 32)
    assert operands.extras["bounds"].tolist() == [0, 8, 8, 24]
    (out,) = references(problem, operands)
    torch.testing.assert_close(out[7], operands.b[0].float() @ operands.a[7].float())
    torch.testing.assert_close(out[8], operands.b[2].float() @ operands.a[8].float())


def test_rows_of_masked_groups_have_room_between_them():
    operands = operands_of(MASKED)
    assert operands.a.shape == (4 * 48, 128)
    assert operands.extras["starts"].tolist() == [0, 48, 96, 144]
    assert operands.extras["ends"].tolist() == [20, 48, 136, 148]
    (expected,) = references(MASKED, operands)
    assert expected.shape == (64, 128)
    torch.testing.assert_close(expected[20], operands.b[2].float() @ operands.a[96].float())
    operands.out[96] = expected[20].to(operands.out.dtype)
    (found,) = results(MASKED, operands)
    torch.testing.assert_close(found[20].float(), expected[20], rtol=1e-2, atol=1e-2)


def test_matrices_of_a_batch_lie_as_their_strides_say():
    operands = operands_of(STRIDED)
    # Rows of three matrices in turn, one B for all, 8 elements between outputs of 64 x 128.
    assert operands.a.stride() == (128, 3 * 128, 1)
    assert operands.b.stride() == (0, 128, 1)
    assert operands.out.stride() == (8200, 128, 1)
    (expected,) = references(STRIDED, operands)
    torch.testing.assert_close(expected[2, 5], operands.b[1].float() @ operands.a[2, 5].float())
    poison(operands.out)
    assert operands.out.isnan().all()
    CublasProvider().prepare(STRIDED, None, operands)()
    assert compare(operands.out, expected, 5e-3) < 5e-3


def test_block_scales_multiply_their_blocks():
    problem = GemmProblem.of(4, 256, 256, "e4m3", block_scaling="1x128,128x128")
    operands = operands_of(problem)
    a_scale, b_scale = operands.extras["a_scale"], operands.extras["b_scale"]
    assert a_scale.shape == (4, 2)
    assert b_scale.shape == (2, 2)
    (out,) = references(problem, operands)
    a, b = operands.a.float(), operands.b.float()
    halves = [(a[2, k : k + 128] @ b[200, k : k + 128]) for k in (0, 128)]
    expected = halves[0] * a_scale[2, 0] * b_scale[1, 0] + halves[1] * a_scale[2, 1] * b_scale[1, 1]
    torch.testing.assert_close(out[2, 200], expected)


@pytest.mark.parametrize(*cases(__file__, "test_gradients_are_the_adjoints_of_the_convolution"))
def test_gradients_are_the_adjoints_of_the_convolution(window):
    """<conv(x, w), g> = <x, dgrad(g, w)> = <w, wgrad(g, x)> for all x, w, g."""
    forward, data, weight = (
        GemmProblem.of_conv(f"{kind} n=2 c=8 {window}", "fp16") for kind in ("fprop", "dgrad", "wgrad")
    )
    operands = operands_of(forward)
    image, filters = operands.a, operands.b
    (pixels,) = references(forward, operands)
    assert pixels.shape[1] == 16
    gradient = operands_of(data).a
    assert gradient.shape == pixels.shape
    product = float((pixels * gradient).sum())
    back = operands_of(data)
    back.b.copy_(filters)
    (of_image,) = references(data, back)
    other = operands_of(weight)
    other.a.copy_(gradient)
    other.b.copy_(image)
    (of_filters,) = references(weight, other)
    assert float((of_image * image.float()).sum()) == pytest.approx(product, rel=1e-3)
    assert float((of_filters * filters.float()).sum()) == pytest.approx(product, rel=1e-3)


def test_a_bias_left_out_is_found():
    problem = GemmProblem.of(64, 128, 4096, epilogue="bias_n")
    operands = OperandPool("cpu", 1, 2**21).operands(problem, 0)
    (reference,) = references(problem, operands)
    poison(operands.out)
    operands.out.copy_(operands.a.float() @ operands.b.float().mT)
    with pytest.raises(IncorrectResultError):
        compare(operands.out, reference, 5e-3)


# --- what providers run --------------------------------------------------------------------------------


@pytest.mark.parametrize(("provider", "cells", "said"), yaml.safe_load(REFUSED.read_text()))
def test_what_a_library_does_not_run_is_said(provider, cells, said):
    problem = problem_of_row({"m": 64, "n": 128, "k": 128, "batch": 1, "in_dtype": "bf16", **cells})
    assert said in load_provider(provider).unsupported(problem, HOPPER)


def test_tiles_that_do_not_fit_an_epilogue_are_refused():
    narrow = KernelConfig(cta_m=128, cta_n=64, cta_k=64, stages=3, warps=4, kernel="triton")
    with pytest.raises(UnsupportedError, match="64 columns are not quantized by 128"):
        triton_kernels.kernel_of(GemmProblem.of(64, 256, 128, epilogue="quantize_1x128"), narrow)
    wide = KernelConfig(cta_m=128, cta_n=256, cta_k=128, stages=3, warps=8, kernel="triton")
    scaled = GemmProblem.of(64, 256, 512, "e4m3", block_scaling="1x128,128x128")
    with pytest.raises(UnsupportedError, match="at most 128 columns"):
        triton_kernels.kernel_of(scaled, wide)
    with pytest.raises(UnsupportedError, match="warps of plain products alone"):
        triton_kernels.kernel_of(GemmProblem.of(64, 256, 128, epilogue="relu"), replace(narrow, warps=12))


def test_tiles_of_groups_are_counted_group_by_group():
    problem = GemmProblem.of(260, 300, 128, groups="129,0,131")
    # Two tiles of 128 rows for each group with rows, three of 128 columns.
    assert triton_kernels.tiles(problem, TILE) == 2 * 3 + 2 * 3


@pytest.mark.parametrize(
    "problem",
    [*PROBLEMS[:4], MASKED, STRIDED],
    ids=("gated", "quantized", "grouped", "grouped_gelu", "masked", "strided"),
)
def test_triton_kernels_compile_for_hopper(problem):
    kernel = triton_kernels.compiled(triton_kernels.kernel_of(problem, TILE), HOPPER)
    assert "wgmma" in kernel.asm["ptx"]


INTERPRETED = """
import torch
from gemm_model.bench import triton_kernels as kernels
from dataclasses import replace
from gemm_model.core.batch_strides import BatchStrides
from gemm_model.bench.kind_tensors import results
from gemm_model.bench.tensors import OperandPool, compare, poison, references
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem

def run(problem, k_tile=64):
    config = KernelConfig(cta_m=64, cta_n=128, cta_k=k_tile, stages=3, warps=4, kernel="triton", swizzle=2)
    operands = OperandPool("cpu", 1, 2**18).operands(problem, 3)
    expected = references(problem, operands)
    poison(operands.out)
    kernel = kernels.kernel_of(problem, config)
    kernels.KERNELS[kernel.kind][(3,)](*kernels.arguments(problem, config, operands))
    for found, reference in zip(results(problem, operands), expected, strict=True):
        compare(found, reference, 2e-3)

linear = "alpha,beta,bias_n,bias_m,residual,gelu,output_scale,row_sum,col_sum"
run(GemmProblem.of(200, 256, 256, "fp16", epilogue=linear))
run(GemmProblem.of(200, 200, 256, "fp16", groups="100,0,84,16", epilogue="bias_n,gated_silu"))
run(GemmProblem.of(200, 256, 256, "e4m3", "fp16", block_scaling="1x128,128x128"), 128)
run(GemmProblem.of(200, 256, 256, "e4m3", "fp16", block_scaling="1x128,1x128"), 128)
run(GemmProblem.of(200, 200, 256, "fp16", groups=GroupedGemm.parse("100,0,84,16", "masked", 130)))
for strides in ("", "128,0,14400", "0,18440,14408"):
    parsed = BatchStrides.parse(strides) if strides else None
    run(replace(GemmProblem.of(100, 144, 128, "fp16", batch=3), batch_strides=parsed))
"""


@pytest.mark.slow
def test_triton_kernels_give_right_results_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of(256, 512, 512, epilogue="bias_n,gated_silu", groups="100,156"),
        GemmProblem.of(256, 512, 512, epilogue="alpha,beta,bias_n"),
    ],
    ids=("gated_groups", "linear"),
)
def test_quack_compiles_epilogues_without_a_gpu(problem, tmp_path, monkeypatch):
    from quack.cache import jit

    monkeypatch.setattr(jit._state, "CACHE_DIR", str(tmp_path))
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", swizzle=8)
    before = quack_fused.quack_gemm.run_gemm_plan
    QuackProvider().compile(problem, config, HOPPER)
    assert quack_fused.quack_gemm.run_gemm_plan is before


def test_cutlass_macros_name_the_epilogue():
    config = KernelConfig(cta_m=128, cta_n=128, kernel="cutlass")
    plain = build.macros(GemmProblem.of(64, 128, 128), config)
    assert build.macros(GemmProblem.of(64, 128, 128, epilogue="bias_n,gelu"), config) == (
        *plain,
        "-DGEMM_FUSION=BiasedActivated",
        "-DGEMM_ACTIVATION=Gelu",
        "-DGEMM_READS_C=0",
        "-DGEMM_HAS_BIAS=1",
    )
    scaled = build.macros(GemmProblem.of(64, 128, 128, epilogue="alpha,beta"), config)
    assert scaled == (*plain, "-DGEMM_FUSION=Combined", "-DGEMM_ACTIVATION=None", "-DGEMM_READS_C=1",
                      "-DGEMM_HAS_BIAS=0")  # fmt: skip


@pytest.mark.parametrize(*cases(__file__, "test_a_grouped_kernel_of_torch_tells_its_tile"))
def test_a_grouped_kernel_of_torch_tells_its_tile(name, tile, stages, schedule):
    cells = grouped_cells(name)
    assert (cells["cta_m"], cells["cta_n"], cells["cta_k"]) == tile
    assert (cells["cluster_m"], cells["cluster_n"]) == (2, 1)
    assert (cells["stages"], cells["schedule"]) == (stages, schedule)
    assert grouped_cells("nvjet_sm90_tst_64x64") == {}
