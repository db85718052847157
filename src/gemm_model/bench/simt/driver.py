"""Compile the ladder's kernels with NVRTC and launch them, through NVIDIA's cuda-bindings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuda.bindings import driver, nvrtc

from gemm_model.bench.cuda_program import ask, compiled
from gemm_model.bench.kernel_cache import cache_folder
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
    version = "{}.{}".format(*ask(nvrtc.nvrtcVersion()))
    digest = hashlib.sha256(source + f"{kernel.expression} {version}".encode()).hexdigest()[:16]
    path = cache_folder("simt") / f"{kernel.name}-{arch}-{digest}.cubin"
    if not path.exists():
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"\n".join(compiled(source, arch, kernel.expression)))
    return path


@lru_cache(maxsize=256)
def load(path: Path, dynamic_smem_bytes: int) -> Any:
    """The kernel of a compiled file, ready to launch in the current context. Raises KernelError."""
    name, _, cubin = path.read_bytes().partition(b"\n")
    module = ask(driver.cuModuleLoadData(cubin))
    function = ask(driver.cuModuleGetFunction(module, name))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ask(driver.cuFuncSetAttribute(function, attribute, dynamic_smem_bytes))
    return function


def resources(function: Any, threads: int, dynamic_smem_bytes: int) -> dict[str, int]:
    """What the compiled kernel takes: registers and spilled bytes per thread, shared memory, CTAs per SM."""
    names = driver.CUfunction_attribute
    wanted = {
        "registers_per_thread": names.CU_FUNC_ATTRIBUTE_NUM_REGS,
        "local_bytes_per_thread": names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        "static_smem_bytes": names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    }
    found = {name: int(ask(driver.cuFuncGetAttribute(which, function))) for name, which in wanted.items()}
    occupancy = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, dynamic_smem_bytes)
    return found | {"ctas_per_sm": int(ask(occupancy))}


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
        ask(
            driver.cuLaunchKernel(
                *(function, grid[0], grid[1], 1, kernel.threads, 1, 1, kernel.dynamic_smem_bytes),
                *(stream(), (values, types), 0),
            )
        )

    return launch
