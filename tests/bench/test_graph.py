"""The graph regime without a GPU: rotation, rows, and what the command records."""

import itertools
from dataclasses import replace

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig
from gemm_model.bench.device import PairedTiming, in_turn
from gemm_model.bench.provider import Rotation, rotation_of
from gemm_model.bench.rows import Chain, Row, row_from_columns
from gemm_model.bench.sweep import ChainOptions, chained
from tests.bench import fakes
from tests.bench.test_runner import arguments, measured, write_sizes
from tests.cases import cases

L2_BYTES = 60e6


def test_the_rotation_holds_weights_of_four_times_l2():
    """A weight of 8192 x 4096 x 2 bytes is 67.1 MB: four of them are the first to exceed 240 MB."""
    rotation = rotation_of(GemmProblem.of(16, 8192, 4096, "bf16"), L2_BYTES)
    assert rotation == Rotation(weights=4, activations=4, outputs=4)
    footprint = 4 * (8192 * 4096 * 2 + 16 * 4096 * 2 + 16 * 8192 * 2)
    assert rotation.footprint_bytes(GemmProblem.of(16, 8192, 4096, "bf16")) == footprint


def test_small_weights_are_copied_256_times_and_large_activations_less_often():
    """A weight of 64 KB would need 3,663 copies; activations of 67.1 MB are cold with four."""
    rotation = rotation_of(GemmProblem.of(131072, 128, 256, "bf16"), L2_BYTES)
    assert (rotation.weights, rotation.activations) == (256, 4)
    assert rotation.outputs == 8  # of 33.6 MB


def test_huge_weights_still_take_turns():
    assert rotation_of(GemmProblem.of(16, 65536, 16384, "bf16"), L2_BYTES).weights == 2


def test_a_rotation_that_is_asked_for_is_taken():
    problem = GemmProblem.of(16, 1024, 1024, "bf16")
    assert rotation_of(problem, L2_BYTES, 3) == Rotation(weights=3, activations=3, outputs=3)
    assert rotation_of(problem, L2_BYTES, 1) == Rotation(weights=1, activations=1, outputs=1)


@pytest.mark.parametrize("part", [(0, 1), (0, 2), (1, 2)])
def test_copies_of_a_rotation_lie_apart(part):
    tensors = pytest.importorskip("gemm_model.bench.tensors", reason="torch is not installed")
    problem = GemmProblem.of(40, 96, 256, "bf16")
    pool = tensors.OperandPool("cpu", seed=3, elements=2**20)
    operands = pool.rotating(problem, Rotation(weights=7, activations=3, outputs=2), part)
    assert len(operands) == 7
    spans = set()
    for name, copies, shape in (("a", 3, (40, 256)), ("b", 7, (96, 256)), ("out", 2, (40, 96))):
        views = [getattr(each, name) for each in operands]
        assert {tuple(view.shape) for view in views} == {shape}
        assert all(view.data_ptr() % 16 == 0 for view in views)
        starts = [view.data_ptr() for view in views]
        assert len(set(starts)) == copies
        assert starts[0] == starts[copies % 7]
        spans |= {(start, start + 2 * shape[0] * shape[1]) for start in starts}
    ordered = sorted(spans)
    assert len(ordered) == 12
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ordered))


def test_halves_of_the_pool_share_nothing():
    tensors = pytest.importorskip("gemm_model.bench.tensors", reason="torch is not installed")
    pool = tensors.OperandPool("cpu", seed=3, elements=2**20)
    problem, rotation = GemmProblem.of(40, 96, 256, "bf16"), Rotation(weights=4, activations=4, outputs=4)
    first, second = (pool.rotating(problem, rotation, (index, 2)) for index in range(2))
    last = max(view.data_ptr() + 2 * view.numel() for each in first for view in (each.a, each.b))
    assert last <= min(view.data_ptr() for each in second for view in (each.a, each.b))
    assert max(each.out.data_ptr() for each in first) < min(each.out.data_ptr() for each in second)


