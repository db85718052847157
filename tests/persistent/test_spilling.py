"""Spilled registers against what L2 counters of kernels showed, and by hand."""

import math
from dataclasses import replace

import pytest
from gemm_model.persistent.kernel_parameters import KernelParameters, start_values

from gemm_model.core.batch import batch_of
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.feasibility import resources
from gemm_model.kernels.registry import family_of
from gemm_model.persistent.edge_tiles import outside_rows
from gemm_model.persistent.spilling import spilled_l2_bytes, spilled_step
from gemm_model.persistent.tile_schedule import tile_schedule
from gemm_model.persistent.traffic import traffic

H200 = load_gpu("h200")
QUACK = family_of("quack", H200)
P = replace(KernelParameters(**start_values()), spill_clk=10.0)


def row(dtype, **config):
    batch = batch_of([(GemmProblem.of(4096, 4096, 4096, dtype), KernelConfig(**config))])
    return batch, resources(batch, H200, QUACK)


@pytest.mark.parametrize(
    ("dtype", "config", "registers"),
    [
        ("fp8", {"cta_m": 128, "cta_n": 128, "schedule": "pingpong"}, 64),
        ("fp8", {"cta_m": 256, "cta_n": 128}, 64),
        ("fp8", {"cta_m": 192, "cta_n": 160}, 40),
        ("fp8", {"cta_m": 64, "cta_n": 256, "schedule": "pingpong"}, 136),
        ("fp8", {"cta_m": 128, "cta_n": 224}, 112),
        ("bf16", {"cta_m": 256, "cta_n": 224}, 470),
        ("bf16", {"cta_m": 128, "cta_n": 256}, 0),
        ("fp8", {"cta_m": 128, "cta_n": 96}, 0),
    ],
)
def test_registers_that_l2_counters_saw(dtype, config, registers):
    """So many a thread stores at each k step; each is read once too, and writing counts 1.5 times."""
    batch, found = row(dtype, **config)
    expected = registers * 4 * 128 * found.warpgroups[0] * 2.5
    assert spilled_l2_bytes(batch, found)[0] == pytest.approx(expected, rel=0.07)


def test_spilled_registers_are_work_of_l2():
    batch, found = row("bf16", cta_m=256, cta_n=224)
    schedule = tile_schedule(batch, H200, found, QUACK.tile_order)
    kept = replace(found, spilled_registers=0.0 * found.spilled_registers)
    outside = outside_rows(batch, schedule, found)
    spills, fits = (traffic(batch, H200, each, schedule, outside, P) for each in (found, kept))
    # 16 x 19 tiles (18.3 beside each other) of 64 k steps.
    more = spilled_l2_bytes(batch, found)[0] * 16 * 19 * 64
    assert spills.l2_load_bytes[0] - fits.l2_load_bytes[0] == pytest.approx(more)
    assert spills.dram_read_bytes[0] == fits.dram_read_bytes[0]


def test_narrow_instructions_pay_by_the_register():
    batch, found = row("fp8", cta_m=128, cta_n=128, schedule="pingpong")
    step = spilled_step(batch, found, True, P)
    assert found.spilled_registers[0] == 46
    assert step.step_clk[0] == pytest.approx(10 * 46)
    assert step.tile_clk[0] == pytest.approx(0.25 * 10 * 46)


def test_wide_instructions_pay_for_all_accumulators():
    batch, found = row("fp8", cta_m=128, cta_n=256, cluster_m=2)
    step = spilled_step(batch, found, True, P)
    expected = 10 * 25.5 * math.sqrt(46) * 2**0.375
    assert step.step_clk[0] == pytest.approx(expected)
    # The first of several steps has no sums yet.
    assert step.tile_clk[0] == pytest.approx(-0.5 * expected)
    assert spilled_step(batch, found, False, P).tile_clk[0] == 0
    alone, found = row("fp8", cta_m=128, cta_n=256)
    assert spilled_step(alone, found, True, P).step_clk[0] == pytest.approx(1.055 * expected)


def test_16_bit_kernels_spill_at_every_step_alike():
    batch, found = row("bf16", cta_m=256, cta_n=224)
    step = spilled_step(batch, found, True, P)
    assert found.spilled_registers[0] == 14
    assert step.step_clk[0] == pytest.approx(10 * 25.5 * math.sqrt(14) * 2**0.375)
    assert step.tile_clk[0] == 0
