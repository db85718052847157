"""One k tile of the mainloop, in clocks worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemm_model.kernel_model.mainloop import _load_clk, k_tile
from gemm_model.kernel_model.spilling import spilled_clk, spilled_l2_bytes
from gemm_model.kernel_model.traffic import _wave_panels, fresh_share
from gemm_model.kernels.feasibility import resources_of
from gemm_model.kernels.registry import family_of
from gemm_model.pipeline.steady_state import time_per_k_tile
from tests.cases import cases
from tests.kernel_model.kernels import A100, B200, H200, found_of, kernel_of, numbers_on, pair_of_ctas, row
from tests.typed_numbers import numbers


def step_of(batch, known=None, rate=4096.0, gpu=H200):
    return k_tile(kernel_of(batch, numbers_on(gpu, known), gpu, rate=rate))


def without_signals(changes=None):
    return numbers(changes).without(["round_trip"])


def test_clocks_of_one_k_tile():
    # 2 x 128 x 256 x 64 FLOP at 4096 a clock and 0.8 of the peak, and 16 clocks to issue.
    step = step_of(row(cta_m=128, cta_n=256))
    assert step.math_clk == pytest.approx(1296)
    # 128 + 256 rows of 128 bytes at 2 x 64 bytes a clock.
    assert step.port_clk == pytest.approx(384)
    # Four stages, one of which is held: half of the MMAs are beside it.
    assert step.latency_clk == pytest.approx((400 + 384 + 1296 / 2) / 3)
    assert step.taken_clk == pytest.approx((384 + 1296) / 3)
    assert step.tail_clk == 0


def test_rings_of_few_stages_wait_for_rows_outside_the_matrix_too():
    triton = family_of("triton", H200)
    batch = row((64, 4096, 4096), cta_m=128, cta_n=256, stages=3, kernel="triton", warps=8)
    step = k_tile(kernel_of(batch, numbers().without(triton.absent_mechanisms), family="triton"))
    # 64 of 128 rows lie inside: 64 + 256 of 128 bytes pass the port, 128 + 256 are awaited; two stages load.
    assert step.port_clk == pytest.approx(320)
    assert step.latency_clk == pytest.approx((400 + 384) / 2)


def test_specialized_warps_do_not_keep_ctas_in_step():
    triton = family_of("triton", H200)
    kernels = [{"cta_m": 128, "cta_n": 64, "kernel": "triton", "warps": warps} for warps in (4, 12)]
    shares = [resources_of(row((16, 8192, 4096), **each), H200, triton).in_step for each in kernels]
    assert shares == [1.0, 0.0]


def test_mmas_into_tensor_memory_have_neither_signals_nor_promotion():
    # 2 x 128 x 256 x 128 FLOP in each SM of the pair, at 16384 a clock.
    step = step_of(pair_of_ctas(256), rate=16384.0, gpu=B200)
    assert step.math_clk == pytest.approx(656)
    assert step.tail_clk == 0


@pytest.mark.parametrize(("k", "k_tiles", "beyond"), [(128, 1, 3), (768, 3, 1), (1024, 4, 1.5)])
def test_deep_k_tiles_arrive_and_are_multiplied_whole(k, k_tiles, beyond):
    """Three loads of 256 elements, wherever K ends."""
    gb300 = replace(B200, architecture="sm103")
    cutlass = family_of("cutlass", gb300)
    batch = row((4096, 4096, k), "nvfp4", cta_m=128, cta_n=256, cta_k=768, kernel="cutlass")
    known = numbers().without(cutlass.absent_mechanisms | {"scale_factors"})
    kernel = kernel_of(batch, known, gb300, "cutlass", rate=49152.0)
    step = k_tile(kernel)
    assert kernel.schedule.k_tiles == k_tiles
    # 2 x 128 x 256 x 256 FLOP at 49152 a clock and 0.8 of the peak, and 16 clocks to issue.
    assert step.math_clk == pytest.approx(beyond * (16777216 / (49152 * 0.8) + 16))
    # 384 rows of 128 bytes and of 16 bytes of scale factors at 64 bytes a clock.
    assert step.arriving_clk == pytest.approx(beyond * 384 * 144 / 64)


@pytest.mark.parametrize(("cta_n", "clk"), [(32, 130 + 16), (64, 170 + 16), (256, 640 + 16)])
def test_reading_operands_from_shared_memory_bounds_narrow_instructions(cta_n, clk):
    """The excess of 72 columns over N, each as half of the MMA's clocks: 80, 160, 640."""
    step = step_of(row(cta_m=64, cta_n=cta_n, schedule="pingpong"), without_signals())
    assert step.math_clk == pytest.approx(clk)


