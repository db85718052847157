"""The time of a kernel from its parts: launch, first loads, waves and their slowest resource."""

import math
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, KernelConfig, predict
from gemm_model.config.mechanisms import MECHANISM_NAMES
from gemm_model.core.gpu import load_gpu
from gemm_model.kernel_model import launch
from gemm_model.kernel_model.clock import (
    Work,
    burst_clock_mhz,
    capped_clock_share,
    counted_quiet,
    energy_uj,
    light_load_share,
    voltage_squared,
)
from gemm_model.kernel_model.kernel import geometry_of
from gemm_model.kernel_model.kernel_time import kernel_time, tile_times
from gemm_model.kernel_model.launch import spread_out
from gemm_model.kernel_model.mainloop import k_tile
from gemm_model.kernel_model.rates import gpcs_to_saturate_l2
from gemm_model.kernels.registry import family_of
from tests.cases import cases
from tests.kernel_model.kernels import A100, B200, H200, kernel_of, numbers_on, pair_of_ctas, row, times_of
from tests.typed_numbers import numbers

L2_BYTES_PER_US = 0.8 * 10e6
DRAM_BYTES_PER_US = 0.9 * 4.6e6
PEAK_DRAM_BYTES_PER_US = 6144 / 8 * 2 * 3201
COMPUTE_ONLY = numbers().without(["port", "latency", "l2", "dram", "clock", "edge_tiles"])
LOADS_ONLY = ("tensor", "round_trip", "epilogue", "latency", "clock")


def test_phases_add_up_and_the_pipeline_fills_before_the_first_mma():
    batch = row((128, 128, 4096), cta_m=128, cta_n=128)
    times = times_of(batch)
    # One k tile of 256 rows of 128 bytes at 128 bytes a clock.
    assert times.first_load_us == pytest.approx(256 / times.sm_clk_mhz)
    total_us = times.launch_us + times.first_load_us + times.waves_us + times.exposed_us
    assert times.runtime_us == pytest.approx(total_us)


def test_outputs_that_l2_holds_back_still_pass_its_way_in():
    # 4096 x 16384 sums of two bytes are 128 MiB, their operands 2.5 MiB; all of L2 may hold outputs back.
    batch = row((4096, 16384, 64), cta_m=128, cta_n=256)
    gpu = replace(H200, l2_unwritten_share=1.0, l2_bytes=2.0**32, l2_write_gb_per_s=4000.0)
    moved = times_of(batch, gpu=gpu)
    assert moved.traffic.dram_write_bytes < 1.0
    assert moved.dram_us == pytest.approx(128 * 2**20 / 4.0e6)
    free = times_of(batch, gpu=replace(gpu, l2_write_gb_per_s=None))
    assert free.dram_us == pytest.approx(2.5 * 2**20 / DRAM_BYTES_PER_US)


def test_a_tile_is_loaded_before_any_output_is_written():
    # 2 k tiles of 128 x 128: 64 KB of operands and 32 KB of outputs a tile, 132 tiles at once.
    batch = row((1408, 1536, 128), cta_m=128, cta_n=128)
    known = numbers().without(["coalescing", "latency", "edge_tiles", "port"])
    # Clusters ask for themselves: where they lie is not known.
    gpu = replace(H200, tpc_rounds=(), l2_merging_sms=1.0)
    tile = tile_times(kernel_of(batch, numbers_on(gpu, known), gpu, regime="counters"))
    # 2 * 128 * 128 * 64 FLOP of a k tile at 0.8 of 4096 a clock, and 16 clocks to issue.
    clk_mhz = times_of(batch, known, gpu=gpu, regime="counters").sm_clk_mhz
    assert tile.mma_us == pytest.approx((640 + 16) / clk_mhz)
    assert tile.k_tile_us == pytest.approx(132 * 32768 / L2_BYTES_PER_US)
    assert tile.turns_us == 0.0
    # L2 passes 64 KB of operands and one and a half times 32 KB of outputs a tile. What is read from DRAM once crosses
    # to its other half but where a panel is wanted by few: 12 of A by 11 clusters each, 11 of B by 12.
    loads, stores = 132 * 65536, 132 * 32768 * 1.5
    fills = 256 * (11 * 128 * (1 - 0.5**12) + 12 * 128 * (1 - 0.5**11))
    share = (loads + fills) / (loads + stores + fills)
    assert tile.operands_us == pytest.approx(share * tile.loads_us["L2"])
    assert tile.operands_us > tile.loads_us["DRAM"] * 2944 * 256 / (2944 * 256 + stores / 1.5)


