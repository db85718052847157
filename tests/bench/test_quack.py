from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
quack_sm90 = pytest.importorskip("quack.gemm_sm90", reason="the extra gemm-model[bench] is not installed")

import cutlass  # noqa: E402

from gemm_model.bench import quack  # noqa: E402
from gemm_model.problem import GemmProblem  # noqa: E402

ROOT = Path(__file__).parents[2]
CUTLASS_TYPES = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16, "e4m3": cutlass.Float8E4M3FN}


class StaticLayouts:
    """The few layout functions that QuACK's stage count calls, on plain numbers."""

    @staticmethod
    def size(value: object, mode: list[int] | None = None) -> int:
        if mode is not None:
            assert isinstance(value, tuple)
            value = value[mode[0]]
        return math.prod(value) if isinstance(value, tuple) else int(value)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def shape(value: object) -> object:
        return value

    @staticmethod
    def slice_(value: tuple[int, ...], coordinate: tuple[int | None, ...]) -> tuple[int, ...]:
        return tuple(extent for extent, at in zip(value, coordinate, strict=True) if at is None)


def quack_stages(
    monkeypatch: pytest.MonkeyPatch, cta_m: int, cta_n: int, schedule: str, in_dtype: str, out_dtype: str
) -> int:
    """QuACK's own answer, from its kernel class."""
    a_type, d_type = CUTLASS_TYPES[in_dtype], CUTLASS_TYPES[out_dtype]
    kernel = quack.GemmDefaultSm90(
        cutlass.Float32, a_type, (cta_m, cta_n), (1, 1, 1), pingpong=schedule == "pingpong"
    )
    tile = (cta_m, cta_n, 1024 // a_type.width)
    monkeypatch.setattr(quack_sm90, "cute", StaticLayouts)
    monkeypatch.setattr(
        type(kernel), "epi_smem_bytes", lambda *_: SimpleNamespace(unstaged=0, d_stage=0, c_stage=0)
    )
    epilogue_tile = kernel._compute_tile_shape_or_override(tile, kernel.atom_layout_mnk, d_type)
    stages, _, _ = kernel._compute_stages(
        tile,
        epilogue_tile,
        a_type,
        a_type,
        d_type,
        None,
        quack._plain_epilogue(),
        cutlass.utils.get_smem_capacity_in_bytes("sm_90"),
        1,
    )
    monkeypatch.undo()
    return int(stages)


@pytest.mark.parametrize(("in_dtype", "out_dtype"), [("bf16", "bf16"), ("e4m3", "bf16"), ("e4m3", "e4m3")])
def test_stages_are_those_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, in_dtype: str, out_dtype: str
) -> None:
    tiles = [(*tile, "cooperative") for tile in quack.SM90_COOPERATIVE]
    tiles += [(*tile, "pingpong") for tile in quack.SM90_PINGPONG]
    for cta_m, cta_n, schedule in tiles:
        ours = quack.sm90_stages(cta_m, cta_n, schedule, CUTLASS_TYPES[out_dtype].width)
        theirs = quack_stages(monkeypatch, cta_m, cta_n, schedule, in_dtype, out_dtype)
        assert ours == theirs, (cta_m, cta_n, schedule)


def test_configs_are_distinct_and_spill_free() -> None:
    provider = quack.QuackProvider()
    for dtype in ("bf16", "fp8"):
        problem = GemmProblem.of(4096, 4096, 4096, dtype)
        configs = provider.configs(problem, (9, 0))
        assert len(configs) == len(set(configs)) > 300
        assert {config.schedule for config in configs if config} == {"cooperative", "pingpong"}
        for config in configs:
            assert config is not None
            count = quack.accumulators_per_thread(
                config.cta_m, config.cta_n, config.schedule, slow_fp8=dtype == "fp8"
            )
            assert count <= quack.SPILL_ACCUMULATORS_PER_THREAD
            assert not config.fast_accum


def test_swizzles_share_a_kernel_and_tiles_do_not() -> None:
    provider = quack.QuackProvider()
    problem = GemmProblem.of(4096, 4096, 4096)
    other_size = GemmProblem.of(128, 256, 512)
    configs = [config for config in provider.configs(problem, (9, 0)) if config is not None]
    keys = {provider.kernel_key(problem, config) for config in configs}
    assert len(keys) * len(quack.SWIZZLES) == len(configs)
    assert provider.kernel_key(problem, configs[0]) == provider.kernel_key(other_size, configs[0])


@pytest.mark.parametrize(
    ("dtype", "capability", "reason"),
    [
        ("fp32", (9, 0), "fp32"),
        ("nvfp4", (9, 0), "block-scaled"),
        ("bf16", (8, 0), "compute capability 8.0"),
        ("mxfp6", (10, 0), "block-scaled"),
    ],
)
def test_what_cannot_run_is_said(dtype: str, capability: tuple[int, int], reason: str) -> None:
    assert reason in quack.QuackProvider().unsupported(
        GemmProblem.of(128, 128, 128, dtype, "bf16"), capability
    )


COMPILE = """
import sys
from gemm_model.bench.quack import QuackProvider
from gemm_model.kernel import KernelConfig
from gemm_model.problem import GemmProblem
for word in sys.argv[1:]:
    major, dtype, schedule, speed = word.split(":")
    config = KernelConfig(
        cta_m=128,
        cta_n=128,
        cluster_m=2 if schedule == "2cta" else 1,
        schedule=schedule,
        fast_accum=speed == "fast",
    )
    QuackProvider().compile(GemmProblem.of(256, 256, 512, dtype), config, (int(major), 0))
"""


@pytest.mark.parametrize(
    "kernels",
    [
        ("9:bf16:pingpong:", "9:fp8:cooperative:slow", "9:fp8:cooperative:fast"),
        ("10:nvfp4:2cta:", "10:mxfp8:cooperative:", "10:bf16:2cta:", "12:bf16:pingpong:"),
    ],
)
def test_kernels_compile_without_a_gpu(tmp_path: Path, kernels: tuple[str, ...]) -> None:
    environment = {**os.environ, "QUACK_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, *kernels],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.o")]
    assert len(sizes) == len(kernels)
    assert min(sizes) > 10_000
