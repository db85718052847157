import json
import math
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.measured import campaigns, path_of, rows_of
from gemm_model.bench.extended import BATCH_COLUMNS, EXTRA_COLUMNS, MASK_COLUMNS
from gemm_model.bench.rows import COLUMNS, TABLE_COLUMNS, row_from_columns
from gemm_model.bench.sweep import row_key, shape_key

# What a campaign found is the same at each run: a table whose checksum holds has not changed.
pytestmark = pytest.mark.slow
SHIPPED = yaml.safe_load(Path(__file__).with_name("shipped.yaml").read_text())
TESTLISTS = Path(__file__).parents[2] / "testlists"
UNSEEN = {"unseen": 61, "unseen_second": 60}
"""Tables that nothing is fitted to, and their shapes."""
LAYERS = "unseen_layers"
TABLES = (
    *("burst", "wide", "repeat", "repeat_card", "counters", "sustained", "variants", "warm"),
    *(*UNSEEN, LAYERS),
)
TYPES = {name: {"bf16", "e4m3"} for name in (*UNSEEN, LAYERS)}


def table(name, gpu="h200"):
    return rows_of(name, gpu).drop(columns=["campaign", "role"], errors="ignore")


def cards_of(name, gpu="h200"):
    """The cards that the environments beside a campaign's table name."""
    path = path_of(name, gpu)
    entries = json.loads(path.with_name(path.name.replace(".csv.gz", ".json")).read_text())
    return {entry["gpu_uuid"] for entry in entries if entry.get("campaign", name) == name}


