from dataclasses import replace

import pytest

from gemm_model.errors import InputError
from gemm_model.timeline.iket import (
    LaunchedInTurns,
    TracedKernel,
    counted_launches,
    lifetimes_us,
    read_iket,
    trace_of,
)
from gemm_model.timeline.phases import median_of, phases_of, unwaited_us
from gemm_model.timeline.trace import read_trace_table, write_trace_table
from tests.timeline.iket_sample import STRINGS, as_documented, location, sample, write_sample

KERNEL = TracedKernel(
    gpu="h200", identity={"cluster_m": 1, "cluster_n": 1, "schedule": "cooperative"}, k_tiles=2, stages=3,
    untraced_us=1.25,
)  # fmt: skip


def rows_of(trace, **wanted):
    rows = trace.rows
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


@pytest.mark.parametrize("form", [dict, as_documented])
def test_a_hand_made_trace_is_read_interval_by_interval(tmp_path, form):
    launches = read_iket(write_sample(tmp_path / "t.json", form(sample())))
    assert [launch.kernel_name for launch in launches] == ["kernel_cutlass_gemm"]
    trace = trace_of(launches[0], KERNEL)
    assert trace.info.runtime_us == pytest.approx(1.6)
    assert trace.info.overhead == pytest.approx(0.28)
    assert trace.info.lost_warps == 0
    assert "in steps of 32 ns" in trace.info.notes[0]
    mma = trace.of_tiles("mma")
    assert mma[["tile", "start_us", "end_us", "waited_us"]].to_numpy().tolist() == [
        [0, 0.512, 0.8, 0.032],
        [1, 1.024, 1.344, 0.0],
    ]
    assert set(mma["role"]) == {"consumer 1"}
    steps = rows_of(trace, activity="mma", warp=0)
    steps = steps[steps["k_tile"] >= 0]
    assert steps[["k_tile", "stage", "start_us", "end_us"]].to_numpy().tolist() == [
        [0, 0, 0.512, 0.64],
        [1, 1, 0.672, 0.8],
        [0, 2, 1.024, 1.152],
        [1, 0, 1.152, 1.344],
    ]
    load = trace.of_tiles("load")
    assert load[["role", "warp", "tile", "waited_us"]].to_numpy().tolist() == [
        ["producer", 4, 0, 0.064],
        ["producer", 4, 1, pytest.approx(0.576)],
    ]
    assert rows_of(trace, activity="store")["tile"].tolist() == [0]
    assert rows_of(trace, activity="other")["detail"].tolist() == ["mine"]
    assert rows_of(trace, activity="resident")[["sm", "end_us"]].to_numpy().tolist() == [[7, 1.6]]


def test_its_phases(tmp_path):
    phases = phases_of(trace_of(read_iket(write_sample(tmp_path / "t.json"))[0], KERNEL))
    assert phases == pytest.approx(
        {
            "runtime": 1.6, "first CTA to end": 1.6, "start skew": 0.0, "first CTA to first load": 0.064,
            "first load to first MMA": 0.448, "k tile": 0.16, "epilogue": 0.16, "tail": 1.6 - 1.344,
            "waves": 2, "wave skew": 0.0,
            # Before tiles 416 and 0 ns for data, the second after the first MMA: one that finds all there
            # reads 0. Within tiles 32 and 0 ns: there it reads 0 or, a step of the timer, 32; 16 in the mean.
            "consumers wait for loaded data": 0.416 + 0.0 + 0.032 + 0.0 - 2 * 0.016,
            "consumers wait for the next tile": 0.032,
            "consumers wait": 0.448,
            "producer waits for a free stage": 0.064 + 0.576,
        }
    )  # fmt: skip


@pytest.mark.parametrize(("second_ns", "within_us"), [(32, 0.0), (192, 0.16)])
def test_what_a_wait_reads_without_waiting_is_not_counted(tmp_path, second_ns, within_us):
    document = sample()
    # Each wait within a tile lasts 32 ns at least, as on a GPU whose timer steps by so much; before tiles
    # they are as above.
    for found in document["launches"][1]["ranges"]:
        if document["stringTable"][found["rangeNameIdx"]] == "wait_data" and found["startTs"] == 1_001_152:
            found["endTs"] += second_ns
    trace = trace_of(read_iket(write_sample(tmp_path / "t.json", document))[0], KERNEL)
    assert unwaited_us(trace, within_tiles=True) == pytest.approx(0.032)
    assert unwaited_us(trace, within_tiles=False) == 0.0
    assert phases_of(trace)["consumers wait for loaded data"] == pytest.approx(0.416 + within_us)


