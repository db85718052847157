import pytest

torch = pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")

from gemm_model.bench.block_scaled import dequantized, random_block_scaled
from gemm_model.bench.kind_tensors import product_of
from gemm_model.bench.provider import IncorrectResultError, UnsupportedError
from gemm_model.bench.tensors import OperandPool, compare, error_limit, poison
from gemm_model.bench.torch_library import torch_dtype
from gemm_model.core.problem import GemmProblem
from tests.cases import cases

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Without the sign, by the three low bits: 2 of exponent (bias 1), 1 of mantissa."""


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "e5m2", "fp32"])
def test_operands_of_each_placement_lie_apart_and_aligned(dtype):
    pool = OperandPool("cpu", seed=3, elements=2**20)
    problem = GemmProblem.of(33, 128, 256, dtype)
    starts = set()
    for placement in range(20):
        operands = pool.operands(problem, placement)
        assert operands.a.shape == (33, 256)
        assert operands.b.shape == (128, 256)
        assert operands.out.shape == (33, 128)
        for tensor in (operands.a, operands.b, operands.out):
            assert tensor.data_ptr() % 16 == 0
            assert tensor.is_contiguous()
        end_of_a = operands.a.data_ptr() + operands.a.numel() * operands.a.element_size()
        assert end_of_a <= operands.b.data_ptr()
        starts.add((operands.a.data_ptr(), operands.b.data_ptr()))
    assert len(starts) > 10
    assert pool.operands(problem, 5).a.data_ptr() == pool.operands(problem, 5).a.data_ptr()


def test_operands_are_random_and_never_zeros():
    operands = OperandPool("cpu", seed=3, elements=2**16).operands(GemmProblem.of(64, 64, 512, "bf16"))
    for tensor in (operands.a, operands.b):
        assert abs(float(tensor.float().mean())) < 0.05
        assert float(tensor.float().std()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(*cases(__file__, "test_a_right_product_passes_and_each_kind_of_wrong_one_fails"))
def test_a_right_product_passes_and_each_kind_of_wrong_one_fails(dtype, limit):
    problem = GemmProblem.of(96, 128, 512, dtype)
    operands = OperandPool("cpu", seed=1, elements=2**18).operands(problem)
    reference = product_of(problem, operands)
    expected = operands.a.double() @ operands.b.double().T
    assert torch.allclose(reference.double(), expected, rtol=1e-5, atol=1e-3)
    assert error_limit(problem) == pytest.approx(limit)
    operands.out.copy_(reference)
    assert compare(operands.out, reference, limit) <= limit
    operands.out[17, 31] += 40.0 * float(reference.std())
    with pytest.raises(IncorrectResultError):
        compare(operands.out, reference, limit)
    poison(operands.out)
    operands.out[:95].copy_(reference[:95])
    with pytest.raises(IncorrectResultError):
        compare(operands.out, reference, limit)
    operands.out.copy_(reference.roll(1, 0))
    with pytest.raises(IncorrectResultError):
        compare(operands.out, reference, limit)


def test_one_wrong_element_among_many_is_found():
    reference = torch.randn(2000, 2000, generator=torch.Generator().manual_seed(0))
    out = reference.clone()
    out[0, 0] += 0.2
    assert float(torch.linalg.vector_norm(out - reference) / torch.linalg.vector_norm(reference)) < 5e-3
    with pytest.raises(IncorrectResultError, match="one element"):
        compare(out, reference, 5e-3)
    # Of 144 ones one is off by 1.5: an eighth of all, and 12 times that of the root mean square, right at both limits.
    ones = torch.ones(144)
    assert compare(ones + 1.5 * (torch.arange(144) == 7), ones, 0.125) == 0.125


@pytest.mark.parametrize("dtype", ["mxfp8", "mxfp4", "nvfp4"])
def test_block_scales_are_applied_where_the_hardware_reads_them(dtype):
    problem = GemmProblem.of(130, 64, 192, dtype)
    data, scales = random_block_scaled(130, 192, problem, "cpu", seed=2)
    values = dequantized(data, scales, problem)
    assert values.shape == (130, 192)
    assert problem.a_scale is not None
    vec_size = problem.a_scale.vec_size
    for row, k in ((0, 0), (31, 17), (32, 32), (127, 191), (128, 100), (129, 16)):
        block = k // vec_size
        scale = float(scales[row // 128, block // 4, row % 32, row // 32 % 4, block % 4].float())
        if problem.a_dtype.bits == 4:
            byte = int(data.view(torch.uint8)[row, k // 2])
            code = byte >> 4 if k % 2 else byte & 0xF
            element = E2M1_MAGNITUDES[code & 7] * (-1 if code & 8 else 1)
        else:
            element = float(data[row, k].float())
        assert float(values[row, k]) == pytest.approx(element * scale)
    reference = product_of(problem, OperandPool("cpu", seed=2, elements=1).operands(problem))
    assert reference.shape == (130, 64)
    assert torch.isfinite(reference).all()


def test_a_type_without_tensors_is_said():
    with pytest.raises(UnsupportedError, match="e3m2"):
        torch_dtype("e3m2")
