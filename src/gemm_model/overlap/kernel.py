# mypy: ignore-errors
# The DSL gives these annotations a meaning of its own and rewrites the bodies; they run on the GPU only.
"""Low-latency GEMM for Hopper that prefetches its weights while it waits for the previous kernel.

D[n, m] = B[n, k] A[m, k]^T with A the weights (m x k, k contiguous), B the activations (n x k, k contiguous)
and D in bf16 (m contiguous). A CTA computes 64 features at a time for all n columns over its part of K; the
CTAs of a cluster share a tile by splitting K and exchange partial sums through distributed shared memory.

Warp roles of a CTA (224 threads):
    warps 0-3  MMA warpgroup and epilogue
    warp 4     loads A; with split loading it starts before ``griddepcontrol.wait``, with few tiles in flight:
               the previous kernel's accesses queue up behind all that were asked for
    warp 5     loads B after ``griddepcontrol.wait`` (with joint loading warp 4 loads both and this one rests)
    warp 6     brings later K tiles of A into L2, after the ring and at the pace of DRAM; it skips those that
               warp 4 already loads
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float32, Int32, Int64, const_expr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from gemm_model.overlap.config import THREADS, TILE_M, TRACE_EVENTS, UNIT_M, KernelBuild

#: L2 eviction policies of a TMA access, as the 64-bit descriptors that the instruction takes.
EVICT_NORMAL = 0x1000000000000000
EVICT_FIRST = 0x12F0000000000000
EVICT_LAST = 0x14F0000000000000

ELEMENT_TYPE = {"e4m3": Float8E4M3FN, "e5m2": Float8E5M2, "bf16": BFloat16}

MMA_THREADS = 128
A_WARP, B_WARP, PREFETCH_WARP = 4, 5, 6


class WeightPrefetchGemm:
    """The kernel for one :class:`KernelBuild`; call it inside ``cute.compile`` or after."""

    def __init__(self, build: KernelBuild) -> None:
        self.build = build
        self.a_type = ELEMENT_TYPE[build.a_type]
        self.b_type = ELEMENT_TYPE[build.b_type]
        # fp8 MMAs add with fewer bits than fp32: each K tile gets its own accumulator, added up in fp32.
        self.promote = self.a_type.width == 8

    @cute.jit
    def __call__(
        self,
        a_ptr: cute.Pointer,
        b_ptr: cute.Pointer,
        d_ptr: cute.Pointer,
        trace_ptr: cute.Pointer,
        m: Int32,
        n: Int32,
        k: Int32,
        d_pitch: Int32,
        clusters: Int32,
        overlap_ratio: Float32,
        prefetch_ratio: Float32,
        fill_delay: Int32,
        fill_window: Int32,
        prefetch_interval: Int32,
        stream: cuda.CUstream,
    ):
        build = self.build
        a = cute.make_tensor(a_ptr, cute.make_layout((m, k), stride=(cute.assume(k, 16), 1)))
        b = cute.make_tensor(b_ptr, cute.make_layout((n, k), stride=(cute.assume(k, 16), 1)))
        d = cute.make_tensor(d_ptr, cute.make_layout((m, n), stride=(1, cute.assume(d_pitch, 8))))
        trace = cute.make_tensor(trace_ptr, cute.make_layout((len(TRACE_EVENTS), build.split_k, clusters)))

        tiled_mma = sm90.make_trivial_tiled_mma(
            self.a_type,
            self.b_type,
            OperandMajorMode.K,
            OperandMajorMode.K,
            Float32,
            (1, 1, 1),
            tiler_mn=(TILE_M, build.tile_n),
        )
        # The ring of A as the MMA sees it (whole tiles) and as TMA fills it (half tiles): the same bytes.
        a_layout = k_major_ring(self.a_type, TILE_M, build.tile_k, build.stages)
        a_box_layout = k_major_ring(self.a_type, UNIT_M, build.tile_k, 2 * build.stages)
        b_layout = k_major_ring(self.b_type, build.tile_n, build.tile_k, build.stages)
        d_layout = cute.make_layout((UNIT_M, 8, 2 * build.column_groups))

        load = cpasync.CopyBulkTensorTileG2SOp()
        a_atom, a_tma = cpasync.make_tiled_tma_atom(
            load, a, cute.select(a_box_layout, mode=[0, 1]), (UNIT_M, build.tile_k)
        )
        b_atom, b_tma = cpasync.make_tiled_tma_atom(
            load, b, cute.select(b_layout, mode=[0, 1]), (build.tile_n, build.tile_k)
        )
        d_atom, d_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(), d, cute.select(d_layout, mode=[0, 1]), (UNIT_M, 8)
        )

        @cute.struct
        class SharedStorage:
            full: cute.struct.MemRange[Int64, build.stages]
            full_b: cute.struct.MemRange[Int64, build.stages]
            empty: cute.struct.MemRange[Int64, build.stages]
            waited: cute.struct.MemRange[Int64, 1]
            received: cute.struct.MemRange[Int64, 1]
            a: cute.struct.Align[cute.struct.MemRange[self.a_type, cute.cosize(a_layout)], 1024]
            b: cute.struct.Align[cute.struct.MemRange[self.b_type, cute.cosize(b_layout)], 1024]
            d: cute.struct.Align[cute.struct.MemRange[BFloat16, cute.cosize(d_layout)], 128]
            partials: cute.struct.Align[cute.struct.MemRange[Float32, max(build.exchange_bytes // 4, 4)], 128]

        self.storage = SharedStorage
        self.kernel(
            tiled_mma,
            a_atom,
            a_tma,
            b_atom,
            b_tma,
            d_atom,
            d_tma,
            trace,
            a_layout,
            a_box_layout,
            b_layout,
            d_layout,
            cute.ceil_div(m, UNIT_M),
            cute.ceil_div(k, build.tile_k),
            overlap_ratio,
            prefetch_ratio,
            fill_delay,
            fill_window,
            prefetch_interval,
        ).launch(
            grid=(build.split_k, clusters, 1),
            block=(THREADS, 1, 1),
            cluster=(build.split_k, 1, 1),
            stream=stream,
            min_blocks_per_mp=build.min_ctas_per_sm,
            preferred_smem_carveout=100,
            use_pdl=build.dependent_launch,
        )

    @cute.kernel
    def kernel(
        self,
        tiled_mma: cute.TiledMma,
        a_atom: cute.CopyAtom,
        a_tma: cute.Tensor,
        b_atom: cute.CopyAtom,
        b_tma: cute.Tensor,
        d_atom: cute.CopyAtom,
        d_tma: cute.Tensor,
        trace: cute.Tensor,
        a_layout: cute.ComposedLayout,
        a_box_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
        d_layout: cute.Layout,
        units: Int32,
        k_tiles: Int32,
        overlap_ratio: Float32,
        prefetch_ratio: Float32,
        fill_delay: Int32,
        fill_window: Int32,
        prefetch_interval: Int32,
    ):
        build = self.build
        split_k = build.split_k
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        rank, cluster, _ = cute.arch.block_idx()  # the cluster spans x, so x is the rank in it
        _, clusters, _ = cute.arch.grid_dim()

        # Units of rows of this cluster, K tiles of this CTA: as even as whole ones allow.
        first_unit = units * cluster // clusters
        own_units = units * (cluster + 1) // clusters - first_unit
        tiles = (own_units + 1) // 2
        first_k = k_tiles * rank // split_k
        count = k_tiles * (rank + 1) // split_k - first_k
        steps = tiles * count

        storage = cutlass.utils.SmemAllocator().allocate(self.storage)
        full, full_b = storage.full.data_ptr(), storage.full_b.data_ptr()
        empty = storage.empty.data_ptr()
        waited, received = storage.waited.data_ptr(), storage.received.data_ptr()
        s_a = storage.a.get_tensor(a_layout.outer, swizzle=a_layout.inner)
        s_a_box = storage.a.get_tensor(a_box_layout.outer, swizzle=a_box_layout.inner)
        s_b = storage.b.get_tensor(b_layout.outer, swizzle=b_layout.inner)
        s_d = storage.d.get_tensor(d_layout)

        if warp == A_WARP:
            cpasync.prefetch_descriptor(a_atom)
        if warp == B_WARP:
            cpasync.prefetch_descriptor(b_atom)
        if tidx == 0:
            self.record(trace, 0, rank, cluster)
            for stage in cutlass.range_constexpr(build.stages):
                cute.arch.mbarrier_init(full + stage, 1)
                if const_expr(build.split_loading):
                    cute.arch.mbarrier_init(full_b + stage, 1)
                cute.arch.mbarrier_init(empty + stage, MMA_THREADS // 32)
            cute.arch.mbarrier_init(waited, 1)
            cute.arch.mbarrier_init(received, 1)
            if const_expr(split_k > 1):
                owned = (build.column_groups - rank + split_k - 1) // split_k
                cute.arch.mbarrier_arrive_and_expect_tx(received, owned * (split_k - 1) * MMA_THREADS * 16)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if const_expr(split_k > 1):
            # No CTA may write to another's shared memory before its barriers are there.
            cute.arch.cluster_arrive_relaxed()

        g_a = cute.local_tile(a_tma, (UNIT_M, build.tile_k), (None, None))
        g_b = cute.local_tile(b_tma, (build.tile_n, build.tile_k), (0, None))
        t_s_a, t_g_a = partition_for_tma(a_atom, s_a_box, g_a)
        t_s_b, t_g_b = partition_for_tma(b_atom, s_b, g_b)

        if warp == A_WARP:
            trigger_at = Int32(overlap_ratio * Float32(steps))
            if overlap_ratio < 0.0:
                trigger_at = Int32(-1)
            if const_expr(not build.split_loading):
                self.wait_for_previous(waited)
            elif fill_delay > 0:
                begin = Int64(cute.arch.clock64())
                while Int64(cute.arch.clock64()) - begin < Int64(fill_delay):
                    pass
            if trigger_at == 0:
                cute.arch.griddepcontrol_launch_dependents()
            for tile in cutlass.range(tiles, unroll=1):
                whole = own_units - 2 * tile >= 2
                a_bytes = build.a_stage_bytes // 2
                if whole:
                    a_bytes = build.a_stage_bytes
                for i in cutlass.range(count, unroll=1):
                    step = tile * count + i
                    stage = step % build.stages
                    if const_expr(build.split_loading):  # noqa: SIM102 - one when compiled, one when run
                        # While the ring fills for the first time, only a few tiles are in flight.
                        if step >= fill_window and step < build.stages:
                            cute.arch.mbarrier_wait(full + (step - fill_window), 0)
                    cute.arch.mbarrier_wait(empty + stage, ((step // build.stages) & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(
                            full + stage, a_bytes if build.split_loading else a_bytes + build.b_stage_bytes
                        )
                    self.load(
                        a_atom,
                        t_g_a[None, first_unit + 2 * tile, first_k + i],
                        t_s_a[None, 2 * stage],
                        full + stage,
                        EVICT_FIRST,
                    )
                    if whole:
                        self.load(
                            a_atom,
                            t_g_a[None, first_unit + 2 * tile + 1, first_k + i],
                            t_s_a[None, 2 * stage + 1],
                            full + stage,
                            EVICT_FIRST,
                        )
                    if const_expr(not build.split_loading):
                        self.load(
                            b_atom, t_g_b[None, first_k + i], t_s_b[None, stage], full + stage, EVICT_LAST
                        )
                    if step + 1 == trigger_at:
                        cute.arch.griddepcontrol_launch_dependents()
            with cute.arch.elect_one():
                self.record(trace, 2, rank, cluster)
        elif warp == B_WARP:
            if const_expr(build.split_loading):
                self.wait_for_previous(waited)
                with cute.arch.elect_one():
                    self.record(trace, 1, rank, cluster)
                for tile in cutlass.range(tiles, unroll=1):
                    for i in cutlass.range(count, unroll=1):
                        step = tile * count + i
                        stage = step % build.stages
                        cute.arch.mbarrier_wait(empty + stage, ((step // build.stages) & 1) ^ 1)
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(full_b + stage, build.b_stage_bytes)
                        self.load(
                            b_atom, t_g_b[None, first_k + i], t_s_b[None, stage], full_b + stage, EVICT_LAST
                        )
        elif warp == PREFETCH_WARP:
            # With split loading the ring already holds the first steps.
            start = cutlass.min(Int32(build.stages if build.split_loading else 0), steps)
            end = cutlass.min(start + Int32(cute.math.ceil(prefetch_ratio * Float32(steps))), steps)
            best_effort = prefetch_ratio < 0.0
            if best_effort:
                end = steps
            if const_expr(build.split_loading):
                # DRAM fills the ring first, but for half a window, so that it does not run dry in between.
                # (The ring's barriers turn again only after the wait.)
                filled = start == end
                nearly = cutlass.max(Int32(build.stages - 1) - (fill_window + 1) // 2, Int32(0))
                while not filled:
                    filled = cute.arch.mbarrier_test_wait(full + nearly, 0)
                    if cute.arch.mbarrier_test_wait(waited, 0):
                        filled = True
            due = Int64(cute.arch.clock64())
            issued = Int32(0)
            step = start
            while step < end:
                stop = False
                if best_effort:
                    stop = cute.arch.mbarrier_test_wait(waited, 0)
                if stop:
                    end = step
                elif Int64(cute.arch.clock64()) >= due:
                    # A free slot of the ring: the load of this tile is in flight already.
                    slot = step % build.stages
                    if not cute.arch.mbarrier_test_wait(empty + slot, ((step // build.stages) & 1) ^ 1):
                        tile = step // count
                        i = step - tile * count
                        self.prefetch(a_atom, t_g_a[None, first_unit + 2 * tile, first_k + i], full)
                        if own_units - 2 * tile >= 2:
                            self.prefetch(a_atom, t_g_a[None, first_unit + 2 * tile + 1, first_k + i], full)
                        due += Int64(prefetch_interval)
                        issued += 1
                    step += 1
            if const_expr(build.trace):
                with cute.arch.elect_one():
                    trace[5, rank, cluster] = Int64(issued)
        elif warp < A_WARP:
            self.multiply_and_store(
                tiled_mma,
                s_a,
                s_b,
                s_d,
                d_atom,
                d_tma,
                storage,
                first_unit,
                own_units,
                count,
                tidx,
                warp,
                rank,
            )
            if tidx == 0:
                self.record(trace, 3, rank, cluster)
                if const_expr(build.trace):
                    trace[4, rank, cluster] = Int64(cute.arch.smid())

    @cute.jit
    def record(self, trace: cute.Tensor, event: cutlass.Constexpr[int], rank: Int32, cluster: Int32):
        """Nanoseconds of the global timer for an event of ``TRACE_EVENTS``."""
        if const_expr(self.build.trace):
            trace[event, rank, cluster] = Int64(cute.arch.globaltimer())

    @cute.jit
    def wait_for_previous(self, waited: cute.Pointer):
        """Wait until the previous kernel has ended and its stores can be seen; tell the prefetch warp."""
        cute.arch.griddepcontrol_wait()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(waited)

    @cute.jit
    def load(self, atom, source, destination, barrier, policy: cutlass.Constexpr[int]):
        """TMA load with an L2 eviction policy."""
        cute.copy(atom, source, destination, tma_bar_ptr=barrier, cache_policy=Int64(policy))

    @cute.jit
    def prefetch(self, atom, tile, any_barrier):
        """One thread of the warp asks L2 for ``tile``; the atom wants a barrier, which stays untouched."""
        with cute.arch.elect_one():
            cute.prefetch(atom.with_(tma_bar_ptr=any_barrier, cache_policy=Int64(EVICT_NORMAL)), tile)

    @cute.jit
    def multiply_and_store(
        self, tiled_mma, s_a, s_b, s_d, d_atom, d_tma, storage, first_unit, own_units, count, tidx, warp, rank
    ):
        """Tile by tile: main loop of the MMA warpgroup, sum over the cluster, TMA stores of its groups."""
        build = self.build
        split_k = build.split_k
        full, full_b = storage.full.data_ptr(), storage.full_b.data_ptr()
        empty = storage.empty.data_ptr()
        thread_mma = tiled_mma.get_slice(tidx)
        f_a = tiled_mma.make_fragment_A(thread_mma.partition_A(s_a))
        f_b = tiled_mma.make_fragment_B(thread_mma.partition_B(s_b))
        shape = tiled_mma.partition_shape_C((TILE_M, build.tile_n))
        g_d = cute.local_tile(d_tma, (UNIT_M, 8), (None, None))
        t_s_d, t_g_d = partition_for_tma(d_atom, s_d, g_d)
        # A thread's accumulators: rows lane / 4 and 8 further of its warp's 16, columns from 2 (lane % 4).
        lane = tidx % 32
        row = warp * 16 + lane // 4
        column = (lane % 4) * 2

        for tile in cutlass.range((own_units + 1) // 2, unroll=1):
            total = cute.make_rmem_tensor(shape, Float32)
            total.fill(0.0)
            part = cute.make_rmem_tensor(shape, Float32) if const_expr(self.promote) else total
            for i in cutlass.range(count, unroll=1):
                step = tile * count + i
                stage = step % build.stages
                cute.arch.mbarrier_wait(full + stage, (step // build.stages) & 1)
                if const_expr(build.split_loading):
                    cute.arch.mbarrier_wait(full_b + stage, (step // build.stages) & 1)
                warpgroup.fence()
                mma = cute.make_mma_atom(tiled_mma.op)
                mma.set(warpgroup.Field.ACCUMULATE, not self.promote)
                for block in cutlass.range_constexpr(cute.size(f_a, mode=[2])):
                    cute.gemm(mma, part, f_a[None, None, block, stage], f_b[None, None, block, stage], part)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(empty + stage)
                if const_expr(self.promote):
                    for j in cutlass.range_constexpr(cute.size(total)):
                        total[j] = total[j] + part[j]
            if const_expr(split_k > 1):
                self.sum_over_cluster(total, storage, tidx, rank)

            # The stores of the tile before must have left shared memory.
            if warp == 0:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.barrier(barrier_id=1, number_of_threads=MMA_THREADS)
            for g in cutlass.range_constexpr(build.column_groups):
                if rank == g % split_k:
                    for j in cutlass.range_constexpr(4):
                        r = row + 8 * (j // 2)
                        s_d[r % UNIT_M, column + j % 2, 2 * g + r // UNIT_M] = total[4 * g + j].to(BFloat16)
            cute.arch.fence_view_async_shared()
            cute.arch.barrier(barrier_id=1, number_of_threads=MMA_THREADS)
            if warp == 0:
                for g in cutlass.range_constexpr(build.column_groups):
                    if rank == g % split_k:
                        unit = first_unit + 2 * tile
                        cute.copy(d_atom, t_s_d[None, 2 * g], t_g_d[None, unit, g])
                        if own_units - 2 * tile >= 2:
                            cute.copy(d_atom, t_s_d[None, 2 * g + 1], t_g_d[None, unit + 1, g])
                cute.arch.cp_async_bulk_commit_group()
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=False)

    @cute.jit
    def sum_over_cluster(self, total, storage, tidx, rank):
        """Add the other CTAs' accumulators of the column groups that this CTA stores.

        Accumulators 4 g .. 4 g + 3 of a thread belong to output columns 8 g .. 8 g + 7, and those to CTA
        g % split_k. Each CTA sends its partial sums straight into the owner's shared memory.
        """
        build = self.build
        split_k = build.split_k
        received = storage.received.data_ptr()
        partials = storage.partials.data_ptr()
        cute.arch.cluster_wait()
        for g in cutlass.range_constexpr(build.column_groups):
            if rank != g % split_k:
                slot = (Int32(g // split_k * split_k) + rank) * MMA_THREADS + tidx
                values = tuple(total[4 * g + j].bitcast(Int32) for j in range(4))
                destination = (partials + slot * 4).align(16)
                cute.arch.store_async_dsmem(destination, values, received, g % split_k)
        if rank < build.column_groups:
            cute.arch.mbarrier_wait(received, 0)
        s_partials = cute.make_tensor(
            partials, cute.make_layout((4, MMA_THREADS, split_k, build.owned_groups))
        )
        for g in cutlass.range_constexpr(build.column_groups):
            if rank == g % split_k:
                for source in cutlass.range_constexpr(split_k):
                    if rank != source:
                        for j in cutlass.range_constexpr(4):
                            total[4 * g + j] = total[4 * g + j] + s_partials[j, tidx, source, g // split_k]


@cute.jit
def partition_for_tma(atom: cute.CopyAtom, smem: cute.Tensor, gmem: cute.Tensor):
    """(TMA box, stage) view of ``smem`` and (TMA box, tile) view of ``gmem``, without multicast."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(gmem, 0, 2)
    )


def k_major_ring(element_type, rows, tile_k, stages):
    """Shared-memory layout (rows, tile_k, stages) with the 128-byte swizzle that TMA and the MMA agree on."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, element_type)
    return cute.tile_to_shape(atom, (rows, tile_k, stages), order=(0, 1, 2))