def test_waits_for_a_turn_are_what_no_range_explains(tmp_path):
    pingpong = replace(KERNEL, identity={**KERNEL.identity, "schedule": "pingpong"})
    phases = phases_of(trace_of(read_iket(write_sample(tmp_path / "t.json"))[0], pingpong))
    # Before the first tile from 32 to 96 ns, where its wait for data begins; then from the end of its
    # epilogue at 992 ns to the next tile's first MMA at 1024.
    assert phases["consumers wait for its turn at the tensor cores"] == pytest.approx(0.064 + 0.032)


def test_clusters_and_turns_number_the_tiles(tmp_path):
    document = sample()
    launch = document["launches"][1]
    launch["gridDimX"], launch["gridDimZ"], launch["blockDimX"] = 2, 3, 288
    document["locationTable"] = [location(8, (1, 0, 2)), location(4, (1, 0, 2))]
    pingpong = replace(KERNEL, identity={"cluster_m": 2, "cluster_n": 1, "schedule": "pingpong"})
    # A warp of the first warpgroup computes too, so that warp 4 belongs to the second one.
    document["locationTable"].append(location(0, (1, 0, 2)))
    launch["ranges"] += [{**launch["ranges"][index], "warpLocIdxs": [2, 2]} for index in (7, 10)]
    trace = trace_of(read_iket(write_sample(tmp_path / "t.json", document))[0], pingpong)
    # Cluster 2 of 3; its consumers take its tiles 0, 2, ... and 1, 3, ...
    assert trace.of_tiles("mma").groupby("role")["tile"].apply(list).to_dict() == {
        "consumer 1": [2],
        "consumer 2": [5, 11],
    }
    assert trace.of_tiles("load")["tile"].tolist() == [2, 5]
    assert set(trace.rows["cta"]) == {5}
    # Two CTAs of nine warps in three clusters, and lifetimes of two warps.
    assert trace.info.lost_warps == 6 * 9 - 2


def test_a_warpgroup_is_told_by_its_first_warp_unless_all_are_wanted(tmp_path):
    document = sample()
    document["locationTable"].append(location(1))
    launch = document["launches"][1]
    launch["ranges"] += [{**launch["ranges"][index], "warpLocIdxs": [2, 2]} for index in (7, 10)]
    (found,) = read_iket(write_sample(tmp_path / "t.json", document))
    assert set(trace_of(found, KERNEL).rows["warp"]) == {-1, 0, 4}
    assert set(trace_of(found, KERNEL, every_warp=True).rows["warp"]) == {-1, 0, 1, 4}


def test_the_first_launch_of_a_turn_does_not_count(tmp_path):
    (one,) = read_iket(write_sample(tmp_path / "t.json"))
    place, *_ = one.lifetimes
    launches = [
        replace(one, ranges={}, lifetimes={place: (0, us)})
        for us in (1, *(9, 50, 9, 30, 9, 40), *(90, 600, 90, 500, 90, 700))
    ]
    # One launch prepared a kernel; in three turns of each the first launch does not count.
    in_turns = LaunchedInTurns(3, 1)
    counted = counted_launches(launches, 2, in_turns)
    lived = [[launch.lifetimes[place][1] for launch in own] for own in counted]
    assert lived == [[50, 30, 40], [600, 500, 700]]
    with pytest.raises(InputError, match="saw 13 launches of instrumented kernels; expected at least 18"):
        counted_launches(launches, 3, in_turns)
    assert LaunchedInTurns(2, 3).of_each([*range(16)]) == [[1, 2, 3, 5, 6, 7], [9, 10, 11, 13, 14, 15]]


def test_a_kernel_lives_from_its_first_warps_start_to_its_last_ones_end(tmp_path):
    path = write_sample(tmp_path / "t.json", sample(2))
    assert lifetimes_us(path, ["kernel_cutlass_gemm"], LaunchedInTurns(1, 1)) == [pytest.approx(1.6)]
    with pytest.raises(InputError, match="shows other launches; expected 4 of each"):
        lifetimes_us(path, ["kernel_cutlass_gemm"], LaunchedInTurns(2, 1))


