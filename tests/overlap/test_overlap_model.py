"""The timeline: cases that can be added up by hand, limits, and the measured chains."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_model import GemmProblem, InputError, load_gpu
from gemm_model.config import load_config
from gemm_model.models import create_model
from gemm_model.overlap.config import KernelBuild, OverlapSetting
from gemm_model.overlap.model import (
    PARAMETERS,
    LayerCase,
    OverlapModel,
    OverlapParameters,
    chains_of,
    timeline,
)
from gemm_model.overlap.surfaces import accuracy, cases_of, fit_parameters, read_surfaces

TABLE = Path(__file__).parents[2] / "data/measurements/h200/overlap.csv.gz"
SURFACES, REPEAT = "overlap_surfaces", "overlap_surfaces_repeat"
BUILD = KernelBuild(a_type="e4m3", b_type="e5m2", tile_n=16, split_k=1, stages=10, clusters=128)
NONE = OverlapSetting(overlap_ratio=-1, prefetch_ratio=0)


@pytest.fixture(scope="module")
def gpu():
    return load_gpu("h200")


@pytest.fixture(scope="module")
def options():
    return load_config([], {"gpu": "h200", "model": "OverlapModel"})["model_opts"]


@pytest.fixture(scope="module")
def model(gpu, options):
    found = create_model("OverlapModel", gpu, options)
    assert isinstance(found, OverlapModel)
    return found


def surfaces(*campaigns):
    return read_surfaces(TABLE, campaigns=campaigns)


def case(**changes):
    return replace(LayerCase(m=8192, n=16, k=8192, build=BUILD, setting=NONE), **changes)


RATES = ("dram_bytes_per_us", "l2_bytes_per_us", "activation_bytes_per_us", "sm_bytes_per_us")


@pytest.fixture
def simple(gpu, options):
    """A model by hand: rates that bound nothing, a tail of 3 us, a chain's start of 1 us, and what is given."""

    def model(layers=16, **given):
        values = dict.fromkeys(options["parameters"], 0.0)
        values |= dict.fromkeys((*RATES, "packed_sm_bytes_per_us"), 1e15) | {"tail_us": 3.0, "chain_us": 1.0}
        return create_model("OverlapModel", gpu, {**options, "parameters": values | given, "layers": layers})

    return model


def test_serialized_layer_is_the_sum_of_its_parts(simple):
    model = simple(
        **{"dram_bytes_per_us": 4e6, "sm_bytes_per_us": 6e4, "packed_sm_bytes_per_us": 6e4, "chain_us": 2.0},
        **{"serial_launch_us": 2.0, "previous_us": 1.0, "read_us": 0.5, "head_us": 0.25, "step_us": 0.01},
        **{"loaded_read_us": 9.0, "loaded_store_us": 9.0},
    )
    # launch, one read of 8192 elements, 5 us more, stores; launch, head, 64 MiB at 4 TB/s, tail.
    expected = 2 + 0.5 + 5 + 1 + 2 + 0.25 + 8192 * 8192 / 4e6 + 3
    assert model.layer_us([case(serialized=True, extra_us=5.0)])[0] == pytest.approx(expected)


def test_layers_beside_each_other_are_packed(simple):
    """After an endless norm a layer takes its bytes beyond the rings over the rate of its SMs."""
    model = simple(4, packed_sm_bytes_per_us=4e4)
    part = case(m=5120, k=5120, build=replace(BUILD, split_k=2, clusters=80), extra_us=500.0)
    early = replace(part, setting=OverlapSetting(overlap_ratio=0.5, prefetch_ratio=0))
    # Half of the 20 K tiles of a CTA are in its ring. A chain's first layer has nothing beside it.
    beyond = 5120 * 5120 / 2
    packed, alone = (500 + beyond / (sms * 4e4) + 3 for sms in (80, 116))
    assert model.layer_us([part])[0] == pytest.approx((1 + 4 * alone) / 4)
    assert model.layer_us([early])[0] == pytest.approx((1 + alone + 3 * packed) / 4)


@pytest.mark.parametrize(("sm_rate", "one_sm_alone_us"), [(1e9, 0.0), (2.5e4, 5.94)])
def test_ctas_kept_out_of_their_sms_start_with_empty_rings(gpu, simple, sm_rate, one_sm_alone_us):
    """One CTA an SM, no trigger: each norm starts on empty SMs and keeps 12 of 128 CTAs out until it ends."""
    model = simple(3, dram_bytes_per_us=4e6, sm_bytes_per_us=sm_rate)
    deep = case(build=replace(BUILD, stages=20), extra_us=500.0)
    weights, k_tiles = 8192 * 8192, 64
    assert chains_of([deep], gpu).blocked_share[0] == pytest.approx(12 / 128)

    def main_us(blocked):
        """Bytes beyond the rings at DRAM's rate."""
        return weights * (1 - (1 - blocked) * 20 / k_tiles) / 4e6

    def alone_us(blocked):
        """What one SM has not got of its 128th by then comes at its own rate; twelve started late."""
        return max(weights / 128 - main_us(blocked) * 4e6 / 128, 0.0) / sm_rate

    layer_us = 500 + main_us(12 / 128) + alone_us(12 / 128) + 3
    assert alone_us(12 / 128) == pytest.approx(one_sm_alone_us, abs=0.01)
    assert model.layer_us([deep])[0] == pytest.approx((1 + 3 * layer_us) / 3, rel=1e-6)


