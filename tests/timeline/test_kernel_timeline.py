from time import process_time

import numpy as np
import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, load_gpu
from gemm_model.core.batch import numbers_of
from gemm_model.kernel_model.model import KernelModel
from gemm_model.timeline import plots
from gemm_model.timeline.chrome_trace import chrome_trace_json
from gemm_model.timeline.kernel_timeline import cluster_coordinates, kernel_timeline
from gemm_model.timeline.phases import phases_of
from gemm_model.timeline.trace import RING, read_trace_table, trace_events, write_trace_table
from tests.cases import cases
from tests.timeline.trace_rules import broken_rules


def timeline(m, n, k, tile, cluster=(1, 1), schedule="cooperative", dtype="bf16", gpu="h200", **more):
    config = KernelConfig(
        cta_m=tile[0], cta_n=tile[1], cluster_m=cluster[0], cluster_n=cluster[1], schedule=schedule,
        split_k=more.pop("split_k", 1), kernel=more.pop("kernel", "quack"),
    )  # fmt: skip
    options = {name: more.pop(name) for name in ("regime", "residual", "without") if name in more}
    model = KernelModel(load_gpu(gpu), **options)
    return kernel_timeline(GemmProblem.of(m, n, k, dtype), config, model, **more)


def tile_times(m, n, k, tile, dtype="bf16", schedule="cooperative", **options):
    """What the model says of one tile of a kernel."""
    model = KernelModel(load_gpu("h200"), **options)
    clusters = 2 if tile[1] == 256 else 1
    config = KernelConfig(cta_m=tile[0], cta_n=tile[1], cluster_m=clusters, schedule=schedule)
    return model.evaluate_row(numbers_of(GemmProblem.of(m, n, k, dtype), config)).tile_times()


def first_load_us(tile, few_rows=False):
    """Of the mean CTA: fixed, its k tile out of L2 as all ask for theirs, pages of its own."""
    return 0.63 + 0.87 * tile.k_tile_us + 0.85 * few_rows


def before_first_mma_us(regime):
    """Of a CTA in a cluster: its prologue, that of clusters, its first load."""
    return 0.67 + 0.25 + first_load_us(tile_times(4096, 4096, 4096, (128, 256), regime=regime))


COUNTED = {"regime": "counters", "residual": "off"}
NAMES, KERNELS = cases(__file__, "kernels")


@pytest.mark.parametrize(NAMES, KERNELS)
def test_it_ends_with_the_prediction_and_no_warp_does_two_things_at_once(kernel, options):
    drawn = timeline(*kernel, **options)
    rows = drawn.trace.rows
    assert rows["end_us"].max() == pytest.approx(drawn.prediction.runtime_us, rel=1e-6)
    assert (rows["end_us"] >= rows["start_us"] - 1e-9).all()
    assert (rows["waited_us"] <= rows["end_us"] - rows["start_us"] + 1e-9).all()
    busy = rows[(rows["k_tile"] < 0) & (rows["role"] != RING)].sort_values(["start_us", "end_us"])
    for _, track in busy.groupby(["sm", "role"]):
        assert (track["start_us"].to_numpy()[1:] >= track["end_us"].to_numpy()[:-1] - 1e-6).all()


def test_every_tile_is_computed_once_by_each_consumer():
    # 32 x 16 tiles in clusters of two, 66 clusters at once: waves of 66 clusters, 58 in the last.
    drawn = timeline(4096, 4096, 4096, (128, 256), (2, 1))
    mma = drawn.trace.of_tiles("mma")
    for _, own in mma.groupby("role"):
        assert sorted(own["tile"]) == sorted(2 * list(range(256)))
    assert drawn.trace.info.k_tiles == 64
    last = mma[(mma["role"] == "consumer 1") & (mma["sm"] == 131)]
    assert last["tile"].tolist() == [65, 131, 197]
    assert mma[mma["sm"] == 115]["tile"].max() == 57 + 3 * 66


