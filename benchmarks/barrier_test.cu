// Clocks that one thread waits for the test of an mbarrier whose phase is over, with the branch on it.
//
//     nvcc -O3 -std=c++17 -arch=sm_90a -cudart static benchmarks/barrier_test.cu -o barrier_test
//     ./barrier_test
//
// What a consumer loses at each k tile that tests its barrier when it needs it, and not before.

#include <cstdint>
#include <cstdio>

constexpr int kTests = 256, kRounds = 2;

__global__ void tests(long long* clocks) {
  __shared__ alignas(8) uint64_t barrier;
  uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(at));
  }
  __syncthreads();
  for (int round = 0; round < kRounds; ++round) {  // the first one brings the code into the caches
    long long begin = clock64();
#pragma unroll 8
    for (int test = 0; test < kTests; ++test) {
      asm volatile(
          "{\n .reg .pred over;\n"
          "again%=: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], 0;\n"
          "@!over bra again%=;\n}\n" ::"r"(at)
          : "memory");
    }
    if (threadIdx.x == 0) clocks[round] = clock64() - begin;
  }
}

int main() {
  long long *clocks, host[kRounds];
  cudaMalloc(&clocks, sizeof host);
  for (int threads : {1, 128, 384}) {
    tests<<<1, threads>>>(clocks);
    cudaMemcpy(host, clocks, sizeof host, cudaMemcpyDeviceToHost);
    if (cudaError_t error = cudaGetLastError()) return puts(cudaGetErrorString(error)), 1;
    printf("%3d threads: %.1f clocks a test\n", threads, host[kRounds - 1] / double(kTests));
  }
}
