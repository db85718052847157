"""Two kernels: the difference is shared out by setting and by resource, each of which adds up to it."""

from dataclasses import replace

import pytest

from gemm_model import InputError, KernelConfig, load_gpu, predict
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.kernel_model.comparison import difference
from gemm_model.kernel_model.question import World

FIRST = World(
    problem=GemmProblem.of(4096, 4096, 4096),
    config=KernelConfig(cta_m=128, cta_n=128, kernel="quack"),
    gpu=load_gpu("h200"),
)
TURNED = "tile and cluster and operands swapped"
WIDE = replace(FIRST.config, cta_n=256, mma_n=256, cluster_m=2)


@pytest.mark.parametrize(
    ("second", "settings"),
    [
        (replace(FIRST, config=WIDE), {"tile", "cluster", "residual"}),
        (replace(FIRST, config=replace(WIDE, kernel="cutlass")), {"tile", "cluster", "library", "residual"}),
        (replace(FIRST, options={"l2": "warm"}), {"launch context", "residual"}),
        (FIRST, set()),
        (replace(FIRST, problem=swapped(FIRST.problem), config=WIDE), {TURNED, "residual"}),
        (replace(FIRST, config=replace(WIDE, fast_accum=True)), {"cluster", "tile and sums", "residual"}),
    ],
)
def test_both_ways_of_sharing_out_add_up(second, settings):
    found = difference(FIRST, second)
    apart = (
        predict(second.problem, second.config, second.gpu, options=second.options).runtime_us
        - predict(FIRST.problem, FIRST.config, FIRST.gpu).runtime_us
    )
    assert found.us == pytest.approx(apart)
    assert sum(found.by_setting.values()) == pytest.approx(apart, abs=1e-9)
    assert sum(found.by_resource.values()) == pytest.approx(apart, abs=1e-9)
    assert set(found.by_setting) == settings


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


def test_kernels_of_different_problems_are_refused():
    other = replace(FIRST, problem=GemmProblem.of(4096, 4096, 2048))
    with pytest.raises(InputError, match="two kernels of different problems, 4096x4096x4096 bf16 and"):
        difference(FIRST, other)
