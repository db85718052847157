"""Spilled registers, by hand."""

import pytest

from gemm_model.kernel_model.spilling import spilled_clk, spilled_l2_bytes
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from tests.cases import cases
from tests.kernel_model.kernels import H200, found_of, kernel_of, row


@pytest.mark.parametrize(*cases(__file__, "test_what_the_dsl_spills"))
def test_what_the_dsl_spills(dtype, config, excess, moved, waits):
    found = found_of(row(dtype=dtype, **config))
    assert (found.spilled_registers, found.moved_registers, found.spill_waits) == (excess, moved, waits)


def test_nvcc_spills_by_the_register():
    batch = row(dtype="fp8", cta_m=128, cta_n=256)
    found = resources_of(batch, H200, family_of("cutlass", H200))
    assert (found.spilled_registers, found.moved_registers, found.spill_waits) == (46, 46, 3)


def test_clocks_of_a_k_tile():
    """10 clocks a register, root 2 times as much for two warpgroups; 100 a wait, not in the first k tile."""
    one = {"dtype": "fp8", "cta_m": 128, "cta_n": 128, "schedule": "pingpong"}
    assert spilled_clk(kernel_of(row((512, 512, 128), **one))) == pytest.approx(640)
    assert spilled_clk(kernel_of(row((512, 512, 512), **one))) == pytest.approx(640 + 2 * 100 * 3 / 4)
    two = kernel_of(row((512, 512, 512), dtype="fp8", cta_m=256, cta_n=128))
    assert spilled_clk(two) == pytest.approx(640 * 2**0.5 + 150)


@pytest.mark.parametrize(*cases(__file__, "test_what_spills_goes_through_l2"))
def test_what_spills_goes_through_l2(config, registers):
    """At 2 bytes of L2's work for each of the 4 bytes of a register, of the 256 threads of two warpgroups."""
    assert spilled_l2_bytes(kernel_of(row(dtype="fp8", **config))) == pytest.approx(registers * 4 * 256 * 2.0)
