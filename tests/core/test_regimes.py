"""The counters regime is also called by the field's word for it."""

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, predict

PROBLEM = GemmProblem.of(4096, 4096, 4096, "bf16")
CONFIG = KernelConfig(cta_m=128, cta_n=256, cluster_m=2)


def time_in(regime):
    return predict(PROBLEM, CONFIG, "h200", options={"regime": regime}).runtime_us


def test_kernel_only_is_the_counters_regime():
    assert time_in("kernel-only") == time_in("counters") != time_in("burst")


def test_an_unknown_regime_is_refused():
    with pytest.raises(InputError, match="regime is 'kernel'; expected one of burst"):
        time_in("kernel")


def test_the_command_takes_it_too(gemm_model):
    words = ("predict", "--m", 4096, "--n", 4096, "--k", 4096, "--cta", "128x256", "--format", "json")
    found = [gemm_model(*words, "--regime", regime) for regime in ("kernel-only", "counters")]
    assert found[0].out == found[1].out
    assert '"predicted_us"' in found[0].out
