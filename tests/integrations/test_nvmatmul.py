import numpy as np
import pytest

pytest.importorskip("nvMatmulHeuristics")

from gemm_model import GemmProblem, KernelConfig
from gemm_model.integrations.nvmatmul import NvMatmulHeuristics

PROBLEM = GemmProblem.of(4096, 4096, 4096)


def test_choices_come_with_their_times():
    (first, time_us), *others = NvMatmulHeuristics("h200").rank(PROBLEM, 4)
    assert (len(others), first.config.kernel) == (3, "cutlass")
    assert 50 < time_us < 1000


def test_times_of_given_kernels():
    library = NvMatmulHeuristics("h200")
    configs = [KernelConfig(cta_m=64, cta_n=64), KernelConfig(cta_m=128, cta_n=256, cluster_m=2)]
    small, large = library.predict_us(PROBLEM, configs)
    assert np.isfinite([small, large]).all()
    assert large < small
