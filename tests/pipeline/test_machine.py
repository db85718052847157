import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.errors import InputError
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import (
    PipelineKernel,
    PipelineMachine,
    StepTimes,
    Workload,
    workload,
)
from gemm_model.pipeline.steady_state import consumer_wait, kernel_time, math_start, time_per_k_tile
from gemm_model.pipeline.warps import in_warps
from tests.cases import calls
from tests.pipeline.strategies import machines, workloads

test_calls = calls(__file__)

MACHINE = PipelineMachine(
    sm_count=84, mac_per_us=1e6, math_startup_us=0.1, load_bytes_per_us=1e5, load_startup_us=0.5,
    epilogue_us=1.5, init_us=2.0,
)  # fmt: skip
SHAPE = {"m": 1024, "n": 1024, "k": 1000, "tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 3}


def test_arrays_give_what_scalars_give():
    tiles = np.array([32.0, 64.0, 128.0])
    batch = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": tiles}))
    for row, tile in enumerate(tiles):
        one = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": float(tile)}))
        assert batch.waves[row] == one.waves
        assert batch.full.math[row] == one.full.math
        assert batch.tail_last.load_a[row] == one.tail_last.load_a


@pytest.mark.parametrize("name", ["m", "n", "k", "stages", "tile_k"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        workload(MACHINE, PipelineKernel(**{**SHAPE, name: 0}))


LOADING = PipelineMachine(mac_per_us=1e6, load_bytes_per_us=32768.0)
KERNEL = PipelineKernel(m=128, n=128, k=6400, tile_m=128, tile_n=128, tile_k=64, stages=4)
LOAD_US = 2 * 128 * 64 * 2 / 32768.0


def time_us(**words):
    machine, kernel = in_warps(LOADING, KERNEL, **words)
    return float(kernel_time(workload(machine, kernel), machine)) / 1e6


def test_larger_warps_take_more_threads_from_the_math():
    math_us = 128 * 128 * 64 / 1e6
    for warp_size, share in ((32, 7 / 8), (64, 6 / 8), (128, 4 / 8)):
        found = time_us(threads=256, dma_threads=1, warp_size=warp_size)
        assert found == pytest.approx(LOAD_US + 100 * math_us / share, rel=1e-6)


def test_divergence_takes_no_warp_but_ends_the_overlap():
    math_us = 128 * 128 * 64 / 1e6 * 256 / 255
    found = time_us(threads=256, dma_threads=1, diverges=True)
    assert found == pytest.approx(100 * (LOAD_US + math_us), rel=1e-6)


@pytest.mark.parametrize("words", [{"threads": 100}, {"threads": 32}, {"threads": 64, "warp_size": 0}])
def test_warps_that_leave_no_math_are_refused(words):
    with pytest.raises(InputError, match="threads"):
        time_us(**{"dma_threads": 1, **words})


@settings(max_examples=400)
@given(work=workloads(), machine=machines)
def test_closed_form_equals_the_recurrence(work, machine):
    assert kernel_time(work, machine) == recurrence.run(work, machine).end


@settings(max_examples=30)
@given(works=st.lists(workloads(), min_size=1, max_size=12), machine=machines)
def test_a_batch_gives_what_its_rows_give(works, machine):
    def column(part):
        return np.array([part(work) for work in works])

    def steps(kind):
        names = ("load_a", "load_b", "math")
        return StepTimes(
            **{name: column(lambda w, name=name: getattr(getattr(w, kind), name)) for name in names}
        )

    kinds = ("full", "full_last", "tail", "tail_last")
    plain = ("waves", "steps", "stages", "latency", "epilogue", "init")
    batch = Workload(
        **{name: column(lambda w, name=name: getattr(w, name)) for name in plain},
        **{kind: steps(kind) for kind in kinds},
    )
    assert list(kernel_time(batch, machine)) == [kernel_time(work, machine) for work in works]
    assert list(consumer_wait(batch, machine)) == [consumer_wait(work, machine) for work in works]


@given(load=st.integers(0, 9), latency=st.integers(0, 30), math=st.integers(0, 9), stages=st.integers(1, 7))
def test_rhythm_is_the_slope_of_the_math_starts(load, latency, math, stages):
    steps = np.array([1000.0, 1000.0 + stages])
    slope = np.diff(math_start(steps, load, latency, math, stages))[0] / stages
    assert slope == pytest.approx(time_per_k_tile(load, latency, math, stages))


def test_uniform_pipeline_by_hand():
    # Loads of 3 and a latency of 4 over a ring of 2 with math of 1: the stage's round trip of 8 takes over.
    # Starts: load 0, 3, 8, 11, ...; math 7, 10, 15, 18, ...
    assert [math_start(float(i), 3.0, 4.0, 1.0, 2.0) for i in (1, 2, 3, 4)] == [7.0, 10.0, 15.0, 18.0]
    assert time_per_k_tile(3.0, 4.0, 1.0, 2.0) == 4.0
