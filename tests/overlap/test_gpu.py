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


def poison(chain):
    """Fill all that the kernels write with NaN."""
    for y, d in zip(chain.inputs, chain.outputs[1:], strict=True):
        y.view(torch.uint8).fill_(0xFF)
        d[0, :, : chain.m] = float("nan")


def worst_error(chain, previous):
    """Largest error of any layer's (previous kernel, GEMM) against float64, each over its scale.

    The scale of a GEMM output is the sum of absolute products of its row and column; that of the previous
    kernel is the value itself, in units of the output type's spacing.
    """
    worst_previous = worst_gemm = 0.0
    spacing = {"e4m3": 2.0**-3, "e5m2": 2.0**-2, "bf16": 2.0**-7}[chain.b_type]
    tiny = {"e4m3": 2.0**-9, "e5m2": 2.0**-16, "bf16": 2.0**-126}[chain.b_type]
    for layer in range(chain.layers):
        x = chain.outputs[layer][:, :, : chain.k].double().sum(dim=0)
        if previous.normalize:
            x = x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-6)
        y = chain.inputs[layer].double()
        worst_previous = max(worst_previous, ((y - x).abs() / (x.abs() * spacing + tiny)).max().item())
        a = chain.weights[layer].double()
        d = chain.outputs[layer + 1][0, :, : chain.m].double()
        scale = y.abs() @ a.abs().T
        error = ((d - y @ a.T).abs() - d.abs() * 2.0**-8).clamp(min=0) / scale
        worst_gemm = max(worst_gemm, float("inf") if torch.isnan(d).any() else float(error.max()))
    return worst_previous, worst_gemm


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
            poison(chain)
            chain.launch(build, OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch), previous)
            torch.cuda.synchronize()
            norm, gemm = worst_error(chain, previous)
            assert norm < 1.01
            assert gemm < 1e-3