def test_warps_of_mma_sync_read_operands_once_for_each_row_or_column_of_warps():
    """64 x 64: 3 x 128 rows of 128 bytes at 128 a clock beside 256 clocks; 256 x 128: 1,408 beside 2,048."""
    for cta_m, cta_n, clk in ((64, 64, 384), (256, 128, 2048)):
        kernel = kernel_of(row(cta_m=cta_m, cta_n=cta_n), without_signals(), A100, "cutlass", rate=2048.0)
        assert k_tile(kernel).math_clk == pytest.approx(clk / 0.8 + 16)


def test_warpgroups_that_split_the_columns_issue_narrower_instructions():
    # 192 x 160 as two halves of 80 columns (1200 clocks), 192 x 128 as three of 64 rows (960 clocks).
    known = without_signals({"narrow_mma.bound_columns": 100.0})
    assert step_of(row(cta_m=192, cta_n=160), known).math_clk == pytest.approx(1200 * 1.125 + 16)
    assert step_of(row(cta_m=192, cta_n=128), known).math_clk == pytest.approx(960 + 16)


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (2, 2), (1, 4)])
def test_signals_between_producer_and_consumers_bound_a_k_tile(cluster):
    """Where MMAs take no time."""
    known = numbers().without(["tensor"])
    kernel = {"cta_m": 64, "cta_n": 32, "cluster_m": cluster[0], "cluster_n": cluster[1]}
    assert step_of(row(schedule="pingpong", **kernel), known).math_clk == pytest.approx(150)


def test_mmas_and_signals_overlap_as_a_norm_of_order_8():
    # 80 clocks of MMAs, 50 of reading their operands and 16 of issuing them, beside 150 of signals.
    step = step_of(row(cta_m=64, cta_n=32, schedule="pingpong"))
    assert step.math_clk == pytest.approx((146**8 + 150**8) ** (1 / 8))


@pytest.mark.parametrize(*cases(__file__, "test_slow_fp8_accumulation_drains_one_warpgroup_and_two_in_turn"))
def test_slow_fp8_accumulation_drains_one_warpgroup_and_two_in_turn(cta_m, schedule, slow, fast):
    batch = row(dtype="fp8", cta_m=cta_m, cta_n=128, schedule=schedule)
    known = without_signals()
    assert step_of(batch, known, rate=8192.0).math_clk == pytest.approx(slow)
    assert step_of(replace(batch, fast_accum=True), known, rate=8192.0).math_clk == pytest.approx(fast)


@pytest.mark.parametrize(*cases(__file__, "test_cublas_adds_a_blocks_slow_sums_beside_the_next_ones_mmas"))
def test_cublas_adds_a_blocks_slow_sums_beside_the_next_ones_mmas(cta_m, cta_n, adds_clk):
    batch = row(dtype="fp8", cta_m=cta_m, cta_n=cta_n, schedule="pingpong")
    known = without_signals({"tensor.issue_clk": 0.0})

    def math_clk(batch):
        return k_tile(kernel_of(batch, known, family="cublas", rate=8192.0)).math_clk

    # And 80 clocks of draining.
    slow, fast = math_clk(batch), math_clk(replace(batch, fast_accum=True))
    assert slow - fast == pytest.approx(adds_clk + 80)


@pytest.mark.parametrize(("dtype", "split_k", "waits_clk"), [("fp8", 1, 0), ("fp8", 4, 156), ("bf16", 4, 0)])
def test_kernels_that_split_k_wait_for_each_mma_of_slow_sums(dtype, split_k, waits_clk):
    """QuACK's: three waits more of 80 clocks without the 28 of other instructions, which come once."""
    known = without_signals()
    sizes = {"cta_m": 64, "cta_n": 128}
    whole = step_of(row((4096, 4096, 4096), dtype=dtype, **sizes), known)
    split = step_of(row((4096, 4096, 4096), dtype=dtype, split_k=split_k, **sizes), known)
    assert split.math_clk - whole.math_clk == pytest.approx(waits_clk)


