"""One kernel as numbers, and what the formulas are given of it."""

from dataclasses import replace

from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.core.batch import numbers_of
from gemm_model.kernel_model.kernel import geometry_of, kernel_on
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.tile_schedule import tile_schedule
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from tests.typed_numbers import numbers

H200 = replace(
    load_gpu("h200"),
    sm_clk_mhz=1980.0,
    mma_clk_share=0.9,
    dram_bus_bits=6144,
    dram_clk_mhz=3201.0,
    dram_read_gb_per_s=4600.0,
    l2_bytes=62914560.0,
    l2_read_gb_per_s=10000.0,
    l2_read_bytes_per_clk_per_sm=64.0,
    l2_read_bytes_per_clk_of_eight=64.0,
    tensor_load_gain=1.0,
    l2_merging_sms=8.0,
    l2_unwritten_share=0.0,
    dram_launch_bytes=0.0,
    l2_write_gb_per_s=None,
    power_cap_w=700.0,
)
"""The rates that expectations are worked out with."""
A100 = replace(H200, architecture="sm80", max_cluster_size=1, flop_per_clk_per_sm={"fp16": 2048.0})
B200 = replace(
    load_gpu("b200_1300mhz"),
    sm_clk_mhz=1300.0,
    mma_clk_share=0.9,
    l2_read_bytes_per_clk_per_sm=128.0,
    tensor_load_gain=1.0,
    l2_merging_sms=8.0,
    l2_write_bytes_per_clk_per_sm=32.0,
    smem_fill_bytes_per_clk_per_sm=64.0,
    clock_recovery_us=100.0,
)
CUBE = (4096, 4096, 4096)


def row(sizes=CUBE, dtype="bf16", *, out_dtype=None, c_major="n", **kernel):
    """One row as numbers; `kernel` are the fields of KernelConfig."""
    problem = GemmProblem.of(*sizes, dtype, out_dtype=out_dtype)
    return numbers_of(replace(problem, c_major=c_major), KernelConfig(**kernel))


def pair_of_ctas(cta_n, sizes=CUBE, dtype="fp8", cluster_n=1, **more):
    """A row of a 2-CTA kernel on Blackwell with tiles of 128 rows a CTA."""
    kernel = {"cta_m": 128, "cta_n": cta_n, "cluster_m": 2, "cluster_n": cluster_n, "schedule": "2cta"}
    return row(sizes, dtype, **kernel, **more)


def found_of(batch, gpu=H200):
    return resources_of(batch, gpu, family_of("quack", gpu))


def schedule_of(batch, gpu=H200):
    return tile_schedule(batch, found_of(batch, gpu), family_of("quack", gpu).tile_order)


def numbers_on(gpu, known=None):
    """Numbers as a family's kernels see them: mechanisms that these lack are switched off."""
    return (known or numbers()).without(family_of("quack", gpu).absent_mechanisms)


def times_of(batch, known=None, rate=4096.0, gpu=H200, **options):
    shape = geometry_of(batch, rate, gpu, family_of("quack", gpu))
    return kernel_time(shape, gpu, numbers_on(gpu, known), **options)


def kernel_of(batch, known=None, gpu=H200, family="quack", *, rate=4096.0, regime="burst", **made_up):
    """What formulas take; `made_up` parts take the place of found ones."""
    shape = geometry_of(batch, rate, gpu, family_of(family, gpu))
    return replace(kernel_on(shape, gpu, known or numbers(), regime=regime), **made_up)
