"""The tile schedule of a persistent kernel: tiles, clusters, waves, and the panels that a wave touches."""

from __future__ import annotations

from gemm_model.config.numbers import room_numbers
from gemm_model.core.batch import GemmBatch
from gemm_model.core.elementwise import (
    Flags,
    Values,
    ceil,
    floor,
    in_order,
    is_one,
    maximum,
    minimum,
    negated,
    power_of_two_divisor,
    where,
)
from gemm_model.core.kernel_config import ALONG_M, HEURISTIC
from gemm_model.core.records import formula_record
from gemm_model.kernels.family import TileOrder
from gemm_model.kernels.feasibility import Resources


@formula_record
class TileWaves:
    """Number of tiles and their waves; each field is a number or an array.

    A tile here is the work of one cluster.
    """

    tiles: Values
    """Cluster tiles of the whole problem, batch and split-K included."""
    resident: Values
    """Clusters that run at once: the persistent grid."""
    full_waves: Values
    """Waves in which every resident cluster has a tile, except a last wave counted in `last_tiles`."""
    last_tiles: Values
    """Tiles of the partial last wave; 0 if all waves are full. Stream-K shares the tiles of up to two waves.
    With a dynamic scheduler nobody can take over the last tiles, so they count here even if they fill a
    wave."""
    last_work: Values
    """Largest work of a cluster in the last wave [tiles]: 1, or what stream-K or groups of unlike k leave."""
    sharers: Values
    """Clusters that add up the sums of one tile: its splits, or the clusters with a stream-K share of it."""
    splits_at_once: Values
    """Splits of a tile that one full wave holds, on average over its tiles."""
    partial_sums: Values
    """Partial sums of an output that pass through the workspace, on average; all sharers' but the last
    one's."""
    k_tiles: Values
    """Pipeline steps of one tile."""

    @property
    def waves(self) -> Values:
        return self.full_waves + where(self.last_tiles > 0, 1.0, 0.0)


@formula_record
class TileSchedule(TileWaves):
    """The waves, and the panels that they touch in the order of the tiles."""

    minor_is_m: Flags
    """Whether consecutive tiles advance along m (True) or along n."""
    minor_panels: Values
    """Distinct panels of the minor extent that a full wave touches in a matrix, as cluster rows or columns.
    """
    major_panels: Values
    matrices: Values
    """Matrices of a batch, or groups, that one full wave touches; at least 1."""
    group: Values
    """Cluster rows (or columns) that are walked together."""
    group_steps: Values
    """Steps of a group along the major extent, after which the next group begins; for grouped rows of unequal
    length, one long walk is assumed."""
    groups: Values
    """Groups of a matrix, after which the next matrix begins, or the next part of K."""
    filled_m: Values
    """Share of the tile rows that lie inside the matrix; the rest is filled and computed as well."""
    filled_n: Values
    fullest_m: Values
    """The same of the fullest tile, whose SMs a wave waits for; of groups that of the mean tile."""
    fullest_n: Values


def _round_up(value: Values, step: Values) -> Values:
    return ceil(value / step) * step


def tile_schedule(batch: GemmBatch, resources: Resources, order: TileOrder) -> TileSchedule:
    """The waves of tiles in the family's order and by its scheduler, and the panels that they touch.

    Tiles of equal length form the same waves under a static stride and a dynamic scheduler.
    """
    clusters = _clusters(batch)
    swizzle = _swizzle(batch, order, *clusters)
    grouped = _in_groups(clusters, swizzle)
    minor_is_m = _groups_m(batch, order, *grouped)
    clusters_m, clusters_n = _padded(batch, clusters, grouped) if order.padded else clusters
    found = _waves_of(batch, resources, order, clusters_m, clusters_n)
    per_matrix = clusters_m * clusters_n
    minor, major = in_order(minor_is_m, clusters_m, clusters_n)
    group = minor if order.whole_extent else minimum(swizzle, minor)
    tiles_at_once = minimum(maximum(floor(found.resident / found.splits_at_once), 1.0), found.tiles)
    at_once = minimum(tiles_at_once, per_matrix), maximum(found.tiles / found.resident, 1.0)
    minor_panels, major_panels = _panels(at_once, minor, major, group, order)
    padded_m = clusters_m * batch.cluster_m * batch.cta_m
    padded_n = clusters_n * batch.cluster_n * batch.cta_n
    filled_m = _filled(batch, batch.m / padded_m, order)
    filled_n = _filled_columns(batch, batch.n / padded_n, order)
    fullest_m, fullest_n = fullest_tile(batch)
    return TileSchedule(
        **{name: getattr(found, name) for name in TileWaves.__dataclass_fields__},
        minor_is_m=minor_is_m,
        minor_panels=minor_panels,
        major_panels=major_panels,
        matrices=1.0 if is_one(batch.batch) else maximum(tiles_at_once / per_matrix, 1.0),
        group=group,
        group_steps=where(batch.kinds.grouped, found.tiles, major),
        groups=ceil(minor / group),
        filled_m=filled_m,
        filled_n=filled_n,
        fullest_m=where(batch.kinds.grouped, filled_m, fullest_m),
        fullest_n=maximum(filled_n, fullest_n),
    )