def test_spilling_adds_to_the_mmas():
    # 64 registers of one warpgroup at 10 clocks, and two waits of 100 in 31 of 32 k tiles.
    batch = row(dtype="fp8", cta_m=128, cta_n=128, schedule="pingpong")
    spilling = step_of(batch, rate=8192.0).math_clk
    assert spilling - step_of(batch, numbers().without(["spilling"]), rate=8192.0).math_clk == pytest.approx(
        640 + 200 * 31 / 32
    )


def test_a_stages_round_trip_is_the_pipelines():
    step = step_of(row(cta_m=128, cta_n=128, stages=3))
    expected = time_per_k_tile(step.port_clk, 400.0, step.math_clk, 2.0)
    assert max(step.port_clk, step.math_clk, step.latency_clk) == pytest.approx(expected)


def test_the_port_takes_all_rows_whoever_asked_for_them():
    assert step_of(row(cta_m=128, cta_n=64)).port_clk == pytest.approx(192)
    assert step_of(row(cta_m=128, cta_n=64, cluster_m=2)).port_clk == pytest.approx(192)


def test_the_port_brings_rows_inside_the_matrix_only():
    assert step_of(row((32, 132 * 64, 4096), cta_m=128, cta_n=64)).port_clk == pytest.approx(96)


def test_half_of_b_never_comes_to_one_sm_of_a_pair():
    # Of A 128 rows and of B its own 128 of 256, of 128 bytes each, at 2 x 128 bytes a clock.
    for cluster_n in (1, 2):
        assert step_of(pair_of_ctas(256, cluster_n=cluster_n), gpu=B200).port_clk == pytest.approx(128)


def test_scale_factors_take_the_port_in_pieces():
    # 128 + 128 rows of 128 bytes, and 128 + 256 rows of 16 bytes of scales, which take 64 each.
    batch = pair_of_ctas(256, dtype="nvfp4")
    assert step_of(batch, gpu=B200).port_clk == pytest.approx((32768 + 384 * 64) / 256)
    alike = numbers().without(["scale_factors"])
    assert step_of(batch, alike, gpu=B200).port_clk == pytest.approx((32768 + 384 * 16) / 256)


@pytest.mark.parametrize(("k", "clk"), [(96, 960), (72, 960), (64, 0), (4096, 0), (4104, 960)])
def test_rows_of_a_last_k_tile_beyond_k(k, clk):
    """128 + 192 rows at 3 clocks, whichever CTA of a cluster asks for them."""
    assert step_of(row((4096, 4096, k), cta_m=128, cta_n=192)).tail_clk == clk
    for cluster in ({"cluster_m": 2}, {"cluster_n": 4}):
        assert step_of(row((4096, 4096, k), cta_m=128, cta_n=192, **cluster)).tail_clk == clk


@pytest.mark.parametrize(("k", "dearer"), [(4096, 0.0), (4128, 0.25), (4112, 0.75), (4104, 1.75)])
def test_rows_that_cross_lines_take_the_port_longer(k, dearer):
    """A quarter for each further place in a line of 128 bytes: pitches of multiples of 64, 32, 16."""
    batch = row((4096, 4096, k), cta_m=128, cta_n=128)
    assert step_of(batch).port_clk == pytest.approx(256 * (1 + dearer))
    # In clusters of two each CTA asks for half of B, and only for that do its rows cost more.
    pair = row((4096, 4096, k), cta_m=128, cta_n=128, cluster_m=2)
    assert step_of(pair).port_clk == pytest.approx(256 * (1 + 0.75 * dearer))


@pytest.mark.parametrize(*cases(__file__, "test_what_l2_holds_is_there_sooner"))
def test_what_l2_holds_is_there_sooner(load_clk, fresh_share, clk):
    card = replace(H200, dram_latency_ns=400.0, l2_latency_clk=300.0)
    batch, known = row(cta_m=128, cta_n=128), numbers({"latency.load_clk": load_clk})
    assert _load_clk(kernel_of(batch, known, card), fresh_share) == pytest.approx(clk)
    unknown = replace(card, dram_latency_ns=None)
    assert _load_clk(kernel_of(batch, known, unknown), fresh_share) == load_clk


def test_warps_that_multiply_start_loads_beside_their_mmas():
    batch = row((128, 128, 4096), cta_m=128, cta_n=128, stages=3, kernel="triton", warps=8)
    specialized = row((128, 128, 4096), cta_m=128, cta_n=128, stages=3, kernel="triton", warps=12)
    triton = family_of("triton", H200)
    found, others = (resources_of(each, H200, triton) for each in (batch, specialized))
    assert (found.math_in_round_trip, found.loads_under_way) == (0.0, 2.0)
    assert (others.math_in_round_trip, others.loads_under_way) == (1.0, 3.0)
    assert (found.awaited_math, others.awaited_math) == (0.0, 1.0)


