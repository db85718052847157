// One GEMM kernel of CUTLASS 3's collective builder: D[m, n] = A[m, k] x B[n, k]^T, fp32 sums, with an epilogue.
//
// What the compiler must know comes as macros: the types GEMM_IN_TYPE and GEMM_OUT_TYPE, the extents GEMM_CTA_M,
// GEMM_CTA_N, GEMM_CTA_K, GEMM_CLUSTER_M and GEMM_CLUSTER_N, the builder's tags GEMM_MAINLOOP, GEMM_EPILOGUE and
// GEMM_SCHEDULER, and GEMM_SPLITS (1 where the scheduler can split k). An epilogue beside the plain store comes as
// GEMM_FUSION and GEMM_ACTIVATION (names below), GEMM_READS_C and GEMM_HAS_BIAS (0 or 1). GEMM_PDL is 1 where launches
// are programmatically dependent. The rest are arguments of the functions at the end, which Python calls through ctypes.

#ifdef GEMM_PDL
#define CUTLASS_ENABLE_GDC_FOR_SM90 1
#else
#define GEMM_PDL 0
#endif

#include <cstdint>
#include <new>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass/kernel_hardware_info.h"

using Element = GEMM_IN_TYPE;
using Output = GEMM_OUT_TYPE;
using Tile = cute::Shape<cute::Int<GEMM_CTA_M>, cute::Int<GEMM_CTA_N>, cute::Int<GEMM_CTA_K>>;
using Cluster = cute::Shape<cute::Int<GEMM_CLUSTER_M>, cute::Int<GEMM_CLUSTER_N>, cute::_1>;

constexpr int kBitsOfAlignment = 128;
constexpr int kAlignmentIn = kBitsOfAlignment / cutlass::sizeof_bits<Element>::value;
constexpr int kAlignmentOut = kBitsOfAlignment / cutlass::sizeof_bits<Output>::value;

#ifdef GEMM_FUSION
using Bias = cutlass::bfloat16_t;
template <class T> using None = cutlass::epilogue::thread::Identity<T>;
template <class T> using Relu = cutlass::epilogue::thread::ReLu<T>;
template <class T> using Gelu = cutlass::epilogue::thread::GELU_taylor<T>;
template <class T> using Silu = cutlass::epilogue::thread::SiLu<T>;
namespace fusion = cutlass::epilogue::fusion;
using Combined = fusion::LinearCombination<Output, float, Output, float>;
using Activated = fusion::LinCombEltAct<GEMM_ACTIVATION, Output, float, Output, float>;
using Biased = fusion::LinCombPerColBias<Output, float, Bias, Output, float>;
using BiasedActivated = fusion::LinCombPerColBiasEltAct<GEMM_ACTIVATION, Output, float, Bias, Output, float>;
using Fusion = GEMM_FUSION;
#else
#define GEMM_READS_C 0
#define GEMM_HAS_BIAS 0
using Fusion = cutlass::epilogue::fusion::LinearCombination<Output, float, void, float>;
#endif
using Source = std::conditional_t<GEMM_READS_C, Output, void>;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    Source, cutlass::layout::RowMajor, kAlignmentOut,
    Output, cutlass::layout::RowMajor, kAlignmentOut, GEMM_EPILOGUE, Fusion>::CollectiveOp;

using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp,
    Element, cutlass::layout::RowMajor, kAlignmentIn,
    Element, cutlass::layout::ColumnMajor, kAlignmentIn, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    GEMM_MAINLOOP>::CollectiveOp;

using Kernel = cutlass::gemm::kernel::GemmUniversal<
    cute::Shape<int, int, int, int>, Mainloop, Epilogue, GEMM_SCHEDULER>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

// What a launch is asked to do; the order of the fields is that of `LaunchArguments` in provider.py.
struct LaunchArguments {
  void const* a;
  void const* b;
  void* d;
  int m, n, k;
  int raster;  // 0 heuristic, 1 along m, 2 along n
  int max_swizzle;
  int splits;
  int decomposition;  // 0 none (static scheduler), 1 split-K, 2 stream-K
  void const* c;      // m x n, of the output's type
  void const* bias;   // n, bf16
  float alpha, beta;
};

