"""Nothing that the shipped calibration says changes unnoticed."""

import re
from dataclasses import replace

import pytest

from gemm_model.kernel_model.calibration_file import load_calibration
from tests.gate.accuracy import PAGE, accuracy, accuracy_differences, page_lines, read_accuracy
from tests.gate.golden import cases, golden_differences, golden_table, read_golden
from tests.gate.mutants import mutant
from tests.gate.spaces import read_spaces, space_differences, spaces

README = PAGE.parents[2] / "README.md"
OTHER_CARDS = PAGE.with_name("other-cards.md")


def test_the_golden_table_holds():
    differences = golden_differences(read_golden(), golden_table())
    assert not differences, "\n".join([f"{len(differences)} values moved (make golden):", *differences[:40]])


@pytest.mark.slow
def test_accuracy_on_the_shipped_tables_is_as_recorded():
    differences = accuracy_differences(read_accuracy(), accuracy())
    assert not differences, "\n".join(["accuracy moved (make golden):", *differences])


def test_the_page_of_accuracy_has_the_recorded_figures():
    assert page_lines(read_accuracy()) in PAGE.read_text(), "the page is old: run `make golden`"


def _span(figures, digits=1):
    """The least and the largest as a page says them; one of them where both read alike."""
    return list(
        dict.fromkeys(
            f"{float(each):.{digits}f}" for each in sorted(figures, key=float)[:: max(len(figures) - 1, 1)]
        )
    )


def test_the_readme_has_the_figures_of_the_pages():
    readme, page = README.read_text(), PAGE.read_text()
    for name in ("QuACK", "cuBLAS", "CUTLASS", "Triton"):
        (row,) = re.findall(rf"^\| {name} \| GEMM [^|]*\| ([^|]*) \| ([^|]*)\|", readme, re.MULTILINE)
        family = name.lower()
        lines = [rf"{gpu} {family} \w+ burst \| residual \| \d+ \| ([\d.]+)%" for gpu in ("h200", "h100")]
        h200, h100 = (re.findall(line, page) for line in lines)
        borrowed = re.findall(rf"h100_sxm \w+ {family} \| held out \|[^|]*\| ([^|]*) \|", page)
        h100 += [each for found in borrowed for each in found.split(", ")]
        assert [re.findall(r"[\d.]+", cell) for cell in row] == [_span(h200), _span(h100)], name
    others = re.findall(
        r"^\| (?!h\d)\w+ \|.* (\d+\.\d) % \([\d.]+\) \|$", OTHER_CARDS.read_text(), re.MULTILINE
    )
    assert re.findall(r"mean error of (\d+) to\n(\d+) % on bf16", readme) == [tuple(_span(others, 0))]


def test_families_have_the_kernels_that_are_recorded():
    differences = space_differences(read_spaces(), spaces())
    assert not differences, "\n".join(["kernels came or went (make golden):", *differences])


def test_a_kernel_more_or_less_is_noticed():
    recorded = {"h200": {"quack": {"fp16": {"cooperative": 10, "pingpong": 8}}}}
    assert space_differences(recorded, recorded) == []
    found = {"h200": {"quack": {"fp16": {"cooperative": 9}}, "triton": {"fp16": {"cooperative": 3}}}}
    assert space_differences(recorded, found) == [
        "h200 quack fp16 cooperative: 10 -> 9 kernels",
        "h200 quack fp16 pingpong: 8 -> None kernels",
        "h200 triton fp16 cooperative: None -> 3 kernels",
    ]


def test_the_golden_table_has_about_300_kernels_of_all_kinds():
    found = cases()
    assert 250 <= len(found) <= 400
    assert not found.duplicated().any()
    assert set(found["regime"]) == {"burst", "graph", "sustained", "counters"}
    assert set(found["family"]) == {"auto", "cutlass", "cublas", "triton"}
    assert set(found["dtype"]) >= {"bf16", "fp16", "fp8", "tf32", "int8", "nvfp4", "mxfp8"}
    assert found["gpu"].nunique() >= 8


@pytest.mark.parametrize("name", ["launch.kernel_us", "edge_tiles.shared_cost", "spilling.sharing"])
def test_a_number_that_is_off_is_noticed(name):
    shipped = load_calibration("h200:quack")
    whole = golden_table(replace(shipped, path=None))
    assert not golden_differences(whole, golden_table(mutant(shipped, name, 1.0)))
    assert golden_differences(whole, golden_table(mutant(shipped, name, 1.3)))


def test_another_table_is_no_pass():
    found = golden_table()
    recorded = read_golden()
    assert golden_differences(recorded, found.iloc[1:]) == [
        "the table has other kernels or columns: run `make golden`"
    ]
    changed = recorded.copy()
    changed.loc[3, "runtime_us"] *= 1.0001
    (line,) = golden_differences(changed, found)
    assert line.startswith("line 5, runtime_us: ")


def test_an_accuracy_figure_is_noticed_both_ways():
    recorded = {"burst": {"bf16": {"mape": 3.50, "p95": 10.0}}}
    for mape, noticed in ((3.51, False), (3.53, True), (3.47, True)):
        found = {"burst": {"bf16": {"mape": mape, "p95": 10.0}}}
        assert bool(accuracy_differences(recorded, found)) == noticed
    assert accuracy_differences(recorded, {}) != []


def test_a_mutant_differs_by_one_number():
    shipped = load_calibration("h200:quack")
    found = mutant(shipped, "dram.efficiency", 0.7)
    for kind, numbers in shipped.numbers.items():
        changed = found.numbers[kind].dram.efficiency
        assert changed == pytest.approx(0.7 * numbers.dram.efficiency)
        assert replace(found.numbers[kind], dram=numbers.dram) == numbers