def test_a_fill_that_begins_later_leaves_less_in_the_rings(simple):
    """The norm lasts 2 of the 2.6 us in which the rings fill; 1980 clocks are one of them."""
    late = case(build=replace(BUILD, fill_delay_clocks=1980), extra_us=2.0)
    soon_us, late_us = simple(3, dram_bytes_per_us=4e6).layer_us([case(extra_us=2.0), late])
    assert late_us - soon_us == pytest.approx(1.0)


@settings(max_examples=60)
@given(
    m=st.integers(8, 800).map(lambda x: 64 * x),
    k=st.integers(4, 120).map(lambda x: 128 * x),
    overlap=st.one_of(st.just(-1.0), st.floats(0, 1)),
    prefetch=st.one_of(st.just(-1.0), st.floats(0, 1)),
    extra=st.floats(0, 40),
)
def test_no_chain_beats_dram_and_prefetch_adds_up(model, m, k, overlap, prefetch, extra):
    build = replace(BUILD, clusters=max(m // 64, 1))
    one = case(
        m=m, k=k, build=build, extra_us=extra,
        setting=OverlapSetting(overlap_ratio=overlap, prefetch_ratio=prefetch),
    )  # fmt: skip
    line = model.timeline([one, replace(one, serialized=True)])
    weights = m * k
    assert line.layer_us[0] > weights / model.parameters.dram_bytes_per_us * (1 - 1 / model.layers)
    assert line.layer_us[0] > extra
    assert np.all(line.prefetched_bytes >= line.wasted_bytes - 1e-6)
    assert np.all(line.prefetched_bytes <= weights)
    assert np.all(line.prefetched_bytes[:, 1] == 0)
    for earlier, later in (
        ("previous_start", "previous_waited"),
        ("previous_waited", "previous_end"),
        ("previous_end", "gemm_waited"),
        ("gemm_start", "gemm_waited"),
        ("gemm_waited", "streamed"),
        ("streamed", "gemm_end"),
    ):
        assert np.all(getattr(line, earlier) <= getattr(line, later) + 1e-9)
    assert np.all(np.diff(line.gemm_end, axis=0) > 0)


def test_a_long_previous_kernel_hides_the_ring_fill(model):
    """With an endless previous kernel a layer costs what is left: everything but the bytes in the rings."""
    deep = case(extra_us=500.0)
    shallow = case(extra_us=500.0, build=replace(BUILD, stages=2))
    saved = np.subtract(*model.layer_us([shallow, deep]))
    bytes_saved = 128 * (10 - 2) * 64 * 128
    p = model.parameters
    assert saved == pytest.approx(bytes_saved / p.dram_bytes_per_us * (1 + p.unfairness), rel=1e-6)


def test_model_of_the_registry_predicts_a_gemm(model):
    from gemm_model.core.batch import batch_of
    from gemm_model.core.kernel_config import KernelConfig

    problem = GemmProblem.of(16, 8192, 8192, "e4m3", "bf16")
    prediction = model.predict_batch(batch_of([(problem, KernelConfig(cta_m=64, cta_n=16))])).row(0)
    assert sum(prediction.phases_us.values()) == pytest.approx(prediction.runtime_us)
    assert 15 < prediction.runtime_us < 25
    assert (prediction.limiter, prediction.bytes_by_level["dram"]) == ("WEIGHTS", 8192 * 8192)


def test_bad_models(gpu, options):
    with pytest.raises(InputError, match="Hopper"):
        create_model("OverlapModel", load_gpu("a100_sxm_80gb"), options)
    with pytest.raises(InputError, match="layers must be at least 1"):
        create_model("OverlapModel", gpu, {**options, "layers": 0})
    parameters = {k: v for k, v in options["parameters"].items() if k != "launch_us"}
    with pytest.raises(InputError, match="parameters launch_us are missing or unknown"):
        create_model("OverlapModel", gpu, {**options, "parameters": parameters})
    with pytest.raises(InputError, match="extra time"):
        case(extra_us=-1.0)


def test_fit_starts_inside_its_bounds():
    for each in PARAMETERS.values():
        low, guess, high = each["bounds"]
        assert low <= guess <= high


def test_the_best_of_all_starts_is_taken(gpu, monkeypatch):
    """Of a table that the guesses predict the first start, which they are, leaves nothing."""
    guess = {name: each["bounds"][1] for name, each in PARAMETERS.items()}
    chains = chains_of(cases_of(table := surfaces(SURFACES).head(57), gpu), gpu)
    layer_us = timeline(chains, OverlapParameters(**guess), gpu.l2_bytes, 16).layer_us
    starts = []

    def solve(residuals, start, bounds, **_):
        starts.append(start)
        assert ((bounds[0] < start) & (start < bounds[1])).all()
        return SimpleNamespace(cost=np.abs(residuals(start)).sum(), x=start)

    monkeypatch.setattr("scipy.optimize.least_squares", solve)
    found = fit_parameters(table.assign(layer_us=layer_us), gpu, starts=3)
    assert vars(found) == pytest.approx(guess)
    assert np.log(starts[1] / starts[0]).std() == pytest.approx(0.3, abs=0.15)


EARLIER = ("overlap_earlier_test", "overlap_earlier_test_repeat")
FURTHER = ("overlap_other_shapes", "overlap_other_shapes_repeat")


@pytest.mark.parametrize(
    ("tables", "count", "mean", "largest", "regret", "beyond"),
    [
        ((SURFACES, REPEAT), 45, 0.04, 0.10, 0.03, 0),
        pytest.param((SURFACES,), 45, 0.04, 0.10, 0.03, 0, marks=pytest.mark.slow),
        pytest.param((REPEAT,), 45, 0.04, 0.10, 0.03, 0, marks=pytest.mark.slow),
        pytest.param(FURTHER, 46, 0.055, np.inf, 0.03, 0, marks=pytest.mark.slow),
        pytest.param(("overlap_test_shapes",), 52, 0.068, np.inf, 0.03, 0, marks=pytest.mark.slow),
        pytest.param(("overlap_test_shapes_repeat",), 40, 0.068, np.inf, 0.03, 0, marks=pytest.mark.slow),
        pytest.param(("overlap_earlier_other",), 22, 0.04, 0.10, 0.06, 2, marks=pytest.mark.slow),
        pytest.param(EARLIER, 24, 0.06, np.inf, 0.06, 1, marks=pytest.mark.slow),
    ],
)
def test_measured_chains_are_predicted(model, gpu, tables, count, mean, largest, regret, beyond):
    """Each run and means of runs: the error, and the tuner's pick by the model alone. The last four are of
    shapes and builds that nothing was fitted to.
    """
    rows = accuracy(surfaces(*tables), gpu, model.parameters)
    assert len(rows) == count
    assert (rows["settings"] == 56).all()
    assert (rows["k"] > 0).all()
    assert rows["mean_error"].mean() < mean
    assert rows["mean_error"].max() < largest
    assert (rows["pick_us"] <= rows["serialized_us"]).all()
    assert rows["regret"].max() <= regret
    assert (rows["regret"] > 0.03).sum() <= beyond


def test_runs_of_the_same_cases_are_averaged(tmp_path):
    one, two, both = surfaces(SURFACES), surfaces(REPEAT), surfaces(SURFACES, REPEAT)
    assert both["layer_us"].to_numpy() == pytest.approx((one["layer_us"] + two["layer_us"]).to_numpy() / 2)
    path = tmp_path / "short.csv"
    full = tmp_path / "full.csv"
    one.head(60).to_csv(full, index=False)
    one.head(57).to_csv(path, index=False)
    with pytest.raises(InputError, match="expected the same cases in the same order"):
        read_surfaces(full, path)


def test_cases_keep_the_rows(model):
    table = surfaces(SURFACES).head(3).copy()
    table["serialized"] = [0, 1, 0]
    cases = cases_of(table, load_gpu("h200"))
    assert [c.m for c in cases] == table["m"].tolist()
    assert [c.build.dependent_launch for c in cases] == [True, False, True]


def test_bad_surfaces(tmp_path):
    path = tmp_path / "table.csv"
    with pytest.raises(InputError, match="no such file"):
        read_surfaces(path)
    path.write_text("no\ntable,\nbut, some, text\n")
    with pytest.raises(InputError, match="line 2 has 2 fields") as refused:
        read_surfaces(path)
    assert "\n" not in str(refused.value)
    path.write_text("m,n,k\n1,2,3\n")
    with pytest.raises(InputError, match="columns 'split_k', 'stages', 'clusters'"):
        read_surfaces(path)
    table = surfaces(SURFACES).drop(columns="surface").head(2)
    table.iloc[1, list(table).index("layer_us")] = 0
    table.head(2).to_csv(path, index=False)
    with pytest.raises(InputError, match="line 3, column layer_us"):
        read_surfaces(path)
