"""What a card gives: bytes of L2 and DRAM in a microsecond, and how many SMs and GPCs it takes to ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_model.config.mechanisms import KernelNumbers
from gemm_model.core.elementwise import Values, maximum
from gemm_model.core.gpu import GpuSpec

if TYPE_CHECKING:
    from gemm_model.kernel_model.kernel import KernelWaves
    from gemm_model.kernel_model.traffic import Traffic

EIGHT_SMS = 8.0
"""SMs that share one GPC ingress [SMs]; `l2_read_bytes_per_clk_of_eight`; by the microbenchmark."""


def l2_bytes_per_us(gpu: GpuSpec, numbers: KernelNumbers) -> float:
    """What L2 reads and writes for tensor loads, as `lts__t_bytes` counts it."""
    return gpu.l2_read_bytes_per_us * gpu.tensor_load_gain * numbers.l2.efficiency


def dram_us_of(kernel: KernelWaves, moved: Traffic) -> Values:
    """What DRAM reads and writes take, or the outputs on their way into L2.

    Source: bulk stores to L2; kernels of many outputs, which L2 holds back, are not faster than that.
    """
    gpu = kernel.gpu
    dram_us = moved.dram_bytes / dram_bytes_per_us(gpu, kernel.numbers)
    if gpu.l2_write_gb_per_s is None:
        return dram_us
    return maximum(dram_us, moved.output_bytes / (gpu.l2_write_gb_per_s * 1e3))


def dram_bytes_per_us(gpu: GpuSpec, numbers: KernelNumbers) -> float:
    return gpu.dram_read_bytes_per_us * numbers.dram.efficiency


def operands_us(kernel: KernelWaves) -> Values:
    """What DRAM takes to read the operands once."""
    return kernel.batch.operand_bytes / dram_bytes_per_us(kernel.gpu, kernel.numbers)


def gpcs_to_saturate_l2(gpu: GpuSpec) -> float:
    """GPCs whose ingress adds up to L2's bandwidth; 0 where no such bound is known.

    The first eight SMs that a launch takes are of one GPC, and its ingress is what they read together: further
    CTAs there share it. Source: bulk reads of 8 to 48 CTAs (h200, three cards).
    """
    of_eight = gpu.l2_read_bytes_per_clk_of_eight
    if of_eight is None:
        return 0.0
    return gpu.l2_read_bytes_per_us / (EIGHT_SMS * of_eight * gpu.sm_clk_mhz)
