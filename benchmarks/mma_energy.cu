// Energy of a FLOP by mma.sync (operands in registers, as before Hopper) and by warpgroup MMAs, on one card.
//
//     nvcc -O3 -DNDEBUG -std=c++17 -arch=sm_90a --expt-relaxed-constexpr -cudart static
//         -I CUTLASS/include benchmarks/mma_energy.cu -o mma_energy -lnvidia-ml
//     ./mma_energy > mma_energy.csv    # 45 s; an idle card, its clocks and its cap as they are
//
// A row: what ran, CTAs, outputs, TFLOP/s, and after half a second the mean power (instant reading, and by the
// energy counter), the mean SM clock and the temperature. Products of bf16, normal operands, 8192 cubed and of
// one CTA on each of 132, 66 and 33 SMs. Energy of a FLOP: the slope of power over rate at the same clock.

#include <cuda_bf16.h>
#include <nvml.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal.h"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

using Bf16 = cutlass::bfloat16_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Clock = std::chrono::steady_clock;

constexpr double kPhaseS = 1.8, kSettleS = 0.5, kBatchS = 0.02;

void check(bool good, const char* what) {
  if (!good) fprintf(stderr, "%s failed (%s)\n", what, cudaGetErrorString(cudaGetLastError())), exit(1);
}

struct Problem {
  int m, n, k;
  double flop() const { return 2.0 * m * n * k; }
};

struct Operands {
  Bf16 *a, *b, *d;  // (m, k) and (n, k), k contiguous; (m, n), n contiguous
};

struct Kernel {
  const char* name;
  int tile_m, tile_n;
  virtual void prepare(const Problem&, const Operands&) = 0;
  virtual bool launch() = 0;
  Kernel(const char* name, int tile_m, int tile_n) : name(name), tile_m(tile_m), tile_n(tile_n) {}
  virtual ~Kernel() = default;
};

template <int TileM, int TileN, int TileK, int Stages>
struct MmaSync : Kernel {
  using Gemm = cutlass::gemm::device::GemmUniversal<
      Bf16, Row, Bf16, Column, Bf16, Row, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
      cutlass::gemm::GemmShape<TileM, TileN, TileK>, cutlass::gemm::GemmShape<64, 64, TileK>,
      cutlass::gemm::GemmShape<16, 8, 16>, cutlass::epilogue::thread::LinearCombination<Bf16, 8, float, float>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Stages, 8, 8>;
  Gemm gemm;
  explicit MmaSync(const char* name) : Kernel(name, TileM, TileN) {}
  void prepare(const Problem& p, const Operands& o) override {
    typename Gemm::Arguments arguments(cutlass::gemm::GemmUniversalMode::kGemm, {p.m, p.n, p.k}, 1, {1.f, 0.f},
                                       o.a, o.b, o.d, o.d, 0, 0, 0, 0, p.k, p.k, p.n, p.n);
    check(gemm.initialize(arguments) == cutlass::Status::kSuccess, name);
  }
  bool launch() override { return gemm() == cutlass::Status::kSuccess; }
};

template <int TileM, int TileN, class Mainloop, class Epilogue>
struct Warpgroup : Kernel {
  using Tile = cute::Shape<cute::Int<TileM>, cute::Int<TileN>, cute::_64>;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;  // reads of L2 as many as the other kernels'
  using Output = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Row, 8, Bf16, Row, 8,
      Epilogue>::CollectiveOp;
  using Loop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, Row, 8, Bf16, Column, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Output::SharedStorage))>,
      Mainloop>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Loop, Output>>;
  Gemm gemm;
  explicit Warpgroup(const char* name) : Kernel(name, TileM, TileN) {}
  void prepare(const Problem& p, const Operands& o) override {
    using Rows = cute::Stride<int64_t, cute::_1, int64_t>;  // of one matrix, no batch
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                       {p.m, p.n, p.k, 1},
                                       {o.a, Rows{p.k, {}, 0}, o.b, Rows{p.k, {}, 0}},
                                       {{1.f, 0.f}, nullptr, {}, o.d, Rows{p.n, {}, 0}}};
    check(Gemm::get_workspace_size(arguments) == 0, "no workspace");
    check(gemm.initialize(arguments) == cutlass::Status::kSuccess, name);
  }
  bool launch() override { return gemm.run() == cutlass::Status::kSuccess; }
};

