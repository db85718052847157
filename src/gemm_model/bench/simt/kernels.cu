// The ladder of fp32 GEMM kernels on the CUDA cores: C[m, n] = A[m, k] x B[n, k]^T, every operand with its
// last axis contiguous. Each rung adds one idea to the rung before it. No tensor cores, no tf32.
//
// Every extent is a multiple of the CTA tile (the caller checks). CTAs advance along n first.
//
// A warp is a grid of LANES_M x (32 / LANES_M) lanes. How many distinct words its lanes ask for, and thus
// what one load costs, follows from that shape: lanes of one row share A's word, lanes of one column share B's.

constexpr int WARP = 32;
constexpr int VECTOR = 4;  // floats in one 128-bit access

__device__ __forceinline__ int thread_row(int lane, int warp, int warps_n, int lanes_m) {
    return (warp / warps_n) * lanes_m + lane / (WARP / lanes_m);
}

__device__ __forceinline__ int thread_column(int lane, int warp, int warps_n, int lanes_m) {
    return (warp % warps_n) * (WARP / lanes_m) + lane % (WARP / lanes_m);
}

// Rung 1. One thread computes one output and reads every operand from global memory.
template <int CTA_M, int CTA_N, int LANES_M>
__global__ void __launch_bounds__(CTA_M* CTA_N)
    naive(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k) {
    constexpr int WARPS_N = CTA_N / (WARP / LANES_M);
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const size_t row = blockIdx.y * CTA_M + thread_row(lane, warp, WARPS_N, LANES_M);
    const size_t column = blockIdx.x * CTA_N + thread_column(lane, warp, WARPS_N, LANES_M);
    const float* a = A + row * k;
    const float* b = B + column * k;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < k; ++i) sum += a[i] * b[i];
    C[row * n + column] = sum;
}

// Rung 2. The CTA's threads copy a tile of each operand to shared memory and read it there; one output each.
// One word of padding a row keeps the lanes of a column in different banks.
template <int CTA_M, int CTA_N, int CTA_K, int LANES_M>
__global__ void __launch_bounds__(CTA_M* CTA_N)
    shared_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k) {
    constexpr int THREADS = CTA_M * CTA_N;
    constexpr int WARPS_N = CTA_N / (WARP / LANES_M);
    static_assert(CTA_M * CTA_K % THREADS == 0 && CTA_N * CTA_K % THREADS == 0, "threads share the tiles evenly");
    __shared__ float a_tile[CTA_M][CTA_K + 1];
    __shared__ float b_tile[CTA_N][CTA_K + 1];
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int row = thread_row(lane, warp, WARPS_N, LANES_M);
    const int column = thread_column(lane, warp, WARPS_N, LANES_M);
    const float* a = A + (size_t)blockIdx.y * CTA_M * k;
    const float* b = B + (size_t)blockIdx.x * CTA_N * k;
    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += CTA_K) {
#pragma unroll
        for (int pass = 0; pass < CTA_M * CTA_K / THREADS; ++pass) {
            const int i = threadIdx.x + pass * THREADS;
            a_tile[i / CTA_K][i % CTA_K] = a[(size_t)(i / CTA_K) * k + k0 + i % CTA_K];
        }
#pragma unroll
        for (int pass = 0; pass < CTA_N * CTA_K / THREADS; ++pass) {
            const int i = threadIdx.x + pass * THREADS;
            b_tile[i / CTA_K][i % CTA_K] = b[(size_t)(i / CTA_K) * k + k0 + i % CTA_K];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CTA_K; ++i) sum += a_tile[row][i] * b_tile[column][i];
        __syncthreads();
    }
    C[(size_t)(blockIdx.y * CTA_M + row) * n + blockIdx.x * CTA_N + column] = sum;
}

