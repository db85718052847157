"""FlashInfer's tuning cache, for its CuTe kernels of Blackwell: `with flashinfer.autotune(False, cache="tuned.json"):`

With `autotune(True, ...)` it times them nevertheless: no entry says that it was timed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gemm_model.choice.selection import Ranker
from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.errors import InputError

VERSION = "0.7.2.post1"
"""Of flashinfer-python; another one passes the file over, and says so."""
WHATEVER = ("cuda", "cublas", "cudnn", "cudnn_frontend", "cutlass_dsl")
"""Other versions that it compares: a tile means the same with all of them."""
ROWS, COLUMNS = 128, (64, 128, 192, 256)
"""Rows, and columns to choose from, of a CTA's tile in its kernels for more than FEW rows of A; `gemm_base.py`."""
FEW = 32
"""Rows of A up to which it chooses among other kernels, which are not modelled; `gemm_base.py` of VERSION."""
ALL, WORKSPACE_BYTES = 1000, 40 << 20
"""More kernels than are ranked [1]; chosen. Bytes of scratch that `mm_mxfp8` takes; `gemm_base.py`."""
ALPHAS = ((), (1,), (0,))
"""Shapes of a scale of the output: a number, a vector of one, none."""
TYPES, OUTPUTS = ("nvfp4", "mxfp4", "mxfp8"), {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def write_tuning_cache(path: Path | str, problems: Iterable[GemmProblem], gpu: GpuSpec | str | Path) -> int:
    """Write what `mm_fp4` and `mm_mxfp8` then run for some problems of TYPES; returns how many keys it has.

    A problem stands for all m that FlashInfer rounds up alike. Kernels are ranked as QuACK's of the same tile.
    Raises InputError for a card without them, and for what they do not multiply.
    """
    spec = as_gpu(gpu)
    if spec.kernel_architecture != "sm100":
        raise InputError(f"FlashInfer's CuTe kernels do not run on {spec.name}; expected sm100 or sm103")
    ranker = Ranker(spec, family="quack")
    rounded = dict.fromkeys(replace(each, m=rounded_up(each.m)) for each in problems if each.m > FEW)
    entries = {key: entry for each in rounded for key, entry in _entries(each, ranker)}
    versions = {"flashinfer_version": VERSION, **{f"{name}_version": "*" for name in WHATEVER}}
    metadata = {**versions, "gpu": next(iter(spec.device_names), "*")}
    atomic_write(Path(path), json.dumps({"_metadata": metadata, **entries}, indent=1))
    return len(entries)


def rounded_up(m: int) -> int:
    """The rows that FlashInfer tunes for: a multiple of 256 above 256, of 512 above 2048, else a power of two."""
    step = 256 if m <= 2048 else 512
    return -(-m // step) * step if 256 < m <= 4096 else 1 << (m - 1).bit_length()


def _entries(problem: GemmProblem, ranker: Ranker) -> Iterator[tuple[str, tuple[object, ...]]]:
    """FlashInfer's keys (shapes, -1 for what follows m) with runner and tactic: tile, cluster, swap, prefetch, kind."""
    m, n, k, scale, out = problem.m, problem.n, problem.k, problem.a_scale, problem.out_dtype.name
    known = any(problem == GemmProblem.of(m, n, k, name, out) for name in TYPES)
    if scale is None or not known or out not in OUTPUTS or n % 8 or k % (4 * scale.vec_size):
        words = f"{', '.join(TYPES)} into bf16 or fp16, n of whole 8s and k of whole 4 scales"
        raise InputError(f"FlashInfer's kernels do not multiply {m}x{n}x{k} so; expected {words}")
    chosen = (
        (choice, swap)
        for swap, each in ((False, problem), (True, swapped(problem)))
        for choice in ranker.rank(each, ALL)
        if choice.candidate.config.cta_m == ROWS and choice.candidate.config.cta_n in COLUMNS
    )
    fastest, swap = min(chosen, key=lambda pair: pair[0].prediction.runtime_us)
    config, scales, padded_n = fastest.candidate.config, k // scale.vec_size, -(-n // 128) * 128
    tactic = ((config.mma_m, config.cta_n), (config.cluster_m, config.cluster_n), swap, False)
    if problem.a_dtype.bits == 8:
        runner = "CuteDSLMxfp8GemmRunner"
        shapes = ((m, k), (k, n), (-1,), (padded_n * scales,), (0,), (-1, n), (WORKSPACE_BYTES,))
        yield str(("mxfp8_gemm", runner, shapes, (OUTPUTS[out], True))), (runner, (*tactic, 1))
        return
    runner = "CuteDSLFp4GemmRunner"
    operands = ((m, k // 2), (k // 2, n), (-1, scales), (scales, padded_n))
    for alpha in ALPHAS:
        key = ("fp4_gemm", runner, (*operands, alpha, (0,), (-1, n), (0,), (0,), (-1,)), ())
        yield str(key), (runner, (*tactic, "sm100", None))
