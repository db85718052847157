"""The plan of rows beyond plain products: how many, of how many shapes, and with their plain twins."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from gemm_model.bench.rows import Row
from gemm_model.bench.sweep import shape_key
from gemm_model.tables.table import read_table

SCRIPTS = Path(__file__).parents[2] / "scripts"
MEASUREMENTS = Path(__file__).parents[2] / "data" / "measurements"
HELD_OUT = ("_unseen", "_later", "_fresh", "_last", "unseen_problems")
"""How the names of tables of convolutions end that nothing is fitted to."""


def load_script(name: str) -> Any:
    """A module of scripts/."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPTS))
    return module


@pytest.fixture(scope="module")
def planner() -> Any:
    return load_script("plan_problem_measurements")


@pytest.fixture(scope="module")
def plans(planner: Any) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = planner.plans()
    return found


@pytest.mark.parametrize(
    ("name", "rows"),
    [("grouped", 3000), ("epilogues", 3000), ("block_scaled", 800), ("convolutions", 600)],
)
def test_there_are_rows_of_many_shapes(plans: dict[str, list[Row]], name: str, rows: int) -> None:
    assert len(plans[name]) >= rows
    assert len({shape_key(row) for row in plans[name]}) >= 60


def test_each_row_is_of_its_kind(plans: dict[str, list[Row]]) -> None:
    assert all(row.problem.groups for row in plans["grouped"])
    assert all(row.problem.conv for row in plans["convolutions"])
    assert all(row.problem.groups is row.problem.conv is None for row in plans["epilogues"])


def test_each_fused_kernel_has_its_plain_twin(plans: dict[str, list[Row]]) -> None:
    rows = plans["epilogues"]
    plain = {(shape_key(row)[3:6], row.config, row.kernel) for row in rows if row.problem.plain}
    fused = {(shape_key(row)[3:6], row.config, row.kernel) for row in rows if not row.problem.plain}
    assert fused <= plain


def test_each_row_is_planned_once(plans: dict[str, list[Row]]) -> None:
    assert max(Counter(plans["problems"]).values()) == 1


def test_tokens_are_dealt_to_all_experts_of_a_layer(planner: Any) -> None:
    # 8 experts on one GPU, two for each of 1,000 tokens.
    layer = planner.Experts(8, 8, 2, 4096, 4096, True)
    assert sum(planner.routed_rows(layer, 1000, "zipf:0.7", 1)) == 2000
    assert planner.routed_rows(layer, 1000, "uniform", 1) == planner.routed_rows(layer, 1000, "uniform", 1)


def test_measured_rows_go_to_the_table_of_their_plan(plans: dict[str, list[Row]]) -> None:
    merging = load_script("merge_measurements")
    for name in merging.KINDS:
        cells = [
            {"epilogue": "", "groups": "", "block_scaling": "", "conv": ""} | row.columns()
            for row in plans[name]
        ]
        assert {merging.kind_of(row) for row in cells} == {name}


def test_convolutions_of_networks_held_out_are_in_no_other_plan() -> None:
    plans = load_script("plan_convolution_measurements").plans()
    found = {name: {row.problem.conv for row in rows} for name, rows in plans.items() if "smoke" not in name}
    assert {name: len(convs) for name, convs in found.items()} == {
        "conv_networks": 360,
        "conv_networks_unseen": 360,
        "conv_networks_later": 360,
        "conv_beside": 180,
        "conv_beside_unseen": 180,
        "conv_networks_further": 360,
        "conv_networks_fresh": 354,
        "conv_few": 171,
        "conv_few_unseen": 180,
    }
    # Types are drawn: a convolution may come in two, but in one plan.
    assert all(not found[one] & found[other] for one, other in combinations(found, 2))
    for name, convs in found.items():
        assert {conv.kind for conv in convs} == {"fprop", "dgrad", "wgrad"}
        # Depthwise ones have tables of their own.
        depthwise = any(1 < conv.groups == conv.channels for conv in convs)
        assert depthwise == name.startswith("conv_few")