def columns_of(rows, expected):
    """The columns expected, less those that a campaign left empty or that tables of its time lack."""
    return tuple(column for column in expected if column in rows)


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_whole_unique_and_name_their_card(name):
    rows = table(name)
    expected = TABLE_COLUMNS["counters"] if name == "counters" else COLUMNS
    assert columns_of(rows, expected) == tuple(rows.columns)
    assert set(rows["gpu_uuid"]) == cards_of(name)
    assert set(rows["regime"]) == {name if name in ("counters", "sustained") else "burst"}
    assert set(rows["disposition"]) == {"ok"}
    assert (rows["runtime_us"].astype(float) > 0).all()
    identity = [column for column in expected if column in ("kernel", "in_dtype", "m", "n", "k", "swizzle")]
    identity += ["cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "split_k", "fast_accum", "l2"]
    assert not rows.duplicated(identity).any()
    assert set(rows["in_dtype"]) - {"e5m2"} == TYPES.get(name, {"bf16", "fp16", "e4m3"})


def test_only_the_variants_table_holds_variants():
    for name in TABLES:
        rows = table(name).reindex(columns=COLUMNS, fill_value="")
        plain = rows["split_k"].isin(["", "1"]) & (rows["fast_accum"] != "1") & (rows["in_dtype"] != "e5m2")
        assert plain.all() == (name != "variants")
        assert set(rows["l2"]) == {"sustained": {"warm"}, "warm": {"cold", "warm"}}.get(name, {"cold"})


def test_a_variant_has_its_plain_row_on_the_same_card():
    rows = table("variants").query("kernel == 'quack'")
    sizes = ["m", "n", "k", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle", "gpu_uuid"]
    plain = rows[(rows["split_k"] == "1") & (rows["fast_accum"] == "0")]
    e4m3 = set(map(tuple, plain[plain["in_dtype"] == "e4m3"][sizes].to_numpy()))
    for variant in (rows[rows["in_dtype"] == "e5m2"], rows[rows["fast_accum"] == "1"]):
        assert len(variant) >= 300
        assert set(map(tuple, variant[sizes].to_numpy())) <= e4m3
    split = rows[rows["split_k"] != "1"]
    assert len(split) >= 300
    types = ["in_dtype", *sizes]
    assert set(map(tuple, split[types].to_numpy())) <= set(map(tuple, plain[types].to_numpy()))


def test_warm_rows_have_cold_partners_and_small_problems_gain():
    rows = table("warm").astype({"runtime_us": float})
    keys = ["kernel", "in_dtype", "m", "n", "k", "cta_m", "cta_n", "schedule", "cluster_m", "gpu_uuid"]
    cold, warm = (rows[rows["l2"] == state] for state in ("cold", "warm"))
    pairs = cold.merge(warm, on=keys, suffixes=("", "_warm"), validate="one_to_one")
    assert len(pairs) == len(cold) == len(warm)
    short = pairs[pairs["runtime_us"] <= 10]
    assert 0.85 < (short["runtime_us_warm"] / short["runtime_us"]).median() < 0.97


def test_short_kernels_of_two_hosts_differ_by_what_an_empty_kernel_reads():
    """Rows of up to 10 us of other hosts against the same rows of `burst`, less both readings: 0.15 us."""
    keys = ["kernel", "in_dtype", "m", "n", "k", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule"]
    keys += ["swizzle", "l2"]
    times = ["runtime_us", "empty_kernel_us"]
    burst = table("burst").astype(dict.fromkeys(times, float))
    for name in ("repeat_card", "repeat_runs", "host_of_four"):
        other = table(name).astype(dict.fromkeys(times, float))
        pairs = other.merge(burst[burst["runtime_us"] <= 10], on=keys, suffixes=("", "_burst"))
        slower_us = pairs["runtime_us"] - pairs["runtime_us_burst"]
        given_us = pairs["empty_kernel_us"] - pairs["empty_kernel_us_burst"]
        assert len(pairs) >= 150
        assert abs(slower_us.median() - given_us.median()) < 0.15
        if name != "host_of_four":
            assert slower_us.median() < -0.5


@pytest.mark.parametrize("name", UNSEEN)
def test_no_other_table_has_the_unseen_shapes_and_burst_has_half_of_their_configurations(name):
    sizes = ["m", "n", "k"]
    config = ["in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"]
    unseen, burst = table(name), table("burst")
    shapes = set(map(tuple, unseen[sizes].astype(int).to_numpy().tolist()))
    others = [table(other) for other in TABLES if other != name]
    others += [pd.read_csv(path, comment="#") for path in sorted(TESTLISTS.glob("*.csv"))]
    assert len(shapes) == UNSEEN[name]
    for other in others:
        assert shapes.isdisjoint(map(tuple, other[sizes].astype(float).astype(int).to_numpy().tolist()))
    known = set(map(tuple, burst[config].to_numpy()))
    assert sum(tuple(cells) in known for cells in unseen[config].to_numpy()) == len(unseen) / 2


@pytest.mark.parametrize(("name", "shapes", "configs"), [("wide", 2400, 18), (LAYERS, 44, 60)])
def test_wide_and_layers_have_shapes_that_no_other_table_has(name, shapes, configs):
    sizes = ["m", "n", "k"]
    rows = table(name)
    own = set(map(tuple, rows[sizes].astype(int).to_numpy().tolist()))
    each = rows.groupby(["in_dtype", "asked_m", "asked_n", "asked_k"]).size()
    assert len(rows.groupby(["asked_m", "asked_n", "asked_k"])) == shapes
    assert (each == configs).all()
    for other in (table(other) for other in TABLES if other != name):
        assert own.isdisjoint(map(tuple, other[sizes].astype(float).astype(int).to_numpy().tolist()))


def test_every_burst_row_comes_back_as_a_row_of_its_own():
    rows = table("burst").sample(500, random_state=1)
    keys = {
        row_key(row_from_columns({str(k): v for k, v in cells.items()})) for cells in rows.to_dict("records")
    }
    assert len(keys) == len(rows)


def test_the_repeated_rows_are_burst_rows_on_another_card():
    burst, repeat = (table(name).drop(columns=["order", "time"]) for name in ("burst", "repeat"))
    keys = [
        "kernel",
        "in_dtype",
        "m",
        "n",
        "k",
        "swizzle",
        "cta_m",
        "cta_n",
        "cluster_m",
        "cluster_n",
        "schedule",
    ]
    pairs = repeat.merge(burst, on=keys, suffixes=("", "_first"), validate="one_to_one")
    assert len(pairs) == len(repeat) > 3000
    assert (pairs["gpu_uuid"] != pairs["gpu_uuid_first"]).all()


def test_an_in_kernel_clock_is_cycles_over_duration():
    rows = table("counters")
    clock = rows["sm_cycles"].astype(float) / rows["duration_us"].astype(float)
    assert (clock - rows["sm_mhz"].astype(float)).abs().max() < 0.01
    assert clock.between(1000, 1985).all()


LIBRARIES = ("cublaslt", "cutlass", "triton_persistent", "quack_variants", "splits")
REGIME_COLUMNS = {
    "burst": COLUMNS,
    "sustained": COLUMNS,
    "graph": TABLE_COLUMNS["graph"],
    "counters": TABLE_COLUMNS["counters"],
}


@pytest.mark.parametrize(("gpu", "name", "regime", "rows"), SHIPPED["plain"])
def test_rows_of_libraries_and_of_the_h100_are_whole_right_and_not_too_fast(gpu, name, regime, rows):
    found = table(name, gpu)
    assert set(found.columns) == set(columns_of(found, REGIME_COLUMNS[regime]))
    assert len(found) >= rows
    assert set(found["regime"]) == {regime}
    assert set(found["disposition"]) == {"ok"}
    assert found["relative_error"].astype(float).max() < 0.005
    assert set(found["gpu_uuid"]) == cards_of(name, gpu)
    m, n, k = (found[size].astype(float) for size in ("m", "n", "k"))
    # 132 SMs x 4096 (16-bit) or 8192 (8-bit) FLOP a clock x 1980 MHz
    flop_per_us = found["in_dtype"].map({"bf16": 1.07e9, "fp16": 1.07e9, "e4m3": 2.14e9})
    assert (found["runtime_us"].astype(float) > 2 * m * n * k / flop_per_us).all()


def test_rows_of_libraries_come_back_on_another_card_within_a_few_percent():
    """Medians over the rows of each library; matched by the kernel's name where the library chose it."""
    repeat = table("libraries_repeat")
    keys = [
        *("kernel", "in_dtype", "m", "n", "k", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n"),
        *("schedule", "swizzle", "raster", "split_k", "fast_accum", "scheduler", "warps", "stages"),
        *("heuristic_rank", "kernel_name", "algorithm"),
    ]
    # A few unsplit QuACK rows are both among the variants and beside the splits.
    first = pd.concat([table(name) for name in LIBRARIES]).fillna("").drop_duplicates(keys)
    pairs = repeat.merge(first, on=keys, suffixes=("", "_first"), validate="one_to_one")
    assert len(pairs) == len(repeat)
    assert (pairs["gpu_uuid"] != pairs["gpu_uuid_first"]).all()
    change = pairs["runtime_us"].astype(float) / pairs["runtime_us_first"].astype(float) - 1
    by_library = change.abs().groupby(pairs["kernel"]).median()
    assert set(by_library.index) == {"cublas", "cublaslt", "cutlass", "quack", "triton"}
    assert by_library.max() < 0.02


@pytest.mark.parametrize(("name", "cards", "rows", "shapes", "failed"), SHIPPED["kinds"])
def test_rows_beyond_plain_products_are_checked_and_not_too_fast(name, cards, rows, shapes, failed):
    found, more = table(name), {"batched": BATCH_COLUMNS, "masked": MASK_COLUMNS}.get(name, ())
    assert tuple(found.columns) == columns_of(found, (*COLUMNS, *EXTRA_COLUMNS, *more))
    assert len(found) >= rows
    assert found["gpu_uuid"].nunique() == cards
    measured = found["disposition"] == "ok"
    assert (~measured).sum() == failed
    assert set(found["disposition"][~measured]) <= {"incorrect"}
    found = found[measured]
    keys = [shape_key(row_from_columns(row)) for row in found.to_dict("records")]
    assert len(set(keys)) >= shapes
    # All rows of a shape are on one card.
    assert len(set(zip(keys, found["gpu_uuid"], strict=True))) == len(set(keys))
    # 132 SMs x 4096 (16-bit) or 8192 (8-bit) FLOP a clock x 1980 MHz
    flop_per_us = found["in_dtype"].map({"bf16": 1.07e9, "fp16": 1.07e9, "e4m3": 2.14e9})
    flop = [needed_flop(row_from_columns(row).problem) for row in found.to_dict("records")]
    assert (found["runtime_us"].astype(float) > flop / flop_per_us).all()


def needed_flop(problem):
    """Of a convolution a multiply and an add for each forward output, tap and pair of channels."""
    conv = problem.conv
    if conv is None:
        return problem.flop
    outputs = conv.images * math.prod(conv.output_size) * conv.filters
    return 2.0 * outputs * math.prod(conv.filter_size) * conv.channels / conv.groups


def test_an_epilogue_costs_little_beside_its_plain_twin():
    """Medians of what a kernel takes longer, in microseconds, where QuACK and Triton run the same tile."""
    found = table("epilogues").query("disposition == 'ok' and kernel in ['quack', 'triton']")
    key = ["kernel", "in_dtype", "m", "n", "k", "cta_m", "cta_n", "cluster_m", "schedule", "swizzle", "warps"]
    plain = found[found["epilogue"] == ""].drop_duplicates(key).set_index(key)["runtime_us"].astype(float)
    fused = found[found["epilogue"] != ""]
    twins = plain.reindex(pd.MultiIndex.from_frame(fused[key])).to_numpy()
    added_us = (fused["runtime_us"].astype(float) - twins).groupby(fused["epilogue"]).median()
    assert added_us.abs().max() < 3.0
    assert added_us["relu"] < added_us["gelu"] < added_us["bias_n,residual"]


def layers_of(name):
    """The convolutions of a campaign, whatever their direction and number of images."""
    return {words.split(" ", 2)[2] for words in rows_of(name)["conv"]}


def test_no_layer_of_a_held_out_network_is_in_a_later_campaign():
    """Which networks are held out was dealt before each run; a layer of two networks lies in one part."""
    later = ("conv_networks_many", "conv_networks_new", "conv_networks_wide")
    of_role = {each.name: each.role for each in campaigns() if each.file == "convolutions.csv.gz"}
    earlier_held_out = set().union(
        *(layers_of(name) for name, role in of_role.items() if role == "held_out" and name not in later)
    )
    assert len(earlier_held_out) > 300
    assert all(not earlier_held_out & layers_of(name) for name in later)
    assert all(not layers_of(one) & layers_of(other) for one, other in combinations(later, 2))


def test_a_convolution_is_in_one_campaign_in_every_direction():
    # Types are drawn: a convolution may come in two types, but in one campaign.
    found = {
        each.name: set(rows_of(each.name)["conv"])
        for each in campaigns()
        if each.file == "convolutions.csv.gz" and each.name != "convolutions"
    }
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    for convs in found.values():
        assert {words.split()[0] for words in convs} == {"fprop", "dgrad", "wgrad"}
