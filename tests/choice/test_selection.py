import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gemm_model
from gemm_model import GemmProblem, InputError, KernelConfig, Prediction, Ranker, predict, rank
from gemm_model.choice.fastest import kernel_times
from gemm_model.choice.portfolio import _lagrangian_bound, choose_portfolio, select_columns
from gemm_model.choice.selection import (
    Call,
    Choice,
    comparison,
    describe,
    one_of_twins,
    parse_description,
    summed_band,
)
from gemm_model.choice.table_ranking import choices_of, rank_table
from gemm_model.core.gpu import load_gpu, with_sms
from gemm_model.core.prediction import BatchPrediction
from gemm_model.kernel_model.calibration_file import load_calibration
from gemm_model.kernels.candidates import Candidate, candidate_spaces, sizes_of
from gemm_model.kernels.registry import families, family_of
from gemm_model.models import DEFAULT_MODEL
from tests.cases import cases
from tests.typed_numbers import calibration_with_residual

CLASSIC = "WSPersistentGEMMModel"
PROBLEM = GemmProblem.of(4096, 4096, 4096)
RANKER = Ranker("h200", model=CLASSIC)


def whole_kernels(ranker, problem):
    """The candidates that leave K whole, what is predicted of them, and their times."""
    space, _, prediction = next(ranker.predictions(problem))
    return space, prediction, prediction.runtime_us


def test_the_list_is_in_order_and_its_head_is_the_minimum_of_single_predictions():
    ranking = rank(PROBLEM, "h200", 20, model=CLASSIC)
    times = [choice.prediction.runtime_us for choice in ranking.choices]
    assert times == sorted(times)
    assert [choice.rank for choice in ranking.choices] == list(range(1, 21))
    best = ranking.best
    single = predict(PROBLEM, best.candidate.config, "h200", CLASSIC)
    assert single.runtime_us == pytest.approx(best.prediction.runtime_us)
    for tile in ((128, 128), (128, 256), (256, 128), (64, 256)):
        other = predict(PROBLEM, KernelConfig(cta_m=tile[0], cta_n=tile[1]), "h200", CLASSIC)
        assert best.prediction.runtime_us <= other.runtime_us


def transposed(problem):
    """D^T = B A^T: what is contiguous in D's rows is so in the columns of D^T."""
    return replace(problem, m=problem.n, n=problem.m, c_major="m")


def test_a_swapped_candidate_is_predicted_like_the_transposed_problem():
    problem = GemmProblem.of(48, 8192, 2048)
    space, candidates, prediction = next(RANKER.predictions(problem))
    index = int(np.flatnonzero(space.swapped)[17])
    assert candidates[index] == index
    single = predict(transposed(problem), space.candidate(index).config, "h200", CLASSIC)
    assert prediction.runtime_us[index] == pytest.approx(single.runtime_us)


def test_the_number_of_ties_counts_all_kernels_in_the_band():
    ranking = RANKER.rank(PROBLEM, 3)
    space, _, times = whole_kernels(RANKER, PROBLEM)
    by_kernel = times.reshape(space.kernels, -1).min(axis=1)
    assert ranking.tied_with_best == int((by_kernel <= times.min() * (1 + 1e-9)).sum())
    assert (ranking.candidates, ranking.kernels) == (len(times), len(by_kernel))


def test_each_kernel_is_listed_once_with_its_best_order():
    space, _, times = whole_kernels(RANKER, PROBLEM)
    choices = RANKER.rank(PROBLEM, space.kernels).choices
    kernels = {(replace(c.candidate.config, swizzle=1), c.candidate.swap_ab) for c in choices}
    assert len(kernels) == len(choices) == space.kernels
    expected = np.sort(times.reshape(space.kernels, -1).min(axis=1))
    assert [c.prediction.runtime_us for c in choices] == pytest.approx(expected)


def test_the_reason_names_the_runner_up_and_where_its_time_goes():
    ranking = RANKER.rank(PROBLEM, 1)
    assert ranking.runner_up is not None
    assert ranking.runner_up.prediction.runtime_us > ranking.best.prediction.runtime_us
    assert ranking.reason.startswith(describe(ranking.runner_up.candidate))
    assert "most of it in" in ranking.reason
    assert "limited by" in ranking.reason


