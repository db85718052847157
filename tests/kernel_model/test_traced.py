"""Predictions do not change once their formulas are traced."""

import pytest

from gemm_model import GemmProblem, load_gpu
from gemm_model.kernel_model import traced
from gemm_model.kernel_model.model import KernelModel
from gemm_model.kernels.candidates import candidate_spaces
from gemm_model.kernels.registry import families, family_of

OPTIONS = [{}, {"regime": "sustained"}, {"regime": "graph", "without": ["l2_capacity"]}]
KERNELS = [
    pytest.param(gpu, name, options, marks=[pytest.mark.slow] if gpu != "h200" and options else [])
    for gpu in ("h200", "b200_1300mhz", "a100_sxm_80gb")
    for name in families(gpu)
    for options in OPTIONS
]


@pytest.mark.parametrize(("card", "family", "options"), KERNELS)
def test_traced_formulas_predict_the_same(card, family, options, monkeypatch):
    gpu, problem = load_gpu(card), GemmProblem.of(1000, 520, 776, batch=3)
    monkeypatch.setattr(traced, "OFTEN", 0.5)
    usual, quick = KernelModel(gpu, **options), KernelModel(gpu, **options)
    for each in (usual._whole, usual._searched, usual._least):
        each.of = lambda batch, resources, _=None, formulas=each.formulas: formulas(batch, resources)
    grid = candidate_spaces(family_of(family, gpu), gpu, problem)[0].grid_of(problem)
    table, physical_us = usual.predict_batch(grid.rows()), usual.evaluate(grid).runtime_us
    for _ in range(2):  # the first one traces
        assert quick.evaluate(grid).runtime_us == pytest.approx(physical_us, rel=1e-12)
        assert (quick.least_times(grid).physical_us <= physical_us.min(axis=0) * (1.0 + 1e-9)).all()
        found = quick.predict_batch(grid.rows())
        assert found.runtime_us == pytest.approx(table.runtime_us, rel=1e-12)
        assert (found.limiter == table.limiter).all()
    for place in range(0, len(grid.rows()), 101 * grid.orders):
        row = grid.rows().mapped(lambda _, column, place=place: column[place].item())
        assert usual.predict_row(row) == quick.predict_row(row) == quick.predict_row(row)
    assert all(
        each.made for of in (quick._whole, quick._searched, quick._least) for each in of.known.values()
    )
