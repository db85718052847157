"""Rules of Triton's kernels, which `config/families.toml` names."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Flags, Values, maximum, power_of_two_divisor, where
from gemm_model.kernels import multistage


def offers_tile(batch: GemmBatch) -> Flags:
    """Blocks are powers of two, at least one MMA instruction of m16n8."""
    m, n = batch.cta_m, batch.cta_n
    whole = (power_of_two_divisor(m) == m) & (power_of_two_divisor(n) == n)
    return whole & (m >= 16) & (n >= 8) & (m <= 256) & (n <= 256)


DEFAULT_NUM_STAGES = 3
"""Stages of a kernel that names none [1]; all GPUs with asynchronous copies; `triton.Config`, Triton 3.6."""
SPECIALIZED_WARPS = 12.0
"""Warps of a warp-specialized kernel [warps]; Hopper; four load, two groups of four multiply; Triton 3.6."""


def warpgroups(batch: GemmBatch) -> Values:
    """MMA warpgroups of a tile: all four or eight MMA warps share it."""
    given = where(batch.warps == SPECIALIZED_WARPS, 2.0, maximum(batch.warps / 4.0, 1.0))
    return where(batch.warps > 0.0, given, multistage.warpgroups(batch))


def held_stages(batch: GemmBatch) -> Values:
    """Stages held: warps that both load and multiply hold the stage in use; specialized warps release it at
    once.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 0.0, 1.0)


def math_in_round_trip(batch: GemmBatch) -> Values:
    """Share of MMAs that a load waits for: the MMA warps issue a load together with the previous k tile's
    MMAs.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 1.0, 0.0)


def awaited_math(batch: GemmBatch) -> Values:
    """Share of MMAs waited for: specialized warps wait for each k tile's; Triton 3.6 pipelines other
    kernels.
    """
    return where(batch.warps == SPECIALIZED_WARPS, 1.0, 0.0)


def in_step(batch: GemmBatch) -> Values:
    """1 where CTAs stay in step: the MMA warps issue the loads, but where warps are specialized."""
    return where(batch.warps == SPECIALIZED_WARPS, 0.0, 1.0)


def mmas_ahead() -> float:
    """MMA instructions that an SM's tensor cores queue [1]; Hopper."""
    return room_numbers("kernels").triton_mmas_ahead