@pytest.mark.parametrize(*cases(__file__, "test_loads_wait_for_mmas_that_no_tensor_core_has_taken"))
def test_loads_wait_for_mmas_that_no_tensor_core_has_taken(cta_m, cta_n, cta_k, warps, share):
    kernel = {"cta_m": cta_m, "cta_n": cta_n, "cta_k": cta_k, "stages": 2, "kernel": "triton", "warps": warps}
    triton = family_of("triton", H200)
    assert resources_of(row((256, 256, 4096), **kernel), H200, triton).math_in_round_trip == share


def test_specialized_warps_wait_for_their_own_mmas():
    triton = family_of("triton", H200)
    known = numbers({"round_trip.single_clk": 600.0}).without(triton.absent_mechanisms)
    clk = []
    for warps in (8, 12):
        batch = row((128, 128, 4096), cta_m=128, cta_n=128, stages=3, kernel="triton", warps=warps)
        clk.append(k_tile(kernel_of(batch, known, family="triton")).math_clk)
    # 2 x 128 x 128 x 64 FLOP at 4096 a clock and 0.8 of it, and 16: each of two warpgroups has half of them.
    assert clk[0] == pytest.approx((656**8 + 600**8) ** (1 / 8))
    assert clk[1] == pytest.approx((656**8 + 928**8) ** (1 / 8))


def test_l2_holds_the_panels_that_come_again():
    # 32 x 32 tiles of 128 x 128 in eight waves; L2 keeps A and B, which come once, while waves touch more.
    batch = row((4096, 4096, 4096), cta_m=128, cta_n=128)
    schedule = SimpleNamespace(
        tiles=1024.0,
        resident=128.0,
        splits_at_once=1.0,
        filled_m=1.0,
        filled_n=1.0,
        minor_is_m=True,
        minor_panels=8.0,
        major_panels=16.0,
        matrices=1.0,
        sharers=1.0,
        group=8.0,
        group_steps=32.0,
    )
    # Eight waves of 24 panels of 1 MiB, 192 MiB in all, of which 64 MiB come from DRAM.
    kernel = kernel_of(batch, schedule=schedule)
    panels = _wave_panels(kernel)
    assert panels.bytes == 24 * 2**20
    moved = SimpleNamespace(dram_read_bytes=2 * 4096 * 4096 * 2.0, wave_bytes=panels.bytes)
    assert fresh_share(kernel, moved) == pytest.approx(1 / 3)


@pytest.mark.parametrize(*cases(__file__, "test_what_the_dsl_spills"))
def test_what_the_dsl_spills(dtype, config, excess, moved, waits):
    found = found_of(row(dtype=dtype, **config))
    assert (found.spilled_registers, found.moved_registers, found.spill_waits) == (excess, moved, waits)


def test_nvcc_spills_by_the_register():
    batch = row(dtype="fp8", cta_m=128, cta_n=256)
    found = resources_of(batch, H200, family_of("cutlass", H200))
    assert (found.spilled_registers, found.moved_registers, found.spill_waits) == (46, 46, 3)


def test_clocks_of_a_k_tile():
    """10 clocks a register, root 2 times as much for two warpgroups; 100 a wait, not in the first k tile."""
    one = {"dtype": "fp8", "cta_m": 128, "cta_n": 128, "schedule": "pingpong"}
    assert spilled_clk(kernel_of(row((512, 512, 128), **one))) == pytest.approx(640)
    assert spilled_clk(kernel_of(row((512, 512, 512), **one))) == pytest.approx(640 + 2 * 100 * 3 / 4)
    two = kernel_of(row((512, 512, 512), dtype="fp8", cta_m=256, cta_n=128))
    assert spilled_clk(two) == pytest.approx(640 * 2**0.5 + 150)


@pytest.mark.parametrize(*cases(__file__, "test_what_spills_goes_through_l2"))
def test_what_spills_goes_through_l2(config, registers):
    """At 2 bytes of L2's work for each of the 4 bytes of a register, of the 256 threads of two warpgroups."""
    assert spilled_l2_bytes(kernel_of(row(dtype="fp8", **config))) == pytest.approx(registers * 4 * 256 * 2.0)