def fullest_tile(batch: GemmBatch) -> tuple[Values, Values]:
    """Shares of the rows and of the columns of a matrix's fullest cluster tile that lie inside it."""
    return (
        minimum(batch.m / (batch.cta_m * batch.cluster_m), 1.0),
        minimum(batch.n / batch.kinds.n_runs / (batch.cta_n * batch.cluster_n), 1.0),
    )


def tile_waves(batch: GemmBatch, resources: Resources, order: TileOrder) -> TileWaves:
    """The waves alone, which depend on the order of the tiles only if it pads the matrix."""
    clusters = _clusters(batch)
    if order.padded:
        clusters = _padded(batch, clusters, _in_groups(clusters, _swizzle(batch, order, *clusters)))
    return _waves_of(batch, resources, order, *clusters)


def _in_groups(clusters: tuple[Values, Values], swizzle: Values) -> tuple[Values, Values]:
    """Clusters along m and n in whole groups."""
    return _round_up(clusters[0], swizzle), _round_up(clusters[1], swizzle)


def _padded(
    batch: GemmBatch, clusters: tuple[Values, Values], grouped: tuple[Values, Values]
) -> tuple[Values, Values]:
    """Clusters along m and n where tiles outside the matrix are computed too; groups of rows have none."""
    in_groups = batch.kinds.grouped
    return where(in_groups, clusters[0], grouped[0]), where(in_groups, clusters[1], grouped[1])


def _waves_of(
    batch: GemmBatch, resources: Resources, order: TileOrder, clusters_m: Values, clusters_n: Values
) -> TileWaves:
    """The waves of one grid over `clusters_m` x `clusters_n` clusters of each matrix."""
    tiles: Values = clusters_m * clusters_n * batch.batch * batch.split_k
    # The clusters along m are a mean over groups; their product with the number of groups is whole.
    tiles = floor(tiles / _packed(batch, order) + 0.5)
    k_tiles = ceil(_k_tiles(batch, resources) / batch.split_k)
    return _waves(batch, order, tiles, resources.clusters_at_once, k_tiles)


def _clusters(batch: GemmBatch) -> tuple[Values, Values]:
    """Clusters along m and n of one matrix; of groups the mean of those that have rows."""
    kinds, ctas_m = batch.kinds, ceil(batch.m / batch.cta_m)
    ctas_n = kinds.n_runs * ceil(batch.n / kinds.n_runs / batch.cta_n)
    clusters_m, clusters_n = ceil(ctas_m / batch.cluster_m), ceil(ctas_n / batch.cluster_n)
    return (
        where(kinds.grouped, kinds.clusters_m, clusters_m),
        where(kinds.grouped, kinds.clusters_n, clusters_n),
    )


def _k_tiles(batch: GemmBatch, resources: Resources) -> Values:
    """K tiles of a tile; a k tile of a convolution lies within the channels of one tap."""
    runs = batch.kinds.k_runs
    return runs * ceil(batch.k / runs / resources.cta_k)


