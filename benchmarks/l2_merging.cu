// Which SMs' equal requests merge before L2, and which SM each cluster of a launch gets.
//
//     nvcc -O2 -std=c++17 -arch=sm_90a benchmarks/l2_merging.cu -o l2_merging
//     ./l2_merging map      # SMs in the order of CTAs, by cluster shape and of launches without clusters; TPCs
//     ncu --clock-control none --cache-control none --csv -k regex:stream \
//         --metrics lts__t_sectors_srcunit_tex.sum,lts__t_sectors_op_read.sum ./l2_merging merging
//
// `merging` launches one CTA on each SM. The SMs of one group stream the same 4 MB through TMA at the same time;
// L2 counters tell how many of their requests it saw. Measured: data/measurements/h200/probes.csv.gz.

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

constexpr int kSms = 132, kStages = 4, kChunkBytes = 8192, kSmemBytes = 200 * 1024;
constexpr size_t kRegionBytes = 4 << 20;

__device__ unsigned sm_id() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

__device__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__global__ void note_sm(int* sm_of_cta, int spin_clk) {
  extern __shared__ char buffer[];
  buffer[threadIdx.x] = 0;
  int cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x == 0) sm_of_cta[cta] = sm_id();
  for (long long start = clock64(); clock64() - start < spin_clk;) {
  }
}

// region_of_sm: the region that an SM streams, -1 for none.
__global__ void stream(const char* regions, const int* region_of_sm, unsigned* arrived, unsigned active,
                       float* sink) {
  extern __shared__ __align__(128) char buffer[];
  __shared__ __align__(8) unsigned long long barriers[kStages];
  const int region = region_of_sm[sm_id()];
  if (region < 0 || threadIdx.x != 0) return;
  for (auto& barrier : barriers)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
  asm volatile("fence.mbarrier_init.release.cluster;");
  atomicAdd(arrived, 1);
  while (*static_cast<volatile unsigned*>(arrived) < active) {
  }
  const char* source = regions + static_cast<size_t>(region) * kRegionBytes;
  const int steps = kRegionBytes / kChunkBytes;
  for (int step = 0; step < steps + kStages; ++step) {
    const unsigned barrier = shared_address(&barriers[step % kStages]);
    if (step >= kStages) {
      const unsigned phase = (step / kStages - 1) & 1;
      for (unsigned done = 0; !done;)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(phase));
    }
    if (step < steps) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kChunkBytes));
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              shared_address(buffer + step % kStages * kChunkBytes)),
          "l"(source + static_cast<size_t>(step) * kChunkBytes), "r"(kChunkBytes), "r"(barrier)
          : "memory");
    }
  }
  sink[sm_id()] = buffer[0];
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// The SM of each CTA of so many clusters; a cluster of 0 x 0 is a launch without clusters.
std::vector<int> sms_of(int cluster_m, int cluster_n, int clusters) {
  static int* sm_of_cta = nullptr;
  if (!sm_of_cta) check(cudaMallocManaged(&sm_of_cta, kSms * sizeof(int)), "memory");
  const dim3 grid(cluster_m ? cluster_m : 1, cluster_n ? cluster_n : 1, clusters);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = grid.x;
  cluster.val.clusterDim.y = grid.y;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = grid;
  launch.blockDim = dim3(384);
  launch.dynamicSmemBytes = kSmemBytes;
  launch.attrs = &cluster;
  launch.numAttrs = cluster_m ? 1 : 0;
  check(cudaLaunchKernelEx(&launch, note_sm, sm_of_cta, 200000), "launch");
  check(cudaDeviceSynchronize(), "run");
  return std::vector<int>(sm_of_cta, sm_of_cta + grid.x * grid.y * clusters);
}

void print_map() {
  check(cudaFuncSetAttribute(note_sm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes), "shared memory");
  check(cudaFuncSetAttribute(note_sm, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cluster size");
  const int shapes[][3] = {{1, 1, 132}, {2, 1, 66}, {1, 2, 66}, {2, 2, 30}, {4, 1, 30}, {8, 1, 15}, {16, 1, 7}};
  for (const auto& shape : shapes) {
    std::printf("%dx%d:", shape[0], shape[1]);
    for (int sm : sms_of(shape[0], shape[1], shape[2])) std::printf(" %d", sm);
    std::printf("\n");
  }
  for (int size : {0, 1})
    for (int ctas : {8, 12, 16, 24, 28, 32, 40, 48, 56, 64, 66, 80, 100, 112, 132}) {
      std::printf("%dx%d, %d CTAs:", size, size, ctas);
      for (int sm : sms_of(size, size, ctas)) std::printf(" %d", sm);
      std::printf("\n");
    }
  const int sizes[][2] = {{0, 0}, {1, 1}, {2, 1}, {1, 2}};
  for (const auto& size : sizes)
    for (int ctas : {8, 16, 24, 32, 48, 64, 66, 80, 100, 132}) {
      std::set<int> tpcs;
      for (int sm : sms_of(size[0], size[1], ctas / (size[0] * size[1] ? size[0] * size[1] : 1)))
        tpcs.insert(sm / 2);
      std::printf("%dx%d, %d CTAs: %zu TPCs\n", size[0], size[1], ctas, tpcs.size());
    }
}

void run_merging() {
  std::vector<std::vector<int>> launches;
  for (int first : {0, 17})
    for (int second = 0; second < kSms; ++second) {
      std::vector<int> region_of_sm(kSms, -1);
      region_of_sm[first] = region_of_sm[second] = 0;
      launches.push_back(region_of_sm);
    }
  for (int together : {1, 2, 4, 6, 8, 16, 18, 33, 66, 132}) {
    std::vector<int> region_of_sm(kSms);
    for (int sm = 0; sm < kSms; ++sm) region_of_sm[sm] = sm / together;
    launches.push_back(region_of_sm);
  }
  char* regions;
  int* region_of_sm;
  unsigned* arrived;
  float* sink;
  check(cudaMalloc(&regions, kSms * kRegionBytes), "memory");
  check(cudaMemset(regions, 1, kSms * kRegionBytes), "memory");
  check(cudaMalloc(&region_of_sm, kSms * sizeof(int)), "memory");
  check(cudaMalloc(&arrived, sizeof(unsigned)), "memory");
  check(cudaMalloc(&sink, kSms * sizeof(float)), "memory");
  check(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes), "shared memory");
  for (const auto& each : launches) {
    unsigned active = 0;
    for (int region : each) active += region >= 0;
    check(cudaMemcpy(region_of_sm, each.data(), kSms * sizeof(int), cudaMemcpyHostToDevice), "copy");
    check(cudaMemset(arrived, 0, sizeof(unsigned)), "memory");
    stream<<<kSms, 32, kSmemBytes>>>(regions, region_of_sm, arrived, active, sink);
    check(cudaDeviceSynchronize(), "run");
  }
}

int main(int count, char** words) {
  if (count == 2 && !std::strcmp(words[1], "map")) {
    print_map();
  } else if (count == 2 && !std::strcmp(words[1], "merging")) {
    run_merging();
  } else {
    std::fprintf(stderr, "expected one word: map or merging\n");
    return 2;
  }
}
