"""Bytes of the operands, the same of one problem and of a batch."""

import pytest

from gemm_model import GemmProblem, KernelConfig
from gemm_model.core.batch import batch_of, numbers_of

CONFIG = KernelConfig(cta_m=128, cta_n=128)


@pytest.mark.parametrize(
    ("dtype", "a_bytes", "b_bytes", "output_bytes"),
    [
        ("bf16", 3 * 64 * 256 * 2, 3 * 32 * 256 * 2, 3 * 64 * 32 * 2),
        ("e4m3", 3 * 64 * 256, 3 * 32 * 256, 3 * 64 * 32 * 2),
        # A byte of scale for 32 elements of a byte, and for 16 of half a byte.
        ("mxfp8", 3 * 64 * (256 + 8), 3 * 32 * (256 + 8), 3 * 64 * 32 * 2),
        ("nvfp4", 3 * 64 * (128 + 16), 3 * 32 * (128 + 16), 3 * 64 * 32 * 2),
    ],
)
def test_bytes_hold_batches_and_scale_factors(dtype, a_bytes, b_bytes, output_bytes):
    problem = GemmProblem.of(64, 32, 256, dtype, batch=3)
    assert (problem.a_bytes, problem.b_bytes, problem.output_bytes) == (a_bytes, b_bytes, output_bytes)
    for batch in (batch_of([(problem, CONFIG)]), numbers_of(problem, CONFIG)):
        assert batch.operand_bytes == a_bytes + b_bytes
        assert batch.output_bytes == output_bytes


def test_a_pitch_follows_the_contiguous_extent():
    problem = GemmProblem(m=64, n=32, k=256, a_major="m", b_major="k", c_major="n")
    batch = numbers_of(problem, CONFIG)
    assert (batch.a_pitch_bytes, batch.b_pitch_bytes, batch.output_pitch_bytes) == (128, 512, 64)
