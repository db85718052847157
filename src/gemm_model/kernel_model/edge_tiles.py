"""Edge tiles: TMA fills rows outside the matrix with zeros, which takes longer than reading rows inside."""

from __future__ import annotations

from collections.abc import Callable

from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Flags,
    Values,
    ceil,
    floor,
    is_number,
    is_zero,
    maximum,
    minimum,
    negated,
    remainder,
    sqrt,
    where,
)
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.records import constructor, formula_record
from gemm_model.kernel_model.placement import SMS_PER_TPC
from gemm_model.kernel_model.tile_schedule import TileSchedule
from gemm_model.kernels.feasibility import Resources
from gemm_model.kernels.mechanisms import EdgeTiles, KernelNumbers

ONE_SM_OF_EACH_TPC = 1.0 / SMS_PER_TPC
"""Share of the SMs that work before any TPC has two at work [1]; all launches; the launcher's order."""
ROUNDING = 1e-6
"""Shares below this are taken as 0 [CTAs]; rows outside the matrix; chosen, for rounding errors."""


@formula_record
class EdgeFill:
    """Out-of-bounds fill of the resident clusters that have most of it; each field is a number or an
    array.
    """

    bytes_per_wave: Values
    """Fill bytes of a full wave if every cluster were like the slowest."""
    slow_load: Values
    """Loads of rows inside for the slowest clusters, over the mean of all clusters."""
    fixed: Flags
    """Whether some clusters have only edge tiles and the others none."""
    fast_load: Values
    """`slow_load` of clusters without fill; 0 if all clusters take turns with edge tiles."""
    slow_share: Values
    """Share of clusters that are the slowest; 1 if all clusters take turns."""
    hidden: Values
    """Overlap of fill and loads in the slowest clusters, as a share of half their harmonic mean."""
    a_in_step: Values
    """Share of the requests for A that still merge despite the fill."""
    b_in_step: Values
    readers: Values
    """CTAs that read the same box, of the operand with more fill."""


_new_fill = constructor(EdgeFill)


NO_EDGE = EdgeFill(
    bytes_per_wave=0.0,
    slow_load=1.0,
    fixed=False,
    fast_load=0.0,
    slow_share=1.0,
    hidden=0.0,
    a_in_step=1.0,
    b_in_step=1.0,
    readers=0.0,
)
"""No fill: a row whose tiles match the matrix."""


@formula_record
class _Edge:
    """Position of one operand's tiles over the edge of the matrix; each field is a number or an array."""

    outside: Values
    """Share of the last row of clusters that lies outside."""
    rows: Values
    """Rows of clusters."""
    fixed: Flags
    """Whether a resident cluster keeps its row for all its tiles."""
    along: Values
    """CTAs of a cluster along the operand's extent; each half of a pair's B is one."""
    sharers: Values
    """CTAs that receive a tile by multicast."""
    readers: Values
    """CTAs of the matrix that need the same tile, now or later."""


