"""The kernels compile for sm_90a without a GPU, and the machine code holds what they are about."""

import importlib.util
import os
import subprocess
import sys

import pytest

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
