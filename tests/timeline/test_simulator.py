from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from gemm_model import GemmProblem, InputError, KernelConfig
from gemm_model.attention.pipeline import StageTimes
from gemm_model.pipeline import recurrence
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, load_machine, workload
from gemm_model.pipeline.steady_state import consumer_wait
from gemm_model.timeline import views
from gemm_model.timeline.attention import simulate_tile
from gemm_model.timeline.rates import machine_of_traces, observed
from gemm_model.timeline.simulator import Span, Timeline, simulate
from gemm_model.timeline.trace import Trace, TraceInfo, kernel_identity, new_rows, write_trace_table
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


@pytest.mark.parametrize(*cases(__file__, "waves of a trace"))
def test_a_trace_of_many_waves_holds_the_first_and_the_last(monkeypatch, waves, shown, times):
    monkeypatch.setattr(views, "MOST_SLICES", 4)
    spans = [Span(warp="DMA", kind="math", start=at, end=at + 1, wave=wave) for at, wave in enumerate(waves)]
    whole = Timeline(spans=tuple(spans), occupancy=((0, 1), (2.5, 0), (4, 1)), end=8.0, stages=1)
    found, sms, notes = views.thinned(whole, 3)
    assert tuple(span.wave for span in found.spans) == shown
    assert (tuple(time for time, _ in found.occupancy), sms, len(notes)) == (times, 1, 2)


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


MATH_BOUND = PipelineMachine(
    sm_count=4, mac_per_us=4e6, math_startup_us=0.02, load_bytes_per_us=4e5, epilogue_us=0.5,
    epilogue_elements_per_us=1e4, init_us=1.5, consumers="cooperative",
)  # fmt: skip
LOAD_BOUND = PipelineMachine(
    sm_count=4, mac_per_us=4e7, load_bytes_per_us=5e4, load_startup_us=0.04, epilogue_us=0.5,
    consumers="cooperative",
)  # fmt: skip


def trace_of_machine(machine, tile_m, tile_n, tile_k=64, k=1024):
    """One SM of a pipeline machine, simulated, in the format of traces."""
    problem = GemmProblem.of(4 * tile_m, tile_n * 3, k, "bf16")
    sizes = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": tile_k}
    work = workload(machine, PipelineKernel(m=problem.m, n=problem.n, k=k, stages=4, **sizes))
    line = simulate(work, machine)
    spans = [span for span in line.spans if span.warp == "consumer"]
    common = {"sm": 0, "cta": 0, "role": "consumer 1"}

    def rows(of, **more):
        start_us, end_us = (np.array([getattr(span, end) for span in of]) / 1e6 for end in ("start", "end"))
        tile = np.array([span.wave - 1 for span in of])
        return new_rows(len(of), tile=tile, start_us=start_us, end_us=end_us, **common, **more)

    math = [span for span in spans if span.kind == "math"]
    tables = [
        rows(math, activity="mma", k_tile=np.array([span.step - 1 for span in math])),
        rows([span for span in spans if span.kind == "epilogue"], activity="epilogue"),
    ]
    # A tile's MMAs: from its first to the end of its last, with the waits between.
    for wave in range(1, int(work.waves) + 1):
        own = [span for span in math if span.wave == wave]
        busy = sum(span.end - span.start for span in own)
        whole = rows(own[:1], activity="mma").assign(end_us=own[-1].end / 1e6)
        tables.append(whole.assign(waited_us=whole["end_us"] - whole["start_us"] - busy / 1e6))
    config = KernelConfig(cta_m=tile_m, cta_n=tile_n)
    info = TraceInfo(
        source="predicted", gpu="machine", kernel=kernel_identity(problem, config), k_tiles=int(work.steps),
        stages=4, runtime_us=line.runtime_us,
    )  # fmt: skip
    return Trace(info=info, rows=pd.concat(tables, ignore_index=True))


def test_two_tiles_tell_rates_and_startups_of_a_simulated_machine():
    traces = [trace_of_machine(MATH_BOUND, 64, 64), trace_of_machine(MATH_BOUND, 128, 128)]
    machine, estimates = machine_of_traces(traces)
    assert machine.mac_per_us == pytest.approx(4e6, rel=1e-4)
    assert machine.math_startup_us == pytest.approx(0.02, rel=1e-4)
    assert machine.epilogue_us == pytest.approx(0.5, rel=1e-4)
    assert machine.epilogue_elements_per_us == pytest.approx(1e4, rel=1e-4)
    for estimate in estimates:
        assert estimate.identified
        assert estimate.low <= estimate.value * (1 + 1e-9)
        assert estimate.value <= estimate.high * (1 + 1e-9)
    # Nothing waits for loads: they set no pace, and nothing is said of them.
    assert "load_bytes_per_us" not in {estimate.name for estimate in estimates}


def test_loads_that_mmas_wait_for_tell_the_load_rate():
    traces = [trace_of_machine(LOAD_BOUND, 64, 64), trace_of_machine(LOAD_BOUND, 128, 128)]
    machine, _ = machine_of_traces(traces)
    assert machine.load_bytes_per_us == pytest.approx(5e4, rel=0.02)
    # A k tile of A and one of B: each has a startup.
    assert machine.load_startup_us == pytest.approx(2 * 0.04, rel=0.1)


def test_one_trace_tells_the_rate_alone():
    # A k tile of 64 and one of 32.
    machine, estimates = machine_of_traces([trace_of_machine(MATH_BOUND, 128, 128, k=96)])
    macs = 128 * 128 * 48
    assert machine.mac_per_us == pytest.approx(macs / (macs / 4e6 + 0.02), rel=1e-4)
    assert [e.name for e in estimates if not e.identified] == ["math_startup_us", "epilogue_us"]


def test_intervals_hold_the_median_of_scattered_times():
    times = np.random.default_rng(7).normal(2.0, 0.1, 101)
    seen = observed(1.0, times)
    assert seen is not None
    # From 1: rank 50.5 - 1.96 sqrt(101)/2 = 40.7, the 40th, and the 40th from the other end.
    assert seen.low_us == np.sort(times)[39]
    assert seen.high_us == np.sort(times)[61]
    assert seen.low_us < seen.time_us < seen.high_us
    assert observed(1.0, np.array([])) is None


def test_the_machine_has_the_sms_of_the_trace_however_many_ctas_each_ran():
    trace = trace_of_machine(MATH_BOUND, 64, 64)
    copies = [trace.rows.assign(cta=cta, sm=cta % 3) for cta in range(6)]
    machine, _ = machine_of_traces([Trace(info=trace.info, rows=pd.concat(copies, ignore_index=True))])
    assert machine.sm_count == 3


def test_the_command_writes_a_machine_that_can_be_used(tmp_path, answer):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv.gz"]
    for path, tile in zip(paths, (64, 128), strict=True):
        write_trace_table(trace_of_machine(MATH_BOUND, tile, tile), path)
    mine = tmp_path / "mine.yaml"
    answer("estimate", "--traces", *paths, "--output", mine)
    assert load_machine(str(mine)).mac_per_us == pytest.approx(4e6, rel=0.01)


def test_traces_without_mmas_are_refused():
    trace = trace_of_machine(MATH_BOUND, 64, 64)
    empty = Trace(info=trace.info, rows=trace.rows[trace.rows["activity"] == "epilogue"])
    with pytest.raises(InputError, match="show no MMAs"):
        machine_of_traces([empty])
    with pytest.raises(InputError, match="no trace is given"):
        machine_of_traces([])
