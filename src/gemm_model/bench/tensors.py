"""Device tensors for a benchmark: random operands, references in higher precision, comparison."""

from __future__ import annotations

import random

import torch

from gemm_model.bench.block_scaled import random_block_scaled
from gemm_model.bench.kind_tensors import around_product, product_of, reference_results, views_of
from gemm_model.bench.problem_kinds import extras
from gemm_model.bench.provider import IncorrectResultError, Operands, Rotation, UnsupportedError
from gemm_model.bench.torch_library import torch_dtype
from gemm_model.core.problem import GemmProblem

ALIGNMENT_BYTES = 256
"""Alignment of B behind A [elements]; operands of one type; chosen: at least 16 bytes in every type."""
PLACEMENT_ALIGNMENT = 4096
"""Step of a random place in the pool [elements]; operands; chosen."""
CHUNK_ELEMENTS = 2**26
"""Random numbers made at once [elements]; the pool; chosen: they are fp32 before they are rounded."""
OPERAND_BINS_SEED = 7
OPERAND, SOURCE = "operand", "source"
"""Uses of a pool of random numbers: A and B, or the source of an epilogue."""

POISON_BYTE = 0xFF
"""Byte of an output that was never written [1]; floating-point types of 8 or more bits; all bits set is
NaN."""

RELATIVE_ERROR_LIMITS = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 5e-3, "e4m3": 5e-2, "e5m2": 1e-1}
"""Largest ||out - reference|| / ||reference|| [1]; by output type; a few times its rounding error."""

FP8_SUM_ERROR = 1e-2
"""Error allowed for short fp8 accumulators [1]; fp8 kernels; Hopper keeps about 14 bits of a partial sum."""

LARGEST_ELEMENT_ERROR = 12.0
"""Largest error of one element [1, of the limit times the reference's root mean square]; all checks; rounding
of the largest of millions of normal values stays below 6."""


class OperandPool:
    """Random numbers made once; operands of any shape are views into them.

    A pool for each type holds normally distributed values, so a new shape costs no time. A placement is a
    number that fixes where in the pool the operands lie. The physical address decides which L2 slices and
    DRAM channels serve a matrix, and with them the time of some kernels (by up to half on an H200).
    """

    def __init__(self, device: str, seed: int, elements: int) -> None:
        self._device = device
        self._seed = seed
        self._minimum = elements
        self._inputs: dict[tuple[str, str], torch.Tensor] = {}
        self._output = torch.empty(0, dtype=torch.uint8, device=device)

    def operands(self, problem: GemmProblem, placement: int = 0) -> Operands:
        """Views for `problem`; A and B never overlap."""
        draw = random.Random(placement)
        out = self._out(problem, draw)
        if problem.a_scale is not None or problem.b_scale is not None:
            a, a_scale = random_block_scaled(problem.m, problem.k, problem, self._device, self._seed)
            b, b_scale = random_block_scaled(problem.n, problem.k, problem, self._device, self._seed + 1)
            return Operands(a=a, b=b, out=out, a_scale=a_scale, b_scale=b_scale)
        of_a, of_b, _ = views_of(problem)
        a_size, b_size = of_a.elements, of_b.elements
        room = _round_up(a_size, ALIGNMENT_BYTES) + b_size
        if problem.a_dtype == problem.b_dtype:
            pool = self._input(problem.a_dtype.name, room)
            start_a = _place(draw, pool.numel() - room)
            start_b = _round_up(start_a + a_size, ALIGNMENT_BYTES)
            start_b += _place(draw, pool.numel() - start_b - b_size)
            flat_a, flat_b = pool[start_a : start_a + a_size], pool[start_b : start_b + b_size]
        else:
            flat_a = self._input(problem.a_dtype.name, a_size)[:a_size]
            flat_b = self._input(problem.b_dtype.name, b_size)[:b_size]
        extras = around_product(problem, out, lambda: self._source(problem, draw))
        return Operands(a=of_a.of(flat_a), b=of_b.of(flat_b), out=out, extras=extras)

    def _source(self, problem: GemmProblem, draw: random.Random) -> torch.Tensor:
        """M x n random values of an epilogue's operand: of the output's type, bf16 beside 8-bit outputs."""
        name = problem.out_dtype.name if problem.out_dtype.bits >= 16 else "bf16"
        size = problem.m * problem.n
        pool = self._input(name, size, SOURCE)
        start = _place(draw, pool.numel() - size)
        return pool[start : start + size].view(problem.m, problem.n)

    def rotating(self, problem: GemmProblem, rotation: Rotation, part: tuple[int, int]) -> list[Operands]:
        """Operands for each launch of a turn, each copy at a random place in a bin of its own.

        `part` (i, n) keeps to the i-th of n parts of the pool. UnsupportedError for block-scaled types.
        """
        if problem.a_scale is not None or problem.b_scale is not None:
            raise UnsupportedError("block-scaled operands are not rotated")
        if extras(problem):
            raise UnsupportedError("operands of epilogues, groups, batches and convolutions are not rotated")
        draw = random.Random(OPERAND_BINS_SEED)
        a_size, b_size = problem.m * problem.k, problem.n * problem.k
        a_room = rotation.activations * _round_up(a_size, PLACEMENT_ALIGNMENT)
        b_room = rotation.weights * _round_up(b_size, PLACEMENT_ALIGNMENT)
        if problem.a_dtype == problem.b_dtype:
            pool = self._part(self._input(problem.a_dtype.name, part[1] * (a_room + b_room)), part)
            cut = a_room + (pool.numel() - a_room - b_room) * a_room // (a_room + b_room)
            cut -= cut % PLACEMENT_ALIGNMENT
            a_pool, b_pool = pool[:cut], pool[cut:]
        else:
            a_pool = self._part(self._input(problem.a_dtype.name, part[1] * a_room), part)
            b_pool = self._part(self._input(problem.b_dtype.name, part[1] * b_room), part)
        out_dtype = torch_dtype(problem.out_dtype.name)
        out_size = problem.m * problem.n * out_dtype.itemsize
        out_room = rotation.outputs * _round_up(out_size, PLACEMENT_ALIGNMENT)
        out_pool = self._part(self._output_bytes(part[1] * out_room), part)
        a_copies = _scattered(a_pool, rotation.activations, a_size, draw)
        b_copies = _scattered(b_pool, rotation.weights, b_size, draw)
        outs = _scattered(out_pool, rotation.outputs, out_size, draw)
        return [
            Operands(
                a=a_copies[turn % rotation.activations].view(problem.m, problem.k),
                b=b_copies[turn].view(problem.n, problem.k),
                out=outs[turn % rotation.outputs].view(out_dtype).view(problem.m, problem.n),
            )
            for turn in range(rotation.weights)
        ]

    def _part(self, pool: torch.Tensor, part: tuple[int, int]) -> torch.Tensor:
        index, count = part
        size = pool.numel() // count // PLACEMENT_ALIGNMENT * PLACEMENT_ALIGNMENT
        return pool[index * size : (index + 1) * size]

    def _input(self, dtype: str, elements: int, role: str = OPERAND) -> torch.Tensor:
        key = (role, dtype)
        pool = self._inputs.get(key)
        if pool is None or pool.numel() < elements:
            self._inputs.pop(key, None)
            pool = self._random(dtype, max(elements, self._minimum))
            self._inputs[key] = pool
        return pool

    def _random(self, dtype: str, elements: int) -> torch.Tensor:
        generator = torch.Generator(device=self._device).manual_seed(self._seed)
        pool = torch.empty(elements, dtype=torch_dtype(dtype), device=self._device)
        for start in range(0, elements, CHUNK_ELEMENTS):
            part = pool[start : start + CHUNK_ELEMENTS]
            part.copy_(torch.randn(part.numel(), generator=generator, device=self._device))
        return pool

    def _out(self, problem: GemmProblem, draw: random.Random) -> torch.Tensor:
        dtype, view = torch_dtype(problem.out_dtype.name), views_of(problem)[2]
        size = view.elements * dtype.itemsize
        pool = self._output_bytes(size)
        start = _place(draw, pool.numel() - size)
        return view.of(pool[start : start + size].view(dtype))

    def _output_bytes(self, size: int) -> torch.Tensor:
        if self._output.numel() < size:
            self._output = torch.empty(0, dtype=torch.uint8, device=self._device)
            self._output = torch.empty(max(size, self._minimum), dtype=torch.uint8, device=self._device)
        return self._output