def edge_fill(
    batch: GemmBatch, schedule: TileSchedule, resources: Resources, numbers: KernelNumbers
) -> EdgeFill:
    """Out-of-bounds fill per wave, from the share of the tiles that lies outside along m and along n."""
    filled_m, filled_n = schedule.filled_m, schedule.filled_n
    if is_number(filled_m) and is_number(filled_n) and filled_m == filled_n == 1.0:
        return NO_EDGE
    order = multicast = numbers.edge_tiles
    holders = resources.b_holders
    a_edge, b_edge = _edges(batch, schedule, holders, order)
    rows_m, rows_n, fixed_m, fixed_n = a_edge.rows, b_edge.rows, a_edge.fixed, b_edge.fixed
    a_bytes = batch.cta_m * batch.a_bytes_per_element
    b_bytes = batch.cta_n / holders * batch.b_bytes_per_element
    fill_a, fill_b = a_bytes * _fill_cost(a_edge, multicast), b_bytes * _fill_cost(b_edge, multicast)
    a_turn, b_turn = where(fixed_m, 1.0, 1.0 / rows_m), where(fixed_n, 1.0, 1.0 / rows_n)
    # A tile over both edges has both operands filled at once; if few tiles are, the others wait for them.
    few = (rows_m <= order.fixed_rows) & (rows_n <= order.fixed_rows)
    both = where(few, minimum(fill_a * b_turn, fill_b * a_turn), 0.0)
    fill = fill_a + fill_b - both
    mean = a_bytes * filled_m + b_bytes * filled_n
    # Shares of the mean load for clusters that keep an edge, for the others, and for those that take turns.
    a_share, b_share = a_bytes / mean, b_bytes / mean
    a_mean, b_mean = a_share * filled_m, b_share * filled_n
    slow_a = where(fixed_m, a_share * (1.0 - a_edge.outside), a_mean)
    slow_b = where(fixed_n, b_share * (1.0 - b_edge.outside), b_mean)
    fixed = fixed_m | fixed_n
    fast_load = where(fixed_m, a_share, a_mean) + where(fixed_n, b_share, b_mean)
    ctas = schedule.resident * batch.cluster_m * batch.cluster_n
    return _new_fill(
        bytes_per_wave=fill * (ctas * schedule.k_tiles * resources.cta_k),
        slow_load=slow_a + slow_b,
        fixed=fixed,
        fast_load=where(fixed, fast_load, 0.0),
        slow_share=where(fixed_m, 1.0 / rows_m, where(fixed_n, 1.0 / rows_n, 1.0)),
        hidden=where(_two_way(batch), multicast.two_way_hidden, 0.0),
        a_in_step=1.0 - _out_of_step(a_edge, batch.cta_m, order),
        b_in_step=1.0 - _out_of_step(b_edge, batch.cta_n / holders, order),
        readers=where(fill_a >= fill_b, a_edge.readers, b_edge.readers),
    )


def _edges(
    batch: GemmBatch, schedule: TileSchedule, holders: Values, order: EdgeTiles
) -> tuple[_Edge, _Edge]:
    """Where the tiles of A and those of B lie over the edge."""
    rows_m = ceil(batch.m / (batch.cta_m * batch.cluster_m))
    rows_n = ceil(batch.n / (batch.cta_n * batch.cluster_n))
    walked_m = (rows_m <= schedule.group) & schedule.minor_is_m
    walked_n = (rows_n <= schedule.group) & negated(schedule.minor_is_m)
    a_edge = _Edge(
        outside=minimum((1.0 - schedule.filled_m) * rows_m, 1.0),
        rows=rows_m,
        fixed=_fixed(schedule, rows_m, walked_m, order),
        along=batch.cluster_m,
        sharers=batch.cluster_n,
        readers=rows_n * batch.cluster_n,
    )
    b_edge = _Edge(
        outside=minimum((1.0 - schedule.filled_n) * rows_n, 1.0),
        rows=rows_n,
        fixed=_fixed(schedule, rows_n, walked_n, order),
        along=batch.cluster_n * holders,
        sharers=batch.cluster_m / holders,
        readers=rows_m * batch.cluster_m,
    )
    return a_edge, b_edge


def _two_way(batch: GemmBatch) -> Flags:
    """Whether both operands arrive by multicast."""
    return (batch.cluster_m / batch.b_holders > 1) & (batch.cluster_n > 1)


def _out_of_step(edge: _Edge, tile: Values, order: EdgeTiles) -> Values:
    """Share of an operand's requests that no longer merge.

    A CTA with fill advances at another pace than its neighbours. The share falls with the root of the rows of
    clusters: the more rows, the fewer neighbours have fill.
    """
    if is_zero(edge.outside):
        return 0.0
    whole = floor(edge.outside * edge.along + ROUNDING)
    rows_outside = maximum(edge.outside * edge.along - whole, 0.0) * tile
    return minimum(rows_outside / order.out_of_step_rows, 1.0) / sqrt(edge.rows)


def _fixed(schedule: TileSchedule, rows: Values, walked: Flags, order: EdgeTiles) -> Flags:
    """Whether a resident cluster keeps its row (or column) of the output for all its tiles.

    It does with a single tile, or if rows are walked first and their number divides the clusters.
    """
    returns = walked & (remainder(schedule.resident, rows) < 0.5)
    few = (rows > 1.0) & (rows <= order.fixed_rows)
    return few & (returns | (schedule.tiles <= schedule.resident))


