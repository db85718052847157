"""CUDA sources of the microbenchmarks. Every kernel writes what it measured, so that none is left out."""

from __future__ import annotations

COMMON = r"""
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 smem_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_load(u32 to, const char* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
"""

EMPTY = (
    COMMON
    + r"""
extern "C" __global__ void empty_kernel() {}
"""
)

BULK_READ = (
    COMMON
    + r"""
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
"""
)

BULK_STORE = (
    COMMON
    + r"""
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
"""
)

LATENCY = (
    COMMON
    + r"""
// One bulk copy at a time from one CTA: its latency, from DRAM (fresh bytes) or from L2 (bytes just read).
extern "C" __global__ void __launch_bounds__(32) bulk_latency_kernel(
    const char* data, long long bytes, long long stride, long long repeats, long long twice, u64* clocks) {
    extern __shared__ __align__(128) char landing[];
    __shared__ __align__(8) u64 barrier_word;
    if (threadIdx.x != 0) return;
    const u32 barrier = smem_address(&barrier_word);
    barrier_init(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    u32 parity = 0;
    u64 clock_sum = 0, time_sum = 0;
    for (long long repeat = 0; repeat < repeats; ++repeat) {
        for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
            const u64 clock_start = clock64();
            const u64 time_start = now_ns();
            barrier_expect(barrier, bytes);
            bulk_load(smem_address(landing), data + repeat * stride, bytes, barrier);
            barrier_wait(barrier, parity);
            parity ^= 1;
            if (pass == (twice ? 1 : 0)) {
                clock_sum += clock64() - clock_start;
                time_sum += now_ns() - time_start;
            }
        }
    }
    clocks[0] = clock_sum;
    clocks[1] = time_sum;
}
"""
)

SMEM_READ = (
    COMMON
    + r"""
// Every thread reads 16 bytes at a time, neighbouring threads neighbouring bytes: no bank conflicts.
extern "C" __global__ void __launch_bounds__(512) smem_read_kernel(long long rounds, u64* clocks, u32* sink) {
    extern __shared__ __align__(128) char bytes[];
    for (u32 index = threadIdx.x; index < 16384; index += blockDim.x)
        reinterpret_cast<u32*>(bytes)[index] = index * 2654435761u;
    __syncthreads();
    const u32 address = smem_address(bytes) + threadIdx.x * 16;
    u32 sum = 0;
    const u64 clock_start = clock64();
    for (long long round = 0; round < rounds; ++round) {
#pragma unroll
        for (u32 step = 0; step < 8; ++step) {
            u32 a, b, c, d;
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address + step * 8192));
            sum ^= a ^ b ^ c ^ d;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        clocks[2 * blockIdx.x] = clock64() - clock_start;
        clocks[2 * blockIdx.x + 1] = 0;
    }
    if (sum == 1234567u) sink[0] = sum;
}
"""
)


def wgmma_source(n: int, dtype: str) -> str:
    """A loop of m64nNkK warpgroup MMAs with both operands in 128-byte-swizzled shared memory.

    `dtype` is 'bf16' (K of 16) or 'e4m3' (K of 32). Four MMAs, one 128-byte row of K, make a commit group. At
    most two warpgroups run it, so that a thread may hold 128 accumulators.
    Random bits fill the operands: exponents are clipped so that sums stay finite.
    """
    registers = n // 2
    operands = ", ".join(f"%{index}" for index in range(registers))
    outputs = ", ".join(f'"+f"(sum[{index}])' for index in range(registers))
    shape, types, flags = (
        (f"m64n{n}k16", "f32.bf16.bf16", "1, 1, 0, 0")
        if dtype == "bf16"
        else (f"m64n{n}k32", "f32.e4m3.e4m3", "1, 1")
    )
    mask = "0x3fff3fffu" if dtype == "bf16" else "0xbfbfbfbfu"
    return (
        COMMON
        + rf"""
constexpr u32 N = {n};
constexpr u32 A_BYTES = 64 * 128;
constexpr u32 B_BYTES = N * 128;
__device__ __forceinline__ u64 descriptor(u32 address) {{
    // 128-byte swizzle (1 << 62), 1024 bytes between groups of eight rows; PTX ISA, wgmma matrix descriptor.
    return (static_cast<u64>(address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}}
extern "C" __global__ void __launch_bounds__(256) wgmma_kernel(
    long long rounds, long long stages, u64* clocks, float* sink) {{
    extern __shared__ __align__(1024) char raw[];
    const u32 base = (smem_address(raw) + 1023) & ~1023u;
    char* operands = raw + (base - smem_address(raw));
    const u32 warpgroup = threadIdx.x / 128;
    const u32 warpgroups = blockDim.x / 128;
    const u32 stage_bytes = warpgroups * A_BYTES + B_BYTES;
    for (u32 index = threadIdx.x; index < stages * stage_bytes / 4; index += blockDim.x) {{
        u32 bits = index * 2654435761u + blockIdx.x;
        bits ^= bits >> 15; bits *= 2246822519u; bits ^= bits >> 13;
        reinterpret_cast<u32*>(operands)[index] = bits & {mask};
    }}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float sum[{registers}];
#pragma unroll
    for (int index = 0; index < {registers}; ++index) sum[index] = 0.0f;
    const u64 clock_start = clock64();
    const u64 time_start = now_ns();
    u32 stage = base;
    for (long long round = 0; round < rounds; ++round) {{
        const u64 a = descriptor(stage + warpgroup * A_BYTES);
        const u64 b = descriptor(stage + warpgroups * A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < 4; ++step) {{
            asm volatile(
                "{{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                "wgmma.mma_async.sync.aligned.{shape}.{types} {{{operands}}}, "
                "%{registers}, %{registers + 1}, "
                "p, {flags};\n}}\n"
                : {outputs}
                : "l"(a + step * 2), "l"(b + step * 2));
        }}
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        stage = stage + stage_bytes == base + stages * stage_bytes ? base : stage + stage_bytes;
    }}
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    const u64 clock_stop = clock64();
    if (threadIdx.x == 0) {{
        clocks[2 * blockIdx.x] = clock_stop - clock_start;
        clocks[2 * blockIdx.x + 1] = now_ns() - time_start;
    }}
    float total = 0.0f;
#pragma unroll
    for (int index = 0; index < {registers}; ++index) total += sum[index];
    if (total == 1234.5f) sink[0] = total;
}}
"""
    )