def test_drawn_convolutions_and_the_last_networks_are_in_no_earlier_table() -> None:
    planner = load_script("plan_drawn_convolutions")
    found = {name: {row.problem.conv for row in rows} for name, rows in planner.plans().items()}
    assert {name: len(convs) for name, convs in found.items()} == {
        "conv_networks_more": 359,
        "conv_networks_last": 359,
        "conv_drawn": 2474,
    }
    assert all(not found[one] & found[other] for one, other in combinations(found, 2))
    earlier = planner.measured(planner.EARLIER)
    for convs in found.values():
        assert not earlier & {conv.name for conv in convs}
        assert {conv.kind for conv in convs} == {"fprop", "dgrad", "wgrad"}


@pytest.fixture(scope="module")
def of_many_networks() -> dict[str, list[Any]]:
    plans = load_script("plan_many_networks").plans()
    assert {name: len(rows) for name, rows in plans.items()} == {
        "conv_networks_many": 2560,
        "conv_networks_new": 1498,
        "conv_networks_wide": 2863,
    }
    found = {name: [row.problem.conv for row in rows] for name, rows in plans.items()}
    assert all({conv.kind for conv in convs} == {"fprop", "dgrad", "wgrad"} for convs in found.values())
    return found


def convolutions_of(tables: Iterable[Path]) -> set[str]:
    return set().union(*(set(read_table(path)["conv"]) - {None, ""} for path in tables))


def layers_of(names: Iterable[str]) -> set[str]:
    return {name.split(" ", 2)[2] for name in names}


def test_many_networks_have_no_layer_that_is_held_out(of_many_networks: dict[str, list[Any]]) -> None:
    names = {conv.name for conv in of_many_networks["conv_networks_many"]}
    assert len(names) == 2541
    earlier = earlier_convolution_tables()
    assert len(earlier) == 14
    assert not names & convolutions_of(earlier)
    held_out = layers_of(
        convolutions_of(path for path in earlier if path.name.removesuffix(".csv.gz").endswith(HELD_OUT))
    )
    assert len(held_out) > 300
    assert not layers_of(names) & held_out


def test_new_and_wide_networks_have_layers_that_no_other_table_has(
    of_many_networks: dict[str, list[Any]],
) -> None:
    many, new, wide = (layers_of(conv.name for conv in convs) for convs in of_many_networks.values())
    earlier = layers_of(convolutions_of(earlier_convolution_tables())) | many
    assert not new & wide
    assert not (new | wide) & earlier


def earlier_convolution_tables() -> list[Path]:
    """All but those of the 144 networks."""
    return [
        path
        for path in (MEASUREMENTS / "h200").glob("*.csv.gz")
        if path.name.startswith(("conv", "unseen_problems"))
        and not path.name.startswith(("conv_networks_many", "conv_networks_new", "conv_networks_wide"))
    ]


def test_a_seed_deals_further_networks_to_the_fit_and_to_what_is_held_out() -> None:
    planner = load_script("plan_convolution_measurements")
    dealt = planner.further_plans()
    layers = {
        name: {row.problem.conv.name.split(" ", 2)[2] for row in dealt[name]}
        for name in ("conv_networks_further", "conv_networks_fresh")
    }
    parts = [
        {
            planner.ConvProblem.parse(f"fprop n=1 {planner.words_of(layer)}").name.split(" ", 2)[2]
            for layer in found
        }
        for found in planner.FURTHER.values()
    ]
    # Each network's layers lie on one side, but for those that two networks have.
    sides = [{name for name, found in layers.items() if part & found} for part in parts]
    assert all(sides)
    assert sum(len(side) == 1 for side in sides) >= 20


def test_layers_beside_have_odd_channels_or_large_groups() -> None:
    plans = load_script("plan_convolution_measurements").plans()
    for row in (*plans["conv_beside"], *plans["conv_beside_unseen"]):
        conv = row.problem.conv
        assert conv.groups > 1 or conv.channels % 8 or conv.filters % 8
