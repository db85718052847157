"""Numbers of rooms: what the package ships, and files that are refused in a sentence."""

import copy
from dataclasses import asdict, dataclass, replace

import pytest
import yaml

from gemm_model.attention.numbers import attention_numbers
from gemm_model.bench.numbers import bench_numbers
from gemm_model.calibration.numbers import calibration_numbers
from gemm_model.choice.numbers import choice_numbers
from gemm_model.config.numbers import NUMBERS_DIR, empirical, load_room_numbers
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import assumed_numbers
from gemm_model.hierarchy.numbers import hierarchy_numbers
from gemm_model.integrations.numbers import integration_numbers
from gemm_model.kernel_model.faults import count_numbers
from gemm_model.kernel_model.numbers import kernel_model_numbers
from gemm_model.kernels.numbers import family_numbers
from gemm_model.overlap.numbers import overlap_numbers
from gemm_model.serving.numbers import serving_numbers
from gemm_model.timeline.numbers import timeline_numbers
from tests.typed_numbers import calibration

SHIPPED = {
    "attention": (
        attention_numbers,
        {
            "exponentials_per_clk": 16,
            "score_slots": 4.59,
            "output_slots": 2.1,
            "masked_slots": 3.5,
            "block_clk": 193,
            "turn_clk": 84,
            "cta_clk": 1265,
            "length_clk": 2000,
            "store_bytes_per_clk": 9.04,
            "overlap_order": 5.34,
            "mma_current": 0.54,
            "mma_sync_share": 0.48,
        },
    ),
    "choice": (
        choice_numbers,
        {
            "cudnn_dilation": 8,
            "cudnn_taps": 32,
            "cudnn_whole_pixels": 3000,
            "cudnn_columns": 64,
            "cudnn_few_channels": 16,
            "cudnn_earlier_tile": 128,
            "cudnn_narrow_tile": 64,
            "cudnn_earlier_k_tile": 32,
            "cudnn_gradient_tile": 64,
            "cudnn_direct_filters": 32,
            "cudnn_direct_k_tile": 8,
            "cudnn_gathered_filters": 32,
            "cudnn_whole_channels": 128,
            "first_look": 1.15,
            "first_look_among": 4,
        },
    ),
    "integrations": (
        integration_numbers,
        {"inductor_pointers": 0.88, "inductor_persistent": 1.0, "inductor_band": 0.4},
    ),
    "hierarchy": (
        hierarchy_numbers,
        {
            "busy_share": 0.7,
            "clocks_between_issues": 2,
            "half_warp_clocks": 2,
            "quarter_warp_clocks": 4,
            "copy_write_wavefronts": 1.5,
            "register_address_instructions": 6.5,
            "asynchronous_address_instructions": 1.6,
            "register_loop_instructions": 2,
            "asynchronous_loop_instructions": 20,
            "naive_loop_instructions": 1,
            "working_registers": 32,
            "mma_working_registers": 24,
            "text_naive_tflops": 1.9,
            "text_tiled_tflops": 3.7,
            "text_register_tflops": 10.7,
            "text_cublas_tflops": 12.1,
        },
    ),
    "serving": (
        serving_numbers,
        {
            "mma_share": 0.39,
            "load_latency_clk": 1405,
            "step_clk": 162.2,
            "tile_us": 3.02,
            "launch_us": 0.7125,
            "empty_us": 0.2782,
            "access_clk": 2.661,
            "l2_merged": 1.478,
            "half_line_share": 0.6727,
            "promote_clk": 3.802,
            "scale_row_clk": 2.25,
            "spill_cost": 2.041,
            "trees_margin": 0.02,
            "formulas_margin": 0.04,
        },
    ),
    "overlap": (
        overlap_numbers,
        {
            "fill_bytes_in_flight": 6 * 1024 * 1024,
            "prefetch_bytes_per_clk": 2500,
            "access_elements": 8192,
            "build_ramp_us": 0.5,
            "fill_delay_clk": 800,
            "cluster_room": 0.9,
            "eight_k_tiles": 6,
            "crowded_k_tiles": 8,
            "four_k_tiles": 4,
            "few_sms": 0.75,
            "most_sms": 0.8,
            "room_beside": 0.1,
            "few_tokens": 0.2,
            "tiles_worth_it": 2,
            "needed_gain": 0.015,
            "no_difference": 0.001,
            "long_wait_us": 1,
            "large_cluster": 4,
        },
    ),
    "kernel_model": (
        kernel_model_numbers,
        {
            "lowest_clock_share": 0.4,
            "first_clock_share": 0.85,
            "steepest_clock_slope": 0.9,
            "fewest_stream_k_tiles": 8,
            "l2_piece_bytes": 64,
            "settled_within": 0.003,
        },
    ),
    "kernels": (
        family_numbers,
        {
            "cublas_pingpong_accumulators": 22528,
            "cudnn_pingpong_accumulators": 128 * 128,
            "four_warp_accumulators": 128 * 128,
            "grouped_accumulators": 64,
            "triton_mmas_ahead": 8,
            "triton_specialized_fill": 0.7,
        },
    ),
    "bench": (
        bench_numbers,
        {
            "assumed_flop_per_us": 3e8,
            "assumed_bytes_per_us": 2e6,
            "assumed_launch_us": 5,
            "row_overhead_ms": 3,
            "counters_row_ms": 120,
            "compile_s": 4,
            "capture_launch_ms": 0.04,
            "granted_clock_share": 0.98,
            "known_l2_share": 1.3,
            "cudnn_cluster_ctas": 120,
            "card_difference": 0.05,
        },
    ),
    "timeline": (timeline_numbers, {"launch_us": 0.6}),
    "counts": (
        count_numbers,
        {
            "time_spread": 0.06,
            "dram_spread": 0.1,
            "l2_read_spread": 0.1,
            "l2_write_spread": 0.05,
            "smem_spread": 0.06,
            "ctas_spread": 0.02,
            "farthest": 4.0,
            "fewest_bytes": 1000000.0,
        },
    ),
    "gpu": (
        assumed_numbers,
        {
            "mma_clk_share": 0.9121,
            "l2_merging_sms": 4,
            "tensor_load_gain": 1.26,
            "graph_launch_us": 0.5,
            "event_pair_us": 3,
            "idle_power_share": 0.186,
            "tensor_interval": 0.17,
            "dram_interval": 0.08,
            "l2_interval": 0.25,
            "sm_interval": 0.3,
            "latency_interval": 0.3,
            "launch_interval": 0.35,
        },
    ),
    "calibration": (
        calibration_numbers,
        {
            "log_noise": 0.03,
            "unknown_share": 0.15,
            "donor_spread": 0.5,
            "fastest_over_sol": 0.98,
            "fast_row_power": 2,
            "slow_row_speed": 0.5,
        },
    ),
}


