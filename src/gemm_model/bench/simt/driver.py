"""Compile the ladder's kernels with NVRTC and launch them, through NVIDIA's cuda-bindings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda.bindings import driver, nvrtc

from gemm_model.bench.kernel_cache import cache_folder
from gemm_model.bench.provider import CompileError, KernelError
from gemm_model.bench.simt.ladder import SimtKernel
from gemm_model.core.files import atomic_path

SOURCE = Path(__file__).with_name("kernels.cu")


def compiled_path(kernel: SimtKernel, compute_capability: tuple[int, int]) -> Path:
    """The kernel's cubin in the cache, compiled if it is not there. Its first line is the entry's name.

    The file name holds a hash of source, template arguments and compiler, so what changed is compiled anew.
    Raises CompileError.
    """
    arch = f"sm_{compute_capability[0]}{compute_capability[1]}"
    source = SOURCE.read_bytes()
    version = "{}.{}".format(*_ask_nvrtc(nvrtc.nvrtcVersion()))
    digest = hashlib.sha256(source + f"{kernel.expression} {version}".encode()).hexdigest()[:16]
    path = cache_folder("simt") / f"{kernel.name}-{arch}-{digest}.cubin"
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_bytes(_compile(source, kernel.expression, arch))
    return path


def _compile(source: bytes, expression: str, arch: str) -> bytes:
    program = _ask_nvrtc(nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], []))[0]
    try:
        _ask_nvrtc(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * _ask_nvrtc(nvrtc.nvrtcGetProgramLogSize(program))[0]
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(f"{expression}: {log.decode().strip(chr(0)).strip()}")
        name = _ask_nvrtc(nvrtc.nvrtcGetLoweredName(program, expression.encode()))[0]
        cubin = b" " * _ask_nvrtc(nvrtc.nvrtcGetCUBINSize(program))[0]
        _ask_nvrtc(nvrtc.nvrtcGetCUBIN(program, cubin))
        return b"\n".join((bytes(name), cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@lru_cache(maxsize=256)
def load(path: Path, dynamic_smem_bytes: int) -> Any:
    """The kernel of a compiled file, ready to launch in the current context. Raises KernelError."""
    name, _, cubin = path.read_bytes().partition(b"\n")
    module = _ask_driver(driver.cuModuleLoadData(cubin))[0]
    function = _ask_driver(driver.cuModuleGetFunction(module, name))[0]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ask_driver(driver.cuFuncSetAttribute(function, attribute, dynamic_smem_bytes))
    return function


def resources(function: Any, threads: int, dynamic_smem_bytes: int) -> dict[str, int]:
    """What the compiled kernel takes: registers and spilled bytes per thread, shared memory, CTAs per SM."""
    names = driver.CUfunction_attribute
    wanted = {
        "registers_per_thread": names.CU_FUNC_ATTRIBUTE_NUM_REGS,
        "local_bytes_per_thread": names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        "static_smem_bytes": names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    }
    found = {
        name: int(_ask_driver(driver.cuFuncGetAttribute(which, function))[0])
        for name, which in wanted.items()
    }
    occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic_smem_bytes)
    return found | {"ctas_per_sm": int(_ask_driver(occupancy)[0])}


def launcher(
    function: Any,
    kernel: SimtKernel,
    pointers: tuple[int, int, int],
    extents: tuple[int, int, int],
    stream: Callable[[], int],
) -> Callable[[], None]:
    """A callable that launches the kernel on (A, B, C) of extents (m, n, k) on the stream of the moment."""
    from ctypes import c_int, c_void_p

    m, n, _ = extents
    grid = (n // kernel.cta_n, m // kernel.cta_m)
    values = (*pointers, *extents)
    types = (c_void_p, c_void_p, c_void_p, c_int, c_int, c_int)

    def launch() -> None:
        _ask_driver(
            driver.cuLaunchKernel(
                *(function, grid[0], grid[1], 1, kernel.threads, 1, 1, kernel.dynamic_smem_bytes),
                *(stream(), (values, types), 0),
            )
        )

    return launch


def _ask_nvrtc(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC answers {answer[0].name}")
    return answer[1:]


def _ask_driver(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise KernelError(f"the CUDA driver answers {answer[0].name}")
    return answer[1:]