def test_phases_are_those_of_the_prediction():
    drawn = timeline(4096, 4096, 4096, (128, 256), (2, 1), residual="off")
    phases, rows = drawn.prediction.phases_us, drawn.trace.rows
    resident = rows[rows["activity"] == "resident"]
    assert resident["start_us"].max() == pytest.approx(
        phases["launch"] + phases["first_load"] - before_first_mma_us("burst")
    )
    mma = drawn.trace.of_tiles("mma")
    assert mma["start_us"].min() == pytest.approx(phases["launch"] + phases["first_load"])
    first = mma[mma["role"] == "consumer 1"].groupby("sm")
    period = first["start_us"].apply(lambda starts: np.diff(starts)[:2]).explode().astype(float)
    assert 3 * period.iloc[0] <= phases["waves"] <= 4 * period.iloc[0] + 1e-6
    assert rows["end_us"].max() == pytest.approx(sum(phases.values()))
    waited_us = drawn.trace.of_tiles("load")["waited_us"].sum()
    assert phases_of(drawn.trace)["producer waits for a free stage"] == pytest.approx(waited_us / 132)


@pytest.mark.parametrize("regime", ["burst", "graph", "sustained", "counters"])
def test_ctas_start_one_after_the_other_in_every_regime(regime):
    drawn = timeline(4096, 4096, 4096, (128, 256), (2, 1), residual="off", regime=regime)
    rows = drawn.trace.rows
    starts = rows[rows["activity"] == "resident"]["start_us"]
    assert 0 <= starts.min() < starts.max()
    phases = drawn.prediction.phases_us
    launched_us = phases["launch"] + phases["first_load"]
    assert starts.max() == pytest.approx(launched_us - before_first_mma_us(regime))


def test_a_launch_holds_prologue_and_first_load_and_no_more():
    phases, first_us = {}, {}
    for name, kernel in (("cta", (512, 2048, 4096, (128, 128))), ("few rows", (64, 4096, 4096, (64, 128)))):
        drawn = timeline(*kernel, **COUNTED)
        first_us[name] = first_load_us(tile_times(*kernel, regime="counters"), name == "few rows")
        phases[name] = phases_of(drawn.trace)
        skew_us = phases[name]["start skew"]
        # All CTAs begin to compute together; the median one starts half the skew before the last.
        assert phases[name]["first CTA to first load"] == pytest.approx(0.67 + skew_us / 2, abs=0.02)
        since_us = first_us[name] + skew_us / 2
        assert phases[name]["first load to first MMA"] == pytest.approx(since_us, abs=0.02)
    # 32 KB for each of 132 SMs at about 11.7 TB/s of L2, 24 KB of the narrower tile.
    assert first_us["cta"] == pytest.approx(0.63 + 0.87 * 0.37, abs=0.05)
    assert first_us["few rows"] == pytest.approx(0.63 + 0.87 * 0.277 + 0.85, abs=0.05)
    chained = timeline(16, 128, 64, (64, 128), regime="sustained")
    rows = chained.trace.rows
    assert rows[rows["activity"] == "resident"]["start_us"].min() >= 0.0


def waited_us(drawn):
    """Of a consumer within each of its tiles."""
    return drawn.trace.of_tiles("mma")["waited_us"].to_numpy()


def test_the_mean_cta_waits_less_for_data_than_the_slowest():
    kernel, of = (16, 8192, 4096, (64, 64)), COUNTED
    drawn, tile = timeline(*kernel, **of), tile_times(*kernel, **of)
    # One wave of 128 tiles, whose loads take almost three times as long as its MMAs.
    assert tile.full_wave_us > 2.9 * tile.period_us
    # 64 k tiles through 13 stages: 12 after the first one come with no output on its way, the others as long
    # as the wave lasts. The warp has its MMAs under way 0.05 us after the data, and waits again.
    assert drawn.trace.info.stages == 13
    burst_us = 12 * (0.87 * tile.operands_us / 64 - 0.05)
    later_us = 51 * (0.87 * tile.full_wave_us / 64 - 0.05)
    assert waited_us(drawn) == pytest.approx(burst_us + later_us)


