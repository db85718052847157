"""Random block-scaled operands (mxfp8, mxfp4, nvfp4) in the layout that Blackwell's tensor cores read.

Scale factors lie in blocks of 128 rows x 4 scales along K: shape (rows/128, scales/4, 32, 4, 4), where the
last three axes are (row % 32, row / 32 % 4, scale % 4), as cuBLAS and CUTLASS document it.
"""

from __future__ import annotations

import torch

from gemm_model.bench.torch_library import torch_dtype
from gemm_model.core.dtypes import BlockScale
from gemm_model.core.problem import GemmProblem

BLOCK_ROWS = 128
BLOCK_SCALES = 4
E8M0_BIAS = 127
FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of e2m1 without the sign, by its three low bits (OCP Microscaling Formats v1.0, table 5)."""


def random_block_scaled(
    rows: int, k: int, problem: GemmProblem, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements [rows, k] (two a byte for fp4) and their scales in blocks; both random."""
    scale = _scale_of(problem)
    generator = torch.Generator(device=device).manual_seed(seed)
    if problem.a_dtype.bits == 4:
        packed = torch.randint(0, 256, (rows, k // 2), generator=generator, device=device, dtype=torch.uint8)
        data = packed.view(torch_dtype("e2m1"))
    else:
        data = torch.randn(rows, k, generator=generator, device=device).to(torch_dtype(problem.a_dtype.name))
    shape = scale_shape(rows, k, problem)
    if scale.dtype.name == "e8m0":
        exponents = torch.randint(-1, 2, shape, generator=generator, device=device)
        scales = (exponents + E8M0_BIAS).to(torch.uint8).view(torch.float8_e8m0fnu)
    else:
        factors = 0.5 + 1.5 * torch.rand(shape, generator=generator, device=device)
        scales = factors.to(torch_dtype(scale.dtype.name))
    return data, scales


def scale_shape(rows: int, k: int, problem: GemmProblem) -> tuple[int, ...]:
    """Extents of the scales of an operand [rows, k] as they lie in memory."""
    return -(-rows // BLOCK_ROWS), -(-k // (_scale_of(problem).vec_size * BLOCK_SCALES)), 32, 4, BLOCK_SCALES


def dequantized(data: torch.Tensor, scales: torch.Tensor, problem: GemmProblem) -> torch.Tensor:
    """The operand's values in fp32."""
    values = _fp4_values(data) if problem.a_dtype.bits == 4 else data.float()
    rows, k = values.shape
    vec_size = _scale_of(problem).vec_size
    # (row block, scale block, row % 32, row / 32 % 4, scale % 4) -> (row, scale)
    factors = scales.float().permute(0, 3, 2, 1, 4).reshape(scales.shape[0] * BLOCK_ROWS, -1)
    return values * factors[:rows, : -(-k // vec_size)].repeat_interleave(vec_size, dim=1)[:, :k]


def _scale_of(problem: GemmProblem) -> BlockScale:
    assert problem.a_scale is not None
    assert problem.a_scale == problem.b_scale
    return problem.a_scale


def _fp4_values(data: torch.Tensor) -> torch.Tensor:
    """Two values a byte, the first in the low half; bit 3 is the sign."""
    packed = data.view(torch.uint8)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).long()
    magnitudes = torch.tensor(FP4_MAGNITUDES, device=data.device)
    return magnitudes[codes & 7] * (1 - 2 * (codes >> 3)).float()
