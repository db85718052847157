"""Whole warps that load, or threads of warps that do both."""

import pytest

from gemm_model.core.errors import InputError
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, workload
from gemm_model.pipeline.steady_state import kernel_time
from gemm_model.pipeline.warps import in_warps

MACHINE = PipelineMachine(mac_per_us=1e6, load_bytes_per_us=32768.0)
KERNEL = PipelineKernel(m=128, n=128, k=6400, tile_m=128, tile_n=128, tile_k=64, stages=4)
LOAD_US = 2 * 128 * 64 * 2 / 32768.0


def time_us(**words):
    machine, kernel = in_warps(MACHINE, KERNEL, **words)
    return float(kernel_time(workload(machine, kernel), machine)) / 1e6


def test_larger_warps_take_more_threads_from_the_math():
    math_us = 128 * 128 * 64 / 1e6
    for warp_size, share in ((32, 7 / 8), (64, 6 / 8), (128, 4 / 8)):
        found = time_us(threads=256, dma_threads=1, warp_size=warp_size)
        assert found == pytest.approx(LOAD_US + 100 * math_us / share, rel=1e-6)


def test_divergence_takes_no_warp_but_ends_the_overlap():
    math_us = 128 * 128 * 64 / 1e6 * 256 / 255
    found = time_us(threads=256, dma_threads=1, diverges=True)
    assert found == pytest.approx(100 * (LOAD_US + math_us), rel=1e-6)


@pytest.mark.parametrize("words", [{"threads": 100}, {"threads": 32}, {"threads": 64, "warp_size": 0}])
def test_warps_that_leave_no_math_are_refused(words):
    with pytest.raises(InputError, match="threads"):
        time_us(**{"dma_threads": 1, **words})
