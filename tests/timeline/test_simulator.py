from itertools import pairwise

import pytest
from hypothesis import given, settings

from gemm_model.core.errors import InputError
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, workload
from gemm_model.pipeline.steady_state import consumer_wait
from gemm_model.timeline.simulator import simulate
from tests.pipeline.strategies import machines, workloads


@settings(max_examples=200, deadline=None)
@given(work=workloads(max_waves=8, max_steps=12), machine=machines)
def test_simulation_equals_the_recurrence_event_by_event(work, machine):
    timeline = simulate(work, machine)
    starts = recurrence.run(work, machine)
    assert timeline.end == starts.end
    for kind in ("load_a", "load_b", "math"):
        simulated = sorted(
            (span.wave, span.step, span.start - work.init) for span in timeline.spans if span.kind == kind
        )
        expected = getattr(starts, kind)
        assert [start for *_, start in simulated] == list(expected.ravel())
    epilogues = sorted(
        (span.wave, span.start - work.init) for span in timeline.spans if span.kind == "epilogue"
    )
    assert [start for _, start in epilogues] == list(starts.epilogue)
    assert timeline.consumer_wait() == consumer_wait(work, machine)


@settings(max_examples=100, deadline=None)
@given(work=workloads(max_waves=5, max_steps=10), machine=machines)
def test_ring_and_warps_are_never_overcommitted(work, machine):
    timeline = simulate(work, machine)
    assert all(0 <= taken <= work.stages for _, taken in timeline.occupancy)
    assert timeline.occupancy[-1][1] == 0
    if not machine.counts_last_math:
        return  # The printed formula lets an epilogue overlap its own last math.
    by_warp = {}
    for span in timeline.spans:
        by_warp.setdefault(span.warp, []).append((span.start, span.end))
    for spans in by_warp.values():
        spans.sort()
        assert all(later >= end for (_, end), (later, _) in pairwise(spans))


def machine(**changes):
    return PipelineMachine(
        sm_count=4, mac_per_us=1e6, load_bytes_per_us=1e4, epilogue_us=1.0, init_us=2.0, **changes
    )


def test_waits_say_what_they_were_for():
    work = workload(machine(), PipelineKernel(m=64, n=64, k=128, tile_m=64, tile_n=64, tile_k=32, stages=1))
    waits = [span for span in simulate(work, machine()).spans if span.kind == "wait"]
    assert {(span.warp, span.reason) for span in waits} == {
        ("DMA", "a free stage"),
        ("consumer", "loaded data"),
    }
    pingpong = machine(consumers="pingpong")
    work = workload(pingpong, PipelineKernel(m=256, n=256, k=128, tile_m=64, tile_n=64, tile_k=32, stages=4))
    reasons = {span.reason for span in simulate(work, pingpong).spans if span.kind == "wait"}
    assert "its turn at the tensor cores" in reasons


def test_occupancy_shares_add_up():
    work = workload(machine(), PipelineKernel(m=64, n=64, k=256, tile_m=64, tile_n=64, tile_k=32, stages=3))
    assert sum(simulate(work, machine()).occupancy_share().values()) == pytest.approx(1.0)


def test_a_timeline_that_would_not_fit_is_refused():
    work = workload(
        machine(), PipelineKernel(m=2**15, n=2**15, k=2**20, tile_m=64, tile_n=64, tile_k=32, stages=3)
    )
    with pytest.raises(InputError, match="events; expected at most"):
        simulate(work, machine())