// Rung 3. One thread computes THREAD_M x THREAD_N outputs, so that a word read from shared memory is used
// several times from a register. Scalar loads, one buffer.
// The thread's rows are CTA_M / THREAD_M apart (columns likewise): neighbouring lanes read neighbouring words.
// The padding spreads the words that one warp stores (32 / CTA_K rows of CTA_K words) over all banks.
template <int CTA_M, int CTA_N, int CTA_K, int THREAD_M, int THREAD_N, int LANES_M, int CTAS>
__global__ void __launch_bounds__(CTA_M* CTA_N / (THREAD_M * THREAD_N), CTAS)
    register_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k) {
    constexpr int ROWS = CTA_M / THREAD_M;
    constexpr int COLUMNS = CTA_N / THREAD_N;
    constexpr int THREADS = ROWS * COLUMNS;
    constexpr int WARPS_N = COLUMNS / (WARP / LANES_M);
    static_assert(CTA_M * CTA_K % THREADS == 0 && CTA_N * CTA_K % THREADS == 0, "threads share the tiles evenly");
    __shared__ float a_tile[CTA_K][CTA_M + WARP / CTA_K];
    __shared__ float b_tile[CTA_K][CTA_N + WARP / CTA_K];
    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int row = thread_row(lane, warp, WARPS_N, LANES_M);
    const int column = thread_column(lane, warp, WARPS_N, LANES_M);
    const float* a = A + (size_t)blockIdx.y * CTA_M * k;
    const float* b = B + (size_t)blockIdx.x * CTA_N * k;
    float sum[THREAD_M][THREAD_N] = {};
    for (int k0 = 0; k0 < k; k0 += CTA_K) {
#pragma unroll
        for (int pass = 0; pass < CTA_M * CTA_K / THREADS; ++pass) {
            const int i = threadIdx.x + pass * THREADS;
            a_tile[i % CTA_K][i / CTA_K] = a[(size_t)(i / CTA_K) * k + k0 + i % CTA_K];
        }
#pragma unroll
        for (int pass = 0; pass < CTA_N * CTA_K / THREADS; ++pass) {
            const int i = threadIdx.x + pass * THREADS;
            b_tile[i % CTA_K][i / CTA_K] = b[(size_t)(i / CTA_K) * k + k0 + i % CTA_K];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CTA_K; ++i) {
            float a_part[THREAD_M], b_part[THREAD_N];
#pragma unroll
            for (int r = 0; r < THREAD_M; ++r) a_part[r] = a_tile[i][row + r * ROWS];
#pragma unroll
            for (int c = 0; c < THREAD_N; ++c) b_part[c] = b_tile[i][column + c * COLUMNS];
#pragma unroll
            for (int r = 0; r < THREAD_M; ++r)
#pragma unroll
                for (int c = 0; c < THREAD_N; ++c) sum[r][c] += a_part[r] * b_part[c];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < THREAD_M; ++r)
#pragma unroll
        for (int c = 0; c < THREAD_N; ++c)
            C[(size_t)(blockIdx.y * CTA_M + row + r * ROWS) * n + blockIdx.x * CTA_N + column + c * COLUMNS] = sum[r][c];
}

// Copies one operand's CTA tile to shared memory without passing registers, transposed: tile[k][row].
// A warp copies 4 rows of 8 words: each row's 32 bytes are one sector of global memory, and with 4 words of
// padding the 32 words land in 32 banks.
template <int EXTENT, int CTA_K, int THREADS>
struct Copier {
    static constexpr int PITCH = EXTENT + VECTOR;
    static constexpr int SIZE = CTA_K * PITCH;
    static constexpr int LANES_K = 8;
    static constexpr int ROWS = THREADS / LANES_K < EXTENT ? THREADS / LANES_K : EXTENT;
    static constexpr int DEPTH = LANES_K * (THREADS / LANES_K / ROWS);
    static constexpr int PASSES = EXTENT / ROWS;
    static constexpr int PIECES = PASSES * (CTA_K / DEPTH);
    static_assert(EXTENT % WARP == 0 && EXTENT % ROWS == 0 && CTA_K % DEPTH == 0, "threads share the tile evenly");

    const float* source;
    unsigned place;

    __device__ __forceinline__ Copier(const float* operand, const float* tile, int k) {
        const int row = threadIdx.x / LANES_K % ROWS;
        const int depth = threadIdx.x % LANES_K + LANES_K * (threadIdx.x / LANES_K / ROWS);
        source = operand + (size_t)row * k + depth;
        place = (unsigned)__cvta_generic_to_shared(tile + depth * PITCH + row);
    }
    // Part `part` of `parts`: a warp's loads from shared memory queue behind its copies, so a tile copied in one
    // go would hold them up; spread over the k steps the copies take turns with the loads.
    __device__ __forceinline__ void copy(int part, int parts, int k0, int k, unsigned stage_bytes) const {
#pragma unroll
        for (int piece = part * PIECES / parts; piece < (part + 1) * PIECES / parts; ++piece) {
            const int r = piece % PASSES * ROWS, d = piece / PASSES * DEPTH;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                             place + stage_bytes + (unsigned)sizeof(float) * (d * PITCH + r)),
                         "l"(source + k0 + (size_t)r * k + d));
        }
    }
};

// Rung 4. Register tiles with 128-bit accesses and a ring of buffers: the next tiles travel to shared memory
// while this one is multiplied, and the next words of it to registers while these are.
// A thread's tile is a grid of 4 x 4 blocks, spread over the warp's tile.
// INTERLEAVED lanes: bit 0 of the lane counts columns and bit 1 rows, so that in each load some neighbour asks
// for the same 16 bytes and the hardware serves half a warp, not a quarter, in one clock.
template <int CTA_M, int CTA_N, int CTA_K, int THREAD_M, int THREAD_N, int LANES_M, int WARPS_M, int STAGES, int CTAS,
          bool INTERLEAVED>