def test_why_not_says_place_loss_and_limiter():
    text = RANKER.why_not(PROBLEM, "128x128,cluster=1x1")
    single = predict(PROBLEM, KernelConfig(cta_m=128, cta_n=128), "h200", CLASSIC)
    best = RANKER.rank(PROBLEM, 1).best.prediction
    assert f"{single.runtime_us:.2f} us" in text
    assert f"{100 * (single.runtime_us / best.runtime_us - 1):.1f} % more" in text
    assert "limited by LOAD" in text
    every = [choice.prediction.runtime_us for choice in one_of_twins(RANKER.rank(PROBLEM, 100_000))]
    faster = sum(time_us < single.runtime_us - 1e-6 for time_us in every)
    assert f"is number {faster + 1} of the ranking" in text


def test_why_not_of_an_illegal_kernel_gives_the_reason_of_feasibility():
    assert "would spill" in RANKER.why_not(PROBLEM, "256x256")
    assert "is not one that" in RANKER.why_not(PROBLEM, "100x128")


def test_a_library_takes_the_tile_of_the_card_for_which_it_chooses():
    # 392 tiles of 128x128 are three waves on an L40S and four on an A100, where two of 256x128 are as short.
    l40s, problem = Ranker("l40s", family="cublas"), GemmProblem.of(1792, 3584, 5120)
    picked, fastest = l40s.picked(problem), l40s.best(problem)
    tiles = [candidate.config.cta_m * candidate.config.cta_n for candidate, _ in (picked, fastest)]
    assert tiles == [256 * 128, 128 * 128]
    fp8 = GemmProblem.of(1792, 3584, 5120, "e4m3")  # which an A100 lacks
    assert l40s.picked(fp8) == l40s.best(fp8)


def test_why_not_of_the_winner_says_so():
    name = describe(RANKER.rank(PROBLEM, 1).best.candidate)
    assert "as fast as any" in RANKER.why_not(PROBLEM, name)


@pytest.mark.parametrize("index", [0, 100, 2000])
def test_a_description_is_read_back(index):
    (space,) = RANKER.spaces(PROBLEM)
    candidate = space.candidate(index)
    wanted = parse_description(describe(candidate))
    config = replace(candidate.config, **{k: v for k, v in wanted.items() if k != "swap_ab"})
    assert config == candidate.config
    assert wanted.get("swap_ab", False) == candidate.swap_ab


@pytest.mark.parametrize(*cases(__file__, "test_a_bad_description_is_refused"))
def test_a_bad_description_is_refused(text):
    with pytest.raises(InputError, match="expected"):
        RANKER.why_not(PROBLEM, text)


def test_fewer_sms_never_help():
    times = [
        rank(PROBLEM, "h200", 1, model=CLASSIC, sms=sms).best.prediction.runtime_us for sms in (132, 96, 32)
    ]
    assert times == sorted(times)
    assert times[2] > 2 * times[0]


def test_sms_bound_resident_clusters():
    part = with_sms(load_gpu("h200"), 7)
    assert part.sm_count == 7
    assert [part.clusters_at_once(size) for size in (1, 2, 4)] == [7, 3, 1]
    with pytest.raises(InputError, match="sms is 133; expected 1 to 132"):
        with_sms(load_gpu("h200"), 133)


def test_no_cluster_has_more_ctas_than_there_are_sms():
    part = with_sms(load_gpu("h200"), 3)
    found = rank(PROBLEM, part, 5000).choices
    configs = [each.candidate.config for each in found]
    assert {config.cluster_m * config.cluster_n for config in configs} == {1, 2}
    with pytest.raises(InputError, match="cluster 2x2; expected at most 3 CTAs"):
        predict(PROBLEM, KernelConfig(cta_m=128, cta_n=256, cluster_m=2, cluster_n=2), part)


@pytest.mark.parametrize(*cases(__file__, "test_bad_choices_are_refused"))
def test_bad_choices_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        rank(PROBLEM, **{"gpu": "h200", "model": CLASSIC, **arguments})


def table(rows):
    draw = np.random.default_rng(3)
    sizes = draw.integers(1, 500, (rows, 3)) * 16
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"])
    return frame.assign(in_dtype=np.where(np.arange(rows) % 3 == 0, "fp8", "bf16"))


