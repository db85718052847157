"""Builds, settings and the plan: what is accepted, and what shared memory it takes."""

import importlib.util
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model import load_gpu
from gemm_model.overlap.config import check_problem
from gemm_model.overlap.plan import plan_build


@pytest.mark.parametrize(("sm_count", "clusters"), [(7, 14), (48, 80), (114, 224), (132, 256)])
def test_many_tiles_keep_nearly_all_sms_of_any_card_busy(sm_count, clusters):
    """Two CTAs on each SM of the largest multiple of 8 below all: none below 64 SMs, 64 of 114 before."""
    gpu = replace(load_gpu("h200"), sm_count=sm_count, resident_clusters={})
    assert plan_build(2**16, 72, 4096, "e4m3", "e5m2", gpu).clusters == clusters


H200 = load_gpu("h200")


@given(
    m=st.integers(1, 8000).map(lambda x: 8 * x),
    n=st.integers(1, 128),
    k=st.integers(1, 2000).map(lambda x: 16 * x),
    types=st.sampled_from([("e4m3", "e5m2"), ("bf16", "bf16")]),
)
def test_every_plan_takes_its_problem(m, n, k, types):
    build = plan_build(m, n, k, *types, H200)
    check_problem(m, n, k, build)
    assert build.smem_bytes <= 227 * 1024
    if n <= 64:
        assert build.clusters <= H200.clusters_at_once(build.split_k) * build.ctas_per_sm
    assert build.clusters == math.ceil(m / 64) or build.split_k == 1


if importlib.util.find_spec("cutlass") is None or importlib.util.find_spec("torch") is None:
    pytest.skip("needs the CuTe DSL and torch", allow_module_level=True)

PROGRAM = """
from gemm_model.overlap.chain import compile_gemm, compile_previous
from gemm_model.overlap.config import KernelBuild
for a, b, n, split, joint in (
    ("e4m3", "e5m2", 16, 2, False), ("e5m2", "e4m3", 8, 1, True), ("bf16", "bf16", 128, 4, False)
):
    build = dict(a_type=a, b_type=b, tile_n=n, split_k=split, stages=4, clusters=4)
    compile_gemm(KernelBuild(**build, split_loading=not joint))
    print("compiled", a, b)
compile_previous("e4m3", 7, 1, True, True, False)
compile_previous("bf16", 1, 2, False, True, False)
print("compiled previous")
"""


@pytest.mark.slow
def test_kernels_compile_without_a_gpu(tmp_path):
    environment = {
        **os.environ, "CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment, capture_output=True, text=True, timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("compiled") == 4
    code = {path: path.read_text() for path in tmp_path.rglob("*.ptx")}
    gemm = next(text for path, text in code.items() if "Gemm" in path.name)
    for instruction in (
        *("griddepcontrol.wait", "griddepcontrol.launch_dependents"),
        *("cp.async.bulk.prefetch.tensor.2d.L2", "cp.async.bulk.tensor.2d", "wgmma.mma_async"),
        "st.async.shared::cluster",
    ):
        assert instruction in gemm
    assert all(".target sm_90a" in text for text in code.values())
