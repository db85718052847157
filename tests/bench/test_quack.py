import math
import struct
from itertools import product
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
quack_sm90 = pytest.importorskip("quack.gemm_sm90", reason="the extra gemm-model[bench] is not installed")

import cutlass
import cutlass.cute as cute
import numpy as np
import quack.cache as quack_cache
import torch

from gemm_model import GemmProblem, KernelConfig, load_gpu
from gemm_model.bench import quack
from gemm_model.bench.provider import CompileError, UnsupportedError
from gemm_model.bench.quack import placed_in
from gemm_model.core.batch import batch_of
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from tests.cases import cases

H200 = load_gpu("h200")

CUTLASS_TYPES = {
    "bf16": cutlass.BFloat16,
    "fp16": cutlass.Float16,
    "e4m3": cutlass.Float8E4M3FN,
    "fp32": cutlass.Float32,
}


class StaticLayouts:
    """The few layout functions that QuACK's stage count calls, on plain numbers."""

    arch = cute.arch

    @staticmethod
    def size(value, mode=None):
        if mode is not None:
            assert isinstance(value, tuple)
            value = value[mode[0]]
        return math.prod(value) if isinstance(value, tuple) else int(value)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def shape(value):
        return value

    @staticmethod
    def slice_(value, coordinate):
        return tuple(extent for extent, at in zip(value, coordinate, strict=True) if at is None)


def no_epilogue_operands(*_):
    return SimpleNamespace(unstaged=0, d_stage=0, c_stage=0)