static cutlass::KernelHardwareInfo const& hardware() {
  static cutlass::KernelHardwareInfo const info = [] {
    int device = 0;
    cudaGetDevice(&device);
    return cutlass::KernelHardwareInfo::make_kernel_hardware_info<Kernel>(device);
  }();
  return info;
}

static typename Gemm::Arguments to_cutlass(LaunchArguments const& asked) {
  using cute::_1;
  auto const a_stride = cute::make_stride(int64_t(asked.k), _1{}, int64_t(0));
  auto const b_stride = cute::make_stride(int64_t(asked.k), _1{}, int64_t(0));
  auto const d_stride = cute::make_stride(int64_t(asked.n), _1{}, int64_t(0));
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {asked.m, asked.n, asked.k, 1},
      {static_cast<Element const*>(asked.a), a_stride, static_cast<Element const*>(asked.b), b_stride},
      {{}, nullptr, {}, static_cast<Output*>(asked.d), d_stride},
      hardware()};
  auto& fused = arguments.epilogue.thread;
  fused.alpha = asked.alpha;
  fused.beta = asked.beta;
#if GEMM_READS_C
  arguments.epilogue.ptr_C = static_cast<Output const*>(asked.c);
  arguments.epilogue.dC = d_stride;
#endif
#if GEMM_HAS_BIAS
  fused.bias_ptr = static_cast<Bias const*>(asked.bias);
#endif
  auto& scheduler = arguments.scheduler;
  using Raster = std::decay_t<decltype(scheduler.raster_order)>;
  scheduler.raster_order =
      asked.raster == 1 ? Raster::AlongM : asked.raster == 2 ? Raster::AlongN : Raster::Heuristic;
  scheduler.max_swizzle_size = asked.max_swizzle;
#if GEMM_SPLITS
  using Mode = std::decay_t<decltype(scheduler.decomposition_mode)>;
  scheduler.splits = asked.splits;
  scheduler.decomposition_mode = asked.decomposition == 2 ? Mode::StreamK : Mode::SplitK;
#endif
  return arguments;
}

struct Prepared {
  Gemm gemm;
  typename Gemm::Arguments arguments;
  void* workspace;
};

extern "C" {

// Stages, threads a CTA, bytes of shared memory and resident clusters, as the builder and the card decide.
void gemm_resources(int* values) {
  values[0] = Mainloop::DispatchPolicy::Stages;
  values[1] = Kernel::MaxThreadsPerBlock;
  values[2] = Kernel::SharedStorageSize;
  values[3] = hardware().max_active_clusters;
}

// 0 where the kernel takes these sizes; otherwise CUTLASS's status.
int gemm_can_implement(LaunchArguments const* asked) {
  return static_cast<int>(Gemm::can_implement(to_cutlass(*asked)));
}

int64_t gemm_workspace_bytes(LaunchArguments const* asked) {
  return static_cast<int64_t>(Gemm::get_workspace_size(to_cutlass(*asked)));
}

// A kernel ready to be launched any number of times on these operands; null where CUTLASS refuses.
void* gemm_create(LaunchArguments const* asked, void* workspace, cudaStream_t stream, int* status) {
  Prepared* prepared = new (std::nothrow) Prepared{{}, to_cutlass(*asked), workspace};
  *status = static_cast<int>(prepared->gemm.initialize(prepared->arguments, workspace, stream));
  if (*status != 0) {
    delete prepared;
    return nullptr;
  }
  return prepared;
}

int gemm_launch(Prepared* prepared, cudaStream_t stream) {
#if GEMM_SPLITS
  // The locks of a split kernel must be zeroed before each launch (a memset on the stream).
  return static_cast<int>(prepared->gemm.run(prepared->arguments, prepared->workspace, stream));
#else
  return static_cast<int>(prepared->gemm.run(stream, nullptr, GEMM_PDL));
#endif
}

void gemm_destroy(Prepared* prepared) { delete prepared; }

}  // extern "C"