__global__ void __launch_bounds__(CTA_M* CTA_N / (THREAD_M * THREAD_N), CTAS)
    pipelined(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k) {
    constexpr int LANES_N = WARP / LANES_M;
    constexpr int THREADS = CTA_M * CTA_N / (THREAD_M * THREAD_N);
    constexpr int WARPS_N = THREADS / WARP / WARPS_M;
    constexpr int BLOCKS_M = THREAD_M / VECTOR;
    constexpr int BLOCKS_N = THREAD_N / VECTOR;
    constexpr int STEP_M = LANES_M * VECTOR;
    constexpr int STEP_N = LANES_N * VECTOR;
    static_assert(WARPS_M * LANES_M * THREAD_M == CTA_M && WARPS_N * LANES_N * THREAD_N == CTA_N, "warps tile the CTA");
    static_assert(!INTERLEAVED || (LANES_M >= 2 && LANES_N >= 2), "interleaving needs two lanes each way");
    using CopierA = Copier<CTA_M, CTA_K, THREADS>;
    using CopierB = Copier<CTA_N, CTA_K, THREADS>;
    constexpr int STAGE = CopierA::SIZE + CopierB::SIZE;
    extern __shared__ __align__(16) float tiles[];

    const int lane = threadIdx.x % WARP;
    const int warp = threadIdx.x / WARP;
    const int quad = lane / 4;
    const int lane_m = INTERLEAVED ? (lane / 2) % 2 + 2 * (quad / (LANES_N / 2)) : lane / LANES_N;
    const int lane_n = INTERLEAVED ? lane % 2 + 2 * (quad % (LANES_N / 2)) : lane % LANES_N;
    const int row = (warp / WARPS_N) * (LANES_M * THREAD_M) + lane_m * VECTOR;
    const int column = (warp % WARPS_N) * (LANES_N * THREAD_N) + lane_n * VECTOR;
    const CopierA copy_a(A + (size_t)blockIdx.y * CTA_M * k, tiles, k);
    const CopierB copy_b(B + (size_t)blockIdx.x * CTA_N * k, tiles + CopierA::SIZE, k);
    // Past the end the last tile is fetched again into a buffer that nobody reads: no branch in the loop.
    auto fetch_tile = [&](int part, int parts, int k0, int stage) {
        const int inside = min(k0, k - CTA_K);
        copy_a.copy(part, parts, inside, k, (unsigned)sizeof(float) * stage * STAGE);
        copy_b.copy(part, parts, inside, k, (unsigned)sizeof(float) * stage * STAGE);
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        fetch_tile(0, 1, s * CTA_K, s);
        asm volatile("cp.async.commit_group;");
    }

    float sum[THREAD_M][THREAD_N] = {};
    float4 a_part[2][BLOCKS_M], b_part[2][BLOCKS_N];
    int stage = 0;
    for (int k0 = 0; k0 < k; k0 += CTA_K) {
        // This tile has arrived for every thread, and nobody reads the buffer that is refilled next any more.
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int refilled = stage == 0 ? STAGES - 1 : stage - 1;
        const float* a_tile = tiles + stage * STAGE + row;
        const float* b_tile = tiles + stage * STAGE + CopierA::SIZE + column;
        auto fetch_words = [&](int i, int slot) {
#pragma unroll
            for (int r = 0; r < BLOCKS_M; ++r)
                a_part[slot][r] = *reinterpret_cast<const float4*>(a_tile + i * CopierA::PITCH + r * STEP_M);
#pragma unroll
            for (int c = 0; c < BLOCKS_N; ++c)
                b_part[slot][c] = *reinterpret_cast<const float4*>(b_tile + i * CopierB::PITCH + c * STEP_N);
        };
        fetch_words(0, 0);
#pragma unroll
        for (int i = 0; i < CTA_K; ++i) {
            if (i + 1 < CTA_K) fetch_words(i + 1, (i + 1) % 2);
            if (i < CTA_K / 2) fetch_tile(i, CTA_K / 2, k0 + (STAGES - 1) * CTA_K, refilled);
#pragma unroll
            for (int r = 0; r < THREAD_M; ++r)
#pragma unroll
                for (int c = 0; c < THREAD_N; ++c)
                    sum[r][c] += (&a_part[i % 2][r / VECTOR].x)[r % VECTOR] * (&b_part[i % 2][c / VECTOR].x)[c % VECTOR];
        }
        asm volatile("cp.async.commit_group;");
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    float* c_tile = C + (size_t)(blockIdx.y * CTA_M + row) * n + blockIdx.x * CTA_N + column;
#pragma unroll
    for (int r = 0; r < THREAD_M; ++r)
#pragma unroll
        for (int c = 0; c < BLOCKS_N; ++c)
            *reinterpret_cast<float4*>(c_tile + (size_t)(r / VECTOR * STEP_M + r % VECTOR) * n + c * STEP_N) =
                make_float4(sum[r][4 * c], sum[r][4 * c + 1], sum[r][4 * c + 2], sum[r][4 * c + 3]);
}
