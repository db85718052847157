from __future__ import annotations

from pathlib import Path

import pytest

from gemm_model.bench.characterization import Measurement, base_gpu, gpu_description, measurement_rows
from gemm_model.cli import main
from gemm_model.config import gpu_names, load_gpu_mapping
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import gpu_from_mapping

CARD = {
    "gpu_name": "NVIDIA H200",
    "sm_count": 130,
    "l2_bytes": 62914560,
    "power_cap_w": 650.0,
    "max_sm_mhz": 1980,
    "mem_mhz": 3201,
}


def measured(name: str, value: float, **parameters: object) -> Measurement:
    return Measurement(name=name, value=value, unit="?", parameters=parameters)


MEASUREMENTS = [
    measured("resident_clusters", 130, cluster_size=1),
    measured("resident_clusters", 31, cluster_size=4),
    measured("resident_clusters", 0, cluster_size=16),
    measured("tensor_throughput", 4093.2, dtype="bf16", mma_n=256, warpgroups=2),
    measured("tensor_throughput", 739.3, dtype="bf16", mma_n=8, warpgroups=1),
    measured("tensor_throughput", 8186.3, dtype="e4m3", mma_n=256, warpgroups=2),
    measured("smem_read_bandwidth", 127.87),
    measured("l2_read_bandwidth", 8900.0, footprint_mib=24, sharers=132),
    measured("l2_read_bandwidth", 9300.0, footprint_mib=4, sharers=132),
    measured("power", 129.9, load="little", sms=0),
    measured("power", 680.0, load="tensor bf16", sms=132),
]


def test_measured_numbers_replace_the_base_and_say_so() -> None:
    base = load_gpu_mapping("h200")
    described = gpu_description(base, CARD, MEASUREMENTS)
    gpu = gpu_from_mapping(described)
    assert gpu.sm_count == 130
    assert dict(gpu.resident_clusters) == {1: 130, 4: 31}
    assert gpu.flop_per_clk_per_sm["fp16"] == 4093
    assert gpu.flop_per_clk_per_sm["fp8"] == 8186
    assert gpu.flop_per_clk_per_sm["tf32"] == base["flop_per_clk_per_sm"]["tf32"]
    assert gpu.l2_gb_per_s == 8900
    assert gpu.idle_power_w == 129.9
    for field in ("sm_count", "resident_clusters", "flop_per_clk_per_sm", "l2_gb_per_s", "power_cap_w"):
        assert gpu.sources[field].startswith("measured")
    assert gpu.sources["dram_bus_bits"] == base["sources"]["dram_bus_bits"]
    assert base == load_gpu_mapping("h200")


def test_the_table_holds_every_parameter() -> None:
    columns, rows = measurement_rows(MEASUREMENTS)
    assert columns[0] == "name"
    assert columns[-2:] == ["value", "unit"]
    assert len(rows) == len(MEASUREMENTS)
    assert {"cluster_size", "dtype", "mma_n", "footprint_mib"} <= set(columns)


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
    ],
)
def test_the_base_is_found_by_name(card: str, name: str) -> None:
    assert base_gpu(card, gpu_names()) == name


def test_an_unknown_card_needs_a_base() -> None:
    with pytest.raises(InputError, match="--base"):
        base_gpu("Somebody's GPU", gpu_names())


def command(*words: str) -> int:
    return main(["characterize", *words])


def test_without_a_gpu_the_exit_code_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="the extra gemm-model[bench] is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    output = tmp_path / "gpu.yaml"
    assert command("--output", str(output)) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not output.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--output", "gpu.txt"),
        ("--output", "g.yaml", "--base", "h201"),
        ("--output", "g.yaml", "gpu.sm_cout=3"),
    ],
)
def test_bad_arguments_are_refused(words: tuple[str, ...]) -> None:
    assert command(*words) == 2