def test_of_several_launches_each_phase_is_the_median(tmp_path):
    (one,) = read_iket(write_sample(tmp_path / "t.json"))
    producer, consumer = sorted(one.lifetimes, key=lambda place: -place.warp)
    # The consumer's warp ends 1.6, 2.9 and 1.7 us after the start; in the second its last wait for data takes
    # 1.152 to 1.28 us, and its producer begins to load 0.032 us earlier.
    spans = list(one.ranges[consumer])
    spans[spans.index(("wait_data", 1_001_152, 1_001_152))] = ("wait_data", 1_001_152, 1_001_280)
    loads = [("tma_load", 1_000_032, 1_000_320), *one.ranges[producer][1:]]
    launches = [
        replace(one, ranges=ranges, lifetimes={**one.lifetimes, consumer: (1_000_000, 1_000_000 + end)})
        for ranges, end in (
            (one.ranges, 1600),
            ({producer: loads, consumer: spans}, 2900),
            (one.ranges, 1700),
        )
    ]
    trace = median_of([trace_of(launch, KERNEL) for launch in launches])
    phases = phases_of(trace)
    assert phases["runtime"] == pytest.approx(1.7)
    # MMAs end after 1.344 us, and the first load begins after 0.064 us in two of three.
    assert phases["tail"] == pytest.approx(0.356)
    assert phases["first CTA to first load"] == pytest.approx(0.064)
    # The third launch has all these medians, and is the one whose intervals are kept.
    assert rows_of(trace, activity="resident")["end_us"].tolist() == [1.7]
    assert trace.info.launches == 3
    assert trace.info.overhead == pytest.approx(0.36)
    assert "phases are medians of 3 launches" in trace.info.remarks()[1]
    # 1.25 us without the tracer; without ranges the warps live 0.7 us, and 0.6 us are the launch.
    assert replace(trace.info, unranged_us=0.7).remarks()[-2:] == [
        "1.250 us without the tracer, launch included",
        "traced less what ranges add, and 0.6 us of launch: 1.300 us, +4.0% of that",
    ]
    write_trace_table(trace, tmp_path / "t.csv.gz")
    assert phases_of(read_trace_table(tmp_path / "t.csv.gz")) == phases


def test_a_wait_that_most_launches_lack_is_no_phase_of_the_kernel(tmp_path):
    (one,) = read_iket(write_sample(tmp_path / "t.json"))
    consumer = min(one.ranges, key=lambda place: place.warp)
    spans = [*one.ranges[consumer], ("epi_store_acq", 1_001_400, 1_001_500)]
    waited = replace(one, ranges={**one.ranges, consumer: sorted(spans, key=lambda span: span[1])})
    traces = [trace_of(launch, KERNEL) for launch in (one, waited, one)]
    assert phases_of(traces[1])["consumers wait for a free store buffer"] > 0.0
    assert phases_of(median_of(traces))["consumers wait for a free store buffer"] == 0.0


def test_a_file_nested_too_deep_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "t.json").write_text('{"deep": ' + "[" * 100_000)
    with pytest.raises(InputError, match="t.json: cannot be read"):
        read_iket(tmp_path / "t.json")


def test_a_warp_that_computes_and_loads_is_of_no_known_kernel(tmp_path):
    document = sample()
    ranges = document["launches"][1]["ranges"]
    wait = next(each for each in ranges if STRINGS[each["rangeNameIdx"]] == "wait_data")
    wait["rangeNameIdx"] = STRINGS.index("wait_stage")
    (found,) = read_iket(write_sample(tmp_path / "t.json", document))
    with pytest.raises(InputError, match="a warp that computes waits for free stages"):
        trace_of(found, KERNEL)


def test_a_name_with_half_a_character_is_refused(tmp_path):
    document = sample()
    document["launches"][1]["kernelName"] = "half \ud800"
    with pytest.raises(InputError, match="t.json: cannot be read.*surrogate"):
        read_iket(write_sample(tmp_path / "t.json", document))


def test_a_missing_file_and_a_grid_of_other_clusters(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_iket(tmp_path / "none.json")
    launch = read_iket(write_sample(tmp_path / "t.json"))[0]
    wide = replace(KERNEL, identity={**KERNEL.identity, "cluster_m": 2})
    with pytest.raises(InputError, match="no whole clusters of 2x1"):
        trace_of(launch, wide)
