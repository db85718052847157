"""Sorts of convolutions for a library's heuristic choice, and the copies that it makes for them."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, gcd, prod
from types import MappingProxyType

from gemm_model.config.numbers import room_numbers
from gemm_model.core.conv import DGRAD, FPROP, WGRAD, ConvProblem
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.heuristic_choice import Copies, EarlierWork, Way
from gemm_model.core.problem import GemmProblem

ALIGNED_CHANNELS = 8
"""Channels of 16 bits that a row of 16 bytes holds [1]; TMA; PTX ISA."""
LOADS_PER_CLK_PER_SM = 32
"""Threads whose loads an SM issues [1/clk]; from sm80 on; load and store units, whitepapers."""
LATER = ("sm90", "sm100")
"""Architectures with MMAs that kernels of sm80 leave unused; elsewhere these are the GPU's own kernels."""
NOTHING: Mapping[str, Way] = MappingProxyType({})


def sort_of(conv: ConvProblem) -> str:
    """The sort of a convolution, by which cuDNN's heuristic choices differ (`heuristic_choices.yaml`).

    If a tile holds neither several groups nor a whole one with as many channels as filters, its calls copy a
    slice for each group or transpose the image. They pad channels that fill no row of 16 bytes. For wide or
    many taps they use kernels of an earlier architecture. For weight gradients whose channels fill no tile
    they seldom use the best kernel.
    """
    found = room_numbers("choice")
    channels, filters = conv.channels // conv.groups, conv.filters // conv.groups
    if conv.groups > 1:
        return _sort_of_groups(conv, channels, filters)
    # Channels fill less than half of the columns of a weight gradient's tile.
    few = {FPROP: found.cudnn_few_channels, DGRAD: 0, WGRAD: found.cudnn_columns // 2}
    if channels < few[conv.kind]:
        return "few"
    if channels % ALIGNED_CHANNELS or filters % ALIGNED_CHANNELS:
        return "padded"
    if max(conv.dilation) > found.cudnn_dilation:
        return "dilated"
    # A strided data gradient meets some of the taps at each place.
    if conv.taps / conv.places > found.cudnn_taps:
        return "many_taps"
    return "narrow_wgrad" if conv.kind == WGRAD and channels % found.cudnn_columns else ""


def _sort_of_groups(conv: ConvProblem, channels: int, filters: int) -> str:
    """The sort of a grouped convolution by channels and filters of a group: a tile packs powers of two."""
    found = room_numbers("choice")
    if channels == 1:
        return "depthwise"
    if channels == filters and conv.packed > 1 and not channels & (channels - 1):
        return "packed"
    filled = (found.cudnn_whole_channels // 2, found.cudnn_whole_channels)
    whole = channels == filters and channels in filled and _taken_as_they_are(conv, channels)
    return "whole" if whole else "grouped"


def _taken_as_they_are(conv: ConvProblem, channels: int) -> bool:
    """Whether groups that fill a tile's columns need no slices, from the names of its kernels."""
    found = room_numbers("choice")
    half = channels < found.cudnn_whole_channels
    if conv.kind == DGRAD:
        return half and conv.places == 1 and conv.images > 1
    pixels = conv.images * prod(conv.output_size)
    return pixels >= found.cudnn_whole_pixels or (half and conv.kind == WGRAD)


def ways_of(problem: GemmProblem, gpu: GpuSpec) -> Mapping[str, Way]:
    """Ways in which cuDNN computes a convolution that no kernel takes as it is, with the work of each.

    Images of larger groups are sliced, with a kernel for each slice into and out of a group, or transposed as
    a whole. Images whose channels fill no row of 16 bytes are padded. Images with few channels go to kernels
    of earlier architectures, padded or otherwise; so do many taps and short strided gradients of images on
    GPUs with later kernels of their own. Source: names of its kernels.
    """
    conv = problem.conv
    if conv is None:
        return NOTHING
    sort = sort_of(conv)
    later = gpu.kernel_architecture in LATER
    if later and sort == "" and conv.groups == 1 and conv.places > 1:
        return {"plain": Way(), "strided": Way(kernel="strided", work=_small_tiles(problem, conv, gpu))}
    if later and sort == "many_taps":
        kernel = "many_taps_wgrad" if conv.kind == WGRAD else "many_taps"
        return {"earlier": Way(kernel=kernel, work=_small_tiles(problem, conv, gpu))}
    if sort not in ("grouped", "padded", "few", "depthwise"):
        return NOTHING
    if sort == "grouped":
        return {
            "sliced": Way(copies=_slices(problem, conv), copying="sliced"),
            "transposed": Way(copies=_transposes(problem, conv), copying="transposed"),
        }
    if sort == "few":
        return _of_few_channels(problem, conv, gpu)
    if sort == "depthwise":
        return {"depthwise": Way(kernel=f"depthwise_{conv.kind}", work=_depthwise(problem, conv, gpu))}
    padded = {"padded": Way(copies=_padding(problem, conv), copying="padded")}
    return {**padded, **_folded(problem, conv, gpu)} if conv.kind == DGRAD else padded


def _of_few_channels(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec) -> Mapping[str, Way]:
    """Ways for few channels: padded on tensor cores, forward or into weights; unpadded without tensor cores.

    bf16 goes to CUDA cores, fp16 to a kernel whose threads gather their own channels.
    """
    found = room_numbers("choice")
    dram_us = _dram_us(problem, conv, gpu)
    channels = _aligned(conv.channels)
    pixels = conv.images * prod(conv.output_size)
    copies = _padding(problem, conv)

    def padded(kernel: str, operations: float) -> Mapping[str, Way]:
        work = _multiplied(problem, conv, gpu, operations)
        return {"padded": Way(copies=copies, copying="padded", kernel=kernel, work=work)}

    if conv.kind == WGRAD:
        # Columns of all taps are adjacent.
        rows, columns = (
            _up(size, found.cudnn_gradient_tile) for size in (conv.filters, channels * conv.taps)
        )
        return padded("gradient", 2.0 * rows * columns * pixels)
    # A k tile lies within a tap.
    k = conv.taps * _up(channels, found.cudnn_earlier_k_tile)
    multiplied = 2.0 * pixels * _up(conv.filters, found.cudnn_direct_filters)
    multiplied *= _up(conv.channels * conv.taps, found.cudnn_direct_k_tile)
    direct = EarlierWork(operations=multiplied, peak_per_ns=_fma_per_ns(gpu), dram_us=dram_us)
    # One load brings several channels of a tap and a pixel, once for each tile of filters.
    chain = conv.taps * conv.channels / gcd(conv.channels, ALIGNED_CHANNELS)
    loads = pixels * ceil(conv.filters / found.cudnn_gathered_filters) * chain
    loads_per_ns = LOADS_PER_CLK_PER_SM * _clk_per_ns(gpu)
    gathered = EarlierWork(operations=loads, peak_per_ns=loads_per_ns, chain=chain, dram_us=dram_us)
    name, work = ("gathered", gathered) if problem.a_dtype.name == "fp16" else ("direct", direct)
    implicit = padded("implicit", _flop_of_whole_waves(pixels, conv.filters, k, gpu))
    return {**implicit, name: Way(kernel=name, work=work)}


def _small_tiles(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec) -> EarlierWork:
    """Work in tiles of 64 x 64, in whole waves except for weight gradients, whose parts of K fill the SMs."""
    found = room_numbers("choice")
    tile, k_tile = found.cudnn_gradient_tile, found.cudnn_earlier_k_tile
    m, n, k, products = conv.sizes
    tiles, summed = ceil(m / tile) * ceil(n / tile) * products, float(k)
    if conv.kind != WGRAD:
        tiles = _up(tiles, gpu.sm_count)
        channels = conv.filters if conv.kind == DGRAD else conv.channels
        summed = _up(channels, k_tile) * conv.k_runs
    return _multiplied(problem, conv, gpu, 2.0 * tile**2 * tiles * summed)


def _multiplied(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec, flop: float) -> EarlierWork:
    """So many FLOP of all tensor cores in the operands' type."""
    peak_per_ns = gpu.flop_per_us(problem.math_kind) / 1e3
    return EarlierWork(operations=flop, peak_per_ns=peak_per_ns, dram_us=_dram_us(problem, conv, gpu))


def _depthwise(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec) -> EarlierWork:
    """Depthwise work: one tap after another for each output pixel, or for each pixel of an image gradient."""
    image, _, output = _elements(conv)
    return EarlierWork(
        operations=2.0 * conv.taps * (max(image, output) if conv.kind == DGRAD else output),
        peak_per_ns=_fma_per_ns(gpu),
        chain=conv.taps,
        dram_us=_dram_us(problem, conv, gpu),
    )


def _folded(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec) -> Mapping[str, Way]:
    """The gradient of patches that tile the image: a plain GEMM of their pixels, folded back afterwards."""
    columns = conv.channels * conv.taps
    tiled = conv.filter_size == conv.stride and max(conv.dilation) == 1 and not max(conv.pad)
    if not tiled or columns % ALIGNED_CHANNELS:
        return NOTHING
    moved_bytes = 2.0 * _element_bytes(problem) * sum(_elements(conv))
    pixels = conv.images * prod(conv.output_size)
    work = _multiplied(problem, conv, gpu, _flop_of_whole_waves(pixels, columns, conv.filters, gpu))
    copies = Copies(kernels=3, moved_bytes=moved_bytes)
    return {"folded": Way(copies=copies, copying="padded", kernel="implicit", work=work)}


def _flop_of_whole_waves(m: int, n: int, k: int, gpu: GpuSpec) -> float:
    """FLOP of a GEMM whose tiles are filled, in whole waves of one tile on each SM."""
    found = room_numbers("choice")
    tiles = ceil(m / found.cudnn_earlier_tile) * ceil(n / found.cudnn_earlier_tile)
    narrow = min(_up(n, found.cudnn_narrow_tile), found.cudnn_earlier_tile) / found.cudnn_earlier_tile
    return 2.0 * found.cudnn_earlier_tile**2 * narrow * k * _up(tiles, gpu.sm_count)


def _clk_per_ns(gpu: GpuSpec) -> float:
    """Clocks of all SMs."""
    return gpu.sm_count * gpu.sm_clk_mhz / 1e3


def _element_bytes(problem: GemmProblem) -> float:
    """Bytes of an element in every matrix: outputs of cuDNN's convolutions have the operands' type."""
    return problem.a_dtype.bits / 8.0


def _dram_us(problem: GemmProblem, conv: ConvProblem, gpu: GpuSpec) -> float:
    """Time in which DRAM moves every matrix once."""
    return _element_bytes(problem) * sum(_elements(conv)) / gpu.dram_read_bytes_per_us


def _fma_per_ns(gpu: GpuSpec) -> float:
    """FLOP of all CUDA cores."""
    return 2.0 * gpu.cuda_core_fma_per_clk_per_sm * _clk_per_ns(gpu)


def _slices(problem: GemmProblem, conv: ConvProblem) -> Copies:
    """Copies of each group's slice of both images; the weights of a group are contiguous already.

    A weight gradient of a group needs one more kernel to add up its parts of K.
    """
    image, _, output = _elements(conv)
    kernels = 4 if conv.kind == WGRAD else 3
    return Copies(
        kernels=kernels * conv.groups - 1, moved_bytes=2.0 * _element_bytes(problem) * (image + output)
    )


def _transposes(problem: GemmProblem, conv: ConvProblem) -> Copies:
    """Copies that transpose both operands before the product and the output after it."""
    return Copies(kernels=3, moved_bytes=2.0 * _element_bytes(problem) * sum(_elements(conv)))


def _padding(problem: GemmProblem, conv: ConvProblem) -> Copies:
    """Copies of every matrix with such channels, from unpadded to padded rows or back."""
    channels, filters = _aligned(conv.channels), _aligned(conv.filters)
    whole = (
        channels / conv.channels,
        channels * filters / (conv.channels * conv.filters),
        filters / conv.filters,
    )
    moved = [
        elements * (1.0 + larger)
        for elements, larger in zip(_elements(conv), whole, strict=True)
        if larger > 1.0
    ]
    return Copies(kernels=len(moved), moved_bytes=_element_bytes(problem) * sum(moved))


def _aligned(channels: int) -> int:
    return _up(channels, ALIGNED_CHANNELS)


def _up(size: int, multiple: float) -> int:
    return int(-(-size // multiple) * multiple)


def _elements(conv: ConvProblem) -> tuple[float, float, float]:
    """Elements of the image, the weights and the output."""
    return (
        float(conv.images * prod(conv.size) * conv.channels),
        float(conv.taps * conv.filters * conv.channels // conv.groups),
        float(conv.images * prod(conv.output_size) * conv.filters),
    )
