"""Compression, sparsity, bank conflicts, clusters that share a tile, and hardware sought for a dataflow."""

import pytest

from gemm_model import InputError, load_gpu
from gemm_model.hierarchy.blocking import blocking_of, parse_tiles
from gemm_model.hierarchy.levels import datapath_of, machine_of
from gemm_model.hierarchy.matching import Grid, match
from gemm_model.hierarchy.variants import bank_conflicts, exchange_clk, variant

H200 = load_gpu("h200")
MACHINE = machine_of(H200, datapath_of(H200, "tensor_cores", "bf16"))
BLOCKING = blocking_of(parse_tiles(["cta:128x256x64"]), H200, MACHINE.datapath, 4)
GRID = Grid(rows=8, columns=16, k=4096)


def fractions(machine):
    return {stage.name: stage.fraction for stage in match(machine, BLOCKING, GRID).stages}


def test_compression_and_bank_conflicts_change_the_rates_of_their_levels():
    plain, packed = fractions(MACHINE), fractions(variant(MACHINE, "compression 1.5"))
    twice = fractions(variant(MACHINE, "bank_conflicts 2"))
    for name, fraction in plain.items():
        packs = name in ("dram -> l2", "l2 -> all SMs")
        assert packed[name] == pytest.approx(fraction * (1.5 if packs else 1.0))
        assert twice[name] == pytest.approx(fraction / (2.0 if name == "smem -> mma" else 1.0))


def test_sparsity_doubles_the_rate_and_halves_the_bytes_of_a():
    sparse = variant(MACHINE, "sparsity 2:4").datapath
    assert sparse.fma_per_clk == 2 * MACHINE.datapath.fma_per_clk
    # Half of the elements of 2 bytes, each with 2 bits that tell its place.
    assert sparse.a_bytes == 1.0 + 0.125
    assert sparse.b_bytes == 2.0


@pytest.mark.parametrize("words", ["compression 0.5", "sparsity 4:2", "sparsity 0:4", "speed 2"])
def test_changes_that_make_no_machine_are_refused(words):
    with pytest.raises(InputError, match="expected 'compression 1.5'"):
        variant(MACHINE, words)


@pytest.mark.parametrize(("row_bytes", "clocks"), [(128, 32), (132, 1), (136, 2), (64, 16), (4, 1)])
def test_rows_a_word_longer_have_no_bank_conflicts(row_bytes, clocks):
    banks = [row * row_bytes // 4 % 32 for row in range(32)]
    assert bank_conflicts(row_bytes) == clocks == max(banks.count(bank) for bank in banks)


def test_partial_sums_cost_less_through_a_cluster_than_through_l2():
    found = exchange_clk(MACHINE, BLOCKING, 4096, 4)
    assert found["math"] == pytest.approx(128 * 256 * 1024 / MACHINE.datapath.fma_per_clk)
    assert found["dsmem"] == pytest.approx(128 * 256 * 4 * 0.75 / H200.l2_read_bytes_per_clk_per_sm)
    assert found["dsmem"] < found["l2"] / 2


def test_hardware_that_is_enough_feeds_the_datapath():
    for stage in match(MACHINE, BLOCKING, GRID).stages:
        assert stage.enough_bytes_per_clk * stage.fraction == pytest.approx(stage.bytes_per_clk)
