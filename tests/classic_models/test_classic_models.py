"""Both classic models against the classic readme's printed figures and against numbers derived by hand."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu, predict, predict_table
from gemm_model.core.dtypes import BlockScale, element_type
from tests.cases import calls

test_calls = calls(__file__)
PRINTED = 1e-9

E2M1 = element_type("e2m1")
E8M0_16 = BlockScale(dtype=element_type("e8m0"), vec_size=16)

NVFP4 = GemmProblem(
    m=4096, n=4096, k=16384, a_dtype=E2M1, b_dtype=E2M1, a_scale=E8M0_16, b_scale=E8M0_16,
    out_dtype=element_type("fp32"),
)  # fmt: skip
NVFP4_CONFIG = KernelConfig(cta_m=128, cta_n=64, cluster_m=2, cluster_n=1, schedule="2cta")

FP8 = GemmProblem.of(4096, 7168, 257, "fp8", "fp8")
FP8_CONFIG = KernelConfig(cta_m=64, cta_n=256, cluster_m=2, cluster_n=1, schedule="2cta")

KERNELS = {"nvfp4": (NVFP4, NVFP4_CONFIG), "fp8": (FP8, FP8_CONFIG)}
FIGURES = yaml.safe_load(Path(__file__).with_name("printed.yaml").read_text())


@pytest.mark.parametrize("name", KERNELS)
def test_every_printed_figure_of_the_classic_readme(name):
    result, printed = predict(*KERNELS[name], "b200_1300mhz", "WSPersistentGEMMModel"), FIGURES[name]
    assert result.runtime_us == pytest.approx(printed["predicted_us"], rel=PRINTED)
    assert result.runtime_us / printed["actual_us"] == pytest.approx(printed["ratio"], rel=PRINTED)
    assert result.limiter == printed["limiter"]
    for key, value in printed["details"].items():
        assert result.details[key] == pytest.approx(value, rel=PRINTED), key
    for key, value in printed["phases"].items():
        assert result.phases_us[key] == pytest.approx(value, rel=PRINTED), key
    assert sum(result.phases_us.values()) == pytest.approx(result.runtime_us, rel=1e-12)


def test_sol_is_the_larger_of_math_and_dram_by_hand():
    gpu = load_gpu("b200_1300mhz")
    problem = GemmProblem.of(4096, 4096, 4096, "fp8", "bf16")
    math_us = 2 * 4096**3 / (16384 * 148 * 1300)
    dram_us = (2 * 4096 * 4096 * 1 + 4096 * 4096 * 2) / (8192 / 8 * 2 * 4000)
    result = predict(problem, FP8_CONFIG, gpu, "SOLModel")
    assert result.details["math_us"] == pytest.approx(math_us, rel=1e-12)
    assert result.details["dram_us"] == pytest.approx(dram_us, rel=1e-12)
    assert result.runtime_us == pytest.approx(max(math_us, dram_us), rel=1e-12)
    assert result.limiter == "MATH"


def test_hit_rate_takes_its_share_of_the_load_time_alone():
    base = predict(NVFP4, NVFP4_CONFIG, "b200_1300mhz", "WSPersistentGEMMModel")
    hit = predict(NVFP4, NVFP4_CONFIG, "b200_1300mhz", "WSPersistentGEMMModel", options={"l2_hit_rate": 0.4})
    assert hit.details["load_us"] == pytest.approx(0.6 * base.details["load_us"], rel=1e-12)
    assert hit.details["math_us"] == base.details["math_us"]
    assert hit.details["epilogue_us"] == base.details["epilogue_us"]


def test_tiles_are_rounded_up_to_whole_clusters():
    # 3 tiles along m in clusters of 2 make 4; one along n; so the only wave uses 4 SMs.
    problem, config = GemmProblem.of(300, 64, 64), KernelConfig(cta_m=128, cta_n=64, cluster_m=2)
    result = predict(problem, config, "h200", "WSPersistentGEMMModel", options={"l2_hit_rate": 0.5})
    # Each loads 128 rows and half of 64 columns, of which half hit, and stores 128 x 64 outputs of two bytes.
    assert result.bytes_by_level["dram"] == 4 * ((128 + 32) * 64 * 2 / 2 + 128 * 64 * 2)
    # The first load brings 32 bytes, 16 elements, of each row to these SMs alone.
    first_us = 4 * (128 + 32) * 32 / 2 / load_gpu("h200").dram_bytes_per_us
    assert result.phases_us["first_load"] == pytest.approx(first_us)
    assert result.bytes_by_level["l2"] == 4 * ((128 + 32) * 64 * 2 + 128 * 64 * 2)
    assert result.details["full_waves"] == 0
    assert result.details["last_wave_sms"] == 4


def test_types_that_a_card_lacks_are_refused():
    with pytest.raises(InputError, match="has no fp8 math; expected one of"):
        predict(FP8, FP8_CONFIG, "a100_sxm_80gb", "SOLModel")
    with pytest.raises(InputError, match="has no fp8 math; expected one of"):
        load_gpu("a100_sxm_80gb").flop_per_clk("fp8")
    assert load_gpu("h200").flop_per_clk("fp8") == 8192


def test_a_long_table_is_the_same_as_its_chunks():
    rows = 40_000
    frame = pd.DataFrame({"in_dtype": "bf16", "m": range(1, rows + 1), "n": 512, "k": 512})
    frame[["cta_m", "cta_n", "cluster_m", "cluster_n"]] = (128, 128, 1, 1)
    whole = predict_table(frame, "h200", "WSPersistentGEMMModel")
    part = predict_table(frame.iloc[20_000:20_010], "h200", "WSPersistentGEMMModel")
    pd.testing.assert_frame_equal(whole.iloc[20_000:20_010], part)


def test_whole_waves_have_no_last_wave_and_expose_a_full_epilogue():
    """132 tiles, one on each SM of an H200."""
    wave = GemmProblem.of(132 * 128, 256, 4096)
    found = predict(wave, KernelConfig(cta_m=128, cta_n=256), "h200", "WSPersistentGEMMModel")
    assert found.details["full_waves"] == 1
    assert [found.details[f"last_{part}_us"] for part in ("load", "math", "epilogue")] == [0.0, 0.0, 0.0]
    assert found.phases_us["last_epilogue"] == found.details["epilogue_us"]


def test_one_tile_is_limited_by_what_one_sm_loads():
    """132 SMs would wait for DRAM (4.2 MB a wave at 4.8 TB/s or less); one loads its 32 kB a step at once."""
    found = predict(
        GemmProblem.of(128, 256, 8192), KernelConfig(cta_m=128, cta_n=256), "h200", "WSPersistentGEMMModel"
    )
    assert found.details["full_waves"] == 0
    assert found.details["load_us"] > found.details["math_us"] > found.details["last_load_us"]
    assert found.limiter == "MATH"


def test_speed_of_light_reads_what_an_epilogue_adds():
    """A residual of 4096 x 4096 bf16 values is 33.6 MB more."""
    config = KernelConfig(cta_m=128, cta_n=256)
    plain, fused = (
        predict(problem, config, "h200", "SOLModel")
        for problem in (GemmProblem.of(4096, 4096, 64), GemmProblem.of(4096, 4096, 64, epilogue="residual"))
    )
    more = fused.bytes_by_level["dram"] - plain.bytes_by_level["dram"]
    assert more == 2 * 4096 * 4096
    assert fused.runtime_us > 1.4 * plain.runtime_us
