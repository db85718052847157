import inspect
from dataclasses import replace

import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu, predict
from gemm_model.config import load_config
from gemm_model.core.batch import batch_of
from gemm_model.models import create_model
from gemm_model.pipeline.machine import CONSUMERS
from gemm_model.pipeline.model import PipelineModel
from gemm_model.timeline.simulator import simulate
from tests.cases import cases

H200 = load_gpu("h200")
PROBLEM = GemmProblem.of(4096, 2048, 2048)
CONFIG = KernelConfig(cta_m=128, cta_n=128)
# Round figures: 1980 MHz, 4096 FLOP per clock, 128 x 128 x 64 per k tile, 32 KiB loaded per k tile.
PLAIN = {
    "launch_us": 5.0, "math_efficiency": 1.0, "math_startup_clk": 0.0, "load_bytes_per_clk": 64.0,
    "load_startup_clk": 0.0, "load_latency_clk": 0.0, "device_load_efficiency": 1e6, "dram_efficiency": 1e6,
    "epilogue_clk": 0.0, "epilogue_elements_per_clk": 16.0,
}  # fmt: skip


def test_cooperative_kernel_by_hand():
    # 512 tiles on 132 SMs: 4 tiles of 32 k tiles. Math takes 2 x 128 x 128 x 64 / 4096 = 512 clk a step,
    # loads as long; the epilogue stores 16 elements a clock. Loads run ahead under the epilogues.
    found = predict(PROBLEM, CONFIG, H200, "PipelineModel", options=PLAIN)
    clk = 512 + 4 * 32 * 512 + 4 * 128 * 128 / 16
    assert found.runtime_us == pytest.approx(5.0 + clk / 1980, rel=1e-6)
    assert found.details["stages"] == 6
    assert found.details["waves"] == 4
    assert sum(found.phases_us.values()) == pytest.approx(found.runtime_us)


def test_pingpong_hides_all_epilogues_but_the_last():
    config = KernelConfig(cta_m=128, cta_n=128, schedule="pingpong")
    found = predict(PROBLEM, config, H200, "PipelineModel", options=PLAIN)
    clk = 512 + 4 * 32 * 512 + 128 * 128 / 16
    assert found.runtime_us == pytest.approx(5.0 + clk / 1980, rel=1e-6)


@pytest.mark.parametrize(*cases(__file__, "test_the_limiter_is_what_sets_the_rhythm"))
def test_the_limiter_is_what_sets_the_rhythm(options, limiter):
    assert predict(PROBLEM, CONFIG, H200, "PipelineModel", options={**PLAIN, **options}).limiter == limiter


def test_prediction_is_the_simulated_time():
    model = create_model("PipelineModel", H200)
    for schedule in ("cooperative", "pingpong"):
        batch = batch_of([(PROBLEM, KernelConfig(cta_m=128, cta_n=192, cluster_m=2, schedule=schedule))])
        machine = model.machine_of(batch, CONSUMERS[int(model.consumers_of(batch)[0])])
        timeline = simulate(model.work_of(batch, machine).row(0), machine)
        assert model.predict_batch(batch).runtime_us[0] == timeline.runtime_us


def test_more_stages_help_where_latency_decides():
    options = {**PLAIN, "load_latency_clk": 3000.0}
    times = [
        predict(
            PROBLEM, KernelConfig(cta_m=128, cta_n=128, stages=stages), H200, "PipelineModel", options=options
        ).runtime_us
        for stages in (2, 3, 4, 5, 6)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]


def test_multicast_helps_where_the_device_rate_decides():
    options = {**PLAIN, "device_load_efficiency": 3000 / 8873}
    single = predict(PROBLEM, CONFIG, H200, "PipelineModel", options=options)
    pair = predict(
        PROBLEM, KernelConfig(cta_m=128, cta_n=128, cluster_m=2), H200, "PipelineModel", options=options
    )
    assert pair.runtime_us < 0.85 * single.runtime_us
    assert pair.bytes_by_level["l2"] == pytest.approx(0.75 * single.bytes_by_level["l2"])


@pytest.mark.parametrize("gpu", ["a100_sxm_80gb", "b200_sxm", "rtx_4090", "rtx_a6000"])
def test_other_gpus_give_finite_times(gpu):
    found = predict(PROBLEM, CONFIG, gpu, "PipelineModel")
    assert np.isfinite(found.runtime_us)
    assert found.runtime_us > 0


def test_defaults_are_those_of_the_configuration():
    defaults = {name: spec.default for name, spec in inspect.signature(PipelineModel).parameters.items()}
    defaults |= PipelineModel(H200).rates
    options = load_config(["model=PipelineModel"])["model_opts"]
    assert options.pop("parameters") == {}
    assert {name: defaults[name] for name in options} == options


def test_a_tile_without_room_for_a_stage_is_refused():
    batch = batch_of([(PROBLEM, KernelConfig(cta_m=1024, cta_n=1024))])
    with pytest.raises(InputError, match="leaves no room for a pipeline stage"):
        create_model("PipelineModel", H200).predict_batch(batch)


def test_figures_of_another_gpu_are_said_to_be():
    assert not any("fitted" in words for words in predict(PROBLEM, CONFIG, H200, "PipelineModel").caveats)
    assert any(
        "fitted on h200" in words for words in predict(PROBLEM, CONFIG, "b200_sxm", "PipelineModel").caveats
    )


def test_a_split_deals_k_to_two_ctas():
    """One output tile of 64 k tiles: two CTAs take 32 each, at once."""
    problem = GemmProblem.of(128, 128, 4096)
    whole, split = (
        predict(problem, replace(CONFIG, split_k=parts), H200, "PipelineModel", options=PLAIN)
        for parts in (1, 2)
    )
    assert whole.runtime_us - split.runtime_us == pytest.approx(32 * 512 / 1980, rel=1e-6)


def test_each_load_keeps_its_warp_busy_for_a_startup():
    """A k tile has two loads: of 100 clocks each, its 512 clocks of bytes become 712, more than its math."""
    problem = GemmProblem.of(128, 128, 4096)
    slow = predict(problem, CONFIG, H200, "PipelineModel", options=PLAIN | {"load_startup_clk": 100.0})
    # The last math follows the last load.
    clk = 64 * 712 + 512 + 128 * 128 / 16
    assert slow.runtime_us == pytest.approx(5.0 + clk / 1980, rel=1e-6)
