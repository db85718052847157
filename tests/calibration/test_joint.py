"""Joint fits: what types share, which errors count how much, and intervals by hand."""

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_model.calibration import fit
from gemm_model.calibration.fit import Group, Parameter, joint_fit, parameters
from gemm_model.calibration.observations import added_us, beside_twins, observe
from gemm_model.calibration.report import write_silicon
from gemm_model.calibration.run import Choices, calibrate
from gemm_model.calibration.tables import problem_kind
from gemm_model.kernel_model.calibration_file import as_mapping, load_calibration
from gemm_model.kernel_model.kernel_time import kernel_time
from tests.calibration.test_calibration import H200, NUMBERS, QUACK, measured
from tests.cases import cases
from tests.typed_numbers import VALUES, calibration, numbers

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


def test_intervals_are_those_of_the_linearised_fit_to_shapes_drawn_again():
    free, bounds = [Parameter("l2.efficiency"), Parameter("tensor.efficiency")], {"l2.efficiency": (0.5, 1.5)}
    problem = fit._Problem([], H200, dict.fromkeys(KINDS, VALUES), free, bounds)
    problem.shapes = lambda: np.array([0, 1])
    found = problem.result(np.array([0.25, 1.2]), np.array([[1, 1], [1, 0], [0, 0], [0, 0]]), np.ones(4))
    # The inverse of [[2, 1], [1, 1]] is [[1, -1], [-1, 2]]; shapes pull by (0, 1/2) more and less than their mean.
    assert list(found.values.values()) == [0.75, 1.0]
    assert list(found.half_width.values()) == pytest.approx([1.645, 1.645 * 2 * 0.25])
    assert list(found.correlated.values()) == [(each, pytest.approx(-1.0)) for each in free[::-1]]


@pytest.mark.parametrize(*cases(__file__, "test_clocks_and_bytes_count_beside_times"))
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


EPILOGUES = ("gelu", "residual", "bias", "row_sum", "gated_silu,residual")


def kind_rows(seed=5):
    """Rows that the typed numbers made: 12 shapes with each of the epilogues, and 12 in groups."""
    plain = measured(shapes=12, seed=seed)
    epilogues = [plain.assign(epilogue=words, groups="") for words in EPILOGUES]
    random = np.random.default_rng(seed)
    texts = []
    for rows in plain["m"]:
        cuts = np.sort(random.integers(0, rows + 1, 15))
        texts.append(",".join(map(str, np.diff(np.concatenate([[0], cuts, [rows]])))))
    frame = pd.concat([*epilogues, plain.assign(epilogue="", groups=texts)], ignore_index=True)
    frame["runtime_us"] = kernel_time(observe(frame, H200, QUACK).shape, H200, NUMBERS).runtime_us
    return frame


@pytest.mark.slow
def test_a_stage_finds_the_numbers_that_made_its_rows(tmp_path):
    plain = measured(shapes=12)
    pd.concat([plain.assign(epilogue="", groups=""), kind_rows()]).to_csv(tmp_path / "rows.csv", index=False)
    wrong = {"fused_epilogue.tangent_clk": 120.0, "fused_epilogue.source_bytes_per_clk": 200.0}
    wrong |= {"grouped.tile_clk": 1200.0, "grouped.start_us": 3.0}
    start = {kind: numbers(wrong) for kind in ("fp16", "fp8")}
    free = ("tensor.efficiency", *(name for name in VALUES if name.startswith(("fused_", "grouped."))))
    unknown = ("sigmoid_clk", "gate_clk", "source_clk")
    free = tuple(name for name in free if name.partition(".")[2] not in unknown)
    choices = Choices(
        family="quack", donor=calibration(numbers=start), free=free, with_residual=False, shapes_only=True
    )
    answer = []

    def tell(_step, *done_of_total):
        answer.append(done_of_total)

    found = calibrate([tmp_path / "rows.csv"], H200, choices, progress=tell)
    # The fit to all plain rows and its eight folds, and as many of each of the two stages.
    assert answer[0] == (0, 3 * (1 + 8))
    assert 1 + 8 < answer[-1][0] <= answer[-1][1] == 3 * (1 + 8)
    assert answer == sorted(answer)
    values = found.calibration.numbers["fp16"].values()
    for name in ("tangent_clk", "source_bytes_per_clk", "reduction_clk", "vector_clk"):
        name = f"fused_epilogue.{name}"
        assert values[name] == pytest.approx(VALUES[name], rel=0.1), name
    assert values["grouped.tile_clk"] == pytest.approx(200.0, abs=30.0)
    assert values["tensor.efficiency"] == pytest.approx(0.8, rel=0.01)
    kind = found.kinds["fp16"]
    assert len(kind.rows) == len(plain)
    assert len(kind.later) == 2
    bands = found.calibration.error_band["fp16"]
    plain_bands = {"tiny", "memory_bound", "few_waves", "many_waves", "split_k"}
    assert set(bands) - plain_bands == {"fused_epilogue", "grouped"}
    assert max(bands["fused_epilogue"], bands["grouped"]) < 0.02
    # Kernels of one problem are a choice, which is right where the numbers are those of the rows.
    choices_of = {each.what: each.top1 for each in kind.validations}
    assert choices_of["shape, fused_epilogue rows"].mean > 0.99
    # Each of the groups here has a routing of its own.
    assert choices_of["shape, grouped rows"] is None
    assert "fused_epilogue.tangent_clk" in found.calibration.fitted
    assert as_mapping(found.calibration)["error_band"]["fp16"] == bands


