import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import PipelineMachine, StepTimes, Workload
from gemm_model.pipeline.steady_state import consumer_wait, kernel_time, math_start, time_per_k_tile
from tests.pipeline.strategies import machines, workloads


@settings(max_examples=400)
@given(work=workloads(), machine=machines)
def test_closed_form_equals_the_recurrence(work, machine):
    assert kernel_time(work, machine) == recurrence.run(work, machine).end


@settings(max_examples=30)
@given(works=st.lists(workloads(), min_size=2, max_size=12), machine=machines)
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


def uniform(load_a=2.0, load_b=1.0, math=5.0, waves=3.0, steps=4.0, stages=2.0, epilogue=7.0, init=11.0):
    step = StepTimes(load_a=load_a, load_b=load_b, math=math)
    return Workload(
        waves=waves, steps=steps, stages=stages, full=step, full_last=step, tail=step, tail_last=step,
        latency=0.0, epilogue=epilogue, init=init,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Math-bound: the first load of 3, then 4 times 5, the epilogue of 7; three waves, T_INIT of 11.
        ({"consumers": "single"}, 3 * (3 + 20 + 7) + 11),
        # The paper's formula as printed starts the epilogue with the last math.
        ({"consumers": "single", "counts_last_math": False}, 3 * (3 + 15 + 7) + 11),
        # Two DMA warps load A and B at once: the first load takes 2.
        ({"consumers": "single", "dma_warps": 2}, 3 * (2 + 20 + 7) + 11),
        # Loads of the next tile run under the epilogue.
        ({"consumers": "cooperative"}, 3 + 3 * (20 + 7) + 11),
        # Epilogues run under the other consumer's math: one is left at the end.
        ({"consumers": "pingpong"}, 3 + 3 * 20 + 7 + 11),
    ],
)
def test_schedules_by_hand(changes, expected):
    assert kernel_time(uniform(), PipelineMachine(**changes)) == expected


def test_pingpong_is_bound_by_epilogues_where_they_are_longer():
    # Two tiles' epilogues of 30 follow each other behind the first mainloop (3 + 20); then the third's.
    assert kernel_time(uniform(epilogue=30.0), PipelineMachine(consumers="pingpong")) == 23 + 3 * 30 + 11


def test_waiting_by_hand():
    # Load-bound: loads of 3 and math of 1, so that each step waits 3 for the first data and 2 for the others.
    work = uniform(math=1.0, waves=2.0)
    assert consumer_wait(work, PipelineMachine()) == 2 * (3 + 3 * 2)


@pytest.mark.parametrize(
    ("consumers", "expected"), [("single", 50 * (3 + 5e9 + 7)), ("pingpong", 3 + 50 * 5e9 + 7)]
)
def test_a_huge_k_is_no_loop(consumers, expected):
    work = uniform(steps=1e9, waves=50.0)
    assert kernel_time(work, PipelineMachine(consumers=consumers)) == expected + 11


def test_many_waves_are_skipped_by_their_period():
    work = uniform(waves=1e6, steps=3.0, stages=5.0, epilogue=41.0, load_a=7.0)
    few = dataclasses.replace(work, waves=1000.0)
    more = dataclasses.replace(work, waves=1200.0)
    machine = PipelineMachine(consumers="pingpong")
    rhythm = (kernel_time(more, machine) - kernel_time(few, machine)) / 200
    assert kernel_time(work, machine) == kernel_time(few, machine) + rhythm * (1e6 - 1000)
