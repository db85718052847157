import numpy as np
import pandas as pd
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig
from gemm_model.pipeline.machine import PipelineKernel, PipelineMachine, load_machine, workload
from gemm_model.timeline.rates import machine_of_traces, observed
from gemm_model.timeline.simulator import simulate
from gemm_model.timeline.trace import Trace, TraceInfo, kernel_identity, new_rows, write_trace_table

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