def test_tensor_bound_tiles_wait_for_the_first_turn_of_the_ring_alone():
    kernel, of = (4096, 4096, 1024, (128, 256)), COUNTED
    drawn, tile = timeline(*kernel, (2, 1), **of), tile_times(*kernel, **of)
    each_us, mma_us = 0.87 * tile.operands_us / 16, tile.mma_us
    assert each_us < mma_us
    assert drawn.trace.info.stages == 4
    # The second k tile while the first one's MMAs run; for the third and fourth MMAs before have to end, too.
    waits_us = [each_us - 0.05, min(2 * each_us - mma_us, each_us - 0.05), max(3 * each_us - 2 * mma_us, 0.0)]
    mma = drawn.trace.of_tiles("mma")
    first = mma["start_us"] < mma["start_us"].min() + 1.0
    assert mma["waited_us"][first].to_numpy() == pytest.approx(sum(waits_us))
    assert (mma["waited_us"][~first] == 0.0).all()


def test_over_several_waves_the_mean_cta_is_nearer_to_the_slowest():
    kernel, of = (2048, 2048, 2048, (64, 64)), COUNTED
    drawn, tile = timeline(*kernel, **of), tile_times(*kernel, **of)
    # Eight waves: 1 / 0.87 - 1 over the root of eight is 0.0528. Loads go on while the tile is stored.
    each_us = tile.full_wave_us / 1.0528 / 32
    ahead = (tile.period_us - 32 * tile.mma_us) / each_us
    waits_us = [
        min(max((step - ahead) * each_us - (step - 1) * tile.mma_us, 0.0), each_us - 0.05)
        for step in range(1, 32)
    ]
    assert waits_us[0] == 0.0 < waits_us[-1]
    mma = drawn.trace.of_tiles("mma").query("cta == 0").sort_values("start_us")
    assert mma["waited_us"].to_numpy()[1:7] == pytest.approx(sum(waits_us), rel=1e-3)


def test_output_on_the_way_of_operands_holds_up_no_mmas():
    kernel, of = (4096, 4096, 256, (128, 128)), COUNTED
    drawn = timeline(*kernel, schedule="pingpong", **of)
    tile = tile_times(*kernel, schedule="pingpong", **of)
    # Four k tiles of 32 KB are loaded, and a tile of 32 KB is stored. Eight waves as above: all of it takes
    # the mean CTA longer than its MMA warps, the operands alone do not.
    waves_us = tile.full_wave_us / 1.0528
    operands = tile.operands_us / max(tile.loads_us.values())
    assert operands * waves_us < tile.period_us < waves_us
    waited_us = drawn.trace.of_tiles("mma").query("cta == 0").sort_values("start_us")["waited_us"]
    assert waited_us.iloc[0] > 0.0
    assert (waited_us.iloc[1:] == 0.0).all()


def test_ctas_end_a_wave_as_far_apart_as_they_start_and_as_they_share_loads():
    of = COUNTED
    skews = {}
    for kernel in ((16, 8192, 4096, (64, 64)), (2048, 2048, 2048, (64, 64)), (4096, 4096, 1024, (128, 256))):
        cluster = (2, 1) if kernel[0] == 4096 else (1, 1)
        tile, found = tile_times(*kernel, **of), phases_of(timeline(*kernel, cluster, **of).trace)
        # The mean CTA needs 0.87 of the slowest's time, the fastest 0.74: of the first load, too.
        first_us = first_load_us(tile, few_rows=kernel[0] == 16)
        waves_us = found["wave skew"] - found["start skew"] - 0.26 * first_us
        skews[kernel[0]] = waves_us, tile.full_wave_us, tile.period_us
    waves_us, loads_us, _ = skews[16]
    assert waves_us == pytest.approx(0.26 * loads_us, abs=0.01)
    # 1,024 tiles on 132 SMs: seven complete waves, the fourth of them in the middle. The fastest CTA is ahead
    # by four times as much as after one wave, the slowest is late by twice as much.
    waves_us, loads_us, period_us = skews[2048]
    each_us = min(0.13 * loads_us, (loads_us - period_us) / 2)
    assert waves_us == pytest.approx((4 + 2) * each_us, abs=0.03)
    # MMAs bound: three complete waves, the second in the middle.
    waves_us, loads_us, period_us = skews[4096]
    assert waves_us == pytest.approx((2 + 2**0.5) * (loads_us - period_us) / 2, abs=0.01)