@pytest.mark.parametrize("room", SHIPPED)
def test_what_the_package_ships(room):
    numbers, values = SHIPPED[room]
    assert asdict(numbers()) == values


def test_every_file_is_a_room_and_every_number_says_where_it_comes_from():
    assert {path.stem for path in NUMBERS_DIR.iterdir()} == set(SHIPPED)
    for path in NUMBERS_DIR.iterdir():
        for entry in yaml.safe_load(path.read_text())["numbers"].values():
            assert entry["meaning"]
            assert entry["source"]
            assert (entry["status"] == "chosen") == entry["source"].startswith("chosen")


def test_what_a_description_does_not_say_is_the_h200_s():
    told = yaml.safe_load((NUMBERS_DIR.parent / "gpu" / "h200.yaml").read_text())
    assumed = {name: value for name, value in asdict(assumed_numbers()).items() if "_interval" not in name}
    assert assumed.pop("idle_power_share") == round(told["idle_power_w"] / told["power_cap_w"], 3)
    # What tensor loads gain over bulk loads is assumed of the H200 too.
    assert assumed.pop("tensor_load_gain") == 1.26
    assert assumed == {name: told[name] for name in assumed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """A share and a count."""

    share: float = empirical("1", 0.0, 1.0)
    tiles: int = empirical("k tiles", 1, 100, whole=True)


RIGHT = {
    "share": {"value": 1, "unit": "1", "status": "chosen", "meaning": "a share", "source": "chosen"},
    "tiles": {"value": 7, "unit": "k tiles", "status": "counted", "meaning": "a count", "source": "SASS"},
}


def loaded(tmp_path, entries):
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({"numbers": entries}))
    return load_room_numbers(path, Two)


def test_whole_numbers_stay_whole_and_others_are_floats(tmp_path):
    found = loaded(tmp_path, RIGHT)
    assert (repr(found.share), repr(found.tiles)) == ("1.0", "7")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.pop("share"), "numbers share are missing or unknown; expected share, tiles"),
        (lambda found: found.update(more=dict(found["share"])), "numbers more are missing or unknown"),
        (lambda found: found["share"].pop("source"), "share is .*; expected a mapping of value, unit"),
        (lambda found: found["tiles"].update(unit="us"), "tiles has unit 'us'; expected 'k tiles'"),
        (
            lambda found: found["tiles"].update(status="guessed"),
            "tiles is 'guessed'; expected one of measured",
        ),
        (lambda found: found["share"].update(value=1.5), "share is 1.5; expected a number of 1 from 0 to 1"),
        (lambda found: found["share"].update(value="0.5"), "share is '0.5'; expected a number"),
        (lambda found: found["tiles"].update(value=2.5), "tiles is 2.5; expected a whole number of k tiles"),
        (lambda found: found["share"].update(value=float("nan")), "not finite|nan|number"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(tmp_path, change, said):
    entries = copy.deepcopy(RIGHT)
    change(entries)
    with pytest.raises(InputError, match=said) as refused:
        loaded(tmp_path, entries)
    assert "\n" not in str(refused.value)


def test_a_file_without_numbers_is_refused(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("values: {}\n")
    with pytest.raises(InputError, match=r"two.yaml: numbers None are missing or unknown"):
        load_room_numbers(path, Two)


@pytest.mark.parametrize(
    ("place", "numbers", "name"),
    [
        ("family_numbers", family_numbers, "four_warp_accumulators"),
        ("kernel_model_numbers", kernel_model_numbers, "lowest_clock_share"),
    ],
)
def test_another_number_gives_a_calibration_another_fingerprint(monkeypatch, place, numbers, name):
    before = calibration().fingerprint()
    others = replace(numbers(), **{name: asdict(numbers())[name] * 1.1})
    monkeypatch.setattr(f"gemm_model.kernel_model.calibration_file.{place}", lambda: others)
    assert calibration().fingerprint() != before
