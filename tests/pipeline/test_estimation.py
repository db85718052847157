from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_model.errors import InputError
from gemm_model.pipeline.estimation import (
    Parameter,
    fit_machine,
    fit_parameters,
    predicted_us,
    two_point_estimate,
)
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, load_machine
from tests.cases import cases

TABLE_2 = Path(__file__).with_name("paper_table2.csv")
US_PER_MS = 1e3
# Where the fit starts: the epilogue as the paper measured it apart, the other values only roughly its.
START = PipelineMachine(
    sm_count=84, epilogue_us=1.543, mac_per_us=1e7, math_startup_us=0.1, load_bytes_per_us=1e6,
    load_startup_us=0.77, init_us=1.0,
)  # fmt: skip
NAMES = ("mac_per_us", "math_startup_us", "load_bytes_per_us", "load_startup_us", "init_us")


def table_2():
    table = pd.read_csv(TABLE_2)
    # The paper heads these columns with seconds; they are milliseconds.
    fitted = ((table.m == 256) & (table.n == 256)) | ((table.m == 1024) & (table.n == 1024))
    return table, fitted.to_numpy()


def runs(table):
    sizes = {name: table[name].to_numpy(float) for name in ("m", "n", "k", "tile_m", "tile_n", "tile_k")}
    kernels = PipelineKernel(**sizes, stages=np.full(len(table), 3.0))
    return kernels, table["measured_ms"].to_numpy() * US_PER_MS


def test_the_papers_own_errors_are_those_of_its_table():
    table, _ = table_2()
    errors = (table.predicted_ms / table.measured_ms - 1).abs()
    assert len(table) == 36
    assert errors.mean() == pytest.approx(0.053, abs=5e-4)
    assert errors.max() == pytest.approx(0.212, abs=5e-4)


def test_table_2_rows_that_were_not_fitted():
    # This checks the code, not the accuracy of the model: the measured column equals
    # waves x (k tiles x a + b) + T_INIT to its last digit.
    table, fitted = table_2()
    assert fitted.sum() == 12
    machine, fit = fit_machine(START, *runs(table[fitted]), NAMES)
    held_out, measured_us = runs(table[~fitted])
    errors = np.abs(predicted_us(machine, held_out) / measured_us - 1)
    assert len(errors) == 24
    assert errors.max() < 1e-3
    assert fit.values["init_us"] == pytest.approx(1.680, abs=1e-3)
    assert all(estimate.identified for estimate in fit.parameters)


def test_the_packaged_machine_is_that_fit():
    table, fitted = table_2()
    machine, _ = fit_machine(START, *runs(table[fitted]), NAMES)
    packaged = load_machine("paper_a6000")
    for name in ("math_startup_us", "load_startup_us", "init_us"):
        assert getattr(packaged, name) == pytest.approx(float(getattr(machine, name)), abs=1e-3)
    everything, measured_us = runs(table)
    assert np.abs(predicted_us(packaged, everything) / measured_us - 1).max() < 1e-3


@given(
    throughput=st.floats(0.1, 1e6),
    startup=st.floats(0, 10),
    sizes=st.tuples(st.integers(1, 1000), st.integers(1, 1000)).filter(lambda pair: pair[0] != pair[1]),
)
def test_two_points_give_back_the_line(throughput, startup, sizes):
    times = [size / throughput + startup for size in sizes]
    if times[0] == times[1]:
        return
    found = two_point_estimate(sizes[0], times[0], sizes[1], times[1])
    assert found.throughput_per_us == pytest.approx(throughput, rel=1e-3)
    assert found.startup_us == pytest.approx(startup, abs=1e-3 * max(times))


@pytest.mark.parametrize("points", [(4, 1.0, 4, 2.0), (4, 1.0, 8, 1.0), (4, 2.0, 8, 1.0)])
def test_two_points_that_make_no_sense(points):
    with pytest.raises(InputError, match="the larger takes longer"):
        two_point_estimate(*points)


def line(random, bad=slice(0)):
    sizes = np.linspace(1, 50, 60)
    measured = (sizes / 4.0 + 2.0) * np.exp(random.normal(0, 0.01, 60))
    measured[bad] *= 3
    fit = fit_parameters(
        lambda values: sizes / values["load_bytes_per_us"] + values["init_us"],
        measured,
        [Parameter(name="load_bytes_per_us", start=1.0), Parameter(name="init_us", start=1.0)],
    )
    return fit.parameters


def test_confidence_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(100):
        rate, init = line(np.random.default_rng(seed))
        covered += (rate.low <= 4.0 <= rate.high) + (init.low <= 2.0 <= init.high)
    assert covered >= 175


def test_bad_runs_do_not_steer_the_fit():
    rate, init = line(np.random.default_rng(1), slice(0, 60, 12))
    assert rate.value == pytest.approx(4.0, rel=0.05)
    assert init.value == pytest.approx(2.0, rel=0.1)


def test_parameters_that_the_data_cannot_tell_apart_are_said_to_be():
    sizes = np.linspace(1, 10, 20)
    fit = fit_parameters(
        lambda values: sizes + values["init_us"] + values["epilogue_us"],
        sizes + 3.0,
        [Parameter(name="init_us", start=1.0), Parameter(name="epilogue_us", start=1.0)],
    )
    assert not any(estimate.identified for estimate in fit.parameters)
    assert all(estimate.low == 0 and np.isinf(estimate.high) for estimate in fit.parameters)
    assert sum(fit.values.values()) == pytest.approx(3.0)


def test_a_cost_of_nothing_ends_at_its_bound():
    sizes = np.linspace(1, 10, 20)
    fit = fit_parameters(
        lambda values: sizes + values["init_us"], sizes, [Parameter(name="init_us", start=0.5)]
    )
    assert fit.values["init_us"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(*cases(__file__, "test_bad_measurements_are_refused"))
def test_bad_measurements_are_refused(measured, start, words):
    with pytest.raises(InputError, match=words):
        fit_parameters(
            lambda values: np.ones(len(measured)) * values["init_us"],
            np.array(measured),
            [Parameter(name="init_us", start=start), Parameter(name="epilogue_us", start=1.0)],
        )


PROBLEM_COLUMNS = ["m", "n", "k", "tile_m", "tile_n", "tile_k"]
FIT = ["--fit", "math_startup_us,load_startup_us,init_us"]
STARTING_WORDS = ["--machine", "paper_a6000", "load_startup_us=0.77", "math_startup_us=0.1", "init_us=1"]


@pytest.fixture
def table(tmp_path):
    paper = pd.read_csv(Path(__file__).with_name("paper_table2.csv"))
    runs = paper[PROBLEM_COLUMNS].assign(stages=3, runtime_us=paper.measured_ms * 1e3)
    path = tmp_path / "runs.csv"
    runs.to_csv(path, index=False)
    return path


def test_the_fitted_machine_can_be_used_again(table, tmp_path, answer):
    fitted = tmp_path / "fitted.yaml"
    assert "36 runs" in answer("estimate", "--input", table, *STARTING_WORDS, *FIT, "--output", fitted)["err"]
    machine = load_machine(str(fitted))
    assert machine.load_startup_us == pytest.approx(0.565, abs=1e-3)
    assert machine.tiles == load_machine("paper_a6000").tiles


def test_parameters_that_are_not_identified_are_named(table, answer):
    error = answer("estimate", "--input", table, *STARTING_WORDS, "--fit", "math_startup_us,epilogue_us")[
        "err"
    ]
    assert "math_startup_us is not identified" in error
    assert "epilogue_us is not identified" in error