def test_what_a_tracer_reads_is_no_longer_waited_for():
    kernel, of = (16, 8192, 4096, (64, 64)), COUNTED
    for dtype, waits in (("bf16", 63), ("e4m3", 31)):
        drawn = [timeline(*kernel, dtype=dtype, read_us=read_us, **of) for read_us in (0.0, 0.05)]
        # K tiles of 128 bytes after the first one.
        assert waited_us(drawn[1]) == pytest.approx(waited_us(drawn[0]) - waits * 0.05)
        assert drawn[0].trace.info.runtime_us == drawn[1].trace.info.runtime_us


def test_a_warp_that_spills_waits_for_data_that_are_there():
    kernel = (4096, 4096, 1024, (128, 256), (2, 1))
    drawn = timeline(*kernel, dtype="e4m3", read_us=1.0, **COUNTED)
    # Eight k tiles of 128 bytes of K; the tracer's 1 us leaves nothing else.
    assert waited_us(drawn) == pytest.approx(8 * 0.03)


@pytest.mark.parametrize(("schedule", "later_us"), [("pingpong", 0.19), ("cooperative", 0.0)])
def test_a_pingpong_warpgroup_asks_for_its_turn_before_it_waits_for_data(schedule, later_us):
    drawn = timeline(4096, 4096, 1024, (128, 128), (2, 1), schedule, **COUNTED)
    waits, loads = drawn.trace.of_tiles("wait"), drawn.trace.of_tiles("load")
    waits = waits[waits["detail"] == "loaded data"].groupby("cta")["start_us"].min()
    loads = loads.groupby("cta")["start_us"].min()
    assert (waits - loads).to_numpy() == pytest.approx(later_us)


def test_the_warp_that_loads_tells_the_next_tile_after_its_last_load():
    kernel = (4096, 4096, 1024, (128, 128), (2, 1), "pingpong")
    drawn = timeline(*kernel, **COUNTED)
    waits, mma = (drawn.trace.of_tiles(name).query("cta == 0") for name in ("wait", "mma"))
    # The third tile of a CTA is its first warpgroup's second one, 66 clusters of two after the second.
    third = waits[waits["tile"] == 2 * 66].set_index("detail")
    assert sorted(third.index) == ["its turn at the tensor cores", "the next tile"]
    before = mma[mma["tile"] == 66].iloc[0]
    slot_us = (before["end_us"] - before["start_us"]) / 16
    # 16 k tiles through six stages: the last is asked for when the MMAs of the eleventh have ended.
    assert drawn.trace.info.stages == 6
    # And asking takes the port as long as it fetches 32 KB at 111 B/clk, about 0.17 us.
    known_us = before["start_us"] + 11 * slot_us + 0.17
    assert third.loc["the next tile", "end_us"] == pytest.approx(known_us, abs=0.02)
    assert third.loc["its turn at the tensor cores", "start_us"] == third.loc["the next tile", "end_us"]
    of_cutlass = timeline(*kernel, kernel="cutlass", **COUNTED)
    assert "the next tile" not in set(of_cutlass.trace.rows["detail"])


def test_tiles_of_a_dynamic_kernel_go_to_the_pair_that_started_first():
    drawn = timeline(256 * 3, 256 * 60, 512, (128, 256), (2, 1), "2cta", "fp8", "b200_1300mhz")
    mma = drawn.trace.of_tiles("mma").query("role == 'MMA warp'")
    # 180 tiles on 74 pairs: the first 32 of them have a third one. A CTA of the second pair, and the last's.
    assert mma[mma["cta"] == 3]["tile"].tolist() == [1, 75, 149]
    assert mma[mma["cta"] == 147]["tile"].tolist() == [73, 147]
    assert mma.groupby("cta").size().value_counts().to_dict() == {3: 64, 2: 84}


def test_one_warpgroup_stores_slower_and_slower_still_beside_the_others_mmas():
    # Waves of single CTAs; one warpgroup's epilogue is 0.9 of the model's alone, and two warpgroups' 0.7 of theirs.
    kernel = (4096, 4096, 4096, (128, 128))
    length = epilogues_us(timeline(*kernel, schedule="pingpong", **COUNTED), cta=0)
    once = float(np.median(epilogues_us(timeline(*kernel, **COUNTED))))
    assert max(length) / min(length) == pytest.approx(2.15 / 0.9)
    assert min(length) == pytest.approx(0.9 * tile_times(*kernel, schedule="pingpong", **COUNTED).epilogue_us)
    assert once == pytest.approx(0.7 * tile_times(*kernel, **COUNTED).epilogue_us)
    assert 0.9 / 0.7 * once < min(length)
    assert len(length) == 8