def _filled(batch: GemmBatch, share: Values, order: TileOrder) -> Values:
    """Share of tile rows that lie in A; rows of the next groups count if one tensor map serves all groups."""
    if order.packs_groups:
        return minimum(share * batch.kinds.packed_rows, 1.0)
    if order.maps_of_groups:
        return share
    return where(batch.kinds.grouped, batch.kinds.rows_inside, share)


def _filled_columns(batch: GemmBatch, share: Values, order: TileOrder) -> Values:
    """Share of the columns of tiles that lie in B; groups of channels beside each other count."""
    return minimum(share * _packed(batch, order), 1.0) if order.packs_groups else share


def _packed(batch: GemmBatch, order: TileOrder) -> Values:
    """Groups of channels that a tile holds."""
    return batch.kinds.packed if order.packs_groups else 1.0


def _splits_at_once(batch: GemmBatch, resident: Values, tiles: Values, order: TileOrder) -> Values:
    """All splits of a tile if they run side by side; in rounds, as many as the other tiles leave room for."""
    if order.splits != "rounds":
        return batch.split_k
    return minimum(maximum(resident * batch.split_k / tiles, 1.0), batch.split_k)


def _partial_sums(sharers: Values, order: TileOrder) -> Values:
    """Partial sums of a shared tile in the workspace; a second kernel needs the last one too."""
    return where(sharers > 1.0, sharers, 0.0) if order.splits == "apart" else sharers - 1.0


def _waves(batch: GemmBatch, order: TileOrder, tiles: Values, at_once: Values, k_tiles: Values) -> TileWaves:
    """Waves of whole tiles; with stream-K, the last one or two as equal shares of their k tiles."""
    resident = minimum(at_once, tiles)
    full = floor(tiles / resident)
    last_work: Values = 1.0
    if order.scheduler.evens_out:
        full = ceil(tiles / resident) - 1.0
        last_work = _last_of_unlike_groups(batch, full)
    dealt = _dealt(tiles, at_once, k_tiles)
    deals = batch.stream_k & dealt.possible
    resident, full = where(deals, dealt.clusters, resident), where(deals, dealt.whole_waves, full)
    sharers = where(deals, dealt.pieces, batch.split_k)
    return TileWaves(
        tiles=tiles,
        resident=resident,
        full_waves=full,
        last_tiles=tiles - full * resident,
        last_work=where(deals, dealt.longest, last_work),
        sharers=sharers,
        splits_at_once=_splits_at_once(batch, resident, tiles, order),
        partial_sums=where(deals, dealt.tiles / tiles, 1.0) * _partial_sums(sharers, order),
        k_tiles=k_tiles,
    )


@formula_record
class _Dealt:
    """Tiles whose k tiles are dealt evenly to clusters; each field is a number or an array."""

    possible: Flags
    tiles: Values
    whole_waves: Values
    """Waves of whole tiles before."""
    clusters: Values
    longest: Values
    """Largest share of a cluster [tiles]."""
    pieces: Values
    """Clusters that share a tile."""


def _dealt(tiles: Values, at_once: Values, k_tiles: Values) -> _Dealt:
    """What stream-K deals.

    CUTLASS `PersistentTileSchedulerSm90StreamKParams`: if the last wave is not full, its tiles and those of
    the wave before are spread over as many clusters as get `fewest_stream_k_tiles` each. A whole number of
    clusters for each tile is split-K.
    """
    fewest = room_numbers("kernel_model").fewest_stream_k_tiles
    full = floor(tiles / at_once)
    whole = maximum(full - 1.0, 0.0)
    # One at least: counts beyond 2^53 round to none.
    dealt = maximum(tiles - whole * at_once, 1.0)
    clusters = maximum(minimum(floor(dealt * k_tiles / fewest), at_once), 1.0)
    even = clusters / dealt == floor(clusters / dealt)
    share = dealt * k_tiles / clusters
    # A share that begins within a tile leaves pieces at both ends of it, of the fewest at least: the
    # longest share takes over a shorter piece of its neighbour.
    between = maximum(k_tiles - 2.0 * fewest, 0.0)
    return _Dealt(
        possible=(tiles > full * at_once) & (k_tiles > fewest),
        tiles=dealt,
        whole_waves=whole,
        clusters=clusters,
        longest=where(even, share, share + fewest - 1.0) / k_tiles,
        pieces=where(even, clusters / dealt, floor(between / share) + 2.0),
    )


