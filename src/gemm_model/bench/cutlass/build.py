"""Compile one CUTLASS kernel with nvcc into a shared library, kept in the cache and found by a hash."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from gemm_model.bench.kernel_cache import cache_folder
from gemm_model.bench.problem_kinds import epilogue_words
from gemm_model.bench.provider import CompileError, UnsupportedError
from gemm_model.core.dtypes import names_in
from gemm_model.core.epilogue import ACTIVATIONS, SOURCES
from gemm_model.core.files import atomic_path
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import MissingExtraError

SOURCE = Path(__file__).with_name("kernel.cu")
NVCC_OPTIONS = (
    "-O3",
    "-DNDEBUG",  # without it the device asserts of the headers cost 10 to 130 %
    *("-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr", "-shared"),
    "-Xcompiler=-fPIC",
)
CXX_TYPES = {
    name: theirs for theirs, name in names_in("cpp").items() if name in ("bf16", "fp16", "e4m3", "e5m2")
}
MAINLOOP_TAGS = {
    "cooperative": "KernelTmaWarpSpecializedCooperative",
    "pingpong": "KernelTmaWarpSpecializedPingpong",
}
EPILOGUE_TAGS = {"cooperative": "TmaWarpSpecializedCooperative", "pingpong": "TmaWarpSpecialized"}
TILE_K_BYTES = 128
"""A k tile [B]; CUTLASS kernels for Hopper; the widest swizzle of a TMA box."""

FUSIONS = (
    *((), ("alpha",), ("beta",), ("alpha", "beta"), ("residual",), ("relu",), ("gelu",), ("silu",)),
    *(("bias_n", *then) for then in ((), ("residual",), ("relu",), ("gelu",), ("silu",))),
)
"""Epilogues that kernel.cu has."""


def headers() -> Path:
    """The `include` folder of the package nvidia-cutlass; MissingExtraError without it."""
    found = importlib.util.find_spec("cutlass_library")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "the cutlass provider needs CUTLASS's headers: pip install 'gemm-model[bench,libraries]'"
        )
    return Path(found.origin).parent / "source" / "include"


def compiler() -> str:
    """Where nvcc is; MissingExtraError without it."""
    found = shutil.which("nvcc")
    if found is None:
        raise MissingExtraError("the cutlass provider needs nvcc, of the CUDA toolkit, on the PATH")
    return found


def macros(problem: GemmProblem, config: KernelConfig) -> tuple[str, ...]:
    """What the compiler must know of a kernel: equal for rows that share it. Raises UnsupportedError."""
    fast = "FP8FastAccum" if problem.a_dtype.bits == 8 and config.fast_accum else ""
    scheduler = "PersistentScheduler" if config.scheduler == "static" else "StreamKScheduler"
    for name in (problem.a_dtype.name, problem.out_dtype.name):
        if name not in CXX_TYPES:
            raise UnsupportedError(f"the cutlass provider has no type for {name}")
    if config.schedule not in MAINLOOP_TAGS:
        raise UnsupportedError(f"the cutlass provider has no schedule {config.schedule}")
    values = {
        "IN_TYPE": CXX_TYPES[problem.a_dtype.name],
        "OUT_TYPE": CXX_TYPES[problem.out_dtype.name],
        "CTA_M": config.cta_m,
        "CTA_N": config.cta_n,
        "CTA_K": config.cta_k or TILE_K_BYTES * 8 // problem.a_dtype.bits,
        "CLUSTER_M": config.cluster_m,
        "CLUSTER_N": config.cluster_n,
        "MAINLOOP": f"cutlass::gemm::{MAINLOOP_TAGS[config.schedule]}{fast}",
        "EPILOGUE": f"cutlass::epilogue::{EPILOGUE_TAGS[config.schedule]}",
        "SCHEDULER": f"cutlass::gemm::{scheduler}",
        "SPLITS": int(config.scheduler != "static"),
        **({"PDL": 1} if config.pdl else {}),
        **_fusion_macros(epilogue_words(problem)),
    }
    return tuple(f"-DGEMM_{name}={value}" for name, value in values.items())


def _fusion_macros(words: tuple[str, ...]) -> dict[str, object]:
    """What the compiler must know of an epilogue; nothing for the plain store."""
    if not words:
        return {}
    activation = next((word.capitalize() for word in words if word in ACTIVATIONS), "None")
    operation = ("Biased" if "bias_n" in words else "") + ("Activated" if activation != "None" else "")
    return {
        "FUSION": operation or "Combined",
        "ACTIVATION": activation,
        "READS_C": int(any(word in SOURCES for word in words)),
        "HAS_BIAS": int("bias_n" in words),
    }


def library_path(problem: GemmProblem, config: KernelConfig) -> Path:
    """Where the kernel's shared library is or will be: its name is a hash of source, options and compiler."""
    return cache_folder("cutlass") / f"{_digest(macros(problem, config))}.so"


def build(problem: GemmProblem, config: KernelConfig) -> Path:
    """The kernel's shared library, compiled if it is not there (about a minute). Raises CompileError."""
    path = library_path(problem, config)
    if not path.exists():
        with atomic_path(path) as temporary:
            options = [*NVCC_OPTIONS, *macros(problem, config), f"-I{headers()}"]
            command = [compiler(), *options, "-o", str(temporary), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                raise CompileError(f"nvcc: {(errors or ['no message'])[0][:300]}")
    return path


@lru_cache(maxsize=256)
def _digest(chosen: tuple[str, ...]) -> str:
    text = " ".join((*NVCC_OPTIONS, *chosen, _version()))
    return hashlib.sha256(SOURCE.read_bytes() + text.encode()).hexdigest()[:20]


@lru_cache(maxsize=1)
def _version() -> str:
    """The compiler and the headers, as they name themselves."""
    compiled_by = subprocess.run(
        [compiler(), "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = (headers() / "cutlass" / "version.h").read_bytes()
    return compiled_by + hashlib.sha256(version).hexdigest()