def test_spilled_registers_and_parts_before_it_make_an_epilogue_longer():
    kernel = (4096, 4096, 1024, (128, 256), (2, 1))
    plain = timeline(*kernel, **COUNTED)
    spilled = timeline(*kernel, dtype="e4m3", **COUNTED)
    # Beside the other warpgroup's MMAs 2.1 to 0.7, of the last tile 1.75; the clocks differ by up to a tenth.
    ratio = np.array([max(epilogues_us(spilled)), min(epilogues_us(spilled))]) / max(epilogues_us(plain))
    assert ratio == pytest.approx([2.1 / 0.7, 1.75 / 0.7], rel=0.1)
    whole, parts = (timeline(64, 4096, 8192, (64, 128), split_k=count, **COUNTED) for count in (1, 4))
    # Three parts may be before it: one and a half in the mean.
    longer_us = max(epilogues_us(parts)) - max(epilogues_us(whole))
    assert longer_us == pytest.approx(1.5 * 2.0, abs=0.05)


def epilogues_us(drawn, cta=None):
    rows = drawn.trace.of_tiles("epilogue")
    rows = rows if cta is None else rows[rows["cta"] == cta]
    return (rows["end_us"] - rows["start_us"]).tolist()


def test_the_ring_is_never_overcommitted():
    for kernel in (KERNELS[0][0], KERNELS[1][0], KERNELS[3][0]):
        drawn = timeline(*kernel)
        ring = drawn.trace.rows[drawn.trace.rows["role"] == RING]
        load, mma = ring[ring["activity"] == "load"], ring[ring["activity"] == "mma"]
        assert (load["end_us"].to_numpy() <= mma["start_us"].to_numpy() + 1e-6).all()
        for stage, own in load.groupby("stage"):
            freed = mma[mma["stage"] == stage]["end_us"].to_numpy()
            assert (own["start_us"].to_numpy()[1:] >= freed[:-1] - 1e-6).all()


def test_a_picture_shows_all_ctas_and_two_tiles_of_one(monkeypatch):
    trace = timeline(*KERNELS[0][0]).trace
    rows = plots._zoomed(trace, 0)
    assert set(rows["role"]) == {"producer", "consumer 1", "consumer 2", RING}
    assert set(rows[rows["activity"] == "mma"]["tile"]) == {0, 66}
    assert set(rows["stage_row"]) == {-1, 0, 1, 2, 3}
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, *_, **__: figures.append(figure))
    plots.plot_traces([trace], "t.png", "a kernel")
    _, zoom = figures[0].axes
    names = ["consumer 1", "consumer 2", "producer", "stage 0", "stage 1", "stage 2", "stage 3"]
    assert [label.get_text() for label in zoom.get_yticklabels()] == names
    bars = [path.get_extents() for kind in zoom.collections for path in kind.get_paths()]
    assert len(bars) == len(rows)
    assert {round((bar.y0 + bar.y1) / 2, 6) for bar in bars} == set(range(len(names)))
    assert figures[0].get_figheight() == pytest.approx(3.0 + 0.5 + 0.22 * len(names) + 1.0)
    picture = plots.overview_pixels(trace, trace.rows["end_us"].max())
    assert picture.shape == (132, 2000)
    assert [list(plots.COLORS)[code] for code in picture[0, [0, 1000, -1]]] == ["", "mma", "resident"]


def test_edge_tiles_lie_at_the_edges():
    # 300 x 1000 in CTA tiles of 128 x 192 and clusters of 2 x 2: 4 x 6 tiles, of which 2 x 5 are whole.
    drawn = timeline(300, 1000, 512, (128, 192), (2, 2))
    mma = drawn.trace.of_tiles("mma")
    mma = mma[mma["role"] == "consumer 1"]
    assert len(mma) == 24
    assert (mma["detail"] == "edge tile").sum() == 24 - 2 * 5


