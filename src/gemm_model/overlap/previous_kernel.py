# mypy: ignore-errors
# The DSL gives these annotations a meaning of its own and rewrites the bodies; they run on the GPU only.
"""The kernel that a weight-prefetch GEMM waits for: RMSNorm or a split reduction, one CTA per token.

y[row] = cast(sum over parts of x[part, row]), divided by its root mean square if ``normalize``. A row is read
once, all loads at a time, and stays in registers: the fewer dependent accesses, the less it waits behind the
weights that the next GEMM already asks for. It lets its dependents start either at once or after its last
store, and can be made longer by a number of SM clocks.
"""

from dataclasses import dataclass

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, const_expr

from gemm_model.overlap.config import TRACE_EVENTS
from gemm_model.overlap.kernel import ELEMENT_TYPE

THREADS = 256
VECTOR = 8  # elements per access: 16 bytes of bf16
EPSILON = 1e-6


def vectors_per_thread(k: int) -> int:
    """Accesses of a thread to a row of k elements."""
    return -(-k // (VECTOR * THREADS))


@dataclass(frozen=True, slots=True)
class PreviousKernel:
    """RMSNorm (``normalize``) or plain sum of ``parts`` bf16 inputs, written as ``out_type``.

    vectors: accesses of a thread to one row (`vectors_per_thread`).
    """

    out_type: str
    vectors: int
    parts: int
    normalize: bool
    dependent_launch: bool
    trace: bool

    @property
    def held_type(self):
        """One bf16 input is kept as it is, a sum in fp32."""
        return BFloat16 if self.parts == 1 else Float32

    @cute.jit
    def __call__(
        self,
        x_ptr: cute.Pointer,
        y_ptr: cute.Pointer,
        trace_ptr: cute.Pointer,
        n: Int32,
        k: Int32,
        row_stride: Int32,
        trigger_early: Int32,
        extra_clocks: Int32,
        stream: cuda.CUstream,
    ):
        pitch = cute.assume(row_stride, VECTOR)
        x = cute.make_tensor(
            x_ptr,
            cute.make_layout(
                ((VECTOR, k // VECTOR), n, self.parts),
                stride=((1, VECTOR), pitch, cute.assume(n * pitch, VECTOR)),
            ),
        )
        y = cute.make_tensor(
            y_ptr, cute.make_layout(((VECTOR, k // VECTOR), n), stride=((1, VECTOR), cute.assume(k, VECTOR)))
        )
        trace = cute.make_tensor(trace_ptr, cute.make_layout((len(TRACE_EVENTS), n)))
        self.kernel(x, y, trace, k, trigger_early, extra_clocks).launch(
            grid=(n, 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            # At most 128 registers: one CTA fits beside two of the GEMM.
            min_blocks_per_mp=2,
            # The GEMM's shared-memory carve-out: kernels that want different ones cannot share an SM.
            preferred_smem_carveout=100,
            use_pdl=self.dependent_launch,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        y: cute.Tensor,
        trace: cute.Tensor,
        k: Int32,
        trigger_early: Int32,
        extra_clocks: Int32,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        row, _, _ = cute.arch.block_idx()
        if tidx == 0:
            self.record(trace, 0, row)
        if trigger_early != 0:
            cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        if tidx == 0:
            self.record(trace, 1, row)

        held = cute.make_rmem_tensor((VECTOR, self.vectors), self.held_type)
        held.fill(0.0)
        for i in cutlass.range_constexpr(self.vectors):
            v = tidx + i * THREADS
            if v < k // VECTOR:
                self.read(x, v, row, held[None, i])
        scale = Float32(1.0)
        if const_expr(self.normalize):
            values = held.load().to(Float32)
            squares = (values * values).reduce(cute.ReductionOp.ADD, 0.0, 0)
            scale = cute.math.rsqrt(sum_over_cta(squares, tidx) / Float32(k) + EPSILON)
        if extra_clocks > 0:
            # One warp watches the clock: more would take issue slots from the CTAs beside this one.
            if tidx < 32:
                start = Int64(cute.arch.clock64())
                while Int64(cute.arch.clock64()) - start < Int64(extra_clocks):
                    pass
            cute.arch.sync_threads()
        for i in cutlass.range_constexpr(self.vectors):
            v = tidx + i * THREADS
            if v < k // VECTOR:
                out = cute.make_rmem_tensor((VECTOR,), ELEMENT_TYPE[self.out_type])
                out.store((held[None, i].load().to(Float32) * scale).to(ELEMENT_TYPE[self.out_type]))
                cute.autovec_copy(out, y[(None, v), row])
        if trigger_early == 0:
            cute.arch.griddepcontrol_launch_dependents()
        if tidx == 0:
            self.record(trace, 3, row)
            if const_expr(self.trace):
                trace[4, row] = Int64(cute.arch.smid())

    @cute.jit
    def record(self, trace: cute.Tensor, event: cutlass.Constexpr[int], row: Int32):
        """Nanoseconds of the global timer for an event of ``TRACE_EVENTS``."""
        if const_expr(self.trace):
            trace[event, row] = Int64(cute.arch.globaltimer())

    @cute.jit
    def read(self, x: cute.Tensor, v: Int32, row: Int32, held: cute.Tensor):
        """One vector of the row, summed over the parts."""
        if const_expr(self.parts == 1):
            cute.autovec_copy(x[(None, v), row, 0], held)
        else:
            for part in cutlass.range_constexpr(self.parts):
                loaded = cute.make_rmem_tensor((VECTOR,), BFloat16)
                cute.autovec_copy(x[(None, v), row, part], loaded)
                held.store(held.load() + loaded.load().to(Float32))


@cute.jit
def sum_over_cta(value: Float32, tidx: Int32) -> Float32:
    """The sum of ``value`` over all threads of the CTA, in every thread."""
    warps = THREADS // 32
    shared = cutlass.utils.SmemAllocator().allocate_tensor(
        Float32, cute.make_layout(warps), byte_alignment=16
    )
    value = cute.arch.warp_reduction_sum(value)
    if tidx % 32 == 0:
        shared[tidx // 32] = value
    cute.arch.sync_threads()
    total = Float32(0.0)
    for warp in cutlass.range_constexpr(warps):
        total += shared[warp]
    return total
