"""What every campaign of kernels must be like, and which rows no other campaign may have."""

import json
import math
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.measured import ROLES, campaigns, kernels_of, path_of, rows_of
from gemm_model.bench.problem_kinds import BATCH_COLUMNS, EXTRA_COLUMNS, MASK_COLUMNS
from gemm_model.bench.rows import COLUMNS, PAIR_COLUMNS, TABLE_COLUMNS, row_from_columns
from gemm_model.core.gpu import load_gpu

# What a campaign found is the same at each run: a table whose checksum holds has not changed.
pytestmark = pytest.mark.slow
TESTLISTS = Path(__file__).parents[2] / "testlists"
UNSEEN = {"unseen": 61, "unseen_second": 60}
"""Tables that nothing is fitted to, and their shapes."""
LAYERS = "unseen_layers"
TABLES = (
    *("burst", "wide", "repeat", "repeat_card", "counters", "sustained", "variants", "warm"),
    *(*UNSEEN, LAYERS),
)
SIZES = ["m", "n", "k"]
KNOWN = {
    *("campaign", "role", "run", "fault", "number", "held_out"),
    *(*COLUMNS, *EXTRA_COLUMNS, *BATCH_COLUMNS, *MASK_COLUMNS, *PAIR_COLUMNS),
    *(name for columns in TABLE_COLUMNS.values() for name in columns),
}
CAMPAIGNS = [(each.gpu, each.name) for each in kernels_of(*ROLES) if not each.name.startswith("fleet_")]
"""Those whose rows name their card."""
NOT_DESCRIBED = {
    *("sustained_steady", "sustained_steady_unseen", "unseen_batches", "unseen_odd_sizes"),
    "counters_of_pairs",
}
"""Campaigns without a description of their card beside the table."""


def cards_of(name, gpu):
    """The cards that the environments beside a campaign's table name."""
    path = path_of(name, gpu)
    entries = json.loads(path.with_name(path.name.replace(".csv.gz", ".json")).read_text())
    return {entry["gpu_uuid"] for entry in entries if entry.get("campaign", name) == name}


@pytest.mark.parametrize(("gpu", "name"), CAMPAIGNS)
def test_rows_are_right_unique_name_their_card_and_are_not_faster_than_light(gpu, name):
    (campaign,) = (each for each in campaigns() if (each.gpu, each.name) == (gpu, name))
    rows = rows_of(name, gpu)
    assert set(rows.columns) <= KNOWN, set(rows.columns) - KNOWN
    assert (set(rows["gpu_uuid"]) <= cards_of(name, gpu)) == (name not in NOT_DESCRIBED)
    assert rows["gpu_uuid"].nunique() == campaign.cards
    assert set(rows["regime"]) == {campaign.protocol}
    assert set(rows["disposition"]) <= {"ok", "incorrect", "compile_failed", "launch_failed"}
    good = rows[rows["disposition"] == "ok"].sample(frac=1.0, random_state=1)[:400]
    assert len(good) > 0.9 * min(len(rows), 400)
    records = [{str(key): value for key, value in cells.items()} for cells in good.to_dict("records")]
    read = [row_from_columns(cells) for cells in records]
    if campaign.protocol == "counters":
        clock = good["sm_cycles"].astype(float) / good["duration_us"].astype(float)
        assert (clock - good["sm_mhz"].astype(float)).abs().max() < 0.01
    card = load_gpu(gpu)
    for row, cells in zip(read, records, strict=True):
        rate = card.flop_per_clk(row.problem.a_dtype.math_kind) * card.sm_count * card.sm_clk_mhz
        assert float(cells["runtime_us"]) > needed_flop(row.problem) / rate


def needed_flop(problem):
    """Of a convolution a multiply and an add for each forward output, tap and pair of channels."""
    conv = problem.conv
    if conv is None:
        return problem.flop
    outputs = conv.images * math.prod(conv.output_size) * conv.filters
    return 2.0 * outputs * math.prod(conv.filter_size) * conv.channels / conv.groups


@pytest.mark.parametrize("name", UNSEEN)
def test_no_other_table_has_the_unseen_shapes_and_burst_has_half_of_their_configurations(name):
    config = ["in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"]
    unseen, burst = rows_of(name), rows_of("burst")
    shapes = set(map(tuple, unseen[SIZES].astype(int).to_numpy().tolist()))
    others = [rows_of(other) for other in TABLES if other != name]
    others += [pd.read_csv(path, comment="#") for path in sorted(TESTLISTS.glob("*.csv"))]
    assert len(shapes) == UNSEEN[name]
    for other in others:
        assert shapes.isdisjoint(map(tuple, other[SIZES].astype(float).astype(int).to_numpy().tolist()))
    known = set(map(tuple, burst[config].to_numpy()))
    assert sum(tuple(cells) in known for cells in unseen[config].to_numpy()) == len(unseen) / 2


@pytest.mark.parametrize(("name", "shapes", "configs"), [("wide", 2400, 18), (LAYERS, 44, 60)])
def test_wide_and_layers_have_shapes_that_no_other_table_has(name, shapes, configs):
    rows = rows_of(name)
    own = set(map(tuple, rows[SIZES].astype(int).to_numpy().tolist()))
    each = rows.groupby(["in_dtype", "asked_m", "asked_n", "asked_k"]).size()
    assert len(rows.groupby(["asked_m", "asked_n", "asked_k"])) == shapes
    assert (each == configs).all()
    for other in (rows_of(other) for other in TABLES if other != name):
        assert own.isdisjoint(map(tuple, other[SIZES].astype(float).astype(int).to_numpy().tolist()))


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
