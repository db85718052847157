import pytest

from gemm_model import InputError, load_gpu
from gemm_model.hierarchy.blocking import Blocking, blocking_of, footprint, instruction_tile, parse_tiles
from gemm_model.hierarchy.levels import datapath_of
from tests.cases import cases

H200 = load_gpu("h200")
CUDA_CORES = datapath_of(H200, "cuda_cores", "fp32")


def tile(**changes):
    values = {
        "cta_m": 128, "cta_n": 128, "cta_k": 16, "warp_m": 32, "warp_n": 64, "thread_m": 8, "thread_n": 8,
    }  # fmt: skip
    return Blocking(**{**values, **changes})


def test_footprint_counts_registers_and_shared_memory():
    taken = footprint(tile(), H200, CUDA_CORES)
    assert taken.threads == 256
    # 64 accumulators, 2 x 16 operands, 32 for addresses.
    assert taken.registers_per_thread == 128
    assert taken.smem_bytes == 2 * (128 + 128) * 16 * 4
    assert taken.ctas_per_sm == 65536 // (128 * 256) == 2


def test_sums_of_tensor_cores_take_the_registers_of_warpgroups():
    tensor_cores = datapath_of(H200, "tensor_cores", "bf16")
    taken = footprint(blocking_of(parse_tiles(["cta:128x256"]), H200, tensor_cores, 3), H200, tensor_cores)
    # Two warpgroups of 64 rows: 128 sums in each of their threads, and 24 registers.
    assert (taken.threads, taken.registers_per_thread) == (256, 128 + 24)
    assert taken.smem_bytes == 3 * (128 + 256) * 128


@pytest.mark.parametrize(*cases(__file__, "test_tiles_that_do_not_nest_are_refused"))
def test_tiles_that_do_not_nest_are_refused(changes, part):
    with pytest.raises(InputError, match=part):
        tile(**changes)


def test_instruction_tiles_of_the_architectures():
    assert instruction_tile("sm90", 128, 256) == (64, 256)
    assert instruction_tile("sm100", 128, 256) == (128, 256)
    assert instruction_tile("sm80", 128, 128) == (64, 64)


def test_missing_tiles_take_the_usual_choice():
    found = blocking_of(parse_tiles(["thread:8x16"]), H200, CUDA_CORES, 2)
    assert (found.warp_m, found.warp_n) == (32, 128)
    assert (found.cta_m, found.cta_n, found.cta_k) == (128, 256, 16)
