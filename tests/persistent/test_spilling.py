"""Spilled registers, by hand."""

import pytest

from gemm_model.persistent.spilling import spilled_clk, spilled_l2_bytes
from tests.persistent.kernels import found_of, row
from tests.typed_numbers import numbers


@pytest.mark.parametrize(
    ("dtype", "config", "registers", "clk"),
    [
        # Narrow instructions pay 10 clocks a register, of two warpgroups root 2 times as much.
        ("fp8", {"cta_m": 128, "cta_n": 128, "schedule": "pingpong"}, 46, 460),
        ("fp8", {"cta_m": 256, "cta_n": 128}, 46, 460 * 2**0.5),
        ("fp8", {"cta_m": 192, "cta_n": 160}, 30, 300 * 2**0.5),
        # Wide ones have all accumulators live: 25 registers for each root of one.
        ("fp8", {"cta_m": 128, "cta_n": 256}, 46, 250 * (46 * 2**0.5) ** 0.5),
        ("bf16", {"cta_m": 256, "cta_n": 224}, 14, 250 * (14 * 2**0.5) ** 0.5),
        ("bf16", {"cta_m": 128, "cta_n": 256}, 0, 0),
        ("fp8", {"cta_m": 128, "cta_n": 96}, 0, 0),
    ],
)
def test_clocks_of_a_k_tile(dtype, config, registers, clk):
    batch = row(dtype=dtype, **config)
    found = found_of(batch)
    assert found.spilled_registers == registers
    assert spilled_clk(found, 1.0, numbers().spilling) == pytest.approx(clk)


def test_the_first_k_tile_of_a_wide_instruction_spills_half():
    batch = row(dtype="fp8", cta_m=128, cta_n=256)
    first, mean_of_four = (spilled_clk(found_of(batch), k, numbers().spilling) for k in (1.0, 4.0))
    assert mean_of_four == pytest.approx(first * 3.5 / 4)
    narrow = row(dtype="fp8", cta_m=256, cta_n=128)
    assert spilled_clk(found_of(narrow), 4.0, numbers().spilling) == pytest.approx(460 * 2**0.5)


@pytest.mark.parametrize(
    ("config", "registers"),
    [
        # A thread holds 128 of the 64 x 256 sums of a wide instruction, and spills all of them.
        ({"cta_m": 128, "cta_n": 256}, 128),
        ({"cta_m": 256, "cta_n": 128}, 46),
        ({"cta_m": 128, "cta_n": 96}, 0),
    ],
)
def test_what_spills_goes_through_l2(config, registers):
    """At 2 bytes of L2's work for each of the 4 bytes of a register, of the 256 threads of two warpgroups."""
    found = found_of(row(dtype="fp8", **config))
    assert spilled_l2_bytes(found, numbers().spilling) == pytest.approx(registers * 4 * 256 * 2.0)