def row(**chain):
    config = KernelConfig(cta_m=128, cta_n=128, kernel="quack", pdl=False)
    problem, own = GemmProblem.of(64, 256, 512, "bf16"), Chain(**chain)  # type: ignore[arg-type]
    return Row(kernel="quack", problem=problem, config=config, regime="graph", l2="rotated", chain=own)


@pytest.mark.parametrize(*cases(__file__, "test_a_row_is_read_back_as_it_was_written"))
def test_a_row_is_read_back_as_it_was_written(chain):
    cells = {name: str(value) for name, value in row(**chain).columns().items()}
    assert row_from_columns(cells) == row(**chain)
    assert cells["pdl"] == "0"


@pytest.mark.parametrize(("kernel", "pdl"), [("quack", True), ("triton", False)])
def test_a_librarys_own_way_of_launching_is_recorded(kernel, pdl):
    config = KernelConfig(cta_m=128, cta_n=128, kernel=kernel)
    known = replace(row(), kernel=kernel, config=config)
    assert known.columns()["pdl"] == ""
    (found,) = chained([known], ChainOptions())
    assert found.config == replace(config, pdl=pdl)


def test_rows_of_other_regimes_know_no_chain():
    burst = Row(kernel="cublas", problem=GemmProblem.of(8, 8, 8), config=None)
    assert not {"pdl", "rotation", "partner", "settled"} & set(burst.columns())


def test_options_multiply_rows_and_never_repeat_one():
    library = Row(kernel="cublas", problem=GemmProblem.of(8, 16, 32), config=None, regime="graph")
    found = chained([row(), library, library], ChainOptions(pdl=(False, True), partner="swapped", rotation=2))
    assert [(each.kernel, each.chain.partner, each.chain.rotation) for each in found] == [
        ("quack", "64x512x256", 2),
        ("quack", "64x512x256", 2),
        ("cublas", "8x32x16", 2),
    ]
    assert [each.config.pdl for each in found if each.config] == [False, True]


@pytest.mark.parametrize("partner", ["layernorm", "12x13", "0x1x2", "1x2xthree"])
def test_an_unknown_partner_is_refused(partner):
    with pytest.raises(InputError, match="partner"):
        Chain(partner=partner)


def graph(sizes, output, *more):
    return arguments(sizes, output, "--regime", "graph", "--tiles", "128x64", "--swizzles", "8", *more)


def test_each_row_tells_its_rotation_and_its_warm_share(tmp_path):
    """Weights of 256 x 256 x 2 bytes: the fake L2 of 1 MiB makes 32 copies of 128 KiB."""
    words = graph(write_sizes(tmp_path / "s.csv", (256,), (64,)), tmp_path / "out.csv", "--pdl", "0,1")
    rows = {cells["pdl"]: cells for cells in measured(words)}
    assert {pdl: cells["runtime_us"] for pdl, cells in rows.items()} == {"0": "32.0", "1": "31.5"}
    cells = rows["1"]
    of_the_chain = [cells[name] for name in ("regime", "l2", "rotation", "settled")]
    assert of_the_chain == ["graph", "rotated", "0", "0"]
    footprint = 32 * 2 * (256 * 256 + 64 * 256 + 64 * 256)
    assert (cells["weight_copies"], cells["footprint_bytes"]) == ("32", str(footprint))
    assert float(cells["warm_share"]) == pytest.approx(2**20 / footprint, abs=5e-5)
    assert (cells["graph_launches"], cells["partner_us"]) == ("64", "")