def test_many_tiles_are_thinned_out_in_time_and_size(tmp_path):
    started = process_time()
    drawn = timeline(16384, 40960, 4096, (128, 256), (2, 1))
    text = chrome_trace_json(trace_events(drawn.trace))
    # 20,480 tiles: two seconds of one core.
    assert process_time() - started < 8
    assert len(text) < 20e6
    assert any("drawn as one" in note for note in drawn.trace.info.notes)
    mma = drawn.trace.of_tiles("mma")
    assert mma[mma["role"] == "consumer 1"]["tiles"].sum() == 20480


@pytest.mark.parametrize("kernel", [KERNELS[0][0], KERNELS[2][0], KERNELS[7][0]])
def test_perfetto_rules_hold(kernel):
    assert broken_rules(chrome_trace_json(trace_events(timeline(*kernel).trace))) == []


def test_a_table_is_read_as_it_was_written(tmp_path):
    trace = timeline(1024, 1024, 1024, (128, 128)).trace
    for name in ("t.csv", "t.csv.gz"):
        write_trace_table(trace, tmp_path / name)
        again = read_trace_table(tmp_path / name)
        assert again.info == trace.info
        assert (again.rows["role"] == trace.rows["role"].to_numpy()).all()
        assert again.rows["end_us"].to_numpy() == pytest.approx(trace.rows["end_us"].to_numpy(), abs=1e-4)


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    write_trace_table(timeline(256, 256, 256, (128, 128)).trace, path)
    whole = path.read_bytes()
    for place in range(40, len(whole), 60):
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        with pytest.raises(InputError, match=r"t.csv.gz: "):
            read_trace_table(path)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="SM 200 has no tile; expected one of 0 to 131"):
        timeline(4096, 4096, 4096, (128, 128), (2, 1), detailed_sm=200)
    shared = KernelConfig(cta_m=128, cta_n=128, kernel="cutlass", scheduler="stream_k")
    with pytest.raises(InputError, match="stream-K deals out parts of tiles; expected scheduler static"):
        kernel_timeline(GemmProblem.of(512, 512, 4096), shared, KernelModel(load_gpu("h200")))
    with pytest.raises(InputError, match="4096 x 4096 x 4096 on h200"):
        timeline(4096, 4096, 4096, (256, 256), (1, 1), "pingpong")
    grouped = GemmProblem.of(512, 512, 4096, groups="500,12")
    with pytest.raises(InputError, match="timelines are those of plain products"):
        kernel_timeline(grouped, KernelConfig(cta_m=128, cta_n=128), KernelModel(load_gpu("h200")))


def walked(m, n, swizzle, kernel="quack", split_k=1):
    """The cluster tiles of 128 x 128 in the order of the family."""
    config = KernelConfig(cta_m=128, cta_n=128, swizzle=swizzle, kernel=kernel, split_k=split_k)
    model = KernelModel(load_gpu("h200"))
    geometry = model.evaluate_row(numbers_of(GemmProblem.of(m, n, 512), config)).geometry
    places = np.arange(int(geometry.schedule.tiles))
    rows, columns = cluster_coordinates(places, geometry.batch, geometry.schedule, geometry.family.tile_order)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def test_groups_of_two_rows_in_serpentines():
    # 3 x 6 tiles: rows are the shorter extent; the second group is one row, walked backwards.
    assert walked(384, 768, 2) == [
        *[(row, column) for column in range(6) for row in (0, 1)],
        *[(2, column) for column in (5, 4, 3, 2, 1, 0)],
    ]


def test_splits_of_a_tile_follow_each_other():
    order = walked(256, 256, 1, split_k=2)
    assert order[::2] == order[1::2]
    assert sorted(order[::2]) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("kernel", ["quack", "cutlass", "triton"])
@pytest.mark.parametrize(("m", "n"), [(1024, 1024), (640, 1920), (1920, 384), (128, 128)])
@pytest.mark.parametrize("swizzle", [1, 4, 8])
def test_each_tile_is_walked_once(kernel, m, n, swizzle):
    order = walked(m, n, swizzle, kernel)
    assert len(set(order)) == len(order)
    assert {(row, column) for row in range(m // 128) for column in range(n // 128)} <= set(order)
