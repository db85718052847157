from __future__ import annotations

import math
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
quack_sm90 = pytest.importorskip("quack.gemm_sm90", reason="the extra gemm-model[bench] is not installed")

import cutlass  # noqa: E402
import quack.cache as quack_cache  # noqa: E402

from gemm_model.bench import quack  # noqa: E402
from gemm_model.bench.provider import CompileError  # noqa: E402
from gemm_model.core.kernel_config import KernelConfig  # noqa: E402
from gemm_model.core.problem import GemmProblem  # noqa: E402

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


def architectures(object_file: bytes) -> set[int]:
    """The SM numbers in the flags of the CUDA binary (ELF machine 190) that an object file holds."""
    start = object_file.index(b"\x7fELF", 4)
    assert struct.unpack_from("<H", object_file, start + 18) == (190,)
    (flags,) = struct.unpack_from("<I", object_file, start + 48)
    # The number stands in the lowest byte, and from SM100 on in the second.
    return {flags & 0xFF, flags >> 8 & 0xFF}


@pytest.mark.parametrize(
    ("capability", "dtype", "schedule", "fast"),
    [
        ((9, 0), "bf16", "pingpong", False),
        ((9, 0), "fp8", "cooperative", True),
        ((10, 0), "nvfp4", "2cta", False),
        ((10, 0), "mxfp8", "cooperative", False),
        ((12, 0), "bf16", "pingpong", False),
    ],
)
def test_kernels_compile_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capability: tuple[int, int],
    dtype: str,
    schedule: str,
    fast: bool,
) -> None:
    monkeypatch.setattr(quack_cache, "CACHE_DIR", str(tmp_path))
    for variable in ("QUACK_ARCH", "CUTE_DSL_ARCH"):
        monkeypatch.setenv(variable, "")
    config = KernelConfig(
        cta_m=128,
        cta_n=128,
        cluster_m=2 if schedule == "2cta" else 1,
        schedule=schedule,
        fast_accum=fast,
    )
    quack.QuackProvider().compile(GemmProblem.of(256, 256, 512, dtype), config, capability)
    (compiled,) = tmp_path.rglob("*.o")
    assert capability[0] * 10 + capability[1] in architectures(compiled.read_bytes())


def test_what_the_compiler_refuses_is_a_compile_error() -> None:
    config = KernelConfig(cta_m=96, cta_n=128)
    with pytest.raises(CompileError, match="CTA tile shape M"):
        quack.QuackProvider().compile(GemmProblem.of(256, 256, 512), config, (9, 0))
