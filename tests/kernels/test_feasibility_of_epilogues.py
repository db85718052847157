"""Which tiles can hold what an epilogue scales together."""

import pytest

import gemm_model as gm
from gemm_model.choice.selection import Ranker
from gemm_model.kernels.feasibility import check
from tests.cases import cases


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
