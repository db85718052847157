constexpr u32 N = $n;
constexpr u32 A_BYTES = 64 * 128;
constexpr u32 B_BYTES = N * 128;
__device__ __forceinline__ u64 descriptor(u32 address) {
    // 128-byte swizzle (1 << 62), 1024 bytes between groups of eight rows; PTX ISA, wgmma matrix descriptor.
    return (static_cast<u64>(address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
extern "C" __global__ void __launch_bounds__(256) wgmma_kernel(
    long long rounds, long long stages, u64* clocks, float* sink) {
    extern __shared__ __align__(1024) char raw[];
    const u32 base = (smem_address(raw) + 1023) & ~1023u;
    char* operands = raw + (base - smem_address(raw));
    const u32 warpgroup = threadIdx.x / 128;
    const u32 warpgroups = blockDim.x / 128;
    const u32 stage_bytes = warpgroups * A_BYTES + B_BYTES;
    for (u32 index = threadIdx.x; index < stages * stage_bytes / 4; index += blockDim.x) {
        u32 bits = index * 2654435761u + blockIdx.x;
        bits ^= bits >> 15; bits *= 2246822519u; bits ^= bits >> 13;
        reinterpret_cast<u32*>(operands)[index] = bits & $mask;
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float sum[$registers];
#pragma unroll
    for (int index = 0; index < $registers; ++index) sum[index] = 0.0f;
    const u64 clock_start = clock64();
    const u64 time_start = now_ns();
    u32 stage = base;
    for (long long round = 0; round < rounds; ++round) {
        const u64 a = descriptor(stage + warpgroup * A_BYTES);
        const u64 b = descriptor(stage + warpgroups * A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            asm volatile(
                "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                "wgmma.mma_async.sync.aligned.$shape.$types {$operands}, "
                "%$registers, %$flag_place, "
                "p, $flags;\n}\n"
                : $outputs
                : "l"(a + step * 2), "l"(b + step * 2));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        stage = stage + stage_bytes == base + stages * stage_bytes ? base : stage + stage_bytes;
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    const u64 clock_stop = clock64();
    if (threadIdx.x == 0) {
        clocks[2 * blockIdx.x] = clock_stop - clock_start;
        clocks[2 * blockIdx.x + 1] = now_ns() - time_start;
    }
    float total = 0.0f;
#pragma unroll
    for (int index = 0; index < $registers; ++index) total += sum[index];
    if (total == 1234.5f) sink[0] = total;
}
