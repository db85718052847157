import pytest

ops = pytest.importorskip("cutlass.operators")

import torch
from cutlass.operators.arguments.operand import ScaledOperand

from gemm_model import predict
from gemm_model.integrations.cutlass_operators import GemmModelHeuristic, config_of, problem_of

MODEL = "WSPersistentGEMMModel"
M, N, K = 512, 768, 1024


def dense(dtype=torch.float16, out=torch.float16):
    a, b = torch.empty(M, K, dtype=dtype), torch.empty(N, K, dtype=dtype).t()
    return ops.GemmArguments(a, b, torch.empty(M, N, dtype=out), accumulator_type=torch.float32)


def block_scaled():
    def operand(tensor, rows):
        scales = torch.empty(rows * K // 32, dtype=torch.float8_e8m0fnu)
        return ScaledOperand(tensor, scales, ops.ScaleMode.Blockwise1x32, ops.ScaleSwizzleMode.Swizzle32x4x4)

    a = operand(torch.empty(M, K, dtype=torch.float8_e4m3fn), M)
    b = operand(torch.empty(N, K, dtype=torch.float8_e4m3fn).t(), N)
    out = torch.empty(M, N, dtype=torch.bfloat16)
    return ops.GemmArguments(a, b, out, accumulator_type=torch.float32)


@pytest.mark.parametrize(
    ("arguments", "target", "gpu"),
    [
        (dense(), "90a", "h200"),
        (dense(torch.float8_e4m3fn, torch.bfloat16), "90a", "h200"),
        (dense(), "100a", "b200_1300mhz"),
        (block_scaled(), "100a", "b200_1300mhz"),
    ],
)
def test_operators_come_in_order_of_predicted_time(arguments, target, gpu):
    heuristic = ops.get_heuristic("gemm_model")(gpu=gpu, model=MODEL)
    operators = ops.get_operators(arguments, target_sm=target)
    ranked = ops.get_operators(arguments, target_sm=target, heuristic=heuristic)
    assert sorted(map(id, ranked)) == sorted(map(id, operators)) or len(ranked) == len(operators)
    least = int(heuristic.gpu.architecture.removeprefix("sm"))
    own = [each for each in ranked if each.metadata.operator_class.designed_for_min_cc == least]
    assert own
    assert ranked[: len(own)] == own
    problem = problem_of(arguments)
    times = [predict(problem, config_of(each.metadata.design), gpu, MODEL).runtime_us for each in own]
    assert times == pytest.approx(sorted(times))


def test_a_limit_keeps_the_first():
    heuristic = GemmModelHeuristic(gpu="h200", model=MODEL)
    asked = {"target_sm": "90a", "heuristic": heuristic}
    every, few = (ops.get_operators(dense(), **asked, limit=limit) for limit in (None, 3))
    assert [each.metadata.operator_name for each in few] == [
        each.metadata.operator_name for each in every[:3]
    ]


def test_block_scales_are_read():
    problem = problem_of(block_scaled())
    assert (problem.m, problem.n, problem.k) == (M, N, K)
    assert (problem.a_scale.dtype.name, problem.a_scale.vec_size) == ("e8m0", 32)
    assert (problem.a_dtype.name, problem.out_dtype.name) == ("e4m3", "bf16")
    assert (problem.a_major, problem.b_major, problem.c_major) == ("k", "k", "n")


def test_the_tile_of_a_pair_of_ctas_is_that_of_the_mma():
    operators = ops.get_operators(dense(), target_sm="100a")
    designs = (each.metadata.design for each in operators)
    pair = next(each for each in designs if getattr(each, "use_2cta_mma", False))
    assert config_of(pair).mma_m == pair.tile_shape[0] == 2 * config_of(pair).cta_m


def test_operators_of_another_version_keep_their_order(caplog):
    others = [object(), object()]
    assert GemmModelHeuristic(gpu="h200", model=MODEL).rank(dense(), others) == others
    assert "in CUTLASS's own order (we know nvidia-cutlass-operators 0.3): " in caplog.text


def test_other_arguments_are_refused():
    heuristic = GemmModelHeuristic(gpu="h200", model=MODEL)
    assert heuristic.rank(None, []) == []
    with pytest.raises(TypeError, match="ranks GemmArguments"):
        heuristic.rank(None, [object()])
