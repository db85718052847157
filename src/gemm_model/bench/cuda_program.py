"""CUDA C++ compiled at run time (NVRTC) and launched through the driver, on torch's stream and memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver, nvrtc

from gemm_model.bench.provider import CompileError, KernelError

SMEM_WITHOUT_OPT_IN = 48 * 1024


def compile_to_cubin(source: str, compute_capability: tuple[int, int]) -> bytes:
    """Machine code of `source`; needs no GPU. Raises CompileError with the compiler's first error."""
    major, minor = compute_capability
    return compiled(source.encode(), f"sm_{major}{minor}{'a' if major >= 9 else ''}")[1]


def compiled(source: bytes, arch: str, expression: str = "") -> tuple[bytes, bytes]:
    """Lowered name of a kernel's C++ `expression`, and machine code. Raises CompileError."""
    program = ask(nvrtc.nvrtcCreateProgram(source, b"program.cu", 0, [], []), CompileError)
    try:
        if expression:
            ask(nvrtc.nvrtcAddNameExpression(program, expression.encode()), CompileError)
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * ask(nvrtc.nvrtcGetProgramLogSize(program), CompileError)
            nvrtc.nvrtcGetProgramLog(program, log)
            text = log.decode(errors="replace").strip("\0 \n")
            errors = [line for line in text.splitlines() if "error" in line]
            raise CompileError((errors or [text])[0])
        name = b""
        if expression:
            name = bytes(ask(nvrtc.nvrtcGetLoweredName(program, expression.encode()), CompileError))
        cubin = b" " * ask(nvrtc.nvrtcGetCUBINSize(program), CompileError)
        ask(nvrtc.nvrtcGetCUBIN(program, cubin), CompileError)
        return name, bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


class CudaKernel:
    """One kernel of a compiled program. Arguments are device tensors and ints.

    Ints are handed over as 64 bits: for a parameter of 32 bits the driver takes the lower half.
    """

    def __init__(self, cubin: bytes, name: bytes) -> None:
        self._module = ask(driver.cuModuleLoadData(cubin))
        self._function = ask(driver.cuModuleGetFunction(self._module, name))
        self._smem = 0

    def launch(
        self,
        grid: int | tuple[int, int],
        block: int,
        arguments: Sequence[Any],
        *,
        smem_bytes: int = 0,
        stream: int = 0,
        cluster_size: int | None = None,
    ) -> None:
        """Enqueue the kernel; raises KernelError.

        The CTAs of a cluster run at once on SMs of one GPC; without a cluster they may run anywhere.
        """
        self._allow_smem(smem_bytes)
        values = tuple(_pointer_or_number(argument) for argument in arguments)
        types = tuple(
            ctypes.c_void_p if hasattr(argument, "data_ptr") else ctypes.c_longlong for argument in arguments
        )
        parameters = (values, types) if values else 0
        config = _config(grid, block, smem_bytes, cluster_size)
        config.hStream = driver.CUstream(stream)
        ask(driver.cuLaunchKernelEx(config, self._function, parameters, 0))

    def resident_clusters(self, cluster_size: int, block: int, smem_bytes: int) -> int:
        """How many clusters of this size the card holds at once (cuOccupancyMaxActiveClusters)."""
        self._allow_smem(smem_bytes)
        if cluster_size > 8:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            ask(driver.cuFuncSetAttribute(self._function, attribute, 1))
        config = _config(cluster_size, block, smem_bytes, cluster_size)
        return int(ask(driver.cuOccupancyMaxActiveClusters(self._function, config)))

    def resources(self, threads: int, smem_bytes: int) -> dict[str, int]:
        """What the kernel takes: registers and spilled bytes of a thread, shared memory, CTAs of an SM."""
        self._allow_smem(smem_bytes)
        names = driver.CUfunction_attribute
        wanted = {
            "registers_per_thread": names.CU_FUNC_ATTRIBUTE_NUM_REGS,
            "local_bytes_per_thread": names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            "static_smem_bytes": names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        }
        found = {
            name: int(ask(driver.cuFuncGetAttribute(which, self._function))) for name, which in wanted.items()
        }
        occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self._function, threads, smem_bytes)
        return found | {"ctas_per_sm": int(ask(occupancy))}

    def _allow_smem(self, smem_bytes: int) -> None:
        if smem_bytes > max(self._smem, SMEM_WITHOUT_OPT_IN):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            ask(driver.cuFuncSetAttribute(self._function, attribute, smem_bytes))
            self._smem = smem_bytes


def _config(grid: int | tuple[int, int], block: int, smem_bytes: int, cluster_size: int | None) -> Any:
    """A launch of `grid` CTAs of `block` threads, in clusters if a size is given."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY = (grid, 1) if isinstance(grid, int) else grid
    config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = smem_bytes
    if cluster_size is None:
        return config
    cluster = driver.CUlaunchAttribute()
    cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    extents = cluster.value.clusterDim
    extents.x, extents.y, extents.z = cluster_size, 1, 1
    config.attrs, config.numAttrs = [cluster], 1
    return config


def _pointer_or_number(argument: Any) -> int:
    return int(argument.data_ptr()) if hasattr(argument, "data_ptr") else int(argument)


def ask(answer: tuple[Any, ...], error: type[KernelError] = KernelError) -> Any:
    """The value of a call of NVRTC or of the driver, the values of several. Raises `error` where it failed."""
    status, *values = answer
    if int(status) != 0:
        raise error(f"{type(status).__name__}: {status.name}")
    return values[0] if len(values) == 1 else values
