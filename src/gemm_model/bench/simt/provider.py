"""The ladder of CUDA-core kernels as a provider of the benchmark."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from cuda.bindings import nvrtc

from gemm_model.bench.cuda_program import CudaKernel, ask, compiled
from gemm_model.bench.kernel_cache import cache_folder
from gemm_model.bench.problem_kinds import beyond
from gemm_model.bench.provider import Config, KernelError, Launch, Operands, UnsupportedError
from gemm_model.bench.simt.ladder import LADDER, SimtKernel, kernel_of
from gemm_model.core.files import atomic_path
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError

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


LARGEST_EXTENT = 2**31 - 1
"""Largest m, n or k [elements]; the CUDA-core kernels; they take 32-bit integers."""


class SimtProvider:
    """fp32 kernels without tensor cores; `mma_m` x `mma_n` of a configuration is the tile of one warp."""

    name = "simt"

    def unsupported(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> str:
        types = (problem.a_dtype, problem.b_dtype, problem.out_dtype, problem.acc_dtype)
        if any(dtype.name != "fp32" for dtype in types):
            return "the simt kernels multiply fp32 only"
        majors = (problem.a_major, problem.b_major, problem.c_major)
        if majors != ("k", "k", "n") or problem.batch != 1:
            return "the simt kernels take one problem with A and B contiguous along k and C along n"
        return beyond(problem)

    def configs(self, problem: GemmProblem, compute_capability: tuple[int, int]) -> Sequence[Config]:
        return tuple(kernel.config for kernel in LADDER if not misfit(kernel, problem))

    def kernel_key(self, problem: GemmProblem, config: Config) -> Hashable:
        return _kernel(config).name

    def compile(self, problem: GemmProblem, config: Config, compute_capability: tuple[int, int]) -> None:
        compiled_path(_kernel(config), compute_capability)

    def prepare(self, problem: GemmProblem, config: Config, operands: Operands) -> Launch:
        kernel = _kernel(config)
        reason = misfit(kernel, problem)
        if reason:
            raise UnsupportedError(reason)
        path = compiled_path(kernel, torch.cuda.get_device_capability())
        torch.cuda.current_stream()  # makes torch's context the current one
        program = load(path)
        grid = (problem.n // kernel.cta_n, problem.m // kernel.cta_m)
        matrices = (operands.a, operands.b, operands.out)
        arguments = (*matrices, problem.m, problem.n, problem.k)

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            smem_bytes = kernel.dynamic_smem_bytes
            program.launch(grid, kernel.threads, arguments, smem_bytes=smem_bytes, stream=stream)

        return launch


def misfit(kernel: SimtKernel, problem: GemmProblem) -> str:
    """Why the kernel cannot run the problem's sizes; empty where it can."""
    for extent in ("m", "n", "k"):
        size, tile = getattr(problem, extent), getattr(kernel, f"cta_{extent}") or 1
        if size % tile or size > LARGEST_EXTENT:
            return f"{extent} is {size}; {kernel.name} needs a 32-bit multiple of {tile}"
    return ""


def _kernel(config: Config) -> SimtKernel:
    if not isinstance(config, KernelConfig):
        raise KernelError("the simt kernels need a tile")
    try:
        return kernel_of(config)
    except InputError as error:
        raise UnsupportedError(str(error)) from error