@pytest.mark.parametrize("model", [CLASSIC, DEFAULT_MODEL])
def test_a_table_is_ranked_like_its_single_problems(model):
    frame, ranker = table(12), Ranker("h200", model=model)
    if model == DEFAULT_MODEL:
        frame = frame.assign(epilogue=["", "", "gelu", "relu"] * 3)
    result = rank_table(frame, ranker)
    assert result[["m", "n", "k"]].equals(frame[["m", "n", "k"]])
    for time_us, (problem, candidate) in zip(result["predicted_us"], choices_of(result), strict=True):
        best = Ranker("h200", model=model).rank(problem, 1).best
        assert (best.candidate, best.prediction.runtime_us) == (candidate, time_us)


def test_a_bad_row_of_a_table_is_named():
    frame = table(3)
    frame.loc[1, "m"] = -5
    with pytest.raises(InputError, match="row 1, column m"):
        rank_table(frame, RANKER)


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("model", [CLASSIC, DEFAULT_MODEL])
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem.of(1000, 520, 776),
        GemmProblem.of(128, 9000, 512, "e4m3", batch=3),
        replace(GemmProblem.of(264, 264, 4096), a_major="m", c_major="m"),
    ],
)
def test_kernels_have_the_times_of_their_fastest_candidates(family, model, problem):
    """The grid computes what does not depend on the tile order once; candidates are predicted row by row."""
    options = {"residual": "off"} if model == DEFAULT_MODEL else {}
    ranker = Ranker("h200", model=model, family=family, options=options)
    for space, candidates, prediction in ranker.predictions(problem):
        orders = space.family.space.orders_per_kernel
        by_kernel_us = prediction.runtime_us.reshape(-1, orders)
        positions = candidates[::orders] // orders
        grid = space.grid_of_shapes(sizes_of(problem), kernels=positions[np.newaxis])
        kernels = kernel_times(ranker.model, space, grid, positions)
        assert (kernels.times_us == by_kernel_us.min(axis=1)).all()
        assert (kernels.orders == by_kernel_us.argmin(axis=1)).all()
        assert (candidates[kernels.orders + np.arange(len(positions)) * orders] == kernels.candidates).all()
        some = np.array([0, len(positions) // 2, len(positions) - 1])
        for kernel, (candidate, found) in zip(some, kernels.predictions(some), strict=True):
            place = kernel * orders + int(kernels.orders[kernel])
            assert candidate == space.candidate(int(candidates[place]))
            assert found.phases_us == pytest.approx(prediction.row(place).phases_us)


def split_kernel(m, n, k, split_k, cluster=(1, 1)):
    """Whether QuACK's 128x128 kernel of that split is worth a look."""
    problem = GemmProblem.of(m, n, k)
    _, split = candidate_spaces(family_of("quack", load_gpu("h200")), load_gpu("h200"), problem)
    worth = split.worth_a_look(sizes_of(problem), load_gpu("h200"))[0]
    columns = {"cta_m": 128, "cta_n": 128, "cluster_m": cluster[0], "cluster_n": cluster[1]}
    columns |= {"split_k": split_k, "schedule": 0}
    orders = split.family.space.orders_per_kernel
    fits = ~split.swapped & np.all([split.kernel[name] == value for name, value in columns.items()], axis=0)
    assert fits.sum() == orders == 1
    return bool(worth[fits][0])


@pytest.mark.parametrize(*cases(__file__, "test_splits_are_offered_where_half_the_parts_leave_sms_idle"))
def test_splits_are_offered_where_half_the_parts_leave_sms_idle(asked, worth):
    assert split_kernel(*asked) == worth


def test_without_idle_sms_no_split_is_ranked():
    ranker = Ranker("h200", options={"residual": "off"})
    few, many = (GemmProblem.of(size, size, 4096) for size in (256, 8192))
    assert {len(list(ranker.predictions(problem))) for problem in (few, many)} == {1, 2}
    assert ranker.rank(few).kernels > ranker.rank(many).kernels == ranker.spaces(many)[0].kernels
    reason = ranker.why_not(many, "128x128,split_k=2")
    assert reason == "128x128,split_k=2: split_k 2: its tiles fill all 132 SMs without a split"
    assert "is number" in ranker.why_not(few, "128x128,split_k=2")
    assert "expected at most one for each k tile" in ranker.why_not(
        GemmProblem.of(256, 256, 64), "128x128,split_k=2"
    )
    assert "no quack kernel is offered" in ranker.why_not(few, "128x128,split_k=3")


def test_a_ranking_is_a_sequence_and_a_table_of_the_schema():
    ranking = rank(GemmProblem.of(64, 7168, 2048, "fp8"), "h200", 3)
    assert [choice.rank for choice in ranking] == [1, 2, 3]
    assert ranking[0] is ranking.best
    assert len(ranking) == 3
    frame = ranking.to_dataframe()
    again = gemm_model.predict_table(frame, "h200")
    assert again["predicted_us"].to_numpy() == pytest.approx(frame["predicted_us"].to_numpy(), rel=1e-9)


def choice_of(cta_n, waves_us, l2_us, **more):
    more = {"limiter": "L2", "phases_us": {"waves": waves_us, "launch": 2.0}, **more}
    details = {"l2_us": l2_us, "dram_us": l2_us / 2.0, "stages": 2.0 * l2_us}
    predicted = Prediction(runtime_us=waves_us + 2.0, bytes_by_level={}, details=details, **more)
    candidate = Candidate(config=KernelConfig(cta_m=128, cta_n=cta_n))
    return Choice(rank=1, candidate=candidate, prediction=predicted, tie_group=1)


def test_a_comparison_names_the_phase_and_the_resource_that_grew_most():
    fast, slow = choice_of(256, 8.0, 6.0, error_band=0.1), choice_of(64, 10.0, 7.5, limiter="DRAM")
    grew = "most of it in waves (+2.00 us), l2 6.00 -> 7.50 us; limited by DRAM, the other by L2"
    name = describe(fast.candidate, beside=slow.candidate)
    assert comparison(slow, fast) == f"12.00 us, 20.0 % more than {name}; {grew}"
    near = choice_of(64, 8.5, 6.0)
    within = "and within its error band of 10.0 %; most of it in waves (+0.50 us); both limited by L2"
    assert comparison(near, fast) == f"10.50 us, 5.0 % more than {name} {within}"
    assert comparison(choice_of(64, 8.0, 6.0), fast) == f"10.00 us, the same as {name}"


def test_a_sums_band_adds_what_calls_share_and_what_is_their_own():
    calls = [
        (Call(time_us=1.0, limiter="L2", error_band=0.05, own_band=0.04), 3.0),
        (Call(time_us=1.0, limiter="L2", error_band=0.03), 1.0),
    ]
    # They share 3 %; the first has 4 % of its own on 3 of 4 us, which is 3 % of the sum.
    assert summed_band(calls) == pytest.approx(math.hypot(0.03, 0.03))
    # One without a band has the widest: 5 %, 4 % of it its own, on half of the time.
    calls[1] = (replace(calls[1][0], error_band=None), 3.0)
    assert summed_band(calls[:1]) == pytest.approx(0.05)
    assert summed_band(calls) == pytest.approx(math.hypot(0.03, 0.04 * 0.5**0.5))
    assert summed_band(calls[1:]) is None


def test_a_kernel_is_described_by_what_is_not_usual():
    usual = RANKER.rank(PROBLEM, 1).best.candidate
    along = replace(usual, config=replace(usual.config, raster="along_m"))
    assert ",raster=along_m" in describe(along)
    assert "raster" not in describe(usual)


SHAPES = [(16, 4096, 7168), (128, 4096, 4096), (4096, 4096, 4096), (8192, 1024, 2048), (2048, 512, 16384)]
PROBLEMS = [GemmProblem.of(*shape) for shape in SHAPES]


def optimum(cost, count):
    columns = range(cost.shape[1])
    return min(cost[:, list(chosen)].min(axis=1).sum() for chosen in combinations(columns, count))


@settings(max_examples=40)
@given(cost=arrays(float, (7, 8), elements=st.floats(1.0, 3.0)), count=st.integers(1, 4))
def test_the_choice_is_the_optimum_of_all_choices(cost, count):
    found = select_columns(cost, count)
    best = optimum(cost, count)
    assert found.cost == pytest.approx(best, rel=1e-6)
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.gap <= 1e-6
    assert len(found.chosen) <= count


@settings(max_examples=40)
@given(cost=arrays(float, (6, 7), elements=st.floats(1.0, 9.0)), count=st.integers(1, 3))
def test_the_relaxation_never_exceeds_the_optimum(cost, count):
    best = optimum(cost, count)
    bound, penalties = _lagrangian_bound(cost, count, best)
    assert bound <= best * (1 + 1e-9)
    for column, penalty in enumerate(penalties):
        with_column = [c for c in combinations(range(cost.shape[1]), count) if column in c]
        cheapest = min(cost[:, list(chosen)].min(axis=1).sum() for chosen in with_column)
        assert bound + penalty <= cheapest * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_a_choice_that_is_called_the_best_is_the_best(seed, monkeypatch):
    """Some relaxations leave a gap, which the search over the columns that can matter has to close."""
    monkeypatch.setattr("gemm_model.choice.portfolio.EXACT_SEARCH_CELLS", 10 * 12)
    draw = np.random.default_rng(seed)
    cost, count = 1.0 + 2.0 * draw.random((10, 12)), int(draw.integers(2, 5))
    found = select_columns(cost, count)
    assert found.gap <= 1e-6
    assert found.cost == pytest.approx(optimum(cost, count), rel=1e-6)


def test_columns_that_cannot_serve_a_row_are_infinite():
    cost = np.array([[1.0, np.inf], [np.inf, 1.0]])
    assert select_columns(cost, 2).chosen == (0, 1)
    assert select_columns(np.zeros((2, 2)), 1).gap == 0.0


def test_one_kernel_is_the_best_of_all_single_kernels():
    found = choose_portfolio(PROBLEMS, RANKER, 1)
    space = whole_kernels(RANKER, PROBLEMS[0])[0]
    times = np.array([whole_kernels(RANKER, problem)[2] for problem in PROBLEMS])
    by_kernel = times.reshape(len(PROBLEMS), space.kernels, -1).min(axis=2)
    ratios = (by_kernel / by_kernel.min(axis=1, keepdims=True)).mean(axis=0)
    assert found.mean_loss == pytest.approx(ratios.min() - 1)
    assert found.gap <= 1e-6


def test_more_kernels_lose_less_and_enough_lose_nothing():
    losses = [choose_portfolio(PROBLEMS, RANKER, count).mean_loss for count in (1, 2, 3, len(PROBLEMS))]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


def test_each_shape_runs_its_own_kernel_with_its_own_order():
    found = choose_portfolio(PROBLEMS, RANKER, 2)
    assert found.best_us == pytest.approx(
        [RANKER.rank(problem, 1).best.prediction.runtime_us for problem in PROBLEMS]
    )
    for position, order in zip(found.served_by, found.orders, strict=True):
        kernel = found.kernels[position]
        assert (order.config.cta_m, order.config.cta_n) == (kernel.config.cta_m, kernel.config.cta_n)
        assert order.swap_ab == kernel.swap_ab


def test_weights_move_the_choice():
    heavy = [1e6, 1.0, 1.0, 1.0, 1.0]
    assert choose_portfolio(PROBLEMS, RANKER, 1, heavy).loss[0] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("problems", "count", "weights", "words"),
    [
        ([], 1, None, "no problems"),
        (PROBLEMS, 0, None, "max_kernels is 0"),
        (PROBLEMS, 1, [1.0], "one positive number for each problem"),
        (PROBLEMS, 1, [0.0] * 5, "one positive number for each problem"),
        ([*PROBLEMS, GemmProblem.of(1, 1, 1, "fp8")], 1, None, "different types"),
    ],
)
def test_bad_input_is_refused(problems, count, weights, words):
    with pytest.raises(InputError, match=words):
        choose_portfolio(problems, RANKER, count, weights)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Of a model whose residual says of wide tiles that they take 5 % longer."""
    return {"calibration": str(calibration_with_residual(tmp_path_factory.mktemp("residual")))}


@pytest.fixture(scope="module")
def loaded(options):
    """The same options, their file read once."""
    return {"calibration": load_calibration(options["calibration"])}


@pytest.fixture(scope="module")
def corrected(options):
    return Ranker("h200", options=options)


def kernels_corrected_one_and_all(ranker, problem):
    """The time of every kernel in its best order in us, and the band of the best."""
    kernel_us, bands = [], []
    for space, _, prediction in ranker.predictions(problem):
        orders_us = prediction.runtime_us.reshape(-1, space.family.space.orders_per_kernel)
        rows = np.arange(0, orders_us.size, orders_us.shape[1]) + orders_us.argmin(axis=1)
        kernel_us.append(prediction.runtime_us[rows])
        bands.append(prediction.error_band[rows])
    kernel_us = np.concatenate(kernel_us)
    return kernel_us, np.concatenate(bands)[kernel_us.argmin()]


@pytest.mark.parametrize("family", ["quack", "any"])
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        *[((2048, 14336, 256), "fp8"), ((2048, 14336, 256), "bf16"), ((8192, 8192, 2048), "fp8")],
        *[((8192, 8192, 2048), "bf16"), ((8192, 1024, 2048), "bf16"), ((4096, 3000, 4096), "bf16")],
    ],
)
def test_the_first_is_the_least_of_all_candidates_in_all_tile_orders(sizes, dtype, family):
    ranker, problem = Ranker("h200", family=family), GemmProblem.of(*sizes, dtype)
    least_us = min(prediction.runtime_us.min() for _, _, prediction in ranker.predictions(problem))
    assert ranker.rank(problem, 8).best.prediction.runtime_us == pytest.approx(least_us, rel=1e-9)
    row = rank_table(pd.DataFrame([{**dict(zip("mnk", sizes, strict=True)), "in_dtype": dtype}]), ranker)
    assert row["predicted_us"].item() == pytest.approx(least_us, rel=1e-9)


def test_a_shape_seen_before_is_answered_from_memory_and_a_file_read_again(tmp_path, options):
    problem = GemmProblem.of(1024, 4096, 4096)
    named = rank(problem, "h200", 3, options={"residual": "auto"})
    assert rank(problem, "h200", 3, options={"residual": "auto"}) is named
    # A file may be another one at the next call.
    beside = Path(options["calibration"]).with_suffix(".residual.npz")
    copy = tmp_path / "residual.npz"
    copy.write_bytes(beside.read_bytes())
    from_file = rank(problem, "h200", 3, options={**options, "residual": str(copy)})
    assert from_file == rank(problem, "h200", 3, options=options)
    copy.write_text("version: 1")
    with pytest.raises(InputError, match=f"{copy}: not a residual"):
        rank(problem, "h200", 3, options={**options, "residual": str(copy)})


@pytest.mark.parametrize("top_k", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_ties_and_the_runner_up_are_those_of_correcting_every_kernel(corrected, dtype, top_k):
    sizes = np.exp2(np.random.default_rng(top_k).uniform(1, 11, (12, 3))).astype(int) * 8
    for m, n, k in sizes.tolist():
        problem = GemmProblem.of(m, n, k, dtype)
        kernel_us, band = kernels_corrected_one_and_all(corrected, problem)
        ranking = corrected.rank(problem, top_k)
        best_us = kernel_us.min()
        times = [choice.prediction.runtime_us for choice in ranking.choices]
        assert times == pytest.approx(np.sort(kernel_us)[:top_k], rel=1e-12)
        assert ranking.tied_with_best == (kernel_us <= best_us * (1.0 + band)).sum()
        slower_us = kernel_us[kernel_us > best_us * (1.0 + 1e-9)].min()
        assert ranking.runner_up.prediction.runtime_us == pytest.approx(slower_us, rel=1e-12)


def test_a_choice_is_predicted_like_the_same_kernel_alone(options):
    options = {**options, "without": ["whole_waves"]}
    ranking = Ranker("h200", options=options).rank(GemmProblem.of(640, 4096, 1544), 3)
    for choice in (*ranking.choices, ranking.runner_up):
        same = transposed(ranking.problem) if choice.candidate.swap_ab else ranking.problem
        alone = predict(same, choice.candidate.config, "h200", DEFAULT_MODEL, options=options)
        found = choice.prediction
        assert found.runtime_us == pytest.approx(alone.runtime_us, rel=1e-9)
        assert found.phases_us == pytest.approx(alone.phases_us, rel=1e-9)
        assert found.details == pytest.approx(alone.details, rel=1e-9)
        assert found.bytes_by_level == pytest.approx(alone.bytes_by_level, rel=1e-9)
        assert (found.limiter, found.error_band) == (alone.limiter, alone.error_band)


def test_corrected_rows_differ_by_a_phase():
    before = BatchPrediction(
        runtime_us=np.array([1.0, 2.0, 3.0]),
        limiter=np.array([0, 1, 0]),
        limiter_names=("A", "B"),
        phases_us={"waves": np.array([1.0, 2.0, 3.0])},
    )
    after = before.corrected(np.array([1.25, 2.0, 2.5]))
    assert after.runtime_us.tolist() == [1.25, 2.0, 2.5]
    assert after.phases_us["residual"].tolist() == [0.25, 0.0, -0.5]
    assert after.phases_us["waves"].tolist() == [1.0, 2.0, 3.0]
    assert before.runtime_us.tolist() == [1.0, 2.0, 3.0]