def test_a_twin_takes_what_the_model_misses_of_the_kernel():
    """Two shapes, one of which has a twin that the model takes for 20 % faster than it is."""
    plain = measured(shapes=2).iloc[:1]
    fused = plain.assign(epilogue="gelu", runtime_us=130.0)
    alone = fused.assign(cta_n=64, runtime_us=50.0)
    rows = observe(pd.concat([fused, alone], ignore_index=True), H200, QUACK)
    twins = observe(plain.assign(runtime_us=100.0, gpu_uuid="one"), H200, QUACK)
    found = beside_twins(rows, twins, np.array([80.0]))
    assert found["runtime_us"].tolist() == pytest.approx([130.0 * 0.8, 50.0])
    assert found["measured_us"].tolist() == [130.0, 50.0]
    # The first adds 130 - 100 us to its twin; the other has none.
    added = added_us(rows, twins, rows.runtime_us, twins.runtime_us)
    assert added[0] == pytest.approx(30.0)
    assert np.isnan(added[1])


def test_rows_tell_of_one_mechanism_each():
    frame = pd.DataFrame(
        {
            "in_dtype": ["bf16", "bf16", "bf16", "fp8", "bf16"],
            "m": [64, 64, 64, 64, 100], "n": 64, "k": [64, 64, 64, 128, 72],
            "epilogue": ["", "relu", "relu", "relu", ""],
            "groups": ["", "", "60,4", "", ""],
            "block_scaling": ["", "", "", "1x128,128x128", ""],
            "conv": ["", "", "", "", "fprop n=1 c=8 h=10 w=10 k=64 r=3 s=3 pad=1"],
        }
    )  # fmt: skip
    found = ["", "fused_epilogue", "grouped", "software_scales", "implicit_gemm"]
    assert problem_kind(frame).tolist() == found
    assert problem_kind(frame[["in_dtype", "m", "n", "k"]]).tolist() == [""] * 5


@pytest.mark.slow
def test_a_calibration_is_extended_and_all_else_stays(tmp_path, gemm_model):
    kind_rows().to_csv(tmp_path / "rows.csv", index=False)
    base = calibration(numbers={kind: numbers({"grouped.tile_clk": 900.0}) for kind in ("fp16", "fp8")})
    base_path = tmp_path / "base.yaml"
    base_path.write_text(yaml.safe_dump(as_mapping(base)))
    words = ("--input", tmp_path / "rows.csv", "--extend", base_path, "--output", tmp_path / "out.yaml")
    outcome = gemm_model("calibrate", *words, "--cluster", 1)
    assert outcome.code == 0, outcome.err
    found = load_calibration(tmp_path / "out.yaml")
    assert found.fingerprint() == base.fingerprint()
    values = found.numbers["fp16"].values()
    assert values["grouped.tile_clk"] == pytest.approx(200.0, abs=30.0)
    assert found.numbers["fp8"] == base.numbers["fp8"]
    assert found.fitted >= {"launch.kernel_us", "grouped.tile_clk", "fused_epilogue.source_clk"}
    bands = found.error_band["fp16"]
    assert {name: bands[name] for name in base.error_band["fp16"]} == base.error_band["fp16"]
    assert bands["grouped"] < 0.02
    assert found.fitted_to["extended_to"]["rows"] == {"fp16": {"fused_epilogue": 480, "grouped": 96}}
    assert "grouped rows" in outcome.out


def test_there_has_to_be_something_to_extend_by(tmp_path, gemm_model):
    measured(shapes=2).to_csv(tmp_path / "plain.csv", index=False)
    words = ("--input", tmp_path / "plain.csv", "--output", tmp_path / "out.yaml", "--extend", "h200:quack")
    outcome = gemm_model("calibrate", *words)
    assert outcome.code == 2
    assert "no row of h200:quack goes beyond plain products" in outcome.err
    outcome = gemm_model("calibrate", *words, "--fit", "grouped")
    assert outcome.code == 2
    assert "--fit has no effect with --extend" in outcome.err
    outcome = gemm_model("calibrate", *words, "--from", "h200:quack")
    assert outcome.code == 2
    assert "--from has no effect with --extend" in outcome.err
