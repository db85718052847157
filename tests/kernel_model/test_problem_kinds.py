"""What goes beyond a plain product, in tiles, bytes and clocks worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm_model as gm
from gemm_model.config.mechanisms import KIND_MECHANISMS, NUMBERS
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.errors import InputError
from gemm_model.kernel_model.calibration_file import as_mapping, load_calibration
from gemm_model.kernel_model.epilogue import epilogue_clk, fused_clk, stall_of, tile_by_tile_clk
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time
from gemm_model.kernel_model.mainloop import k_tile
from gemm_model.kernel_model.tile_schedule import tile_schedule
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from gemm_model.models import create_model
from tests.cases import cases
from tests.kernel_model.kernels import H200, found_of, kernel_of, schedule_of, times_of
from tests.typed_numbers import VALUES, calibration, numbers

KERNEL = gm.KernelConfig(cta_m=128, cta_n=128)
PAIRS = gm.KernelConfig(cta_m=128, cta_n=256, cluster_m=2)
CONV = "fprop n=8 c=96 h=28 w=28 k=256 r=3 s=3 pad=1"


def work(m=4096, n=4096, k=4096, config=KERNEL, dtype="bf16", **kinds):
    return numbers_of(gm.GemmProblem.of(m, n, k, dtype, **kinds), config)


def conv(text=CONV, config=KERNEL):
    return numbers_of(gm.GemmProblem.of_conv(text), config)


def test_no_tile_holds_the_rows_of_two_groups():
    # Clusters of 256 rows: 2 + 1 + 0 + 1 of them, by 4096 / 256 = 16 along n.
    schedule = schedule_of(work(828, config=PAIRS, groups="512,300,0,16"))
    # 300 rows take 2 clusters: 2 + 2 + 0 + 1 = 5.
    assert schedule.tiles == 5 * 16
    # Behind rows 512 and 812 lie others; of the last cluster, which begins at 812, 16 rows are in A, and of
    # the second one of the 300 rows, which begins at 768, 60: 196 + 240 of 5 x 256 rows are none.
    assert schedule.filled_m == pytest.approx(1 - (196 + 240) / 1280)
    assert schedule.filled_n == 1.0
    masked = gm.GroupedGemm.parse("512,300,0,16", "masked", 512)
    problem = gm.GemmProblem.of(828, 4096, 4096, groups=masked)
    # The last group begins at 3 x 512, and has 512 rows.
    assert schedule_of(numbers_of(problem, PAIRS)).filled_m == 1.0


@given(
    rows=st.lists(st.integers(0, 900), min_size=2, max_size=40).filter(any),
    n=st.integers(1, 3000),
    cluster_m=st.sampled_from([1, 2]),
)
@settings(max_examples=60)
def test_tiles_of_groups_are_those_of_the_loop_over_groups(rows, n, cluster_m):
    config = gm.KernelConfig(cta_m=128, cta_n=64, cluster_m=cluster_m)
    text = ",".join(map(str, rows))
    tiles = sum(-(-each // (128 * cluster_m)) for each in rows) * -(-n // 64)
    assert schedule_of(work(sum(rows), n, 64, config, groups=text)).tiles == tiles


def test_each_group_reads_its_own_weights_once():
    sizes = {"m": 4 * 64, "n": 8192, "k": 4096}
    found = times_of(work(**sizes, groups="64,64,64,64,0")).traffic
    weights, rows = 4 * 8192 * 4096 * 2, 256 * 4096 * 2
    assert found.operand_bytes == weights + rows
    assert found.dram_read_bytes >= weights + rows
    assert found.dram_read_bytes == pytest.approx(weights + rows, rel=0.05)


def require_looked_up(batch, family):
    """Tiles look up their group: 200 clk each, and 0.5 us at the start."""
    known = numbers()
    assert fused_clk(kernel_of(batch)) == 200.0
    shape = geometry_of(batch, 4096.0, H200, family_of(family, H200))
    started = [kernel_time(shape, H200, each).launch_us for each in (known, known.without(["grouped"]))]
    assert started[0] - started[1] == pytest.approx(0.5)


def test_the_table_of_groups_takes_time_at_the_start_and_with_each_tile():
    eight = work(4096, groups=",".join(["512"] * 8))
    require_looked_up(eight, "quack")
    assert fused_clk(kernel_of(eight, numbers().without(["grouped"]))) == 0.0


def test_the_place_of_a_strided_gradient_s_tile_is_looked_up_like_a_group():
    # Of 56 x 56 pixels 8 x 28 x 28 = 6,272 lie at each of four places: 49 tiles of 128 rows, by 2 of 64.
    strided = conv(
        "dgrad n=8 c=128 h=56 w=56 k=96 r=3 s=3 stride=2 pad=1", gm.KernelConfig(cta_m=128, cta_n=64)
    )
    assert schedule_of(strided).tiles == 4 * 49 * 2
    # 96 filters are two k tiles of 64, for 2.25 taps in the mean.
    assert schedule_of(strided).k_tiles == 5
    require_looked_up(strided, "cudnn")
    whole = conv("dgrad n=8 c=128 h=56 w=56 k=96 r=3 s=3 pad=1")
    assert fused_clk(kernel_of(whole)) == 0.0


@pytest.mark.parametrize(*cases(__file__, "test_a_kernel_that_goes_tile_by_tile_begins_anew_for_each"))
def test_a_kernel_that_goes_tile_by_tile_begins_anew_for_each(cta_n, clk):
    known = numbers({"latency.load_clk": 600.0})
    config = gm.KernelConfig(cta_m=128, cta_n=cta_n, warps=8)
    groups = work(4096, groups="2048,2048", config=config)
    anew = kernel_of(groups, known, family="triton")
    assert tile_by_tile_clk(anew) == pytest.approx(clk)
    # No load is under way during its epilogue, whatever is fused; others load ahead.
    anew = stall_of(anew, 9000.0, 5000.0, 800.0)
    assert anew.waits_us(fetched_us=6.0, clk_us=1e-3) == pytest.approx(5.0)
    assert anew.of_waves(1.0, 1.0).waits_us(6.0, 1e-3) == pytest.approx(5.0)
    assert tile_by_tile_clk(kernel_of(groups, known)) == 0.0
    plain = kernel_of(work(epilogue="gelu", k=640, config=config), known, family="triton")
    assert tile_by_tile_clk(plain) == 0.0
    ahead = stall_of(plain, 9000.0, 5000.0, 800.0)
    assert ahead.waits_us(fetched_us=60.0, clk_us=1e-3) == 0.0


def test_rows_behind_a_group_are_filled_where_each_has_a_map_of_its_own():
    # 96 and 416 rows take one and four tiles of 128: 512 rows of 640.
    batch = work(512, groups="96,416")
    cutlass = family_of("cutlass", H200)
    own = tile_schedule(batch, resources_of(batch, H200, cutlass), cutlass.tile_order)
    assert own.filled_m == pytest.approx(512 / 640)
    # In one map the first tile reads 32 rows of the second group, whose last one reaches beyond by 96.
    assert schedule_of(batch).filled_m == pytest.approx(1 - 96 / 640)


def test_triton_makes_descriptors_of_three_dimensions_for_a_batch_and_of_two_matrices_for_groups():
    # Of 11 and 15 fields each; three of them take 2.2 us for a plain product.
    makes, host = ({"device_descriptors.start_us": each, "grouped.start_us": 0.0} for each in (2.2, 0.0))
    triton = family_of("triton", H200)
    cases = {1: {}, 15 / 11: {"batch": 8}, 2 / 3: {"groups": "2048,2048"}}
    for share, problem in cases.items():
        shape = geometry_of(work(**problem), 4096.0, H200, triton)
        made, ready = (kernel_time(shape, H200, numbers(each)).launch_us for each in (makes, host))
        assert made - ready == pytest.approx(share * 2.2)


def test_clocks_of_a_fused_epilogue():
    short_division = numbers().without(["slow_division"])
    sums = 128 * 128
    plain = kernel_of(work())
    assert fused_clk(plain) == 0.0
    cases = {
        "gelu": sums / 1000 * 50,
        "relu": 0.0,
        "silu": sums / 1000 * 80,
        "residual": sums * 2 / 64 + 500,
        "beta,residual,bias": sums * 4 / 64 + 500 + 100,
        "row_sum,col_sum": sums / 1000 * 20,
        # Half as many values and sources after the gate.
        "gated_gelu,residual": sums / 1000 * (25 + 10) + sums / 64 + 500,
    }
    for words, clk in cases.items():
        fused = kernel_of(work(epilogue=words), short_division)
        assert fused_clk(fused) == pytest.approx(clk), words
    # One warpgroup alone takes a quarter longer over its values, not over what it waits for.
    alone = work(epilogue="gelu,bias", config=gm.KernelConfig(cta_m=64, cta_n=128))
    assert fused_clk(kernel_of(alone)) == pytest.approx(8.192 * 50 * 1.25 + 100)
    gated = kernel_of(work(epilogue="gated_silu"))
    # Outputs of 2 bytes at 16 a clock are 2048; a gate leaves half of them, in as many stores.
    assert epilogue_clk(plain) - epilogue_clk(gated) == pytest.approx(1024)


@pytest.mark.parametrize("k", [64, 512, 1024, 3584, 8192, 1048576])
@pytest.mark.parametrize(*cases(__file__, "test_a_silu_takes_longer_where_a_warp_has_such_a_sum"))
def test_a_silu_takes_longer_where_a_warp_has_a_sum_whose_sigmoid_is_no_normal_number(m, k, sums):
    silu = work(m, k=k, epilogue="silu")
    # The smallest normal number is 2^-126; sums of k products of standard normal numbers spread by sqrt(k).
    below = math.erfc(126 * math.log(2) / math.sqrt(2 * k)) / 2
    shares = [1 - (1 - below) ** count for count in sums]
    # 128 x 128 outputs in 256 threads: 64 for each, half of them in the upper 8 rows of its warp; 200 clocks.
    # The approximation of `below` is within 0.00014.
    known, short = numbers(), numbers().without(["slow_division"])
    longer = fused_clk(kernel_of(silu, known)) - fused_clk(kernel_of(silu, short))
    assert longer == pytest.approx(32 * 200 * sum(shares), abs=32 * 200 * 2 * 32 * 0.00014)
    gelu = work(m, k=k, epilogue="gelu")
    assert fused_clk(kernel_of(gelu, known)) == fused_clk(kernel_of(gelu, short))


def test_only_kernels_of_cutlass_divide():
    families = ("quack", "cublas", "cutlass", "triton", "cudnn")
    lack = {name for name in families if "slow_division" in family_of(name, H200).absent_mechanisms}
    assert lack == {"quack", "cublas", "triton", "cudnn"}


def test_a_caveat_says_that_sums_are_taken_for_those_of_random_operands():
    def is_noted(without, epilogue, kernel="cutlass"):
        model = create_model("KernelModel", gm.load_gpu("h200"), {"without": without})
        problem = gm.GemmProblem.of(4096, 4096, 4096, epilogue=epilogue)
        config = gm.KernelConfig(kernel=kernel, cta_m=128, cta_n=128)
        found = model.predict_batch(batch_of([(problem, config)]))
        return any(caveat.startswith("slow_division") for caveat in found.caveats)

    assert is_noted([], "silu")
    assert not is_noted(["slow_division"], "silu")
    assert not is_noted([], "gelu")
    assert not is_noted([], "silu", "quack")


def test_loads_go_on_in_an_epilogue_until_the_ring_is_full():
    gelu = work(epilogue="gelu", k=640)
    # A ring of 6 stages, 5 under way: room for half of them, a quarter of 10 k tiles.
    clk = (9000.0, 1800.0, 800.0)
    assert stall_of(kernel_of(work()), *clk[:2], 0.0).waits_us(2.0, 1e-3) == 0
    stall = stall_of(kernel_of(gelu), *clk)
    # Of 1.8 us of epilogue as fast loads hide 0.5, of which a plain one needs 0.5 of its 1.0; slow ones all.
    for fetched_us, waits_us in ((2.0, 0.8), (6.0, 0.3), (7.3, 0.0)):
        assert stall.waits_us(fetched_us, 1e-3) == pytest.approx(waits_us, abs=1e-12), fetched_us
    # After the last load all that is fused comes; the exposed epilogue holds a quarter of it once warpgroups have
    # drifted apart, 8 of 14 of that in 8 waves.
    assert stall.of_waves(1.0, 1.0).waits_us(20.0, 1e-3) == pytest.approx(0.8 * (1 - 1 / 7))
    assert stall.of_waves(1.0, 0.5).waits_us(20.0, 1e-3) == pytest.approx(0.4 * (1 - 1 / 7))
    in_turn = work(epilogue="gelu", config=gm.KernelConfig(cta_m=128, cta_n=128, schedule="pingpong"))
    empties = stall_of(kernel_of(in_turn), *clk)
    assert empties.waits_us(2.0, 1e-3) == 0.0
    assert empties.of_waves(1.0, 1.0).waits_us(2.0, 1e-3) == 0.0


def test_loads_that_set_the_pace_hide_an_epilogue_but_the_last():
    # 132 tiles a wave; a bias of 100 clocks each, at 1,980 MHz; a quarter of it would be in the exposed part once
    # warpgroups have drifted apart, half of that in six tiles.
    steady = numbers().without(["clock"])
    for waves in (1, 2, 4):
        sizes = {"m": waves * 132 * 128, "n": 128, "k": 4096}
        plain, fused = (
            times_of(work(**sizes, **more), steady, rate=1e6).waves_us for more in ({}, {"epilogue": "bias"})
        )
        assert fused - plain == pytest.approx(100 * (1 - 0.25 * waves / (waves + 6)) / 1980), waves


def test_an_epilogue_moves_what_it_reads_and_what_is_left_of_the_output():
    output = 4096 * 4096 * 2
    plain, gated = times_of(work()).traffic, times_of(work(epilogue="gated_silu")).traffic
    assert gated.dram_write_bytes == output / 2
    added = times_of(work(epilogue="residual")).traffic
    assert added.dram_read_bytes == pytest.approx(plain.dram_read_bytes + output)
    # Requests merge a little less while L2 works longer.
    assert added.l2_request_bytes == pytest.approx(plain.l2_request_bytes + output, rel=0.005)
    quantized = times_of(work(epilogue="quantize_1x128")).traffic
    assert quantized.dram_write_bytes == 4096 * 4096 + 4096 * 32 * 4


def test_sources_take_buffers_from_the_ring():
    # Four parts of 128 x 32 sums in 2 bytes: 32 KiB, a stage of 128 x 256 operands is 48 KiB.
    config = gm.KernelConfig(cta_m=128, cta_n=256)
    plain, reads = work(config=config), work(config=config, epilogue="beta")
    assert found_of(reads).epilogue_bytes - found_of(plain).epilogue_bytes == 4 * 128 * 32 * 2
    assert found_of(reads).stages == found_of(plain).stages - 1


def test_sums_that_are_scaled_wait_for_the_mmas_of_all_blocks():
    # Two blocks of 64 x 80 outputs: without scales one's sums are added beside the other's MMAs.
    tile = gm.KernelConfig(cta_m=128, cta_n=80, schedule="pingpong")
    cublas = family_of("cublas", H200)
    for scaling, blocks in ((None, 2.0), ("1x128,128x128", 1.0), ("1x128,1x128", 1.0)):
        batch = work(dtype="fp8", config=tile, block_scaling=scaling)
        assert resources_of(batch, H200, cublas).blocks_in_turn == blocks


def test_scale_factors_miss_in_l2_only_where_operands_come_from_dram():
    """17 MB fit into L2: after a run of the same kernel few operands, and few factors, come from DRAM."""
    triton = family_of("triton", H200)
    scaled = geometry_of(work(128, dtype="fp8", block_scaling="1x128,1x128"), 8192.0, H200, triton)

    def runtime_us(miss_clk, l2):
        known = numbers({"software_scales.miss_clk": miss_clk})
        return float(kernel_time(scaled, H200, known, l2=l2).runtime_us)

    assert runtime_us(2000.0, "warm") < 1.01 * runtime_us(0.0, "warm")
    assert runtime_us(2000.0, "cold") > 1.3 * runtime_us(0.0, "cold")


def test_software_scales_are_multiplied_with_each_k_tile():
    plain = work(dtype="fp8")
    scaled = work(dtype="fp8", block_scaling="1x128,128x128")
    known = numbers({"round_trip.single_clk": 0.0}).without(["scale_factors"])
    columns = work(dtype="fp8", block_scaling="1x128,1x128")
    rows = (plain, scaled, columns)
    steps = [k_tile(kernel_of(each, known, rate=8192.0)) for each in rows]
    # All MMAs take 128^3 x 2 / (8192 x 0.8) = 640 clocks and 16 to start them; one of two warpgroups for
    # itself 320, with 128 to add up 64 x 128 sums at 64 a clock and 80 to drain the pipe.
    order = VALUES["overlap.loads_dram_order"]
    together, alone = 656.0, 320.0 + 128.0 + 80.0
    # Both scale their sums in 4 clocks for each thousand, 16 more with factors of columns; the next ones come
    # 400 clocks after they are asked for, out of DRAM 300 later.
    scaling = 16.384 * 4.0

    def both(one, other):
        return (one**order + other**order) ** (1.0 / order)

    own = alone, both(alone + scaling, 400.0), both(alone + scaling + 16.384 * 16.0, 400.0)
    # Once in 32 k tiles the shorter of the first one's MMAs and of what comes after the last one's lies alone.
    for step, expected in zip(steps, own, strict=True):
        once = min(320.0, expected - 320.0) / 32
        assert step.math_clk == pytest.approx(both(together, expected) + once)
    missed = k_tile(kernel_of(scaled, known, rate=8192.0), 0.5)
    once_missed = (both(alone + scaling, 550.0) - 320.0) / 32
    assert missed.math_clk == pytest.approx(both(together, both(alone + scaling, 550.0)) + once_missed)
    assert found_of(scaled).slow_sums
    # An fp32 for each of 128 rows of A, and one for 128 rows of B.
    assert found_of(scaled).scale_bytes == 128 * 4 + 4
    fast = gm.KernelConfig(cta_m=128, cta_n=128, fast_accum=True)
    assert found_of(work(dtype="fp8", config=fast, block_scaling="1x128,128x128")).slow_sums


def test_a_tile_of_a_weight_gradient_lies_within_a_tap():
    # 96 channels are two tiles of 64 for each of nine taps, by two of 128 filters; 864 in one row were 14.
    gradient = conv(CONV.replace("fprop", "wgrad"), gm.KernelConfig(cta_m=128, cta_n=64))
    assert schedule_of(gradient).tiles == 2 * 9 * 2
    assert schedule_of(gradient).filled_n == 96 / 128


def test_groups_of_few_channels_share_the_tiles_of_cudnn():
    # 32 groups of 4 channels are two tiles of 64 columns in each of 49 rows of 128 pixels.
    config = gm.KernelConfig(cta_m=128, cta_n=64, kernel="cudnn")
    text = "fprop n=8 c=128 h=28 w=28 k=128 r=3 s=3 pad=1 groups=32"

    def schedule(text, family):
        batch = conv(text, config)
        return tile_schedule(batch, found_of(batch), family_of(family, H200).tile_order)

    found = schedule(text, "cudnn")
    assert (found.tiles, found.k_tiles, found.filled_n) == (49 * 2, 9, 1.0)
    # Another library's kernels have a tile for each group.
    other = schedule(text, "cutlass")
    assert (other.tiles, other.filled_n) == (49 * 32, 4 / 64)
    # Rows of a weight gradient's tiles are filters, of 16 groups beside each other.
    gradient = schedule(text.replace("fprop", "wgrad"), "cudnn")
    assert (gradient.tiles, gradient.filled_m, gradient.filled_n) == (9 * 2, 0.5, 1.0)


def test_an_image_is_read_once_while_l2_keeps_it():
    found = times_of(conv()).traffic
    image, weights = 8 * 28 * 28 * 96 * 2, 256 * 96 * 9 * 2
    assert found.operand_bytes == pytest.approx(image + weights)
    assert found.dram_read_bytes == pytest.approx(image + weights, rel=0.01)


def test_a_shared_operand_is_read_once_and_the_kernel_is_the_same():
    problem = gm.GemmProblem.of(64, 4096, 2048, batch=8)
    own, shared = (numbers_of(each, KERNEL) for each in (problem, replace(problem, broadcast="b")))
    weights, rows = 4096 * 2048 * 2, 8 * 64 * 2048 * 2
    assert times_of(own).traffic.operand_bytes == 8 * weights + rows
    found = times_of(shared).traffic
    assert found.operand_bytes == weights + rows
    assert found.dram_read_bytes < 1.06 * (weights + rows)
    assert schedule_of(shared) == schedule_of(own)
    prediction = gm.rank(replace(problem, broadcast="b"), "h200", 1).best.prediction
    assert prediction.error_band is not None
    assert prediction.caveats == ()


def test_a_plain_row_among_others_takes_the_same_time_to_the_digit():
    plain = gm.GemmProblem.of(4000, 4096, 4096)
    others = [
        gm.GemmProblem.of(4000, 4096, 4096, groups="3000,1000"),
        gm.GemmProblem.of(4000, 4096, 4096, epilogue="gated_silu,bias"),
    ]
    model = create_model("KernelModel", gm.load_gpu("h200"))
    alone = model.predict_batch(batch_of([(plain, PAIRS)] * 2))
    mixed = model.predict_batch(batch_of([(each, PAIRS) for each in (others[0], plain, others[1])]))
    assert mixed.runtime_us[1] == alone.runtime_us[0]
    for row, problem in ((0, others[0]), (2, others[1])):
        one = gm.predict(problem, PAIRS, "h200")
        assert mixed.runtime_us[row] == pytest.approx(one.runtime_us, rel=1e-12)
    assert np.isnan(mixed.error_band[0]) == (gm.predict(others[0], PAIRS, "h200").error_band is None)


def test_a_maximum_with_zero_is_free():
    plain = gm.predict(gm.GemmProblem.of(4000, 4096, 4096), PAIRS, "h200")
    assert gm.predict(gm.GemmProblem.of(4000, 4096, 4096, epilogue="relu"), PAIRS, "h200").runtime_us == (
        plain.runtime_us
    )


def test_a_calibration_without_numbers_of_problem_kinds_takes_their_start_values(tmp_path):
    mapping = as_mapping(calibration())
    mapping["numbers"] = {
        name: entry
        for name, entry in mapping["numbers"].items()
        if name.partition(".")[0] not in KIND_MECHANISMS
    }
    (tmp_path / "older.yaml").write_text(yaml.safe_dump(mapping))
    older = load_calibration(tmp_path / "older.yaml")
    assert older.numbers["fp16"].values() == {
        name: NUMBERS[name].start if name.partition(".")[0] in KIND_MECHANISMS else value
        for name, value in VALUES.items()
    }
    # What plain products meet is the same: a residual of the one serves the other.
    assert older.fingerprint() == calibration().fingerprint()


def test_start_values_and_missing_bands_are_told():
    problem = gm.GemmProblem.of(4096, 4096, 4096, groups="4000,96", epilogue="gelu")

    def predicted(**changes):
        options = {"calibration": calibration(**changes), "residual": "off"}
        return gm.predict(problem, KERNEL, "h200", options=options)

    found = predicted()
    assert found.error_band is None
    said = "no such kernel was calibrated on"
    assert found.caveats == (f"fused_epilogue: {said}", f"grouped: {said}")
    bands = {kind: {**band, "grouped": 0.3} for kind, band in calibration().error_band.items()}
    widths = {kind: {"grouped.tile_clk": 5.0} for kind in ("fp16", "fp8")}
    fitted = predicted(error_band=bands, intervals=widths)
    assert fitted.error_band == 0.3
    assert fitted.caveats == (f"fused_epilogue: {said}",)


@pytest.mark.parametrize(*cases(__file__, "test_a_family_that_cannot_says_which_one_can"))
def test_a_family_that_cannot_says_which_one_can(problem, kernel, sentence):
    config = gm.KernelConfig(cta_m=128, cta_n=128, kernel=kernel)
    with pytest.raises(InputError, match=sentence):
        gm.predict(gm.GemmProblem.of(4096, 4096, 4096, **problem), config, "h200")


@pytest.mark.parametrize(*cases(__file__, "test_channels_that_fill_no_row_of_16_bytes_are_padded_beside"))
@pytest.mark.parametrize("kernel", ["cutlass", "cudnn"])
def test_channels_that_fill_no_row_of_16_bytes_are_padded_beside(words, dtype, padded, kernel):
    problem = gm.GemmProblem.of_conv(words, dtype)
    config = gm.rank(problem, "h200", family=kernel, top_k=1).best.candidate.config
    found = gm.predict(problem, config, "h200").caveats
    assert any("kernels beside that pad matrices are not in the time" in each for each in found) == padded
