"""The ladder's kernels, compiled with NVRTC into the cache and loaded from it."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from cuda.bindings import nvrtc

from gemm_model.bench.cuda_program import CudaKernel, ask, compiled
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
def load(path: Path) -> CudaKernel:
    """The kernel of a compiled file, ready to launch in the current context. Raises KernelError."""
    name, _, cubin = path.read_bytes().partition(b"\n")
    return CudaKernel(cubin, name)
