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
