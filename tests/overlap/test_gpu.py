"""On a Hopper GPU: every type and ragged sizes against float64, with poisoned outputs."""

import importlib.util

import pytest

if importlib.util.find_spec("cutlass") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs the CuTe DSL and torch", allow_module_level=True)

import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from gemm_model.overlap.chain import LayerChain, PreviousSpec
from gemm_model.overlap.config import KernelBuild, OverlapSetting

SHAPES = ((128, 16, 256), (200, 5, 528), (1000, 33, 1040), (17000, 16, 320), (64, 128, 4096), (192, 1, 512))


@pytest.mark.parametrize("types", [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("bf16", "bf16")])
@pytest.mark.parametrize("shape", SHAPES)
def test_chain_against_float64(types, shape):
    m, n, _ = shape
    chain = LayerChain(shape, types, layers=3)
    for split_k, split_loading in ((1, True), (2, True), (2, False), (8, True)):
        clusters = -(-m // 64) if split_k > 1 else 132
        build = KernelBuild(
            a_type=types[0], b_type=types[1], tile_n=-(-n // 8) * 8, split_k=split_k, stages=5,
            clusters=clusters, split_loading=split_loading, fill_delay_clocks=800 if split_k == 8 else 0,
        )  # fmt: skip
        for number, (overlap, prefetch) in enumerate(((-1, 0), (0, 1), (0.25, -1), (1, 0.5))):
            previous = PreviousSpec(trigger_early=bool(number % 2))
            chain.poison()
            chain.launch(build, OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch), previous)
            torch.cuda.synchronize()
            norm, gemm = chain.worst_error(previous)
            assert norm < 1.01
            assert gemm < 1e-3