__device__ unsigned scrambled(unsigned x) {  // an integer hash: every bit of x reaches every bit
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

__global__ void fill_normal(__nv_bfloat16* values, unsigned count, unsigned seed) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float u = (scrambled(2 * i + seed) + 1.0f) * 2.3283064e-10f, v = scrambled(2 * i + 1 + seed) * 2.3283064e-10f;
    values[i] = __float2bfloat16(sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * v));
  }
}

struct Card {
  nvmlDevice_t device;
  Card() {
    char bus[32];
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, 0) == cudaSuccess, "bus id");
    check(nvmlInit_v2() == NVML_SUCCESS, "NVML");
    check(nvmlDeviceGetHandleByPciBusId_v2(bus, &device) == NVML_SUCCESS, "the card of NVML");
  }
  double power_w() const {
    nvmlFieldValue_t field{};
    field.fieldId = NVML_FI_DEV_POWER_INSTANT;
    if (nvmlDeviceGetFieldValues(device, 1, &field) != NVML_SUCCESS || field.nvmlReturn != NVML_SUCCESS) return NAN;
    return field.value.uiVal * 1e-3;
  }
  double energy_j() const {
    unsigned long long mj = 0;
    return nvmlDeviceGetTotalEnergyConsumption(device, &mj) == NVML_SUCCESS ? mj * 1e-3 : NAN;
  }
  unsigned sm_clk_mhz() const {
    unsigned mhz = 0;
    nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &mhz);
    return mhz;
  }
  unsigned temperature_c() const {
    unsigned celsius = 0;
    nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &celsius);
    return celsius;
  }
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Means of what the card reads, from its settling on.
class Watch {
 public:
  explicit Watch(const Card& card) : card_(card), start_(Clock::now()) {}
  bool over() const { return seconds_since(start_) > kPhaseS; }
  bool settled() const { return seconds_since(start_) > kSettleS; }
  void read() {
    if (!settled()) return;
    if (!reads_++) from_ = Clock::now(), from_j_ = card_.energy_j();
    power_w_ += card_.power_w(), clk_mhz_ += card_.sm_clk_mhz();
  }
  void print(const char* name, int ctas, const Problem& p, double tflops) const {
    const double mean_w = (card_.energy_j() - from_j_) / seconds_since(from_);
    printf("%s,%d,%d,%d,%d,%.1f,%.1f,%.1f,%.0f,%u,%d\n", name, ctas, p.m, p.n, p.k, tflops, power_w_ / reads_, mean_w,
           clk_mhz_ / reads_, card_.temperature_c(), reads_);
    fflush(stdout);
  }

 private:
  const Card& card_;
  Clock::time_point start_, from_;
  double power_w_ = 0, clk_mhz_ = 0, from_j_ = 0;
  int reads_ = 0;
};

void rest(const Card& card) {
  Watch watch(card);
  while (!watch.over()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kBatchS));
    watch.read();
  }
  watch.print("idle", 0, {0, 0, 0}, 0.0);
}

// Batches of calls, one more always queued, so that the card never waits for the host.
void load(const Card& card, Kernel& kernel, const Problem& p, const Operands& o) {
  kernel.prepare(p, o);
  const int calls = std::max(1, static_cast<int>(kBatchS * 500e12 / p.flop()));
  cudaEvent_t ends[3];
  for (auto& end : ends) check(cudaEventCreate(&end) == cudaSuccess, "event");
  auto queue = [&](int batch) {
    for (int call = 0; call < calls; ++call) check(kernel.launch(), kernel.name);
    check(cudaEventRecord(ends[batch % 3]) == cudaSuccess, "record");
  };
  Watch watch(card);
  double total_ms = 0;
  int timed = 0, batch = 0;
  queue(0);
  for (; !watch.over(); ++batch) {
    queue(batch + 1);
    check(cudaEventSynchronize(ends[batch % 3]) == cudaSuccess, kernel.name);
    if (watch.settled() && batch) {
      float ms;
      check(cudaEventElapsedTime(&ms, ends[(batch - 1) % 3], ends[batch % 3]) == cudaSuccess, "elapsed");
      total_ms += ms, ++timed;
    }
    watch.read();
  }
  const int ctas = (p.m / kernel.tile_m) * (p.n / kernel.tile_n);
  watch.print(kernel.name, ctas, p, p.flop() * calls * timed / total_ms * 1e-9);
  check(cudaDeviceSynchronize() == cudaSuccess, kernel.name);
  for (auto& end : ends) cudaEventDestroy(end);
}

