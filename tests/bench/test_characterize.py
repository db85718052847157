from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gemm_model.bench.characterization import (
    Readings,
    agreed,
    base_gpu,
    columns_of,
    gpu_description,
    measured,
    require_agreement,
)
from gemm_model.cli import main
from gemm_model.config import gpu_names, load_gpu_mapping
from gemm_model.core.gpu import gpu_from_mapping, load_gpu
from gemm_model.errors import InputError
from tests.cases import cases

CARD, PASS = yaml.safe_load(Path(__file__).with_name("characterized.yaml").read_text()).values()
READINGS = Readings(**PASS)


def reading(**numbers):
    return replace(READINGS, numbers={**READINGS.numbers, **numbers})


def test_measured_numbers_replace_the_base_and_say_so():
    base = load_gpu_mapping("h200")
    described = gpu_description(base, CARD, agreed(READINGS, reading(l2_read_gb_per_s=8950.0)))
    gpu = gpu_from_mapping(described)
    assert dict(gpu.resident_clusters) == {1: 132, 4: 31}
    assert (gpu.flop_per_clk_per_sm["fp16"], gpu.flop_per_clk_per_sm["fp8"]) == (4093, 8186)
    assert gpu.flop_per_clk_per_sm["tf32"] == base["flop_per_clk_per_sm"]["tf32"]
    assert gpu.l2_read_gb_per_s == 8910
    assert gpu.l2_read_bytes_per_clk_of_eight == 80.1
    assert gpu.sm_clk_mhz == 1980
    assert gpu.mma_clk_share == 0.9121
    assert gpu.event_pair_us == 3.64
    assert gpu.power_cap_w == 650
    assert gpu.idle_power_w == 130
    for field in (*READINGS.numbers, "resident_clusters", "flop_per_clk_per_sm", "power_cap_w"):
        assert gpu.sources[field].startswith("measured")
    assert gpu.sources["dram_bus_bits"] == base["sources"]["dram_bus_bits"]
    assert base == load_gpu_mapping("h200")


def test_a_locked_clock_is_described_as_it_runs():
    described = gpu_description(load_gpu_mapping("h200"), CARD, reading(sm_clk_mhz=1304.0))
    assert described["sm_clk_mhz"] == 1304


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            reading(l2_read_gb_per_s=7000.0),
            "l2_read_gb_per_s read 8870, then 7000 .*1980.*throttled by: none",
        ),
        (reading(sm_clk_mhz=1410.0), "sm_clk_mhz read 1976, then 1410"),
        (replace(READINGS, tensor_flop_per_clk={"fp16": 4093.0, "fp8": 6000.0}), "flop_per_clk_per_sm.fp8"),
    ],
)
def test_a_disturbed_card_is_refused(second, words):
    with pytest.raises(InputError, match=words):
        agreed(READINGS, second)


@pytest.mark.parametrize(*cases(__file__, "test_a_driver_that_contradicts_the_description_is_heard"))
def test_a_driver_that_contradicts_the_description_is_heard(change, words):
    with pytest.raises(InputError, match=words):
        require_agreement(load_gpu("h200"), CARD | change)


def test_a_driver_that_agrees_or_does_not_tell_is_no_contradiction():
    require_agreement(load_gpu("h200"), CARD | {"dram_bus_bits": None, "l2_bytes": 52428800})


def test_the_table_holds_every_parameter():
    found = [
        measured("smem_read_bandwidth", 127.8749999, "B/clk"),
        measured("power", 680.04, "W", load="bf16"),
    ]
    assert columns_of(found) == ["name", "load", "value", "unit"]
    assert [row["value"] for row in found] == [127.875, 680.04]


@pytest.mark.parametrize(*cases(__file__, "test_the_base_is_found_by_name"))
def test_the_base_is_found_by_name(card, name):
    assert base_gpu(card, {each: load_gpu_mapping(each) for each in gpu_names()}) == name


def test_an_unknown_card_needs_a_base():
    with pytest.raises(InputError, match="--base"):
        base_gpu("Somebody's GPU", {"h200": load_gpu_mapping("h200")})
    twice = {name: load_gpu_mapping("h200") for name in ("h200", "mine")}
    with pytest.raises(InputError, match="config/gpu/mine.yaml: device_names holds 'NVIDIA H200'; expected"):
        base_gpu("NVIDIA H200", twice)


def command(*words):
    return main(["characterize", *words])


def test_without_a_gpu_the_exit_code_is_3(tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    output = tmp_path / "gpu.yaml"
    assert command("--output", str(output)) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not output.exists()