def quack_figures(cta_m, cta_n, schedule, in_dtype, out_dtype):
    """QuACK's own class on a tile, or None: stages, elements of a store, warpgroups, columns, registers."""
    a_type, d_type = CUTLASS_TYPES[in_dtype], CUTLASS_TYPES[out_dtype]
    try:
        kernel = quack.GemmDefaultSm90(
            cutlass.Float32, a_type, (cta_m, cta_n), (1, 1, 1), pingpong=schedule == "pingpong"
        )
    except ValueError:
        return None
    tile = (cta_m, cta_n, 1024 // a_type.width)
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
    of_a_tile = math.prod(kernel.atom_layout_mnk)
    mma_columns = cta_n // kernel.atom_layout_mnk[1]
    return (stages, math.prod(epilogue_tile), of_a_tile, mma_columns, kernel.num_regs_mma)


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize("in_dtype", ["bf16", "fp16", "e4m3"])
@pytest.mark.parametrize("out_dtype", ["bf16", "fp32", "e4m3"])
def test_the_family_says_what_quack_says_of_every_tile(monkeypatch, schedule, in_dtype, out_dtype):
    monkeypatch.setattr(quack_sm90, "cute", StaticLayouts)
    monkeypatch.setattr(quack.GemmDefaultSm90, "epi_smem_bytes", no_epilogue_operands)
    tiles = list(product(range(64, 449, 32), range(16, 545, 16)))
    problem = GemmProblem.of(4096, 4096, 4096, in_dtype, out_dtype)
    batch = batch_of(
        [(problem, KernelConfig(cta_m=m, cta_n=n, schedule=schedule, kernel="quack")) for m, n in tiles]
    )
    family = family_of("quack", H200)
    found = resources_of(batch, H200, family)
    offered = family.resources.offers_tile(batch)
    registers = family.resources.mma_registers(found.accumulator_registers, found.warpgroups)
    for row, (m, n) in enumerate(tiles):
        theirs = quack_figures(m, n, schedule, in_dtype, out_dtype)
        assert bool(offered[row]) == (theirs is not None), (m, n)
        if theirs is not None:
            columns = (found.stages, found.store_elements, found.warpgroups, found.mma_columns, registers)
            # Where not even the epilogue fits, QuACK's count of stages is negative.
            assert tuple(float(column[row]) for column in columns) == (max(theirs[0], 0), *theirs[1:]), (m, n)
    assert 20 < np.count_nonzero(offered) < len(tiles)


def test_partial_sums_of_a_split_kernel_lie_where_they_are_put():
    scratch = torch.full((4096,), 7, dtype=torch.uint8)
    counters, sums = torch.ones(1, 3, 5, dtype=torch.int32), torch.ones(1, 3, 5, 8, dtype=torch.float32)
    placed_counters, placed_sums = placed_in(scratch, (counters, sums))
    assert placed_counters.tolist() == [[[0] * 5] * 3]
    assert placed_sums.shape == sums.shape
    # 60 bytes of counters, then sums at the next multiple of 256 that nobody has written.
    assert placed_counters.data_ptr() == scratch.data_ptr()
    assert placed_sums.data_ptr() == scratch.data_ptr() + 256
    assert (scratch[256 : 256 + 480] == 7).all()
    assert placed_in(scratch[:700], (counters, sums))[1] is sums


@pytest.mark.parametrize("word", [{"raster": "along_n"}, {"warps": 8}])
def test_what_quack_does_not_set_is_refused(word):
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", **word)
    with pytest.raises(UnsupportedError, match="QuACK chooses raster and warps itself"):
        quack.QuackProvider().prepare(GemmProblem.of(64, 64, 64, "bf16"), config, None)


def test_configs_are_distinct_and_runnable():
    provider = quack.QuackProvider()
    for dtype in ("bf16", "fp8"):
        problem = GemmProblem.of(4096, 4096, 4096, dtype)
        configs = [config for config in provider.configs(problem, (9, 0)) if config is not None]
        assert len(configs) == len(set(configs)) > 300
        assert {config.schedule for config in configs} == {"cooperative", "pingpong"}
        assert {config.kernel for config in configs} == {"quack"}
        assert not any(config.fast_accum for config in configs)
        tiles = {(config.cta_m, config.cta_n, config.schedule): config for config in configs}
        # 128 threads of one warpgroup hold 128 x 208 sums in 208 registers each, in 416 with slow sums.
        assert ((128, 208, "pingpong") in tiles) == (dtype == "bf16")
        # (232448 - 1024 - 2 x 128 x 32 x 2) / (384 x 128 bytes) = 4.4
        assert (tiles[256, 128, "cooperative"].stages if dtype == "bf16" else 4) == 4


def test_configs_of_blackwell_are_those_of_its_family():
    provider, problem = quack.QuackProvider(), GemmProblem.of(4096, 4096, 4096)
    pairs = [config for config in provider.configs(problem, (10, 0)) if config and config.schedule == "2cta"]
    assert pairs
    assert all(config.mma_m == 2 * config.cta_m and config.cluster_m == 2 for config in pairs)
    geforce = provider.configs(problem, (12, 0))
    assert {(config.cluster_m, config.cluster_n) for config in geforce if config} == {(1, 1)}


def test_swizzles_share_a_kernel_and_tiles_do_not():
    provider = quack.QuackProvider()
    problem = GemmProblem.of(4096, 4096, 4096)
    other_size = GemmProblem.of(128, 256, 512)
    configs = [config for config in provider.configs(problem, (9, 0)) if config is not None]
    keys = {provider.kernel_key(problem, config) for config in configs}
    assert len(keys) * 5 == len(configs)
    assert provider.kernel_key(problem, configs[0]) == provider.kernel_key(other_size, configs[0])


@pytest.mark.parametrize(*cases(__file__, "test_what_cannot_run_is_said"))
def test_what_cannot_run_is_said(dtype, capability, reason):
    assert reason in quack.QuackProvider().unsupported(
        GemmProblem.of(128, 128, 128, dtype, "bf16"), capability
    )


def architectures(object_file):
    """The SM numbers in the flags of the CUDA binary (ELF machine 190) that an object file holds."""
    start = object_file.index(b"\x7fELF", 4)
    assert struct.unpack_from("<H", object_file, start + 18) == (190,)
    (flags,) = struct.unpack_from("<I", object_file, start + 48)
    # The number stands in the lowest byte, and from SM100 on in the second.
    return {flags & 0xFF, flags >> 8 & 0xFF}


@pytest.mark.slow
@pytest.mark.parametrize(*cases(__file__, "test_kernels_compile_without_a_gpu"))
def test_kernels_compile_without_a_gpu(monkeypatch, tmp_path, capability, dtype, schedule, fast):
    monkeypatch.setattr(quack_cache, "CACHE_DIR", str(tmp_path))
    for variable in ("QUACK_ARCH", "CUTE_DSL_ARCH"):
        monkeypatch.setenv(variable, "")
    config = KernelConfig(
        cta_m=128, cta_n=128, cluster_m=2 if schedule == "2cta" else 1, schedule=schedule, fast_accum=fast
    )
    quack.QuackProvider().compile(GemmProblem.of(256, 256, 512, dtype), config, capability)
    (compiled,) = tmp_path.rglob("*.o")
    assert capability[0] * 10 + capability[1] in architectures(compiled.read_bytes())


def machine_code(object_file):
    """The text of the kernel in the CUDA binary that an object file holds."""
    binary = object_file[object_file.index(b"\x7fELF", 4) :]
    (table,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<3H", binary, 58)
    sections = [struct.unpack_from("<IIQQQQ", binary, table + index * size) for index in range(count)]
    (found,) = [
        section for section in sections if binary.startswith(b".text.", sections[names][4] + section[0])
    ]
    return binary[found[4] : found[4] + found[5]]


@pytest.mark.slow
@pytest.mark.parametrize("pdl", [None, False])
def test_a_kernel_waits_for_the_one_before_it_where_pdl_is_on(monkeypatch, tmp_path, pdl):
    """SASS: opcode 0x82e (ACQBULK) waits for the previous grid, 0x82d (PREEXIT) lets the next one start."""
    monkeypatch.setattr(quack_cache, "CACHE_DIR", str(tmp_path))
    for variable in ("QUACK_ARCH", "CUTE_DSL_ARCH"):
        monkeypatch.setenv(variable, "")
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", pdl=pdl)
    quack.QuackProvider().compile(GemmProblem.of(256, 256, 512), config, (9, 0))
    (compiled,) = tmp_path.rglob("*.o")
    code = machine_code(compiled.read_bytes())
    opcodes = {struct.unpack_from("<H", code, place)[0] & 0xFFF for place in range(0, len(code), 16)}
    assert ({0x82D, 0x82E} <= opcodes) == (pdl is not False)


def test_what_the_compiler_refuses_is_a_compile_error():
    config = KernelConfig(cta_m=96, cta_n=128)
    with pytest.raises(CompileError, match="CTA tile shape M"):
        quack.QuackProvider().compile(GemmProblem.of(256, 256, 512), config, (9, 0))
