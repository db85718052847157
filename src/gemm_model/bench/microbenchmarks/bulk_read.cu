// Each CTA streams its group's region through a ring of bulk copies. CTAs of one group read the same bytes,
// each from its own starting point where `stagger` is set.
constexpr u32 SLOTS = 8;
constexpr u32 BYTES = 16384;
extern "C" __global__ void __launch_bounds__(32) bulk_read_kernel(
    const char* data, long long region_bytes, long long regions, long long chunks, long long stagger,
    u64* clocks) {
    extern __shared__ __align__(128) char ring[];
    __shared__ __align__(8) u64 barriers[SLOTS];
    if (threadIdx.x != 0) return;
    const u32 base = smem_address(ring);
    for (u32 slot = 0; slot < SLOTS; ++slot) barrier_init(smem_address(&barriers[slot]), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const long long region = blockIdx.x % regions;
    const char* start = data + region * region_bytes;
    const long long chunks_in_region = region_bytes / BYTES;
    long long at = stagger ? (blockIdx.x / regions) * 37 % chunks_in_region : 0;
    const u64 clock_start = clock64();
    const u64 time_start = now_ns();
    for (long long chunk = 0; chunk < chunks + SLOTS; ++chunk) {
        const u32 slot = chunk % SLOTS;
        const u32 barrier = smem_address(&barriers[slot]);
        if (chunk >= SLOTS) barrier_wait(barrier, ((chunk / SLOTS) - 1) & 1);
        if (chunk < chunks) {
            barrier_expect(barrier, BYTES);
            bulk_load(base + slot * BYTES, start + at * BYTES, BYTES, barrier);
            at = at + 1 == chunks_in_region ? 0 : at + 1;
        }
    }
    clocks[2 * blockIdx.x] = clock64() - clock_start;
    clocks[2 * blockIdx.x + 1] = now_ns() - time_start;
}
