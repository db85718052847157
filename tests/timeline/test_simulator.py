from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings

from gemm_model.attention.pipeline import StageTimes
from gemm_model.core.errors import InputError
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, workload
from gemm_model.pipeline.steady_state import consumer_wait
from gemm_model.timeline import views
from gemm_model.timeline.attention import simulate_tile
from gemm_model.timeline.simulator import Span, Timeline, simulate
from tests.cases import cases
from tests.pipeline.strategies import machines, workloads


@settings(max_examples=200)
@given(work=workloads(max_waves=8, max_steps=12), machine=machines)
def test_simulation_equals_the_recurrence_event_by_event(work, machine):
    timeline = simulate(work, machine)
    starts = recurrence.run(work, machine)
    assert timeline.end == starts.end == pytest.approx(1e6 * timeline.runtime_us)
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


@settings(max_examples=100)
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
    reasons = {(span.warp, span.reason) for span in waits}
    assert reasons == {("DMA", "a free stage"), ("consumer", "loaded data")}
    pingpong = machine(consumers="pingpong")
    work = workload(pingpong, PipelineKernel(m=256, n=256, k=128, tile_m=64, tile_n=64, tile_k=32, stages=4))
    reasons = {span.reason for span in simulate(work, pingpong).spans if span.kind == "wait"}
    assert "its turn at the tensor cores" in reasons


def test_a_plot_has_a_bar_for_each_event_and_the_stages_that_are_taken(monkeypatch):
    work = workload(machine(), PipelineKernel(m=64, n=64, k=128, tile_m=64, tile_n=64, tile_k=32, stages=1))
    figures = []
    monkeypatch.setattr(views, "save_figure", lambda figure, path, dpi: figures.append(figure))
    views.plot_timeline(simulate(work, machine()), "plot.png", "four k tiles")
    tracks, ring = figures[0].axes
    assert [label.get_text() for label in tracks.get_yticklabels()] == ["launch", "DMA", "consumer"]
    # Launch; loads of A and of B, and waits between them; MMAs, the epilogue, and waits for each k tile.
    assert [len(bars.get_paths()) for bars in tracks.collections] == [1, 4, 4, 3, 4, 1, 4]
    assert tracks.collections[0].get_paths()[0].vertices[:, 0].tolist() == [0.0, 0.0, 2.0, 2.0, 0.0]
    assert len(tracks.lines) == 0
    # Its one stage is taken again when it is free.
    assert ring.lines[0].get_ydata().tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(*cases(__file__, "tiles of attention"))
def test_a_tile_of_attention_ends_as_by_hand(times, shape, ends):
    spans = simulate_tile(StageTimes(**times), **shape)
    assert tuple(span.end for span in spans if span.kind == "pv") == ends


def test_a_trace_of_many_waves_holds_the_first_and_the_last(monkeypatch):
    monkeypatch.setattr(views, "MOST_SLICES", 4)
    places = [(wave, float(2 * wave + part)) for wave in (1, 2, 3) for part in (0, 1)]
    spans = [Span(warp="DMA", kind="math", start=at, end=at + 1, wave=wave) for wave, at in places]
    whole = Timeline(spans=tuple(spans), occupancy=((2.0, 1), (4.5, 0), (6.0, 1)), end=8.0, stages=1)
    found, sms, notes = views.thinned(whole, 3)
    assert ([span.wave for span in found.spans], found.occupancy) == ([1, 1, 3, 3], ((2.0, 1), (6.0, 1)))
    assert (sms, len(notes)) == (1, 2)


def test_occupancy_shares_add_up():
    work = workload(machine(), PipelineKernel(m=64, n=64, k=256, tile_m=64, tile_n=64, tile_k=32, stages=3))
    found = simulate(replace(work, init=0.0), machine())
    assert sum(found.occupancy_share().values()) == pytest.approx(1.0)
    assert views.warps_of(found) == ["DMA", "consumer"]


def test_a_timeline_that_would_not_fit_is_refused():
    work = workload(
        machine(), PipelineKernel(m=2**15, n=2**15, k=2**20, tile_m=64, tile_n=64, tile_k=32, stages=3)
    )
    with pytest.raises(InputError, match="events; expected at most"):
        simulate(work, machine())
