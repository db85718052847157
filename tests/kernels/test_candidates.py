from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model import GemmProblem, InputError, KernelConfig, Ranker, load_gpu, rank
from gemm_model.config import load_config
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.core.kernel_config import SCHEDULES
from gemm_model.kernels.candidates import candidate_spaces, sizes_of
from gemm_model.kernels.feasibility import check, feasible_mask
from gemm_model.kernels.registry import families, family_of
from gemm_model.models import create_model, models
from tests.cases import cases

H200 = load_gpu("h200")
BF16 = GemmProblem.of(1, 1, 1)
QUACK = family_of("quack", H200)


def whole_space(family, gpu, problem):
    """The candidates that leave K whole."""
    return candidate_spaces(family, gpu, problem)[0]


SPACE = whole_space(QUACK, H200, BF16)


@settings(max_examples=20)
@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 20000),
    index=st.integers(0, len(SPACE) - 1),
)
def test_every_candidate_is_legal_whatever_the_sizes(m, n, k, index):
    problem = GemmProblem.of(m, n, k)
    assert feasible_mask(SPACE.batch(problem), H200, QUACK).all()
    assert check(problem, SPACE.candidate(index).config, H200) is None


def test_columns_are_those_of_the_single_pairs():
    problem = replace(GemmProblem.of(300, 700, 900), a_major="m")
    exchanged = replace(GemmProblem.of(700, 300, 900), b_major="n", c_major="m")
    space = whole_space(QUACK, H200, problem)
    batch = space.batch(problem)
    for index in (0, 7, len(space) // 2, len(space) - 1):
        candidate = space.candidate(index)
        pair = (exchanged if candidate.swap_ab else problem, candidate.config)
        single = batch_of([pair])
        for name in GEMM_COLUMNS:
            assert getattr(batch, name)[index] == getattr(single, name)[0], name


GEMM_COLUMNS = (
    *("m", "n", "k", "batch", "a_bits", "b_bits", "out_bits", "acc_bits", "math_kind", "a_k_major"),
    *("b_k_major", "c_n_major", "cta_m", "cta_n", "cta_k", "mma_m", "mma_n", "cluster_m", "cluster_n"),
    *("stages", "schedule", "raster", "swizzle", "split_k", "fast_accum", "a_scale_bits", "b_scale_bits"),
    "multiplier_share",
    "kernel",
)


@pytest.mark.parametrize("name", families())
def test_orders_of_one_kernel_stand_together(name):
    space = whole_space(family_of(name, H200), H200, BF16)
    per_kernel = space.family.space.orders_per_kernel
    assert len(space) == space.kernels * per_kernel
    for column in ("cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "stages", "split_k"):
        rows = space.kernel[column].reshape(-1, per_kernel)
        assert (rows == rows[:, :1]).all()
    orders = {(int(r), int(s)) for r, s in zip(space.kernel["raster"], space.kernel["swizzle"], strict=True)}
    assert len(orders) == per_kernel


def test_several_shapes_make_the_batches_of_each():
    problems = [GemmProblem.of(128, 256, 512), GemmProblem.of(4096, 64, 1024, batch=3)]
    sizes = np.array([[p.m, p.n, p.k, p.batch] for p in problems], dtype=float).T
    orders = SPACE.family.space.orders_per_kernel
    together = SPACE.grid_of_shapes(sizes).rows()
    single = SPACE.batch(problems[1])
    assert (together.m[len(SPACE) :] == single.m).all()
    assert (together.batch[len(SPACE) :] == 3).all()
    kernels = np.array([[1, 5], [0, 7]])
    some = SPACE.grid_of_shapes(sizes, kernels=kernels).rows()
    assert some.cta_n[::orders].tolist() == [SPACE.kernel["cta_n"][i * orders] for i in (1, 5, 0, 7)]
    assert some.swizzle.tolist() == SPACE.kernel["swizzle"][:orders].tolist() * 4
    assert some.k[::orders].tolist() == [512, 512, 1024, 1024]


@pytest.mark.parametrize("name", families())
@pytest.mark.parametrize(
    "problem", [BF16, GemmProblem.of(1, 1, 1, "e4m3"), replace(BF16, a_major="m", c_major="m")]
)
def test_a_grid_holds_every_candidate_once(name, problem):
    space = whole_space(family_of(name, H200), H200, problem)
    batch = space.batch(problem)
    for column, values in {**space.types, **space.kernel}.items():
        assert (getattr(batch, column) == values).all(), column
    assert space.grid_of(problem).shape == (space.family.space.orders_per_kernel, space.kernels)
    assert len(batch) == len(space)


def test_kernels_that_split_k_stand_apart_with_one_swizzle():
    whole, split = candidate_spaces(QUACK, H200, BF16)
    assert not whole.splits
    assert split.splits
    assert set(whole.kernel["split_k"]) == {1.0}
    assert set(split.kernel["split_k"]) == {2.0, 4.0, 8.0}
    assert split.kernels == 3 * whole.kernels
    assert set(split.kernel["swizzle"]) == {8.0}
    assert len(candidate_spaces(family_of("triton", H200), H200, BF16)) == 1


def test_what_is_worth_a_look_can_run():
    """The mask is the rules' own: split-K alone depends on sizes."""
    problem = GemmProblem.of(64, 512, 300)
    for space in candidate_spaces(QUACK, H200, problem):
        worth = space.worth_a_look(sizes_of(problem), H200)[0]
        rows = space.batch(problem)[np.repeat(worth, space.family.space.orders_per_kernel)]
        assert len(rows)
        assert feasible_mask(rows, H200, QUACK).all()
    # 300 elements are five k tiles of 64: eight parts are too many.
    assert not worth[space.kernel["split_k"] == 8].any()
    assert worth[space.kernel["split_k"] == 4].any()


@pytest.mark.parametrize(*cases(__file__, "test_a_tile_of_cublas_has_one_schedule"))
def test_a_tile_of_cublas_has_one_schedule(dtype, tile, schedule):
    space = whole_space(family_of("cublas", H200), H200, GemmProblem.of(1, 1, 1, dtype))
    of_tile = (space.kernel["cta_m"] == tile[0]) & (space.kernel["cta_n"] == tile[1])
    assert {SCHEDULES[int(code)] for code in space.kernel["schedule"][of_tile]} == {schedule}


def test_tensor_memory_takes_narrow_types_of_two_widths():
    found = rank(GemmProblem.of(512, 512, 512, "e4m3", b_dtype="e2m1"), "b200_sxm")
    assert found.kernels > 0


def test_bad_input_is_said_in_words():
    with pytest.raises(InputError, match="no legal quack configuration on h200: GPU h200 has no fp4 math"):
        whole_space(QUACK, H200, GemmProblem.of(1, 1, 1, "nvfp4"))
    huge = replace(QUACK, space=replace(QUACK.space, cta_m=(512,)))
    with pytest.raises(InputError, match="no legal quack configuration on h200: no tile"):
        whole_space(huge, H200, BF16)


def test_kernels_of_cublas_before_hopper_are_those_of_published_names():
    gpu = load_gpu("a100_sxm_80gb")
    for space in candidate_spaces(family_of("cublas", gpu), gpu, BF16):
        tiles = {(int(m), int(n)) for m, n in zip(space.kernel["cta_m"], space.kernel["cta_n"], strict=True)}
        narrow = space.kernel["cta_m"] <= 32
        assert (space.kernel["cta_k"][narrow] == 128).all()
        assert set(space.kernel["cta_k"][~narrow]) == {0, 32}
        assert (space.kernel["stages"] == np.where(narrow, 2, 0)).all()
        wide = {(64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128)}
        # Narrow tiles leave K whole.
        assert tiles == (wide if space.splits else wide | {(16, 16), (32, 32)})


# A shape that every model takes: 16 tokens, which the weight-prefetch kernel is for.
PROBLEM = GemmProblem.of(4096, 16, 4096, "bf16")
CONFIG = KernelConfig(cta_m=128, cta_n=64)


@pytest.mark.parametrize("name", models())
def test_a_row_of_numbers_gets_what_its_batch_gets(name):
    model = create_model(name, load_gpu("h200"), load_config([f"model={name}"])["model_opts"])
    of_batch = model.predict_batch(batch_of([(PROBLEM, CONFIG)])).row(0)
    of_row = model.predict_row(numbers_of(PROBLEM, CONFIG))
    assert of_row.runtime_us > 1
    assert (of_row.runtime_us, of_row.limiter, of_row.caveats) == (
        of_batch.runtime_us,
        of_batch.limiter,
        of_batch.caveats,
    )


def test_the_evaluation_of_a_grid_is_that_of_its_rows():
    ranker = Ranker("h200", model="WSPersistentGEMMModel")
    grid = ranker.spaces(PROBLEM)[0].grid_of(PROBLEM)
    by_row = ranker.model.predict_batch(grid.rows()).runtime_us
    found = ranker.model.evaluate(grid).runtime_us
    assert found.shape == grid.shape
    assert (found.T.reshape(-1) == by_row).all()
    assert np.isfinite(found).all()
