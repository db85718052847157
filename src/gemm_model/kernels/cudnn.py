"""Kernels of cuDNN: implicit GEMM in the tiles that the names of its picks tell, else like CUTLASS's."""

from __future__ import annotations

from dataclasses import replace

from gemm_model.core.batch import GemmBatch
from gemm_model.core.conv import WGRAD, ConvProblem
from gemm_model.core.elementwise import Flags
from gemm_model.core.further_work import CONV
from gemm_model.core.kernel_config import AUTO, PINGPONG
from gemm_model.kernels import cutlass
from gemm_model.kernels.family import KernelFamily

SPLITS = (*range(1, 9), *range(10, 25, 2), 32, 44, 64)
"""Parts of K [1]; weight gradients, small products of long K; as many as leave each tile's CTAs room on the
SMs (grids of its picks on an H200), in steps of at most a seventh up to 24."""
ALIGNED_CHANNELS = 8
"""Channels of 16 bits that a row of 16 bytes holds [1]; TMA; PTX ISA."""
NARROWEST_TILE = 64
"""Fewest columns of a tile [1]; names of its picks."""
MOST_PACKED_CHANNELS = 32
"""Most channels of a group with others in its tile [1]; names of cuDNN's kernels: tiles hold 2 to 32 groups."""
LARGEST_DILATION = 4
"""Largest dilation with kernels of Hopper [1]; picks of cuDNN: those of 2 and 4 are, of 12 and 24 are not."""
LARGEST_PINGPONG_TILE = 16384.0
"""Most sums of a ping-pong tile [1]; picks of cuDNN, which has larger ones shared by two warpgroups; names of
572 kernels on an H200."""


def in_its_schedule(batch: GemmBatch) -> Flags:
    """A tile comes in one schedule: warpgroups share the large ones."""
    fits: Flags = (batch.cta_m * batch.cta_n > LARGEST_PINGPONG_TILE) ^ (batch.schedule == PINGPONG)
    return fits


def sort_of(conv: ConvProblem) -> str:
    """What a convolution is to cuDNN: its own picks are told apart by it (`own_picks.yaml`).

    Of groups its calls copy a slice each, or transpose the image, where a tile does not hold several; channels that fill no row of 16 bytes they
    pad; for wide taps they take kernels of an earlier architecture; for weight gradients whose channels fill
    no tile they seldom take the best one.
    """
    channels, filters = conv.channels // conv.groups, conv.filters // conv.groups
    if conv.groups > 1:
        return "grouped" if max(channels, filters) > MOST_PACKED_CHANNELS else "packed"
    if channels % ALIGNED_CHANNELS or filters % ALIGNED_CHANNELS:
        return "padded"
    if max(conv.dilation) > LARGEST_DILATION:
        return "dilated"
    return "narrow_wgrad" if conv.kind == WGRAD and channels % NARROWEST_TILE else ""


def _of_images(like: KernelFamily) -> KernelFamily:
    space = replace(like.space, swizzles=(1,), rasters=("heuristic",), split_k=SPLITS, fast_accum=False)
    knows = frozenset({CONV, "bias_n", "relu"})
    return replace(like, name="cudnn", space=space, knows=knows, plain_products=False)


def _picked_on_hopper(like: KernelFamily) -> KernelFamily:
    """The tiles of most of its picks on an H200; which one it picks is its own affair.

    Its clusters have any size that fits a row or column of tiles, and do not show in a name.
    """
    space = replace(
        like.space,
        cta_n=(64, 128, 256),
        cta_k=(AUTO, 32),
        clusters=((1, 1),),
        combines=in_its_schedule,
    )
    return replace(like, space=space)


CUDNN_SM90, *OTHERS = map(_of_images, cutlass.FAMILIES)
FAMILIES = (_picked_on_hopper(CUDNN_SM90), *OTHERS)
