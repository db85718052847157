"""Every model answers for one row of numbers, a batch, and a grid of kernels alike."""

import numpy as np
import pytest

from gemm_model import GemmProblem, KernelConfig, Ranker, load_gpu
from gemm_model.config import load_config
from gemm_model.core.batch import batch_of, numbers_of
from gemm_model.models import create_model, models

# A shape that every model takes: 16 tokens, which the weight-prefetch kernel is for.
PROBLEM = GemmProblem.of(4096, 16, 4096, "bf16")
CONFIG = KernelConfig(cta_m=128, cta_n=64)


@pytest.mark.parametrize("name", models())
def test_a_row_of_numbers_gets_what_its_batch_gets(name):
    model = create_model(name, load_gpu("h200"), load_config([f"model={name}"])["model_opts"])
    of_batch = model.predict_batch(batch_of([(PROBLEM, CONFIG)])).row(0)
    of_row = model.predict_row(numbers_of(PROBLEM, CONFIG))
    assert of_row.runtime_us > 1
    assert (of_row.runtime_us, of_row.limiter, of_row.caveats) == (
        of_batch.runtime_us,
        of_batch.limiter,
        of_batch.caveats,
    )


def test_the_evaluation_of_a_grid_is_that_of_its_rows():
    ranker = Ranker("h200", model="WSPersistentGEMMModel")
    grid = ranker.spaces(PROBLEM)[0].grid_of(PROBLEM)
    by_row = ranker.model.predict_batch(grid.rows()).runtime_us
    found = ranker.model.evaluate(grid).runtime_us
    assert found.shape == grid.shape
    assert (found.T.reshape(-1) == by_row).all()
    assert np.isfinite(found).all()
