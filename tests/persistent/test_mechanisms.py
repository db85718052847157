"""The mechanisms' formulas against numbers worked out by hand and against an independent path."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from gemm_model.core.batch import GemmBatch, batch_of
from gemm_model.core.elementwise import power_of_two_divisor, smooth_maximum
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernels.feasibility import columns_split, resources
from gemm_model.persistent.clock import (
    PowerModel,
    burst_clock_mhz,
    capped_clock_share,
    counted_quiet,
    energy_uj,
    few_sms_share,
    light_load_share,
    voltage_squared,
)
from gemm_model.persistent.edge_tiles import (
    FURTHER_PART_COST,
    FURTHER_SM,
    FURTHER_SM_OF_FEW,
    FURTHER_SM_OF_PAIRS,
    GPC_SHARE,
    IN_STEP_ROWS,
    MIXED_LOSS,
    ONE_ROW_COST,
    OUT_OF_STEP_ROWS,
    TURNS_COST,
    TWO_WAY_COST,
    TWO_WAY_HIDDEN,
    WHOLE_BOX_COST,
    WIDE_MULTICAST_COST,
    WORST_CTA,
    crowding,
    outside_rows,
)
from gemm_model.persistent.epilogue import (
    APART,
    DRAINED_CLK,
    HANDOVER_CLK,
    HANDOVER_DRAINED_CLK,
    SMALL_STORE_CLK,
    SMALL_STORE_QUEUE,
    TILE_CLK,
    chain_beside_stores,
    epilogue_clk,
    exposed_clk,
    math_chain_clk,
    port_store_clk,
)
from gemm_model.persistent.kernel_parameters import PARAMETERS, KernelParameters, start_values
from gemm_model.persistent.kernel_time import (
    FILL_SMS,
    FILL_STEPS,
    L2_SMS,
    RAMP_STEPS,
    RAMP_US,
    geometry,
    kernel_time,
    l2_bytes_per_us,
)
from gemm_model.persistent.mainloop import (
    ADDS_PER_CLK,
    BLACKWELL_PORT_CLK,
    DRAIN_CLK,
    FOUR_ROUND_TRIP_CLK,
    ISSUE_CLK,
    LINE_16,
    LINE_32,
    LINE_64,
    PAIR_ROUND_TRIP_CLK,
    PINGPONG_ADDS_PER_CLK,
    RECEIVED_TAIL,
    ROUND_TRIP_CLK,
    SLOW_ROUND_TRIP_CLK,
    SMEM_CONTENTION,
    SQUARE_ROUND_TRIP_CLK,
    TAIL_16,
    TAIL_32,
    TAIL_64,
    k_step,
)
from gemm_model.persistent.tile_schedule import tile_schedule
from gemm_model.persistent.traffic import (
    IN_ORDER_US,
    further_pieces,
    merged_share,
    out_of_step,
    row_alignment,
    traffic,
)
from gemm_model.pipeline.steady_state import time_per_k_step

H200, B200 = load_gpu("h200"), load_gpu("b200")
P = KernelParameters(**start_values())
POWER = PowerModel(
    idle_w=100, pj_per_flop=1.0, pj_per_l2_byte=30, pj_per_dram_byte=80, sustained_launch_us=1.6
)


def row(problem=None, **kernel):
    return batch_of([(problem or GemmProblem.of(4096, 4096, 4096), KernelConfig(**kernel))])


def moved(batch, p=P, gpu=H200, **options):
    found = resources(batch, gpu)
    schedule = tile_schedule(batch, gpu, found)
    return traffic(batch, gpu, found, schedule, outside_rows(batch, schedule, found), p, **options)


def test_parameters_are_25_bounded_and_explained():
    assert 12 <= len(PARAMETERS) <= 25
    assert [spec.name for spec in PARAMETERS] == [spec.name for spec in fields(KernelParameters)]
    for spec in PARAMETERS:
        assert spec.low <= spec.start <= spec.high
        assert spec.unit
        assert spec.meaning
        assert spec.source


def test_smooth_maximum_is_a_maximum_with_a_charge_for_ties():
    assert smooth_maximum(0.1, 3.0) == pytest.approx(3.0, rel=1e-6)
    assert smooth_maximum(0.0, 0.0) == 0
    assert smooth_maximum(2.0, 2.0) == pytest.approx(2 * 2 ** (1 / 8))
    values = np.array([1.0, 5.0])
    assert smooth_maximum(values, values).tolist() == pytest.approx((values * 2 ** (1 / 8)).tolist())


@pytest.mark.parametrize(("value", "divisor"), [(1, 1), (96, 32), (1040, 16), (4096, 4096), (7, 1)])
def test_power_of_two_divisor(value, divisor):
    assert power_of_two_divisor(float(value)) == divisor == math.gcd(value, 2**40)
    assert power_of_two_divisor(np.array([float(value)]))[0] == divisor


@pytest.mark.parametrize(("pitch", "pieces"), [(128, 0), (192, 0), (96, 1), (1040, 3), (1036, 3), (2080, 1)])
def test_rows_off_64_byte_boundaries_fall_into_further_pieces(pitch, pieces):
    assert further_pieces(float(pitch)) == pieces


def test_misaligned_writes_cost_less_while_l2_keeps_the_output():
    """Pitches of odd multiples of 16 bytes: three further pieces at 0.58 in L2, else write_misalignment."""

    def extra(m):
        batch = row(GemmProblem.of(m, 4104, 64), cta_m=128, cta_n=128)
        return moved(batch, replace(P, write_misalignment=2.0)).l2_store_bytes[0] / (m * 4104 * 2) - 1

    assert extra(64) == pytest.approx(3 * 0.58, rel=1e-3)
    assert extra(400_000) == pytest.approx(3 * 2.0, rel=1e-3)
    assert 3 * 0.58 < extra(4096) < 3 * 2.0


def step_of(batch, p=P, rate=4096.0, gpu=H200):
    found = resources(batch, gpu)
    return k_step(batch, gpu, rate, found, tile_schedule(batch, gpu, found), p)


def test_mma_clocks_of_one_k_step():
    # 2 x 128 x 256 x 64 FLOP at 4096 a clock: 1024 clocks at full efficiency.
    step = step_of(row(cta_m=128, cta_n=256))
    assert step.math_clk[0] == pytest.approx(1024 / P.mma_efficiency + ISSUE_CLK)
    assert step.port_clk[0] == pytest.approx((128 + 256) * 128 / P.port_bytes_per_clk)
    assert step.tile_clk[0] == step.tail_clk[0] == 0


def test_mmas_into_tensor_memory_are_started_ahead_of_time():
    # Half of 2 x 256 x 256 x 128 FLOP in each SM of the pair, at 8192 a clock.
    batch = blackwell(256)
    found = resources(batch, B200)
    step = k_step(batch, B200, np.array([8192.0]), found, tile_schedule(batch, B200, found), P)
    flop = 2 * batch.cta_m[0] * batch.cta_n[0] * found.cta_k[0]
    assert step.math_clk[0] == pytest.approx(flop / (8192 * P.mma_efficiency))


@pytest.mark.parametrize(("cta_n", "excess"), [(32, 38 / 32 - 0.5), (64, 38 / 64 - 0.5), (256, 0.0)])
def test_reading_operands_from_shared_memory_bounds_narrow_instructions(cta_n, excess):
    """64 x N takes the MMA N/2 clocks, and reading 19 + N/4 beside the loads."""
    step = step_of(row(cta_m=64, cta_n=cta_n, schedule="pingpong"))
    clk = 2 * 64 * cta_n * 64 / 4096 / P.mma_efficiency
    issued = clk * (1 + SMEM_CONTENTION * excess) + ISSUE_CLK
    assert step.math_clk[0] == pytest.approx(smooth_maximum(issued, ROUND_TRIP_CLK))


@pytest.mark.parametrize(
    ("cluster", "least_clk"),
    [
        ((1, 1), ROUND_TRIP_CLK),
        ((2, 1), PAIR_ROUND_TRIP_CLK),
        ((1, 2), PAIR_ROUND_TRIP_CLK),
        ((2, 2), SQUARE_ROUND_TRIP_CLK),
        ((4, 1), FOUR_ROUND_TRIP_CLK),
        ((1, 4), FOUR_ROUND_TRIP_CLK),
    ],
)
def test_signals_between_producer_and_consumers_bound_a_k_step(cluster, least_clk):
    """At a rate at which the MMAs take no time."""
    kernel = {"cta_m": 64, "cta_n": 32, "cluster_m": cluster[0], "cluster_n": cluster[1]}
    bf16 = step_of(row(schedule="pingpong", **kernel), rate=1e9).math_clk[0]
    assert bf16 == pytest.approx(smooth_maximum(ISSUE_CLK, least_clk))
    fp8 = step_of(row(GemmProblem.of(4096, 4096, 4096, "fp8"), schedule="pingpong", **kernel), rate=1e9)
    promoted = 64 * 32 / PINGPONG_ADDS_PER_CLK + DRAIN_CLK
    expected = smooth_maximum(promoted, least_clk + SLOW_ROUND_TRIP_CLK)
    assert fp8.math_clk[0] == pytest.approx(expected, rel=1e-5)


def test_warpgroups_that_split_the_columns_issue_narrower_instructions():
    # 192 x 160 as two halves of 80 columns; 192 x 128 as three of 64 rows. None is below 76 columns.
    for cta_n, halves in ((160, True), (128, False)):
        batch = row(cta_m=192, cta_n=cta_n)
        assert columns_split(batch, resources(batch, H200).warpgroups)[0] == halves
        assert step_of(batch).math_clk[0] == pytest.approx(
            192 * cta_n * 128 / 4096 / P.mma_efficiency + ISSUE_CLK
        )


def test_the_slots_round_trip_is_the_pipelines():
    step = step_of(row(cta_m=128, cta_n=128, stages=3))
    one_stage_held = 3.0 - 1.0
    expected = time_per_k_step(step.port_clk, P.latency_clk, step.math_clk, one_stage_held)
    assert np.maximum(np.maximum(step.port_clk, step.math_clk), step.latency_clk) == pytest.approx(expected)


def test_the_port_takes_all_rows_whoever_asked_for_them():
    single = step_of(row(cta_m=128, cta_n=64)).port_clk[0]
    assert step_of(row(cta_m=128, cta_n=64, cluster_m=2)).port_clk[0] == pytest.approx(single)


def test_the_port_brings_rows_inside_the_matrix_only():
    inside = step_of(row(GemmProblem.of(32, 132 * 64, 4096), cta_m=128, cta_n=64)).port_clk[0]
    assert inside == pytest.approx((32 + 64) * 128 / P.port_bytes_per_clk)


@pytest.mark.parametrize(
    ("k", "row_clk"), [(96, TAIL_64), (80, TAIL_32), (72, TAIL_16), (64, 0.0), (4096, 0.0), (4104, TAIL_16)]
)
def test_rows_of_a_last_k_step_beyond_k_cost_by_what_divides_their_bytes(k, row_clk):
    """Of 64 elements of 2 bytes a step: 32 left are 64 bytes, 16 are 32, 8 are 16."""
    problem = GemmProblem.of(4096, 4096, k)
    assert step_of(row(problem, cta_m=128, cta_n=192)).tail_clk[0] == (128 + 192) * row_clk
    # Two CTAs share B, four A: each asks for its part, and what the others ask for costs it less.
    for cluster in ({"cluster_m": 2}, {"cluster_n": 4}):
        tail_clk = step_of(row(problem, cta_m=128, cta_n=192, **cluster)).tail_clk[0]
        assert tail_clk == pytest.approx((224 + RECEIVED_TAIL * 96) * row_clk)


@pytest.mark.parametrize(("k", "dearer"), [(4096, 0.0), (4128, LINE_64), (4112, LINE_32), (4104, LINE_16)])
def test_rows_that_cross_lines_take_the_port_longer(k, dearer):
    aligned, crossing = (
        step_of(row(GemmProblem.of(4096, 4096, size), cta_m=128, cta_n=128)).port_clk[0] for size in (4096, k)
    )
    assert crossing / aligned == pytest.approx(1 + dearer)
    # In clusters of two each asks for half of B, and only for that do its rows cost more.
    pair = row(GemmProblem.of(4096, 4096, k), cta_m=128, cta_n=128, cluster_m=2)
    assert step_of(pair).port_clk[0] / aligned == pytest.approx(1 + 0.75 * dearer)
    assert row_alignment(2.0 * k) == min(math.gcd(2 * k, 2**20), 128)


def blackwell(cta_n, dtype="fp8", cluster_n=1, problem=None, **more):
    """One row of a 2-CTA kernel with tiles of 128 rows a CTA."""
    problem = problem or GemmProblem.of(4096, 4096, 4096, dtype, **more)
    return row(problem, cta_m=128, cta_n=cta_n, cluster_m=2, cluster_n=cluster_n, schedule="2cta")


def port_bytes(batch):
    clk = step_of(batch, P, 16384.0, B200).port_clk[0]
    # Blackwell's port is twice as wide as Hopper's, where the parameter comes from.
    return (clk - BLACKWELL_PORT_CLK) * 2 * P.port_bytes_per_clk


def test_half_of_b_never_comes_to_one_sm_of_a_pair():
    # Of A 128 rows and of B its own 128 of 256, of 128 bytes each, whether another pair shares A or not.
    assert port_bytes(blackwell(256)) == pytest.approx(256 * 128)
    assert port_bytes(blackwell(256, cluster_n=2)) == pytest.approx(256 * 128)


def test_scale_factors_take_the_port_in_pieces_of_64_bytes():
    # 128 + 256 rows with 16 scales each, in rows of 16 bytes.
    expected = 256 * 128 + 4 * (128 + 256) * 16
    assert port_bytes(blackwell(256, "nvfp4")) == pytest.approx(expected)


def test_accumulators_in_tensor_memory_are_double_buffered_beside_the_scales():
    # 2 x 256 columns fill the 512; with 48 columns of scales one accumulator is left; 2 x 192 + 48 fit.
    for cta_n, dtype, two in ((256, "fp8", True), (256, "nvfp4", False), (192, "nvfp4", True)):
        batch = blackwell(cta_n, dtype)
        found = resources(batch, B200)
        chain = math_chain_clk(batch, B200, found, 5000.0, 3000.0)
        assert chain[0] == (5000.0 if two else 8000.0)
        assert exposed_clk(batch, B200, found, 5000.0, 3000.0)[0] == (3000.0 if two else 0.0)


def test_stores_of_a_tile_share_the_port_with_the_next_tiles_loads():
    batch = blackwell(256, "nvfp4", out_dtype="fp32")
    # 128 x 256 outputs of 4 bytes at 32 bytes a clock.
    assert port_store_clk(batch, B200)[0] == epilogue_clk(batch, B200, resources(batch, B200), P)[0] == 4096
    assert port_store_clk(row(cta_m=128, cta_n=256), H200) == 0
    # 74 pairs, 74 tiles, 64 k steps of fp8 each: 32768 bytes at twice Hopper's port.
    one = GemmProblem.of(256, 74 * 256, 8192, "fp8", out_dtype="fp32")
    batch = blackwell(256, problem=one)
    times = kernel_time(geometry(batch, np.array([16384.0]), B200), B200, P)
    expected_clk = 64 * (32768 / (2 * P.port_bytes_per_clk) + BLACKWELL_PORT_CLK) + 4096
    assert times.port_us[0] * times.sm_clk_mhz[0] == pytest.approx(expected_clk)


def test_slow_fp8_accumulation_drains_one_warpgroup_and_two_in_turn():
    """64 x 128 x 128 takes one warpgroup 256 clocks of MMAs, then its additions and the drain."""
    problem = GemmProblem.of(4096, 4096, 4096, "fp8")
    mma_clk = 2 * 64 * 128 * 128 / 8192 / P.mma_efficiency
    alone_clk = mma_clk + 64 * 128 / ADDS_PER_CLK + DRAIN_CLK
    both_clk = smooth_maximum(2 * mma_clk + ISSUE_CLK, alone_clk)
    least_clk = ROUND_TRIP_CLK + SLOW_ROUND_TRIP_CLK
    for cta_m, schedule, clk in (
        (64, "cooperative", alone_clk),
        (64, "pingpong", mma_clk + 64 * 128 / PINGPONG_ADDS_PER_CLK + DRAIN_CLK),
        (128, "cooperative", both_clk),
    ):
        batch = row(problem, cta_m=cta_m, cta_n=128, schedule=schedule)
        assert step_of(batch, rate=8192.0).math_clk[0] == pytest.approx(smooth_maximum(clk, least_clk))
        fast = replace(batch, fast_accum=np.array([True]))
        issued = cta_m / 64 * mma_clk + ISSUE_CLK
        fast_clk = step_of(fast, rate=8192.0).math_clk[0]
        assert fast_clk == pytest.approx(smooth_maximum(issued, ROUND_TRIP_CLK))


def test_epilogue_is_serial_or_under_the_other_consumers_mainloop():
    cooperative = row(cta_m=128, cta_n=128)
    pingpong = row(cta_m=128, cta_n=128, schedule="pingpong")
    epilogue = epilogue_clk(cooperative, H200, resources(cooperative, H200), P)
    assert epilogue[0] == pytest.approx(128 * 128 / P.outputs_per_clk)
    turn = HANDOVER_CLK
    for mainloop, tile in ((5000.0, 5000.0 + turn), (100.0, (100.0 + epilogue[0] + turn + TILE_CLK) / 2)):
        chain = math_chain_clk(pingpong, H200, resources(pingpong, H200), mainloop, epilogue)
        assert chain[0] == pytest.approx(tile)
        chain = math_chain_clk(cooperative, H200, resources(cooperative, H200), mainloop, epilogue)
        # Two warpgroups drift apart, until the last tile.
        hidden = APART * min(mainloop, epilogue[0])
        assert chain[0] == pytest.approx(mainloop + epilogue[0] + TILE_CLK - hidden)
        last = exposed_clk(cooperative, H200, resources(cooperative, H200), mainloop, epilogue)
        assert last[0] == pytest.approx(hidden)
        last = exposed_clk(pingpong, H200, resources(pingpong, H200), mainloop, epilogue)
        assert last[0] == epilogue[0]
    single = row(cta_m=64, cta_n=128)
    chain = math_chain_clk(single, H200, resources(single, H200), 100.0, epilogue)
    assert chain[0] == pytest.approx(100.0 + epilogue[0] + TILE_CLK)


def test_stores_that_l2_holds_up_take_the_place_of_the_epilogue():
    for schedule, clk, tiles in (
        ("cooperative", 700.0 + TILE_CLK, 1.0),
        ("pingpong", (700.0 + HANDOVER_CLK) / 2, 0.5),
    ):
        batch = row(cta_m=128, cta_n=128, schedule=schedule)
        beside, epilogues = chain_beside_stores(batch, H200, resources(batch, H200), np.array([700.0]))
        assert beside[0] == pytest.approx(clk)
        assert epilogues[0] == tiles
    # One tile of 128 x 128 on each SM, a single k step: 4.3 MB of outputs at a hundredth of L2's rate.
    slow = replace(P, l2_efficiency=0.5)
    gpu = replace(H200, l2_read_gb_per_s=100.0)
    batch = row(GemmProblem.of(128, 132 * 128, 64), cta_m=128, cta_n=128)
    times = kernel_time(geometry(batch, np.array([4096.0]), gpu), gpu, slow, without=("dram",))
    assert times.waves_us[0] > 1.3 * 132 * 128 * 128 * 2 / (100e3 * 0.5)


def test_stores_of_16_columns_take_longer():
    # 208 columns are a multiple of 16 only: 13 stores of 64 x 16 for 64 rows.
    batch = row(cta_m=64, cta_n=208, schedule="pingpong")
    clk = epilogue_clk(batch, H200, resources(batch, H200), P)[0]
    assert clk == pytest.approx(64 * 208 / P.outputs_per_clk + 13 * SMALL_STORE_CLK)
    # The two consumers store in turn: their mainloops do not hide it.
    chain = math_chain_clk(batch, H200, resources(batch, H200), 100.0, clk)
    assert chain[0] == pytest.approx(SMALL_STORE_QUEUE * clk)


def test_a_tile_of_slow_accumulation_has_drained_its_mmas():
    problem = GemmProblem.of(4096, 4096, 4096, "fp8")
    for schedule, fixed_clk in (
        ("cooperative", TILE_CLK - DRAINED_CLK),
        ("pingpong", HANDOVER_CLK - HANDOVER_DRAINED_CLK),
    ):
        batch = row(problem, cta_m=128, cta_n=64, schedule=schedule)
        chain = math_chain_clk(batch, H200, resources(batch, H200), 5000.0, np.array([10.0]))
        stored = 10.0 * (1 - APART) if schedule == "cooperative" else 0.0
        assert chain[0] == pytest.approx(5000.0 + stored + fixed_clk)


def test_first_loads_take_longer_than_later_ones():
    """Half of the ramp after RAMP_STEPS steps of 64; the grid is the same."""

    def launch_us(steps):
        batch = row(GemmProblem.of(128, 128, 64 * int(steps)), cta_m=128, cta_n=128)
        return kernel_time(geometry(batch, np.array([4096.0]), H200), H200, P).launch_us[0]

    ramped_us = launch_us(1000 * RAMP_STEPS) - launch_us(RAMP_STEPS)
    assert ramped_us == pytest.approx(RAMP_US * (1000 / 1001 - 0.5))


def test_the_pipeline_fills_before_the_first_mma():
    batch = row(GemmProblem.of(128, 128, 4096), cta_m=128, cta_n=128)
    times = kernel_time(geometry(batch, np.array([4096.0]), H200), H200, P)
    filled_us = FILL_STEPS * step_of(batch).port_clk[0] / times.sm_clk_mhz[0]
    assert times.first_load_us[0] == pytest.approx(filled_us)
    total_us = times.launch_us + times.first_load_us + times.waves_us + times.exposed_us
    assert times.runtime_us[0] == pytest.approx(total_us[0])


def test_few_sms_take_l2_at_their_own_pace():
    """One wave of 132 CTAs, and of 22, each with its own columns of B: the norm of order 4."""
    for ctas in (22, 132):
        batch = row(GemmProblem.of(128, ctas * 128, 4096), cta_m=128, cta_n=128)
        times = kernel_time(geometry(batch, np.array([4096.0]), H200), H200, P)
        work, merged = times.traffic.l2_load_bytes[0], times.traffic.merged_bytes[0]
        assert merged > 0
        fills = P.fill_share * times.traffic.dram_read_bytes[0]
        # Fills hold up 22 SMs, a sixth of all, no more than a fifth.
        own = L2_SMS * ((work - fills + merged) * 132 / ctas + fills / max(ctas / 132, FILL_SMS))
        expected_us = (work**4 + own**4) ** 0.25 / l2_bytes_per_us(H200, P)
        assert times.l2_us[0] == pytest.approx(expected_us)


def test_one_wave_reads_each_operand_once_from_dram():
    batch = row(GemmProblem.of(1024, 1024, 1024), cta_m=128, cta_n=128)
    found = moved(batch)
    assert found.dram_read_bytes[0] == pytest.approx(2 * 1024 * 1024 * 2)
    assert found.dram_write_bytes[0] == 1024 * 1024 * 2
    assert moved(batch, warm=True).dram_read_bytes[0] < 0.01 * found.dram_read_bytes[0]


def test_multicast_divides_the_requests():
    alone = replace(P, coalescing=0.0)
    single = moved(row(cta_m=128, cta_n=128), alone).l2_request_bytes[0]
    pair = moved(row(cta_m=128, cta_n=128, cluster_m=2), alone).l2_request_bytes[0]
    output = 4096 * 4096 * 2
    # Each CTA asks for 128 + 128 rows alone, and for 128 + 64 where two share B.
    assert (pair - output) / (single - output) == pytest.approx(192 / 256)


def test_requests_stop_merging_the_longer_l2_works():
    losing = replace(P, lockstep_loss_per_ms=1.0)
    found = moved(row(GemmProblem.of(16384, 16384, 16384), cta_m=128, cta_n=128), losing)
    short = out_of_step(found, np.array([0.01]), H200, losing)
    long = out_of_step(found, np.array([3000.0]), H200, losing)
    # At once all that meets in the order of tiles merges.
    in_order = found.l2_request_bytes[0] - found.ordered_bytes[0]
    assert short.l2_request_bytes[0] == pytest.approx(in_order, rel=1e-3)
    # Three milliseconds at a loss of 1 / ms: three quarters of what merged.
    # Of what more merges by the order of tiles, 80 of 3080 parts are left before that.
    ordered = found.ordered_bytes[0] * IN_ORDER_US / (IN_ORDER_US + 3000)
    lost = long.l2_request_bytes[0] - found.l2_request_bytes[0]
    assert lost == pytest.approx(found.merged_bytes[0] - 0.25 * (found.merged_bytes[0] + ordered))
    # 0.06 x 3 of a wave's panels come between two uses; what then misses in L2 goes to DRAM again.
    between = 0.06 * 3 * found.wave_footprint_bytes[0] / H200.l2_bytes
    hits = found.l2_request_bytes[0] - found.output_bytes[0] - found.dram_read_bytes[0]
    again = long.dram_read_bytes[0] - found.dram_read_bytes[0]
    assert again == pytest.approx(0.55 * hits * between / (1 + between))


def test_neither_multicast_requests_nor_rows_off_sectors_merge():
    merging = replace(P, coalescing=1.0)
    both = moved(row(cta_m=128, cta_n=128, cluster_m=2, cluster_n=2), merging)
    assert both.merged_bytes[0] == 0
    # Rows of 4104 elements start at odd multiples of 16 bytes: they share sectors with their neighbours.
    assert moved(row(GemmProblem.of(4096, 4096, 4104), cta_m=128, cta_n=128), merging).merged_bytes[0] == 0
    # Rows of 4112 start at sectors.
    assert moved(row(GemmProblem.of(4096, 4096, 4112), cta_m=128, cta_n=128), merging).merged_bytes[0] > 0


@pytest.mark.parametrize(
    ("panels", "asked"),
    [
        (1, 1 / 8),
        (3, 1 / 4),  # 12 SMs that meet want each of three panels four times, and four requests merge
        (4, 4 / 12),
        (48, 48 * (1 - (47 / 48) ** 8) / 8),  # eight SMs that want one of 48 at random
    ],
)
def test_requests_for_few_panels_meet(panels, asked):
    assert merged_share(float(panels), 8.0) == pytest.approx(1 - asked)
    # Clusters of two: half as many meet, and half as many want one at random.
    if panels == 3:
        assert merged_share(3.0, 4.0) == pytest.approx(1 - 3 / 6)
    # Clusters of four in which nothing is left to meet.
    assert merged_share(float(panels), 1.0) == 0


def test_rows_stored_in_32_bytes_pay_more_for_misaligned_outputs():
    """208 columns are stored 16 at a time: 1.6 times the price of a pitch of odd multiples of 16 bytes."""

    def extra(cta_n):
        problem = GemmProblem.of(64, 4104, 64)
        stored = moved(row(problem, cta_m=64, cta_n=cta_n, schedule="pingpong")).l2_store_bytes[0]
        return stored / (64 * 4104 * 2) - 1

    assert extra(192) == pytest.approx(3 * 0.58, rel=1e-3)
    assert extra(208) == pytest.approx(1.6 * extra(192))


def test_a_spilling_kernel_has_no_slower_or_faster_slots():
    spilling = {"cta_m": 256, "cta_n": 224}
    found = outside_of(GemmProblem.of(320, 66 * 224, 4096), **spilling)
    assert found.bytes_per_wave[0] > 0
    assert found.slow_load[0] == 1
    assert found.fast_load[0] == 0


def test_merging_only_saves_requests():
    batch = row(GemmProblem.of(8192, 8192, 8192), cta_m=128, cta_n=128)
    merging, alone = moved(batch, replace(P, coalescing=0.8)), moved(batch, replace(P, coalescing=0.0))
    assert alone.merged_bytes[0] == 0
    saved = alone.l2_request_bytes[0] - merging.l2_request_bytes[0]
    assert saved == pytest.approx(merging.merged_bytes[0])


def test_panels_of_a_group_larger_than_a_wave_come_from_dram_again():
    # 500 rows of tiles, walked first: 74 of them make a wave, and until one is wanted again the other 426
    # have come by, 524 MB of A. So A is read for each of the 28 columns of tiles; B is small.
    batch = blackwell(256, problem=GemmProblem.of(128000, 7168, 4096, "fp8"))
    reads = moved(batch, gpu=B200).dram_read_bytes[0]
    assert reads == pytest.approx(28 * 128000 * 4096, rel=0.03)
    # Thin enough to stay, A is read once: 65 MB in an L2 of 132 MB, three quarters of it usable.
    batch = blackwell(256, problem=GemmProblem.of(128000, 71680, 512, "fp8"))
    reads = moved(batch, gpu=B200).dram_read_bytes[0]
    assert reads < 0.3 * 280 * 128000 * 512


def outside_of(problem, **config):
    batch = row(problem, **config)
    found = resources(batch, H200)
    return outside_rows(batch, tile_schedule(batch, H200, found), found)


def test_rows_of_zeros_cost_in_proportion_to_their_share():
    full = outside_of(GemmProblem.of(128, 132 * 128, 4096), cta_m=128, cta_n=128)
    assert full.bytes_per_wave[0] == 0
    assert full.slow_load[0] == 1
    # All 132 SMs have one tile of 128 rows, three quarters of them outside, 4096 columns of 2 bytes.
    quarter = outside_of(GemmProblem.of(32, 132 * 128, 4096), cta_m=128, cta_n=128)
    assert quarter.bytes_per_wave[0] == pytest.approx(132 * 128 * 4096 * 2 * 0.75)
    assert quarter.slow_load[0] == 1
    assert quarter.fast_load[0] == 0
    # 2 % less for each doubling of the k steps, from 64.
    longer = outside_of(GemmProblem.of(32, 132 * 128, 8192), cta_m=128, cta_n=128)
    assert longer.bytes_per_wave[0] == pytest.approx(quarter.bytes_per_wave[0] * 2 * 0.5 ** (1 / 32))
    # Beside the only row of a matrix they cost more.
    one = outside_of(GemmProblem.of(1, 132 * 128, 4096), cta_m=128, cta_n=128)
    assert one.bytes_per_wave[0] == pytest.approx(132 * 127 * 4096 * 2 * ONE_ROW_COST)


def test_a_slot_that_keeps_its_row_of_tiles_has_all_the_zeros_or_none():
    # Two rows of 192; two thirds of the second lie outside. 66 columns: each slot has one tile.
    once = outside_of(GemmProblem.of(256, 66 * 64, 4096), cta_m=192, cta_n=64)
    share = 2 / 3
    assert once.bytes_per_wave[0] == pytest.approx(132 * 192 * share * 2 ** (-1 / 4) * 4096 * 2)
    # Rows inside: 64 + 64 in the second row, 192 + 64 in the first, 128 + 64 on average.
    assert once.slow_load[0] == pytest.approx(128 / 192)
    assert once.fast_load[0] == pytest.approx(256 / 192)
    assert once.fixed[0]
    # Three times as many tiles, walked along m: the 132 slots are a multiple of two rows.
    again = outside_of(GemmProblem.of(256, 3 * 66 * 64, 4096), cta_m=192, cta_n=64)
    assert again.bytes_per_wave[0] == pytest.approx(132 * 192 * share * 2 ** (-1 / 8) * 4096 * 2)
    # Walked along n, a slot comes to both rows: half of its tiles have zeros.
    turns = outside_of(GemmProblem.of(256, 3 * 66 * 64, 4096), cta_m=192, cta_n=64, raster="along_n")
    assert turns.bytes_per_wave[0] == pytest.approx(132 * 192 * share / 2 * 4096 * 2)
    assert turns.fast_load[0] == 0
    assert not turns.fixed[0]
    # Five rows of 64, half of the last outside, walked first: 132 slots come to all of them in turn.
    walked = outside_of(GemmProblem.of(288, 2 * 132 * 64, 4096), cta_m=64, cta_n=64)
    assert walked.bytes_per_wave[0] == pytest.approx(132 * 64 / 2 / 5 * TURNS_COST * 4096 * 2)


def test_slots_that_share_a_tile_by_multicast_are_held_up_less_where_rows_are_many():
    # Four rows of 64, half of the last outside, in clusters of 1x2: two rows of 128 in clusters of 2x2.
    rows = outside_of(GemmProblem.of(224, 30 * 64, 4096), cta_m=64, cta_n=64, cluster_n=2)
    # One of the two boxes of 32 rows lies outside.
    share = WHOLE_BOX_COST / 2
    assert rows.bytes_per_wave[0] == pytest.approx(120 * 64 * share * 4 ** (-3 / 8) * 4096 * 2)
    both = outside_of(GemmProblem.of(224, 30 * 64, 4096), cta_m=64, cta_n=64, cluster_m=2, cluster_n=2)
    # One of four, all of it in one of the two CTAs.
    share = WHOLE_BOX_COST / 4 + WORST_CTA * (1 / 2 - 1 / 4)
    assert both.bytes_per_wave[0] == pytest.approx(120 * 64 * share * 2 ** (-1 / 2) * 4096 * 2)


@pytest.mark.parametrize(
    ("cluster", "fixed", "further"),
    [
        ((1, 1), False, FURTHER_SM),
        ((2, 1), False, FURTHER_SM_OF_PAIRS),
        ((1, 2), False, FURTHER_SM_OF_PAIRS),
        ((1, 1), True, FURTHER_SM_OF_FEW),
        ((2, 1), True, FURTHER_SM_OF_FEW),
    ],
)
def test_beyond_half_of_the_sms_zeros_take_little_more_time(cluster, fixed, further):
    """Time of the device: of 33 SMs half of that of 66, which is 1 / (1 + further) of that of all 132."""
    batch = row(cta_m=64, cta_n=64, cluster_m=cluster[0], cluster_n=cluster[1])
    size = cluster[0] * cluster[1]

    def device_time(ctas):
        return crowding(ctas / size, batch, H200, fixed)[0] * ctas / 132

    assert device_time(132.0) == pytest.approx(1)
    assert device_time(66.0) == pytest.approx(1 / (1 + further))
    assert device_time(33.0) == pytest.approx(0.5 / (1 + further))
    assert device_time(99.0) == pytest.approx((1 + further / 2) / (1 + further))


@pytest.mark.parametrize(
    ("clusters", "on_fullest"), [(7, 1), (8, 1), (16, 2), (17, 3), (23, 3), (24, 4), (30, 4)]
)
def test_clusters_of_four_feel_those_of_their_gpc(clusters, on_fullest):
    """Seven GPCs hold four of them, one holds two: 23 are three on each of seven and two on the last."""
    wide = row(cta_m=64, cta_n=64, cluster_n=4)
    busy, by_gpc = clusters * 4 / 132, on_fullest / 4 * 120 / 132
    felt = (1 - GPC_SHARE) * busy + GPC_SHARE * by_gpc
    assert crowding(float(clusters), wide, H200, False)[0] * busy == pytest.approx(felt)
    # A GPU whose GPCs are not known: in proportion to the SMs at work.
    unknown = replace(H200, resident_clusters={4: 30})
    assert crowding(float(clusters), wide, unknown, False)[0] == pytest.approx(1)


def test_zeros_in_clusters_that_share_both_operands():
    both = row(cta_m=64, cta_n=64, cluster_m=2, cluster_n=2)
    assert crowding(30.0, both, H200, False)[0] == pytest.approx(TWO_WAY_COST)
    # 32 of 128 rows inside: one CTA half outside, the other wholly: three of four boxes.
    square = outside_of(GemmProblem.of(32, 120 * 64, 4096), cta_m=64, cta_n=64, cluster_m=2, cluster_n=2)
    share = 3 / 4 * WHOLE_BOX_COST + WORST_CTA * (1 - 3 / 4)
    assert square.bytes_per_wave[0] == pytest.approx(120 * 64 * share * 4096 * 2)
    assert square.hidden[0] == TWO_WAY_HIDDEN
    # 48 inside: half of the second box is outside, beside two that are wholly.
    part = outside_of(GemmProblem.of(48, 120 * 64, 4096), cta_m=64, cta_n=64, cluster_m=2, cluster_n=2)
    share = (2 * WHOLE_BOX_COST + 0.5 * FURTHER_PART_COST) / 4 + WORST_CTA * (1 - 5 / 8)
    assert part.bytes_per_wave[0] == pytest.approx(120 * 64 * share * 4096 * 2)


@pytest.mark.parametrize("hidden", [0.0, TWO_WAY_HIDDEN])
def test_zeros_come_after_the_loads_and_hide_part_of_them_in_two_way_clusters(hidden):
    batch = row(GemmProblem.of(32, 132 * 64, 65536), cta_m=64, cta_n=64)
    shape = geometry(batch, np.array([1e9]), H200)
    shape = replace(shape, outside=replace(shape.outside, hidden=hidden))
    alone = ("dram", "epilogue", "latency", "tensor")
    together = kernel_time(shape, H200, P, without=alone)
    loads = kernel_time(shape, H200, replace(P, out_of_range_weight=0.0), without=alone).waves_us[0]
    l2_peak = H200.l2_read_gb_per_s * 1e3 * P.l2_efficiency
    zeros = P.out_of_range_weight * shape.outside.bytes_per_wave[0] / l2_peak
    expected = loads + zeros - hidden * loads * zeros / (loads + zeros)
    # The clocks of the two differ by their loads.
    assert together.waves_us[0] == pytest.approx(expected, rel=0.01)


def test_zeros_for_four_ctas_at_once_cost_less():
    narrow = outside_of(GemmProblem.of(32, 132 * 64, 4096), cta_m=64, cta_n=64, cluster_n=2)
    wide = outside_of(GemmProblem.of(32, 120 * 64, 4096), cta_m=64, cta_n=64, cluster_n=4)
    # Half of the tile outside: one box of two, two of four.
    cta_bytes = 64 * WHOLE_BOX_COST / 2 * 4096 * 2
    assert narrow.bytes_per_wave[0] == pytest.approx(132 * cta_bytes)
    assert wide.bytes_per_wave[0] == pytest.approx(120 * cta_bytes * WIDE_MULTICAST_COST)


def test_zeros_of_a_cluster_are_the_mean_of_its_ctas():
    """32 rows of 128 and of 256 inside, in two and in four CTAs of 64: shares 3/4 and 7/8 outside."""
    small = outside_of(GemmProblem.of(32, 132 * 64, 4096), cta_m=64, cta_n=64, cluster_m=2)
    tall = outside_of(GemmProblem.of(32, 120 * 64, 4096), cta_m=64, cta_n=64, cluster_m=4)
    cta_bytes = 64 * 4096 * 2
    # The CTAs that lie wholly outside hold up the first one a little.
    assert small.bytes_per_wave[0] == pytest.approx(132 * cta_bytes * (0.75 + WORST_CTA * 0.25))
    assert tall.bytes_per_wave[0] == pytest.approx(120 * cta_bytes * (0.875 + WORST_CTA * 0.125))


def test_requests_of_tiles_with_many_zeros_do_not_merge():
    def in_step(m, **config):
        found = outside_of(GemmProblem.of(int(m), 66 * 64, 4096), cta_m=128, cta_n=64, **config)
        return found.a_in_step[0], found.b_in_step[0]

    halfway = (IN_STEP_ROWS + OUT_OF_STEP_ROWS) / 2
    assert in_step(128) == (1, 1)
    assert in_step(128 - IN_STEP_ROWS) == (1, 1)
    # All tiles are alike: columns of B still merge.
    assert in_step(128 - halfway) == pytest.approx((0.5, 1))
    assert in_step(8) == (0, 1)
    # Two rows of tiles, of which one has zeros: half of the neighbours are alike, for B too.
    lost = 0.5 / math.sqrt(2)
    assert in_step(256 - halfway) == pytest.approx((1 - lost, 1 - MIXED_LOSS * lost))
    # A cluster of two in one row: the first CTA full, the second filled halfway.
    assert in_step(256 - halfway, cluster_m=2) == pytest.approx((0.5, 1 - MIXED_LOSS * 0.5))
    # Nothing of the second lies inside: the first CTAs, alike in all clusters, are full.
    assert in_step(128, cluster_m=2) == (1, 1)


def test_loads_wait_at_the_port_and_at_l2_in_turn():
    batch = row(GemmProblem.of(1024, 132 * 128, 8192), cta_m=128, cta_n=128)
    slow_mma = replace(P, memory_overlap_loss=0.0, clock_share=1.0, droop_mma=0.0, droop_l2=0.0)
    shape = geometry(batch, np.array([1e9]), H200)
    times = kernel_time(shape, H200, slow_mma, without=("dram", "epilogue", "latency"))
    assert times.waves_us[0] == pytest.approx(math.hypot(times.port_us[0], times.l2_us[0]), rel=1e-3)


def test_clock_stands_sags_and_settles():
    light = burst_clock_mhz(H200, P, 0.05, 0.1, 0.1, 100.0)
    heavy = burst_clock_mhz(H200, P, 0.95, 0.8, 0.3, 1e4)
    short = burst_clock_mhz(H200, P, 0.95, 0.8, 0.3, 5.0)
    assert light == pytest.approx(H200.sm_clk_mhz * P.clock_share)
    assert heavy < short < light
    assert counted_quiet(11.0, 1.0)
    assert not counted_quiet(12.0, 2.0)
    assert counted_quiet(7.0, 4.0)
    assert not counted_quiet(8.0, 4.0)


def test_types_of_shorter_significands_draw_less():
    """bf16 multiplies 8 bits of significand where fp16 multiplies 11."""

    def at(dtype, regime):
        batch = row(GemmProblem.of(8192, 8192, 8192, dtype), cta_m=128, cta_n=256, cluster_m=2)
        return kernel_time(
            geometry(batch, np.array([4096.0]), H200), H200, P, regime=regime, power=POWER, warm=True
        )

    bf16, fp16 = at("bf16", "burst"), at("fp16", "burst")
    assert bf16.sm_clk_mhz[0] > 1.01 * fp16.sm_clk_mhz[0]
    # As if fp16 drew 8/11 at the full MMA rate: a lighter droop gives the same clock.
    lighter = replace(P, droop_mma=P.droop_mma * 8 / 11)
    batch = row(GemmProblem.of(8192, 8192, 8192, "fp16"), cta_m=128, cta_n=256, cluster_m=2)
    same = kernel_time(geometry(batch, np.array([4096.0]), H200), H200, lighter)
    assert same.sm_clk_mhz[0] == pytest.approx(bf16.sm_clk_mhz[0], rel=1e-4)
    assert at("bf16", "sustained").set_clk_mhz[0] > 1.03 * at("fp16", "sustained").set_clk_mhz[0]


def test_a_rested_card_keeps_more_of_its_clock_with_few_sms_at_work():
    # 0.05 of the boost clock with none, nothing from 0.28 of the SMs on, in proportion between.
    assert few_sms_share(H200, 0.0) == pytest.approx(0.05)
    assert few_sms_share(H200, 0.07) == pytest.approx(0.05 * 0.75)
    assert few_sms_share(H200, 0.28) == few_sms_share(H200, 1.0) == 0
    assert few_sms_share(B200, 0.0) == 0


def test_a_locked_clock_sags_under_mma_load_and_comes_back():
    recovery_us = B200.clock_recovery_us
    assert light_load_share(B200, P) == 1.0
    assert light_load_share(H200, P) == P.clock_share
    # After as long as the recovery takes, half of the sag is left; L2 and DRAM do not count.
    half = burst_clock_mhz(B200, P, 0.8, 1.0, 1.0, recovery_us)
    assert half == pytest.approx(1300 * (1 - P.droop_mma * 0.8 / 2))
    # The time lost levels off at droop x recovery.
    for waves_us in (1e3, 1e5):
        lost_us = waves_us * (1 - burst_clock_mhz(B200, P, 1.0, 0.0, 0.0, waves_us) / 1300)
        assert lost_us == pytest.approx(P.droop_mma * recovery_us / (1 + recovery_us / waves_us))


def test_capped_clock_meets_the_cap():
    for clocked_w in (300.0, 900.0, 2000.0, 5000.0):
        share = capped_clock_share(POWER, 700.0, clocked_w, 100.0)
        spent_w = POWER.idle_w + 100.0 + clocked_w * share * voltage_squared(share)
        assert share <= 1
        assert spent_w == pytest.approx(700.0, rel=1e-4) if 0.4 < share < 1 else share in (0.4, 1.0)


def test_energy_adds_up():
    # 1e6 FLOP at 1 pJ, 1e4 L2 bytes at 30 pJ, 1e3 DRAM bytes at 80 pJ, 2 us at 100 W.
    assert energy_uj(POWER, 1e6, 1e4, 1e3, 1.0, 2.0) == pytest.approx(1.0 + 0.3 + 0.08 + 200.0)


def test_numbers_and_arrays_take_the_same_formulas():
    batch = row(GemmProblem.of(1000, 3000, 520), cta_m=128, cta_n=192, cluster_m=2)
    numbers = GemmBatch(**{spec.name: getattr(batch, spec.name)[0].item() for spec in fields(batch)})
    arrays, scalars = moved(batch), moved(numbers)
    for spec in fields(arrays):
        assert getattr(arrays, spec.name)[0] == pytest.approx(getattr(scalars, spec.name), rel=1e-12)
