"""The epilogue of a tile, and how it and the mainloop share the MMA warps."""

from __future__ import annotations

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import Values, maximum, minimum, where
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import PINGPONG
from gemm_model.kernels.feasibility import Resources
from gemm_model.persistent.kernel_parameters import KernelParameters

STORE_BYTES_PER_CLK = 24.0
"""What an SM stores in a clock: the H200's 16-bit outputs leave at 23 to 24."""
TMEM_STORE_BYTES_PER_CLK = 32.0
"""The same where accumulators live in tensor memory: the width of an SM's way to L2."""


TILE_CLK = 370.0
"""Once for each tile of a cooperative kernel: its number, its first MMAs, draining the last ones."""
HANDOVER_CLK = 600.0
"""From the last MMA of one ping-pong consumer to the first of the other: the same, and a barrier."""
DRAINED_CLK, HANDOVER_DRAINED_CLK = 130.0, 330.0
"""What slow accumulation saves of either: the pipe is drained at the last k step already."""
APART = 0.27
"""Warpgroups that share a tile drift apart: what one's epilogue and the other's MMAs of the next tile hide of
each other, in parts of the shorter one."""
SMALL_STORE, SMALL_STORE_CLK = 1500.0, 55.0
"""Outputs of one warpgroup's store below which it takes longer, and by how much: tiles of 208 columns."""
SMALL_STORE_QUEUE = 1.2
"""Such epilogues of the two ping-pong consumers wait for each other: what a tile takes at least, over one."""


def epilogue_clk(batch: GemmBatch, gpu: GpuSpec, found: Resources, p: KernelParameters) -> Values:
    """Clocks from the last MMA of a tile to its last store: convert, write to shared memory, store by TMA.

    As many for one warpgroup as for two or three: the store sets the pace, not the threads. Wide outputs are
    bound by their bytes.
    """
    rate = TMEM_STORE_BYTES_PER_CLK if gpu.tmem_columns > 0 else STORE_BYTES_PER_CLK
    outputs = batch.cta_m * batch.cta_n
    clk = outputs * maximum(1.0 / p.outputs_per_clk, batch.out_bits / 8.0 / rate)
    if gpu.tmem_columns > 0:
        return clk
    return clk + where(_small_stores(found), SMALL_STORE_CLK * outputs / found.store_elements, 0.0)


def _small_stores(found: Resources) -> Values:
    return found.store_elements < SMALL_STORE * found.warpgroups


def port_store_clk(batch: GemmBatch, gpu: GpuSpec) -> Values:
    """Clocks that the stores of one tile take of the SM's port, at which the next tile's loads wait.

    Only where the MMA goes on under the epilogue (tensor memory); elsewhere it waits for both in turn.
    """
    if gpu.tmem_columns == 0:
        return 0.0
    return batch.cta_m * batch.cta_n * batch.out_bits / 8.0 / TMEM_STORE_BYTES_PER_CLK


def math_chain_clk(
    batch: GemmBatch, gpu: GpuSpec, found: Resources, mainloop: Values, epilogue: Values
) -> Values:
    """Clocks between tiles in the MMA warps, if operands are always there.

    Cooperative: mainloop, then epilogue, less what warpgroups hide of each other's. Ping-pong: two consumers
    take the mainloop in turn, so that a tile takes the longer of one mainloop with its handover and half of
    one consumer's round. In tensor memory the accumulators are double-buffered where two fit beside the scale
    factors: the longer of mainloop and epilogue.
    """
    serial = mainloop + epilogue
    if gpu.tmem_columns > 0:
        return where(_double_buffered(gpu, found), maximum(mainloop, epilogue), serial)
    handover = _less_drained(HANDOVER_CLK, HANDOVER_DRAINED_CLK, found)
    turns = maximum(mainloop + handover, (serial + handover + TILE_CLK) / 2.0)
    turns = maximum(turns, where(_small_stores(found), SMALL_STORE_QUEUE * epilogue, 0.0))
    cooperative = (
        serial - _hidden_clk(found, mainloop, epilogue) + _less_drained(TILE_CLK, DRAINED_CLK, found)
    )
    return where(batch.schedule == PINGPONG, turns, cooperative)


def _hidden_clk(found: Resources, mainloop: Values, epilogue: Values) -> Values:
    """What the warpgroups of a cooperative kernel hide of a tile's epilogue and the next tile's mainloop."""
    return where(found.warpgroups > 1.0, APART * minimum(mainloop, epilogue), 0.0)


def _less_drained(clk: float, drained_clk: float, found: Resources) -> Values:
    return clk - where(found.slow_sums, drained_clk, 0.0)


def chain_beside_stores(
    batch: GemmBatch, gpu: GpuSpec, found: Resources, mainloop: Values
) -> tuple[Values, Values]:
    """What `math_chain_clk` has beside epilogues, and how many epilogues: for stores that L2 holds up."""
    if gpu.tmem_columns > 0:
        return where(_double_buffered(gpu, found), 0.0, mainloop), 1.0
    pingpong = batch.schedule == PINGPONG
    handover = _less_drained(HANDOVER_CLK, HANDOVER_DRAINED_CLK, found)
    tile = _less_drained(TILE_CLK, DRAINED_CLK, found)
    return where(pingpong, (mainloop + handover) / 2.0, mainloop + tile), where(pingpong, 0.5, 1.0)


def exposed_clk(
    batch: GemmBatch, gpu: GpuSpec, found: Resources, mainloop: Values, epilogue: Values
) -> Values:
    """Clocks of the last epilogue that nothing hides and that `math_chain_clk` does not hold already."""
    if gpu.tmem_columns > 0:
        return where(_double_buffered(gpu, found), epilogue, 0.0)
    return where(batch.schedule == PINGPONG, epilogue, _hidden_clk(found, mainloop, epilogue))


def _double_buffered(gpu: GpuSpec, found: Resources) -> Values:
    return 2.0 * found.tmem_columns + found.scale_columns <= gpu.tmem_columns