def test_gpcs_that_saturate_l2():
    # 10 TB/s over 1.98 GHz of eight times 50 bytes a clock.
    gpu = replace(H200, l2_read_bytes_per_clk_of_eight=50.0)
    assert gpcs_to_saturate_l2(gpu) == pytest.approx(10_000 / (1.98 * 8 * 50))
    assert gpcs_to_saturate_l2(replace(gpu, l2_read_bytes_per_clk_of_eight=None)) == 0.0


def test_ctas_all_over_the_card_crowd_no_gpc():
    wide, narrow = (replace(H200, l2_read_bytes_per_clk_of_eight=each) for each in (1000.0, 36.0))
    # 32 CTAs with a tile each: of a chain four lie on each GPC, of a launch alone eleven on one.
    batch = row((64, 4096, 16384), cta_m=64, cta_n=128, schedule="pingpong")
    chained, alone = (
        [times_of(batch, gpu=gpu, regime=regime).waves_us for gpu in (wide, narrow)]
        for regime in ("graph", "burst")
    )
    assert chained[1] == pytest.approx(chained[0], rel=0.02)
    assert alone[1] > 1.1 * alone[0]


@pytest.mark.parametrize(*cases(__file__, "test_what_a_launch_takes"))
def test_what_a_launch_takes(kernel, regime, empty_us, expected_us):
    batch = replace(row((128, 128, 512), cta_m=128, cta_n=128, **kernel), empty_kernel_us=empty_us)
    times = times_of(batch, regime=regime)
    # DRAM idles between launches of a chain: another 0.25 us as far as it is busy in them.
    idle_us = 0.25 * (times.dram_us / times.waves_us) ** 2 if regime == "graph" else 0.0
    assert times.launch_us == pytest.approx(expected_us + idle_us)


@pytest.mark.parametrize(*cases(__file__, "test_events_add_what_they_read_beyond_an_empty_kernel"))
def test_events_add_what_they_read_beyond_an_empty_kernel(empty_kernel_us, gpu, events_us):
    batch = replace(row((128, 128, 512), cta_m=128, cta_n=128), empty_kernel_us=empty_kernel_us)
    card = replace(H200, **gpu)
    alone, counted = (times_of(batch, gpu=card, regime=regime).launch_us for regime in ("burst", "counters"))
    assert alone - counted == pytest.approx(events_us)


def test_first_loads_ramp_with_the_k_tiles():
    def launch_us(k_tiles):
        return times_of(row((128, 128, 64 * k_tiles), cta_m=128, cta_n=128)).launch_us

    assert launch_us(792) - launch_us(8) == pytest.approx(0.99 - 0.5)


def test_waves_are_mainloop_epilogue_and_fixed_clocks():
    """132 tiles of 64 k tiles: 1280 / 2 clocks of MMAs and 16 to issue, beside 150 of signals."""
    batch = row((128, 132 * 128, 4096), cta_m=128, cta_n=128)
    times = times_of(batch, COMPUTE_ONLY)
    mainloop = 64 * (656**8 + 150**8) ** (1 / 8)
    epilogue = 2048 + 4 * 48
    # A quarter of the epilogue is hidden once warpgroups have drifted apart, a seventh of that in the first tile.
    hidden = 0.25 / 7 * epilogue
    clk = mainloop + epilogue - hidden + 400
    assert times.sm_clk_mhz == pytest.approx(1980)
    assert times.waves_us == pytest.approx(clk / 1980)
    assert times.exposed_us == pytest.approx(hidden / 1980)
    assert times.tensor_us == pytest.approx(mainloop / 1980)
    assert times.epilogue_us == pytest.approx(epilogue / 1980)


