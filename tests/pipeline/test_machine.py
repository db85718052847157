import dataclasses

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
    TileSpace,
    Workload,
    load_machine,
    machine_names,
    with_parameters,
    workload,
)
from gemm_model.pipeline.steady_state import consumer_wait, kernel_time, math_start, time_per_k_tile
from gemm_model.pipeline.warps import in_warps
from tests.pipeline.strategies import machines, workloads

MACHINE = PipelineMachine(
    sm_count=84, mac_per_us=1e6, math_startup_us=0.1, load_bytes_per_us=1e5, load_startup_us=0.5,
    epilogue_us=1.5, init_us=2.0,
)  # fmt: skip
SHAPE = {"m": 1024, "n": 1024, "k": 1000, "tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 3}


def test_step_times_are_linear_in_the_tile():
    work = workload(MACHINE, PipelineKernel(**SHAPE))
    assert (work.waves, work.steps) == (2, 16)
    assert work.full.load_a == round((128 * 64 * 2 / 1e5 + 0.5) * 1e6)
    assert work.full.load_b == round((64 * 64 * 2 / 1e5 + 0.5) * 1e6)
    assert work.full.math == round((128 * 64 * 64 / 1e6 + 0.1) * 1e6)
    assert work.epilogue == 1.5e6
    assert work.init == 2e6


def test_ragged_k_shortens_the_last_step_unless_padded():
    # 1000 = 15 * 64 + 40
    ragged = workload(MACHINE, PipelineKernel(**SHAPE))
    assert ragged.full_last.math == round((128 * 64 * 40 / 1e6 + 0.1) * 1e6)
    padded = workload(with_parameters(MACHINE, {"pads_k": True}), PipelineKernel(**SHAPE))
    assert padded.full_last == padded.full


def test_a_partial_last_wave_shares_the_device_rate_among_fewer_sms():
    machine = with_parameters(MACHINE, {"device_load_bytes_per_us": 84 * 2e4, "load_startup_us": 0.0})
    work = workload(machine, PipelineKernel(**SHAPE))
    # 128 tiles on 84 SMs: 84 share the rate in the first wave, 44 in the last.
    assert work.full.load_a == pytest.approx(128 * 64 * 2 / 2e4 * 1e6, abs=1)
    assert work.tail.load_a == pytest.approx(128 * 64 * 2 / (84 * 2e4 / 44) * 1e6, abs=1)


def test_multicast_bytes_count_once_for_the_device():
    machine = with_parameters(MACHINE, {"device_load_bytes_per_us": 1e5, "load_startup_us": 0.0})
    alone = workload(machine, PipelineKernel(**SHAPE))
    shared = workload(machine, PipelineKernel(**SHAPE, cluster_m=2, cluster_n=1))
    # B (64 rows) is shared by the two CTAs along m: 128 + 32 of 192 rows are read.
    assert shared.full.load_a / alone.full.load_a == pytest.approx(160 / 192, rel=1e-6)


def test_bytes_that_no_sm_loaded_before_come_at_their_own_rate():
    machine = with_parameters(MACHINE, {"device_fresh_bytes_per_us": 2e4, "load_startup_us": 0.0})
    work = workload(machine, PipelineKernel(**SHAPE))
    # 128 tiles load 192 rows each, 2048 rows are in the matrices: 1 / 12 is fresh. 84 SMs share the rate.
    assert work.full.load_a == pytest.approx(128 * 64 * 2 * 84 / 12 / 2e4 * 1e6, abs=1)


def test_arrays_give_what_scalars_give():
    tiles = np.array([32.0, 64.0, 128.0])
    batch = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": tiles}))
    for row, tile in enumerate(tiles):
        one = workload(MACHINE, PipelineKernel(**{**SHAPE, "tile_m": float(tile)}))
        assert batch.waves[row] == one.waves
        assert batch.full.math[row] == one.full.math
        assert batch.tail_last.load_a[row] == one.tail_last.load_a


def test_packaged_machines_load():
    assert "paper_a6000" in machine_names()
    for name in machine_names():
        assert load_machine(name).name == name


@pytest.mark.parametrize("name", ["m", "n", "k", "stages", "tile_k"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(InputError, match=f"{name} is 0; expected at least 1"):
        workload(MACHINE, PipelineKernel(**{**SHAPE, name: 0}))


def test_unknown_machine_is_refused():
    with pytest.raises(InputError, match="unknown machine 'nope'"):
        load_machine("nope")


def test_tile_space_sorts_its_sizes():
    assert TileSpace(tile_m=(128, 32)).tile_m == (32, 128)


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
