// Each CTA stores tiles from shared memory with bulk copies, as a GEMM's epilogue does.
constexpr u32 BYTES = 16384;
constexpr u32 IN_FLIGHT = 2;
extern "C" __global__ void __launch_bounds__(32) bulk_store_kernel(
    char* data, long long total_chunks, long long chunks, u64* clocks) {
    extern __shared__ __align__(128) char tile[];
    for (u32 index = threadIdx.x; index < BYTES * IN_FLIGHT / 4; index += 32)
        reinterpret_cast<u32*>(tile)[index] = index * 2654435761u;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x != 0) return;
    const u32 base = smem_address(tile);
    const u64 clock_start = clock64();
    const u64 time_start = now_ns();
    for (long long chunk = 0; chunk < chunks; ++chunk) {
        const long long at = (chunk * gridDim.x + blockIdx.x) % total_chunks;
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(data + at * BYTES),
                     "r"(base + static_cast<u32>(chunk % IN_FLIGHT) * BYTES), "r"(BYTES) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    clocks[2 * blockIdx.x] = clock64() - clock_start;
    clocks[2 * blockIdx.x + 1] = now_ns() - time_start;
}