def _last_of_unlike_groups(batch: GemmBatch, full: Values) -> Values:
    """Work of the longest cluster after `full` waves under a dynamic scheduler [mean tiles].

    Groups of unlike k last as long as the same number of mean tiles in whole waves, and at least as long as
    their longest tile: within 0.2 to 5 % of simulated list schedules (docs/evidence/mechanisms.md).
    """
    longest = batch.kinds.longest
    return where(longest > 1.0, maximum(1.0, longest - full), 1.0)


def _swizzle(batch: GemmBatch, order: TileOrder, clusters_m: Values, clusters_n: Values) -> Values:
    """Panels walked together, within the limits of the kernel's scheduler for this problem."""
    swizzle = batch.swizzle
    if order.own_group is not None:
        return order.own_group + 0.0 * swizzle
    if not order.cut_to_problem:
        return swizzle
    # CUTLASS `get_log_swizzle_size`: by the CTA tiles, in whole clusters, of the shorter extent.
    shorter = minimum(clusters_m * batch.cluster_m, clusters_n * batch.cluster_n)
    allowed = where(shorter >= 6, 8.0, where(shorter >= 3, 4.0, where(shorter >= 2, 2.0, 1.0)))
    wanted = where(swizzle >= 8, 8.0, where(swizzle >= 4, 4.0, where(swizzle >= 2, 2.0, 1.0)))
    return minimum(wanted, allowed)


def _groups_m(batch: GemmBatch, order: TileOrder, grouped_m: Values, grouped_n: Values) -> Flags:
    """Whether the panels walked together are rows; extents are counted in whole groups."""
    if order.always_along_m:
        along_m: Flags = batch.raster <= ALONG_M
    else:
        if order.cut_to_problem:
            grouped_m, grouped_n = grouped_m * batch.cluster_m, grouped_n * batch.cluster_n
        along_m = where(batch.raster == HEURISTIC, grouped_n > grouped_m, batch.raster == ALONG_M)
    return along_m if order.grouped == "along" else negated(along_m)


def _panels(
    wave: tuple[Values, Values], minor: Values, major: Values, group: Values, order: TileOrder
) -> tuple[Values, Values]:
    """Distinct minor and major panels of one wave in one matrix, averaged over the waves.

    The last group may be narrower than the others; each counts by its share of the tiles.
    """
    regular = floor(minor / group) * group
    tail = where(minor > regular, minor - regular, group)
    share = regular / minor
    minor_panels, major_panels = _panels_in_group(wave, minor, major, group, order)
    minor_tail, major_tail = _panels_in_group(wave, minor, major, tail, order)
    minor_panels = minor_tail + share * (minor_panels - minor_tail)
    return minor_panels, major_tail + share * (major_panels - major_tail)


def _panels_in_group(
    at_once: tuple[Values, Values], minor: Values, major: Values, width: Values, order: TileOrder
) -> tuple[Values, Values]:
    """Distinct panels of a wave that begins in a group of `width` minor panels.

    The wave covers wave / width steps along the major extent, and part of one more unless it begins at a step
    (it begins at multiples of the common divisor). A wave that runs past the end of its group also touches
    the next group's minor panels. A serpentine then turns back over the same major panels, which saves a
    quarter of the steps on average.
    """
    wave, waves = at_once
    aligned = minimum(power_of_two_divisor(wave), power_of_two_divisor(width))
    steps = (wave - aligned) / width + 1.0
    lengths = steps / major
    # Waves as long as groups come out of step slowly: each one begins a rest of a group later.
    whole = floor(wave / (width * major))
    rest = (wave - whole * width * major) * (waves + 1.0) / 2.0
    within = where(whole > 0.0, whole, lengths)
    minor_panels = width * within + where(whole > 0.0, minimum(rest, width), width)
    minor_panels = minimum(minimum(minor_panels, minor), wave)
    if order.serpentine:
        turned = steps * (1.0 - 0.25 * where(minor > width, lengths, 0.0))
        steps = where(steps <= major, turned, major)
    return minor_panels, minimum(maximum(steps, 1.0), major)