def _fill_cost(edge: _Edge, multicast: EdgeTiles) -> Values:
    """Cost of the fill of one operand's tile, as a share of the tile, for a cluster's mean wave.

    Each CTA that shares a tile by multicast requests a box of it. Fill costs less if fewer SMs have it:
    clusters that keep their row have all of it or none, the others take turns. The roots come from timings of
    decode shapes. A box that few CTAs read costs less: SMs that fill the same box wait for one another, those
    that fill boxes of other matrices of a batch do not.
    """
    if is_zero(edge.outside):
        return 0.0
    boxes = edge.along * edge.sharers
    whole = floor(edge.outside * boxes + ROUNDING)
    part = maximum(edge.outside * boxes - whole, 0.0)
    part = part * where(whole > 0.0, multicast.shared_cost, 1.0)
    in_boxes = (multicast.whole_box_cost * whole + part) / boxes
    crowded = where(edge.along * edge.sharers > 1.0, 1.0, minimum(edge.readers / multicast.crowd_ctas, 1.0))
    share = where(edge.sharers > 1.0, in_boxes, edge.outside) * crowded
    share = share * where(edge.sharers >= 4.0, multicast.shared_cost, 1.0)
    root = sqrt(edge.rows)
    several = where(edge.sharers > 1.0, root, sqrt(root))
    return where(edge.fixed, share / several, share / edge.rows)


def crowding(
    batch: GemmBatch, gpu: GpuSpec, numbers: KernelNumbers, together: Values = 0.0
) -> Callable[[Values], Values]:
    """Fill time with the clusters at work, over that with a tile on every SM whose producers drift apart.

    The device fills a fixed number of rows in a microsecond, and more once TPCs have both their SMs at work,
    except in large clusters. `together` is the share of TPCs whose SMs fill the same box at the same time, and
    wait for each other. Source: decode shapes, alike in 16-bit and fp8.
    """
    edge: EdgeTiles = numbers.edge_tiles
    ctas_per_cluster = batch.cluster_m * batch.cluster_n
    cluster_share = ctas_per_cluster / gpu.sm_count
    pairs = where(ctas_per_cluster > 1.0, edge.further_sm_of_pairs, edge.further_sm)
    apart = where(ctas_per_cluster > 2.0, 1.0, pairs)
    whole_device = ONE_SM_OF_EACH_TPC + apart * (1.0 - ONE_SM_OF_EACH_TPC)
    waits = together * (edge.further_sm_in_step - edge.further_sm)
    further = where(ctas_per_cluster > 1.0, apart, apart + waits)
    two_way = where(_two_way(batch), numbers.edge_tiles.two_way_cost, 1.0)
    cost = two_way / whole_device

    def crowded(clusters: Values) -> Values:
        busy = clusters * cluster_share
        felt = _felt_by_fours(busy, clusters, ctas_per_cluster, gpu, numbers.edge_tiles.gpc_share)
        device = minimum(felt, ONE_SM_OF_EACH_TPC) + further * maximum(felt - ONE_SM_OF_EACH_TPC, 0.0)
        return cost * device / busy

    return crowded


def _felt_by_fours(
    busy: Values, clusters: Values, ctas_per_cluster: Values, gpu: GpuSpec, gpc_share: float
) -> Values:
    """Share of the SMs that compete for fill with clusters of four.

    Clusters of four spread evenly over the GPCs; on an H200 seven GPCs hold four of them and one holds two. A
    GPC that holds a cluster of 16 holds four clusters of four, so the occupancy query gives their number.
    """
    large = gpu.resident_clusters.get(16)
    if large is None or (is_number(ctas_per_cluster) and ctas_per_cluster != 4):
        return busy
    at_once = gpu.clusters_at_once(4)
    small = max(at_once - 4 * large, 0)
    gpcs = large + (small > 0)
    on_fullest = maximum(ceil(clusters / gpcs), ceil((clusters - small) / large))
    by_gpc = on_fullest / 4.0 * (at_once * 4 / gpu.sm_count)
    return where(ctas_per_cluster == 4, busy + gpc_share * (by_gpc - busy), busy)