def test_a_fixed_rotation_a_partner_and_a_settled_run_are_recorded(tmp_path):
    """The fake takes a microsecond a launch of the turn, less a half with PDL, plus a quarter settled."""
    output = tmp_path / "out.csv"
    sizes = write_sizes(tmp_path / "s.csv", (256,), (64,))
    words = graph(sizes, output, "--rotation", "2", "--partner", "swapped", "--settled", "--pdl", "1")
    (cells,) = measured(words)
    assert (cells["rotation"], cells["weight_copies"], cells["partner"]) == ("2", "2", "64x256x256")
    assert (cells["settled"], cells["partner_us"], cells["runtime_us"]) == ("1", "1.75", "2.25")
    one_kernel = 2 * 2 * (256 * 256 + 64 * 256 + 64 * 256)
    assert cells["footprint_bytes"] == str(2 * one_kernel)
    assert cells["warm_share"] == "1.0"
    again = ["--rows", str(output), "--output", str(tmp_path / "again.csv"), "--regime", "graph", *words[4:8]]
    assert [cells["partner"] for cells in measured(again)] == ["64x256x256"]


def test_replays_in_turn_cancel_what_drifts_evenly():
    """Times 10, 12, 12, 10 us and a drift of 1 us a replay: 10, 13 and 14, 13, so gains of 3 and 1.

    The standard error of two values 2 apart is sqrt(2) / sqrt(2) = 1.
    """
    assert in_turn("a", "b", 3) == ["a", "b", "b", "a", "a", "b"]
    timing = PairedTiming.of([10.0, 13.0, 14.0, 13.0], 7, {})
    assert timing.gains_us == (3.0, 1.0)
    assert timing.columns() == {
        **{"runtime_us": 11.5, "min_us": 10.0, "p90_us": pytest.approx(12.7), "count": 14},
        **{"without_pdl_us": 13.5, "pdl_gain_us": 2.0, "pdl_gain_error_us": 1.0},
    }


def test_a_paired_row_tells_both_times_and_what_lies_between(tmp_path):
    """The fake gains half a microsecond, and its drift of 0.1 us leaves gains of 0.6 and 0.4 us in turn.

    Their standard error: sqrt(4 x 0.01 / 3) / sqrt(4) = 0.0577.
    """
    output = tmp_path / "out.csv"
    words = graph(write_sizes(tmp_path / "s.csv", (256, fakes.LAUNCH_FAILS), (64,)), output)
    rows = {cells["n"]: cells for cells in measured([*words, "--pdl", "paired"])}
    cells = rows["256"]
    assert (cells["paired"], cells["pdl"], cells["pdl_gain_us"]) == ("1", "1", "0.5")
    assert cells["pdl_gain_error_us"] == "0.0577"
    assert float(cells["without_pdl_us"]) - float(cells["runtime_us"]) == pytest.approx(0.5)
    assert rows[str(fakes.LAUNCH_FAILS)]["disposition"] == "launch_failed"
    again = ["--rows", str(output), "--regime", "graph", "--output", str(tmp_path / "again.csv"), *words[4:8]]
    assert {cells["paired"] for cells in measured(again)} == {"1"}


def test_a_rotation_that_does_not_fit_is_one_row_and_the_run_goes_on(tmp_path):
    sizes = write_sizes(tmp_path / "s.csv", (256, 65536, fakes.LAUNCH_FAILS), (64,))
    rows = measured(graph(sizes, tmp_path / "out.csv"))
    found = {cells["n"]: (cells["disposition"], cells["detail"]) for cells in rows}
    assert found["256"] == ("ok", "")
    assert found["65536"] == ("out_of_memory", "a rotation of 2 copies does not fit")
    assert found[str(fakes.LAUNCH_FAILS)][0] == "launch_failed"


def test_the_norm_between_gemms_compiles_for_hopper():
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from gemm_model.bench.rms_norm import _rms_norm

    types = {"source": "*bf16", "target": "*bf16", "width": "i32", "epsilon": "fp32", "BLOCK": "constexpr"}
    source = triton.compiler.ASTSource(_rms_norm, types, {(4,): 1024})
    assert "rsqrt" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
