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