@pytest.mark.parametrize(("quantized", "waves"), [(1.0, 2.0), (0.5, 1.5 + 0.5 / 132), (0.0, 1 + 1 / 132)])
def test_a_partial_wave_takes_as_long_as_its_tiles(quantized, waves):
    known = numbers({"whole_waves.quantized": quantized})
    known = known.without(["port", "latency", "l2", "dram", "clock", "edge_tiles"])
    full, further = (times_of(row((64, n * 128, 4096), cta_m=64, cta_n=128), known) for n in (132, 133))
    assert further.waves_us == pytest.approx(waves * full.waves_us)


def test_tiles_partly_outside_the_matrix_ask_for_less_in_the_last_wave():
    """12 x 12 tiles of 132 at a time; the last column of them has 32 of its 128 columns inside."""
    times = times_of(row((12 * 128, 11 * 128 + 32, 4096), cta_m=128, cta_n=128))
    mean = (1.0 + (11 * 128 + 32) / (12 * 128)) / 2.0
    assert times.full.share == pytest.approx(132 / mean / 144)
    assert times.full.share + times.last.share == pytest.approx(1.0)


def test_a_launch_after_a_pause_reads_the_scales_of_matrices_of_8_bits():
    def read_us(dtype, regime):
        problem = GemmProblem.of(128, 128, 2048, dtype)
        config = KernelConfig(cta_m=128, cta_n=128, kernel="cublas")
        each = [{"residual": "off", "regime": regime, "without": less} for less in ([], ["matrix_scales"])]
        found, less = (predict(problem, config, H200, options=options).runtime_us for options in each)
        return found - less

    assert 0.2 < read_us("fp8", "burst") < 0.4
    assert read_us("bf16", "burst") == read_us("fp8", "graph") == 0.0


@pytest.mark.parametrize(("ctas", "on_gpc"), [(22, 10), (132, 18)])
def test_few_sms_wait_at_the_way_into_their_gpc_beside_l2(ctas, on_gpc):
    """One wave of CTAs that each have their own columns of B."""
    times = times_of(row((128, ctas * 128, 4096), cta_m=128, cta_n=128))
    work, fills = times.traffic.l2_load_bytes, times.traffic.crossing_bytes
    assert fills > 0
    assert times.l2_us == pytest.approx(work / L2_BYTES_PER_US)
    # What crosses from one half of L2 to the other holds up no GPC. Of the first twelve TPCs five are of one GPC, so
    # that it has ten of 22 CTAs; the largest has 18 SMs.
    # Eight SMs of 64 bytes a clock fill its way in, if nothing merges: a GEMM's takes 1.3 times as much.
    ways_in = work - times.traffic.l2_store_bytes - fills
    wave = times.full if times.full.count else times.last
    assert wave.gpc_us == pytest.approx(ways_in * on_gpc / ctas / (1.3 * 8 * 64 * 1980))


def test_loads_wait_at_the_port_and_at_l2_in_turn():
    known = numbers().without((*LOADS_ONLY, "dram"))
    times = times_of(row((1024, 132 * 128, 8192), cta_m=128, cta_n=128), known)
    assert times.dram_us == 0
    in_turn_us = math.hypot(times.port_us, times.l2_us)
    assert times.waves_us == pytest.approx((in_turn_us**8 + (8 * times.full.gpc_us) ** 8) ** (1 / 8))


def test_l2_and_dram_hide_each_other_but_for_their_norm():
    known = numbers().without((*LOADS_ONLY, "port"))
    times = times_of(row((128, 132 * 128, 8192), cta_m=128, cta_n=128), known)
    assert times.dram_us == pytest.approx(times.traffic.dram_bytes / DRAM_BYTES_PER_US)
    overlapped = (times.l2_us**8 + times.full.gpc_us**8 + times.dram_us**8) ** (1 / 8)
    assert times.waves_us == pytest.approx(overlapped)


def test_what_is_under_way_bounds_what_comes_from_dram():
    known = numbers().without([name for name in (*LOADS_ONLY, "l2") if name != "latency"])
    known = known.without(["port"])
    times = times_of(row((128, 132 * 128, 8192), cta_m=128, cta_n=128, stages=3), known)
    # 128 k tiles, two under way: 400 clocks each, at the clock that a load is timed at.
    assert times.waves_us == pytest.approx(math.hypot(times.dram_us, 128 * 400 / 2 / 1980))


