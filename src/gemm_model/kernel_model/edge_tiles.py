"""Edge tiles: TMA fills rows outside the matrix with zeros, which takes longer than reading rows inside."""

from __future__ import annotations

from collections.abc import Callable

from gemm_model.core.elementwise import (
    Flags,
    Values,
    ceil,
    floor,
    maximum,
    minimum,
    scaled,
    where,
)
from gemm_model.core.records import formula_record
from gemm_model.kernel_model.kernel import Kernel, KernelWaves
from gemm_model.kernel_model.placement import SMS_PER_TPC
from gemm_model.kernel_model.traffic import matrices_touched

ONE_SM_OF_EACH_TPC = 1.0 / SMS_PER_TPC
"""Share of the SMs that work before any TPC has two at work [1]; all launches; the launcher's order."""
ROUNDING = 1e-6
"""Shares below this are taken as 0 [CTAs]; rows outside the matrix; chosen, for rounding errors."""


@formula_record
class EdgeFill:
    """Out-of-bounds fill of the resident clusters; each field is a number or an array."""

    bytes_per_wave: Values
    """Fill bytes of a full wave."""
    hidden: Values
    """Overlap of fill and loads, as a share of half their harmonic mean."""
    readers: Values
    """CTAs that read the same box, of the operand with more fill."""


@formula_record
class _Edge:
    """Position of one operand's tiles over the edge of the matrix; each field is a number or an array."""

    outside: Values
    """Share of the last row of clusters that lies outside."""
    rows: Values
    """Rows of clusters."""
    along: Values
    """CTAs of a cluster along the operand's extent; each half of a pair's B is one."""
    sharers: Values
    """CTAs that receive a tile by multicast."""
    readers: Values
    """CTAs of the matrix that need the same tile, now or later."""


def edge_fill(kernel: Kernel) -> EdgeFill:
    """Out-of-bounds fill per wave, from the share of the tiles that lies outside along m and along n."""
    batch, schedule, holders = kernel.batch, kernel.schedule, kernel.resources.b_holders
    a_edge, b_edge = _edges(kernel)
    # Splits of k read other boxes, and so do matrices that share no operand.
    a_boxes, b_boxes = (scaled(each, schedule.splits_at_once) for each in matrices_touched(kernel))
    fill_a = batch.cta_m * batch.a_bytes_per_element * _fill_cost(kernel, a_edge, a_boxes)
    fill_b = batch.cta_n / holders * batch.b_bytes_per_element * _fill_cost(kernel, b_edge, b_boxes)
    return EdgeFill(
        bytes_per_wave=(fill_a + fill_b) * (kernel.ctas * schedule.k_tiles * kernel.resources.cta_k),
        hidden=where(_two_way(kernel), kernel.numbers.edge_tiles.two_way_hidden, 0.0),
        readers=where(fill_a >= fill_b, a_edge.readers, b_edge.readers),
    )


def _edges(kernel: Kernel) -> tuple[_Edge, _Edge]:
    """Where the tiles of A and those of B lie over the edge."""
    batch, schedule, holders = kernel.batch, kernel.schedule, kernel.resources.b_holders
    rows_m = ceil(batch.m / (batch.cta_m * batch.cluster_m))
    rows_n = ceil(batch.n / (batch.cta_n * batch.cluster_n))
    a_edge = _Edge(
        outside=(1.0 - schedule.filled_m) * rows_m,
        rows=rows_m,
        along=batch.cluster_m,
        sharers=batch.cluster_n,
        readers=rows_n * batch.cluster_n,
    )
    b_edge = _Edge(
        outside=(1.0 - schedule.filled_n) * rows_n,
        rows=rows_n,
        along=batch.cluster_n * holders,
        sharers=batch.cluster_m / holders,
        readers=rows_m * batch.cluster_m,
    )
    return a_edge, b_edge


def _two_way(kernel: KernelWaves) -> Flags:
    """Whether both operands arrive by multicast."""
    batch = kernel.batch
    return (batch.cluster_m / batch.b_holders > 1) & (batch.cluster_n > 1)


def _fill_cost(kernel: Kernel, edge: _Edge, boxes_at_once: Values) -> Values:
    """Cost of the fill of one operand's tile, as a share of the tile, for a cluster's mean wave.

    Each CTA that shares a tile by multicast requests a box of it. Clusters take turns with the last row. CTAs that
    fill the same box wait for each other, so that fill is faster where they fill several `boxes_at_once`.
    """
    known, boxes = kernel.numbers.edge_tiles, edge.along * edge.sharers
    whole = floor(edge.outside * boxes + ROUNDING)
    part = maximum(edge.outside * boxes - whole, 0.0)
    in_boxes = (whole + part * where(whole > 0.0, known.shared_cost, 1.0)) / boxes
    share = where(edge.sharers > 1.0, in_boxes, edge.outside)
    gone = known.boxes_gain * (boxes_at_once - 1.0) / (boxes_at_once - 1.0 + known.boxes_half)
    return share * where(edge.sharers >= 4.0, known.shared_cost, 1.0) * (1.0 - gone) / edge.rows


def drifted_apart(kernel: KernelWaves) -> Values:
    """Fill time once CTAs have drifted apart, over that of CTAs that begin in step: they ask for fewer boxes
    at the same time. CTAs whose MMA warps load stay in step. Source: series of k from 1,024 to 28,672.
    """
    known, steps = kernel.numbers.edge_tiles, kernel.schedule.k_tiles * kernel.schedule.waves
    return 1.0 - (1.0 - kernel.resources.in_step) * known.drift_gain * steps / (steps + known.drift_k_tiles)


def crowding(kernel: KernelWaves, together: Values = 0.0) -> Callable[[Values], Values]:
    """Fill time with the clusters at work, over that with a tile on every SM whose producers drift apart.

    The device fills a fixed number of rows in a microsecond, and more once TPCs have both their SMs at work,
    except in large clusters. `together` is the share of TPCs whose SMs fill the same box at the same time, and
    wait for each other. Source: decode shapes, alike in 16-bit and fp8.
    """
    edge, ctas_per_cluster = kernel.numbers.edge_tiles, kernel.cluster_size
    cluster_share = ctas_per_cluster / kernel.gpu.sm_count
    pairs = where(ctas_per_cluster > 1.0, edge.further_sm_of_pairs, edge.further_sm)
    apart = where(ctas_per_cluster > 2.0, 1.0, pairs)
    whole_device = ONE_SM_OF_EACH_TPC + apart * (1.0 - ONE_SM_OF_EACH_TPC)
    waits = together * (edge.further_sm_in_step - edge.further_sm)
    further = where(ctas_per_cluster > 1.0, apart, apart + waits)
    two_way = where(_two_way(kernel), edge.two_way_cost, 1.0)
    cost = two_way / whole_device

    def crowded(clusters: Values) -> Values:
        busy = clusters * cluster_share
        device = minimum(busy, ONE_SM_OF_EACH_TPC) + further * maximum(busy - ONE_SM_OF_EACH_TPC, 0.0)
        return cost * device / busy

    return crowded