// A few outputs against the host's sums: what is timed must be the product.
void verify(Kernel& kernel, const Problem& p, const Operands& o) {
  check(cudaMemset(o.d, 0, sizeof(Bf16) * p.m * p.n) == cudaSuccess, "memset");
  kernel.prepare(p, o);
  check(kernel.launch() && cudaDeviceSynchronize() == cudaSuccess, kernel.name);
  std::vector<Bf16> a(p.k), b(p.k), d(1);
  for (int i = 0; i < 16; ++i) {
    const size_t row = (i * 2654435761ull) % p.m, column = (i * 40503ull + 77) % p.n;
    cudaMemcpy(a.data(), o.a + row * p.k, sizeof(Bf16) * p.k, cudaMemcpyDeviceToHost);
    cudaMemcpy(b.data(), o.b + column * p.k, sizeof(Bf16) * p.k, cudaMemcpyDeviceToHost);
    cudaMemcpy(d.data(), o.d + row * p.n + column, sizeof(Bf16), cudaMemcpyDeviceToHost);
    double sum = 0;
    for (int k = 0; k < p.k; ++k) sum += static_cast<double>(float(a[k])) * static_cast<double>(float(b[k]));
    check(std::abs(sum - float(d[0])) < 0.01 * std::sqrt(double(p.k)) + 0.01 * std::abs(sum), "comparison");
  }
}

int main() {
  const Problem cube{8192, 8192, 8192};
  const unsigned count = 8192u * 8192u;
  Operands o;
  for (Bf16** operand : {&o.a, &o.b, &o.d})
    check(cudaMalloc(operand, sizeof(Bf16) * count) == cudaSuccess, "memory");
  fill_normal<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(o.a), count, 1u);
  fill_normal<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(o.b), count, 0x9e3779b9u);
  check(cudaDeviceSynchronize() == cudaSuccess, "operands");

  namespace gemm = cutlass::gemm;
  namespace epilogue = cutlass::epilogue;
  std::vector<std::unique_ptr<Kernel>> kernels;  // the first two run on fewer SMs too
  kernels.emplace_back(new MmaSync<128, 256, 32, 3>("mma.sync 128x256x32x3"));
  kernels.emplace_back(new Warpgroup<128, 256, gemm::KernelTmaWarpSpecializedCooperative,
                                     epilogue::TmaWarpSpecializedCooperative>("warpgroup 128x256x64"));
  kernels.emplace_back(new MmaSync<256, 128, 64, 3>("mma.sync 256x128x64x3"));
  kernels.emplace_back(new Warpgroup<128, 128, gemm::KernelTmaWarpSpecializedPingpong,
                                     epilogue::TmaWarpSpecialized>("warpgroup 128x128x64"));
  kernels.emplace_back(new MmaSync<128, 128, 32, 4>("mma.sync 128x128x32x4"));
  for (auto& kernel : kernels) verify(*kernel, cube, o);

  const Card card;
  printf("kernel,ctas,m,n,k,tflops,instant_w,counter_w,sm_clk_mhz,temperature_c,reads\n");
  rest(card);
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& kernel : kernels) load(card, *kernel, cube, o);
    for (int rows : {12, 6, 3})  // 128x256 tiles: 12 x 11 = 132, 66, 33 CTAs, operands that L2 holds
      for (int kernel : {0, 1}) load(card, *kernels[kernel], {128 * rows, 256 * 11, 4096}, o);
  }
  rest(card);
}