@pytest.mark.parametrize(*cases(__file__, "test_fill_comes_after_the_loads_of_the_clusters_that_have_it"))
def test_fill_comes_after_the_loads_of_the_clusters_that_have_it(cluster, ctas, hidden, crowded, rows):
    """32 of 64 rows outside; in clusters of 2x2, which hide part of it, three of four boxes."""
    batch = row((32, ctas // cluster * 64, 65536), cta_m=64, cta_n=64, cluster_m=cluster, cluster_n=cluster)
    known = numbers().without((*LOADS_ONLY, "dram"))
    free = numbers({"edge_tiles.row_clk": 0.0}).without((*LOADS_ONLY, "dram"))
    loads_us = times_of(batch, free).waves_us
    # 1024 k tiles of 128 bytes: 6 clocks for a row in each of 132 SMs, less as producers drift apart.
    fill_us = 6 * ctas / 132 * rows * 1024 / 1980 * crowded * (1 - 0.2 * 1024 / 1124)
    expected_us = loads_us + fill_us - hidden * loads_us * fill_us / (loads_us + fill_us)
    assert times_of(batch, known).waves_us == pytest.approx(expected_us)


def test_stores_of_a_tile_hold_up_the_loads_of_the_next_where_mmas_go_on():
    # 74 pairs with two tiles of 64 k tiles of fp8 each: 32768 bytes at 64 a clock, and between the tiles 4096
    # clocks of stores and 400 that a tile takes.
    times = times_of(pair_of_ctas(256, (256, 148 * 256, 8192), out_dtype="fp32"), rate=16384.0, gpu=B200)
    assert times.port_us * times.sm_clk_mhz == pytest.approx(2 * 64 * 512 + 4096 + 400)


def test_the_clock_is_the_one_that_its_own_time_calls_for():
    """The kernel's rates at the clock that was found give that clock again."""
    batch = row((8192, 8192, 8192), cta_m=128, cta_n=256, cluster_m=2)
    times = times_of(batch)
    waves_us, clk_mhz = times.waves_us, times.sm_clk_mhz
    math_share = 8 / 11 * 2 * 8192**3 / (4096 * 132 * clk_mhz * waves_us)
    l2_share = times.traffic.l2_request_bytes / (L2_BYTES_PER_US * waves_us)
    dram_share = times.traffic.dram_bytes / (PEAK_DRAM_BYTES_PER_US * waves_us)
    sag = 0.2 * math_share + 0.1 * (l2_share + dram_share)
    assert clk_mhz == pytest.approx(1980 * (0.92 - sag * waves_us / (waves_us + 40)), rel=1e-4)


def test_no_kernel_is_faster_than_light():
    nothing_takes_time = numbers().without(MECHANISM_NAMES)
    for sizes in ((8192, 8192, 8192), (64, 57344, 8192)):
        times = times_of(row(sizes, cta_m=128, cta_n=256), nothing_takes_time)
        m, n, k = sizes
        math_us = 2 * m * n * k / (4096 * 132 * 1980)
        dram_us = 2 * (m * k + n * k + m * n) / PEAK_DRAM_BYTES_PER_US
        assert times.floor_us == pytest.approx(max(math_us, dram_us))
        assert times.runtime_us == times.floor_us


def test_what_l2_holds_may_come_faster_than_from_dram():
    """Of 8.9 MB in an L2 that keeps 31.5 a 156th is gone: (8.9 / 31.5)^4."""
    batch = row((64, 2048, 2048), cta_m=64, cta_n=128)
    math_us = 2 * 64 * 2048 * 2048 / (4096 * 132 * 1980)
    cold_us = 2 * (64 * 2048 + 2048 * 2048 + 64 * 2048) / PEAK_DRAM_BYTES_PER_US
    assert times_of(batch).floor_us == pytest.approx(cold_us)
    assert math_us < cold_us / 3
    assert times_of(batch, l2="warm").floor_us == pytest.approx(math_us)


def test_latency_that_the_stages_do_not_hide_sets_the_pace():
    batch = row((128, 132 * 128, 8192), cta_m=128, cta_n=128, stages=2)
    slow = numbers({"latency.load_clk": 4000.0})
    step = k_tile(kernel_of(batch, slow))
    times = times_of(batch, slow)
    # One stage of the two is held, beside which half of the MMAs run.
    assert step.latency_clk == pytest.approx(4000 + 256 + 0.5 * step.math_clk)
    assert times.waves_us >= 128 * step.latency_clk / 1980


def test_mmas_that_hold_the_stages_wait_in_turn_with_l2():
    known = numbers().without([*(name for name in LOADS_ONLY if name != "tensor"), "dram", "port"])
    batch = row((128, 132 * 128, 65536), cta_m=128, cta_n=128, stages=2)
    times = times_of(batch, known)
    # 1,024 k tiles, one load under way: 2 x 128 x 128 x 64 FLOP at 4096 a clock and 0.8 of it, and 16.
    held_us = 1024 * 656 / times.sm_clk_mhz
    # L2 after them, beside both DRAM's norm, in which the half stands that no held stage counts, then MMAs.
    beside_us = times.full.gpc_us**8 + (held_us / 2) ** 8
    loads_us = (math.hypot(held_us, times.l2_us) ** 8 + beside_us) ** (1 / 8)
    assert times.waves_us == pytest.approx((loads_us**16 + held_us**16) ** (1 / 16))


def test_a_stages_round_trip_bounds_the_loads_of_few_stages():
    family = family_of("triton", H200)
    off = [name for name in (*LOADS_ONLY, "dram", "port") if name != "latency"]
    known = numbers().without([*off, *family.absent_mechanisms])
    batch = row((128, 132 * 128, 8192), cta_m=128, cta_n=128, stages=3, kernel="triton")
    times = kernel_time(geometry_of(batch, 4096.0, H200, family), H200, known)
    # 128 k tiles of 400 clocks, two under way: beside L2, and in DRAM's norm once more.
    latency_us = 128 * 400 / 2 / 1980
    beside_us = times.full.gpc_us**8 + 2 * latency_us**8
    assert times.waves_us == pytest.approx((times.l2_us**8 + beside_us) ** (1 / 8))


@pytest.mark.parametrize(("batch", "waits"), [(1, True), (4, False)])
def test_the_sms_of_a_tpc_wait_for_each_other_only_with_the_same_box(batch, waits):
    """132 CTAs of Triton, 96 of 128 rows of A outside: of 66 TPCs the second SM reads the first one's box, or not."""
    shape = replace(
        row((32, 132 * 128 // batch, 4096), cta_m=128, cta_n=128, kernel="triton"), batch=float(batch)
    )
    geometry = geometry_of(shape, 4096.0, H200, family_of("triton", H200))
    shares = (numbers({"edge_tiles.further_sm_in_step": share}) for share in (0.2, 0.8))
    alone, together = (kernel_time(geometry, H200, known).waves_us for known in shares)
    assert together > alone * 1.1 if waits else together == alone


def test_a_wave_that_fills_is_no_faster_than_one_that_does_not():
    """B200: 18 clusters of 4x2 CTAs at once; nothing comes between the last wave and the next."""
    tile = KernelConfig(cta_m=128, cta_n=256, cluster_m=4, cluster_n=2, schedule="2cta", kernel="cublas")
    part, whole = (predict(GemmProblem.of(2048, n, 96, "nvfp4"), tile, "b200_sxm") for n in (4096, 4608))
    assert (part.details["last_wave_tiles"], whole.details["last_wave_tiles"]) == (14, 0)
    assert part.runtime_us <= whole.runtime_us


SIZES = (128, 4096, 1024)


def launch_us(*, pdl, schedule="cooperative", sizes=SIZES, **options):
    batch = row(sizes, cta_m=128, cta_n=128, schedule=schedule, pdl=pdl)
    return times_of(batch, regime="graph", **options).launch_us


def test_a_dependent_launch_spares_the_gap_and_waits_for_warpgroups_that_end_together():
    alone = launch_us(pdl=False)
    # 0.8 us of a launch that waits for the whole kernel before it, against 0.5 us of shared tiles.
    assert alone - launch_us(pdl=True) == pytest.approx(0.8 - 0.5)
    # 132 CTAs, which leave no room for the next ones.
    full = {"sizes": (128, 132 * 128, 4096), "known": numbers({"overlap.math_loads_order": 32.0})}
    turns = launch_us(pdl=False, schedule="pingpong", **full)
    assert turns == pytest.approx(launch_us(pdl=False, **full))
    assert turns - launch_us(pdl=True, schedule="pingpong", **full) == pytest.approx(0.8)


def test_a_family_launches_in_its_own_way_unless_told():
    # QuACK's kernels are launched dependently.
    assert launch_us(pdl=None) == launch_us(pdl=True)


def cold_start_us(times):
    """Two cold starts of 0.25 us where DRAM is busy all the time, else one and a part of the other."""
    return 0.25 * (1.0 + (times.dram_us / times.waves_us) ** 2)


def test_a_second_kernel_meets_a_boundary_of_its_own():
    def behind_whole_us(regime):
        whole, split = (
            times_of(row(SIZES, cta_m=128, cta_n=128, split_k=splits), regime=regime) for splits in (1, 2)
        )
        # Half the k tiles ramp less: 16 and 8 of them, of which 8 are half way.
        ramp_us = 0.8 * (8 / 16 - 16 / 24)
        # 32 further CTAs of 132 start within 0.1 us, in a chain while the first loads are on their way.
        alone = regime == "burst"
        spread_us = 0.4 * 32 / 132 if alone else cold_start_us(split) - cold_start_us(whole)
        return split.launch_us - whole.launch_us - spread_us - ramp_us

    # What starts alone takes 1.5 us; in a chain come a boundary of 1.5 us and, without PDL, a gap of 0.8.
    assert behind_whole_us("graph") - behind_whole_us("burst") == pytest.approx(1.5 + 0.8)


@pytest.mark.parametrize(("gpu", "late_us"), [(H200, 0.0), (A100, 0.8 - 0.5)])
def test_sums_wait_like_the_successor_of_a_cooperative_kernel(gpu, late_us):
    """Before Hopper nothing launches dependently: a boundary of 1.5 us, and the gap of 0.8 less 0.5."""

    def of(splits):
        batch = row(cta_m=128, cta_n=128, split_k=splits)
        return launch.launch_us(kernel_of(batch, None, gpu, "cublas", regime="graph"), 0.0, 1.0)

    # 64 k tiles ramp more than 32 of them.
    assert of(2) - of(1) == pytest.approx(1.5 + late_us - (64 / 72 - 32 / 40))


def test_operands_that_l2_holds_are_nearer():
    batch = row(SIZES, cta_m=128, cta_n=128, pdl=True)
    cold, warm = (times_of(batch, regime="graph", l2=l2) for l2 in ("cold", "warm"))
    # 32 CTAs of 132 start within 0.4 x 32 / 132 us: that is what is left of a warm start.
    assert cold.launch_us - warm.launch_us == pytest.approx(cold_start_us(cold) - 0.4 * 32 / 132, rel=0.02)
    # After a pause a warm start is without the ramp of DRAM's first loads: two thirds of 1 us after 16 k tiles.
    cold, warm = (times_of(batch, l2=l2) for l2 in ("cold", "warm"))
    assert cold.launch_us - warm.launch_us == pytest.approx(16 / 24, rel=0.02)


def test_a_launch_of_a_chain_that_keeps_dram_busy_starts_cold_nearly_twice():
    # 64 rows against 64 MiB of weights: DRAM is busy for most of the time.
    streaming = times_of(row((64, 8192, 4096), cta_m=64, cta_n=128), regime="graph")
    computing = times_of(row((8192, 8192, 4096), cta_m=128, cta_n=256), regime="graph")
    assert streaming.dram_us / streaming.waves_us > 0.55
    assert computing.dram_us / computing.waves_us < 0.4
    busy = streaming.dram_us / streaming.waves_us
    assert cold_start_us(streaming) == pytest.approx(0.25 * (1 + busy**2), rel=1e-3)
    # What a launch takes beside: a ramp of 1.0 after 64 of 72 k tiles, boundary 1.5, shared tiles 0.5.
    beside_us = 1.0 * 64 / 72 + 1.5 + 0.5
    assert streaming.launch_us == pytest.approx(beside_us + cold_start_us(streaming))
    # All 132 CTAs start within 0.4 us, longer than a cold start of 0.25.
    assert computing.launch_us == pytest.approx(beside_us + 0.4)


@pytest.mark.parametrize(*cases(__file__, "test_grids_that_are_placed_beside_the_one_before"))
def test_grids_that_are_placed_beside_the_one_before(n, kernel, regime, expected):
    batch = row((64, n, 4096), cta_m=64, cta_n=128, **{"schedule": "pingpong", **kernel})
    assert spread_out(kernel_of(batch, regime=regime)) == expected


def test_a_trigger_before_the_last_store_hides_the_next_start():
    late_us, wide_us, narrow_us = (
        launch._boundary_us(
            kernel_of(row(SIZES, cta_m=128, cta_n=cta_n, pdl=True), family=family, regime="graph")
        )
        for family, cta_n in (("quack", 256), ("cutlass", 256), ("cutlass", 32))
    )
    # 0.5 us from the trigger to the next grid: CUTLASS stores a wide tile for longer, a narrow one for a part of it.
    assert late_us - wide_us == pytest.approx(0.5)
    assert 0.0 < late_us - narrow_us < 0.5


CLOCK, POWER = numbers().clock, numbers().power


@pytest.mark.parametrize(*cases(__file__, "test_the_clock_stands_at_light_load_sags_and_settles"))
def test_the_clock_stands_at_light_load_sags_and_settles(shares, waves_us, lost):
    math, *memory = shares
    assert burst_clock_mhz(H200, CLOCK, math, sum(memory), waves_us) == pytest.approx(1980 * (0.92 - lost))


def test_a_card_that_sags_less_under_mmas_sags_less_under_any_load():
    """Its clock inside MMAs is lower by 6 % where the other's is by 10 %."""
    stiffer = replace(H200, mma_clk_share=0.94)
    lost = 0.27 * 0.6
    assert burst_clock_mhz(stiffer, CLOCK, 0.95, 1.1, 360.0) == pytest.approx(1980 * (0.92 - lost))
    assert load_gpu("h800_sxm").mma_clk_share == pytest.approx(0.9121)


def test_the_clock_is_never_below_two_fifths():
    steep = numbers({"clock.droop_mma": 6.0, "clock.droop_memory": 4.0}).clock
    assert burst_clock_mhz(H200, steep, 1.0, 2.0, 1e9) == pytest.approx(0.4 * 1980)


def test_a_locked_clock_sags_under_mma_load_and_comes_back():
    assert light_load_share(B200, CLOCK) == 1.0
    assert light_load_share(H200, CLOCK) == 0.92
    # 100 us of the sag of 0.16, then none; L2 and DRAM do not count.
    for waves_us, lost in ((50.0, 0.16), (100.0, 0.16), (200.0, 0.08), (1600.0, 0.01)):
        assert burst_clock_mhz(B200, CLOCK, 0.8, 2.0, waves_us) == pytest.approx(1300 * (1.0 - lost))


@pytest.mark.parametrize(*cases(__file__, "test_few_busy_tpcs_stay_at_the_boost_clock_under_a_profiler"))
def test_few_busy_tpcs_stay_at_the_boost_clock_under_a_profiler(clusters, ctas, quiet):
    assert counted_quiet(H200, float(clusters), float(ctas)) is quiet
    batch = row((64, 64 * clusters * ctas, 4096), cta_m=64, cta_n=64, cluster_n=ctas)
    counted = times_of(batch, regime="counters").sm_clk_mhz
    assert (counted == pytest.approx(1980)) is quiet
    assert times_of(batch, regime="burst").sm_clk_mhz < 1900


def test_types_of_shorter_significands_draw_less():
    """bf16 multiplies 8 bits of significand where fp16 multiplies 11: as if the MMAs drew 8/11 of fp16's."""
    kernel = {"cta_m": 128, "cta_n": 256, "cluster_m": 2}
    bf16, fp16 = (row((8192, 8192, 8192), dtype, **kernel) for dtype in ("bf16", "fp16"))
    lighter = numbers({"clock.droop_mma": 2.0 * 8 / 11})
    assert times_of(bf16).sm_clk_mhz > 1.01 * times_of(fp16).sm_clk_mhz
    assert times_of(fp16, lighter).sm_clk_mhz == pytest.approx(times_of(bf16).sm_clk_mhz, rel=1e-4)
    settled = [times_of(batch, regime="sustained", l2="warm").set_clk_mhz for batch in (bf16, fp16)]
    assert settled[0] > 1.03 * settled[1]


def test_kernels_back_to_back_sag_like_the_same_kernel_alone():
    """H200 rows of one card: kernels of 25 to 500 us take 0.99 to 1.00 times as long, less their launches."""
    batch = row((2048, 2048, 2048), cta_m=128, cta_n=256, cluster_m=2)
    alone, chained = (times_of(batch, regime=regime) for regime in ("burst", "graph"))
    assert alone.sm_clk_mhz < 0.92 * 1980
    assert chained.sm_clk_mhz == pytest.approx(alone.sm_clk_mhz)
    assert chained.waves_us == pytest.approx(alone.waves_us)


def test_voltage_has_a_floor():
    assert voltage_squared(POWER, 0.8) == pytest.approx(0.64)
    assert voltage_squared(POWER, 0.5) == pytest.approx(0.36)


@pytest.mark.parametrize("clocked_w", [300.0, 900.0, 2000.0, 5000.0])
def test_capped_clock_meets_the_cap(clocked_w):
    share = capped_clock_share(POWER, 700.0, 100.0, clocked_w, 100.0)
    spent_w = 100.0 + 100.0 + clocked_w * share * max(share, 0.6) ** 2
    assert spent_w == pytest.approx(700.0, rel=1e-4) if 0.4 < share < 1 else share in (0.4, 1.0)
    assert (share == 1.0) == (clocked_w == 300.0)


@pytest.mark.parametrize(
    *cases(__file__, "test_a_card_at_rest_draws_what_was_measured_or_a_share_of_its_cap")
)
def test_a_card_at_rest_draws_what_was_measured_or_a_share_of_its_cap(idle_w, cap_w, watts):
    assert replace(H200, idle_power_w=idle_w, power_cap_w=cap_w).resting_w == pytest.approx(watts)


def test_a_higher_cap_never_slows_a_sustained_kernel():
    batch = row((8192, 8192, 8192), cta_m=128, cta_n=256, cluster_m=2)
    clocks = [
        times_of(batch, gpu=replace(H200, power_cap_w=cap), regime="sustained", l2="warm").set_clk_mhz
        for cap in (400.0, 700.0, None)
    ]
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[2] == pytest.approx(1980)


@pytest.mark.parametrize("cap_w", [200.0, 250.0, 300.0, 350.0])
def test_a_capped_kernel_runs_at_the_clock_that_it_calls_for(cap_w):
    """Memory-bound kernels too, whose rule rises with the clock, and those at the kink between both."""
    for sizes in ((14560, 384, 5728), (512, 16384, 2048), (8192, 8192, 512), (8192, 8192, 8192)):
        batch, gpu = row(sizes, cta_m=128, cta_n=64), replace(H200, power_cap_w=cap_w)
        found = times_of(batch, gpu=gpu, regime="sustained", l2="warm")
        assert found.sm_clk_mhz == pytest.approx(found.set_clk_mhz * light_load_share(H200, CLOCK), rel=3e-4)


def test_energy_adds_up():
    # 1e6 FLOP at 1 pJ, 1e4 L2 bytes at 30 pJ, 1e3 DRAM bytes at 80 pJ, 2 us at 100 W.
    work = Work(1e6, 1e4, 1e3)
    assert energy_uj(POWER, 100.0, work, 1.0, 2.0) == pytest.approx(1.0 + 0.3 + 0.08 + 200.0)
    assert energy_uj(POWER, 100.0, work, 0.5, 2.0) == pytest.approx(1.3 * 0.36 + 0.08 + 200.0)
