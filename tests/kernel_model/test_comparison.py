"""Two kernels: the difference is shared out by setting and by resource, each of which adds up to it."""

from dataclasses import replace

import pytest

from gemm_model import predict
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.comparison import difference
from gemm_model.kernel_model.question import World

FIRST = World(
    problem=GemmProblem.of(4096, 4096, 4096),
    config=KernelConfig(cta_m=128, cta_n=128, kernel="quack"),
    gpu=load_gpu("h200"),
)
WIDE = replace(FIRST.config, cta_n=256, mma_n=256, cluster_m=2)


@pytest.mark.parametrize(
    "second",
    [
        replace(FIRST, config=WIDE),
        replace(FIRST, config=replace(WIDE, kernel="cutlass")),
        replace(FIRST, gpu=load_gpu("h100_sxm")),
        replace(FIRST, options={"l2": "warm"}),
    ],
    ids=["tile and cluster", "library", "card", "context"],
)
def test_both_ways_of_sharing_out_add_up(second):
    found = difference(FIRST, second)
    apart = (
        predict(second.problem, second.config, second.gpu, options=second.options).runtime_us
        - predict(FIRST.problem, FIRST.config, FIRST.gpu).runtime_us
    )
    assert found.us == pytest.approx(apart)
    assert sum(found.by_setting.values()) == pytest.approx(apart, abs=1e-9)
    assert sum(found.by_resource.values()) == pytest.approx(apart, abs=1e-9)


def test_one_setting_takes_all_of_the_difference_before_the_residual():
    second = replace(FIRST, config=replace(FIRST.config, cluster_m=2), options={"residual": "off"})
    found = difference(replace(FIRST, options={"residual": "off"}), second)
    assert found.by_setting == {"cluster": pytest.approx(found.us)}


def test_two_settings_share_what_they_save_together():
    """Shapley's value of two: half of what each saves alone and half of what it saves last."""
    off = {"residual": "off"}
    cluster = replace(FIRST, config=replace(FIRST.config, cluster_m=2), options=off)
    wide = replace(FIRST, config=replace(FIRST.config, cta_n=256, mma_n=256), options=off)
    both = replace(FIRST, config=WIDE, options=off)
    us = {name: each.composed_us() for name, each in (("cluster", cluster), ("tile", wide), ("both", both))}
    none_us = FIRST.composed_us()
    expected = ((us["cluster"] - none_us) + (us["both"] - us["tile"])) / 2
    assert difference(replace(FIRST, options=off), both).by_setting["cluster"] == pytest.approx(expected)


def test_the_same_kernel_twice_has_no_difference():
    found = difference(FIRST, FIRST)
    assert (found.us, found.by_setting, found.by_resource) == (0.0, {}, {})


def test_kernels_of_different_problems_are_refused():
    other = replace(FIRST, problem=GemmProblem.of(4096, 4096, 2048))
    with pytest.raises(InputError, match="two kernels of different problems, 4096x4096x4096 bf16 and"):
        difference(FIRST, other)