def _place(draw: random.Random, room: int) -> int:
    """A random aligned offset of at most `room`."""
    return draw.randint(0, max(0, room) // PLACEMENT_ALIGNMENT) * PLACEMENT_ALIGNMENT


def _scattered(pool: torch.Tensor, count: int, size: int, draw: random.Random) -> list[torch.Tensor]:
    """`count` views of `size` elements, one at a random place of each of `count` equal bins of the pool."""
    room = pool.numel() // count // PLACEMENT_ALIGNMENT * PLACEMENT_ALIGNMENT
    starts = (index * room + _place(draw, room - size) for index in range(count))
    return [pool[start : start + size] for start in starts]


def references(problem: GemmProblem, operands: Operands) -> tuple[torch.Tensor, ...]:
    """The expected results in higher precision: the output and further results of an epilogue."""
    return reference_results(problem, operands, product_of(problem, operands))


def poison(out: torch.Tensor) -> None:
    """Fill the output with NaN, so that an element never written shows. An image is channels last."""
    flat = out.movedim(1, -1) if out.ndim > 3 else out
    flat.view(torch.uint8).fill_(POISON_BYTE)


def error_limit(problem: GemmProblem) -> float:
    """Largest relative error (Frobenius norm) that a right kernel may show."""
    limit = RELATIVE_ERROR_LIMITS[problem.out_dtype.name]
    return limit + (FP8_SUM_ERROR if problem.a_dtype.bits <= 8 else 0.0)


def compare(out: torch.Tensor, reference: torch.Tensor, limit: float) -> float:
    """Relative error of `out`; IncorrectResultError above `limit`, for one far-off element, or for a NaN."""
    difference = out.to(reference.dtype)
    difference -= reference
    scale = torch.linalg.vector_norm(reference)
    relative = float(torch.linalg.vector_norm(difference) / scale)
    root_mean_square = float(scale) / reference.numel() ** 0.5
    largest = float(difference.abs_().max()) / root_mean_square
    if not relative <= limit:
        raise IncorrectResultError(f"relative error {relative:.3g}, expected at most {limit:.3g}")
    if not largest <= LARGEST_ELEMENT_ERROR * limit:
        raise IncorrectResultError(f"one element is off by {largest:.3g} times the root mean square")
    return relative


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
