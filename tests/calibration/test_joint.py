"""Joint fits: what types share, which errors count how much, and intervals by hand."""

import numpy as np
import pytest
import yaml

from gemm_model.calibration import fit
from gemm_model.calibration.fit import Group, Parameter, joint_fit, parameters
from gemm_model.calibration.observations import observe
from gemm_model.calibration.report import write_silicon
from gemm_model.kernel_model.kernel_time import kernel_time
from tests.calibration.test_calibration import H200, NUMBERS, QUACK, measured
from tests.typed_numbers import VALUES

KINDS = {("quack", "fp16"): "bf16", ("quack", "fp8"): "e4m3"}


def test_types_share_the_numbers_of_the_card_and_of_a_family_but_the_energy_of_a_flop():
    found = parameters(KINDS, ["l2.efficiency", "epilogue.store_clk", "power.pj_per_flop"])
    energy = [Parameter("power.pj_per_flop", None, kind) for kind in ("fp16", "fp8")]
    assert found == [Parameter("epilogue.store_clk", "quack"), Parameter("l2.efficiency"), *energy]


def test_a_joint_fit_finds_the_numbers_that_made_the_rows_of_two_types():
    seen = {kind: observe(measured(12, 0.003, dtype), H200, QUACK) for kind, dtype in KINDS.items()}
    start = {kind: {**VALUES, "l2.efficiency": 1.3, "tensor.efficiency": 0.9} for kind in KINDS}
    free = parameters(KINDS, ["l2.efficiency", "tensor.efficiency"])
    groups = [Group(*kind, "burst", rows) for kind, rows in seen.items()]
    found = joint_fit(groups, H200, start, free, bounds={"l2.efficiency": (0.5, 1.5)})
    assert list(found.values.values()) == pytest.approx([0.8, 0.8], rel=0.003)
    assert found.numbers["quack", "fp8"] == {**VALUES, **{each.number: v for each, v in found.values.items()}}
    # So few rows count as 150 of 1,500, and rows of other regimes a quarter.
    assert [Group("quack", "fp16", regime, groups[0].rows).weight for regime in ("burst", "graph")] == (
        pytest.approx([10**0.5, 2.5**0.5])
    )


def test_intervals_are_those_of_the_linearised_fit():
    free, bounds = [Parameter("l2.efficiency"), Parameter("tensor.efficiency")], {"l2.efficiency": (0.5, 1.5)}
    problem = fit._Problem([], H200, dict.fromkeys(KINDS, VALUES), free, bounds)
    found = problem.result(np.array([0.25, 1.2]), np.array([[1, 1], [1, 0], [0, 0], [0, 0]]), np.ones(4))
    # The inverse of [[2, 1], [1, 1]] is [[1, -1], [-1, 2]]; four squares of 1 over 4 - 2 rows double it.
    assert list(found.values.values()) == [0.75, 1.0]
    assert list(found.half_width.values()) == pytest.approx([1.645 * 2**0.5, 1.645 * 2 * 0.25])
    assert list(found.correlated.values()) == [(each, pytest.approx(-(0.5**0.5))) for each in free[::-1]]


@pytest.mark.parametrize(
    ("regime", "weights", "joint_weights"),
    [("counters", [1.0, 0.0, 4.0, 0.1], [4.0, 1.0, 0.5]), ("sustained", [1.0, 1.0], [1.0])],
)
def test_clocks_and_bytes_count_beside_times(regime, weights, joint_weights):
    frame = measured(shapes=2).iloc[:12].assign(regime=regime)
    times = kernel_time(observe(frame, H200, QUACK).shape, H200, NUMBERS, regime=regime)
    known = {"dram_read_bytes": times.traffic.dram_read_bytes, "l2_bytes": times.traffic.l2_counted_bytes}
    known |= {"sm_mhz": times.set_clk_mhz if regime == "sustained" else times.sm_clk_mhz}
    known |= {"runtime_us": times.runtime_us}
    known = {name: each * np.exp(-0.2 if name.startswith("dram") else -0.1) for name, each in known.items()}
    rows = observe(frame.assign(**known), H200, QUACK)
    # A shape of 8 rows and one of 4 weigh as 8 and 4 to the power 3/4, in the mean square 1.
    shares = np.repeat([0.96987, 1.05768], [8, 4])
    for part, weight in zip(fit._errors(rows, H200, NUMBERS, regime), weights, strict=True):
        assert part == pytest.approx(0.1 * weight * shares[: len(part)], rel=1e-4)
    parts = fit._group_parts(Group("quack", "fp16", regime, rows), times)
    assert [part.mean() / 0.1 for part in parts[-len(joint_weights) :]] == pytest.approx(joint_weights)


def test_the_file_of_a_card_keeps_what_was_measured_and_the_intervals_of_what_was_not_fitted(tmp_path):
    entry = {"interval": 0.5, "measured": [0.7, 0.9], "source": "a probe"}
    fitted = {**VALUES, "power.pj_per_flop": 0.7}
    widths = {Parameter("l2.efficiency"): 0.02, Parameter("power.pj_per_flop", None, "fp8"): 0.03}
    numbers = {("quack", "fp16"): VALUES, ("quack", "fp8"): fitted}
    write_silicon("h200", numbers, widths, dict.fromkeys(NUMBERS.values(), entry), tmp_path / "card.yaml")
    found = yaml.safe_load((tmp_path / "card.yaml").read_text())["numbers"]
    assert found["dram.efficiency"] == {"value": VALUES["dram.efficiency"], "unit": "1", **entry}
    assert found["l2.efficiency"] == {"value": 0.8, "unit": "1", **entry, "interval": 0.02}
    by_type = {"fp16": VALUES["power.pj_per_flop"], "fp8": 0.7}
    assert found["power.pj_per_flop"] == {"value": by_type, "unit": "pJ", **entry, "interval": {"fp8": 0.03}}
