import math
from dataclasses import dataclass, field

import pytest

from gemm_model import GemmProblem, InputError, KernelConfig, predict
from gemm_model.integrations.triton import config_from, problem_from, prune_configs_by, triton_perf_model

MODEL = "WSPersistentGEMMModel"
SIZES = {"M": 4096, "N": 4096, "K": 4096}
TILE = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}


@dataclass(frozen=True)
class FakeTensor:
    dtype: str = "torch.bfloat16"


@dataclass
class FakeConfig:
    """What Triton's Config offers to a pruner."""

    kwargs: dict = field(default_factory=lambda: dict(TILE))
    num_warps: int = 8
    num_stages: int = 3

    def all_kwargs(self):
        return {**self.kwargs, "num_warps": self.num_warps, "num_ctas": 1, "num_stages": self.num_stages}


def test_the_time_is_the_models_own():
    perf_model = triton_perf_model("h200", model=MODEL)
    time_us = perf_model(a_ptr=FakeTensor(), **SIZES, **FakeConfig().all_kwargs())
    tile = {"cta_m": 128, "cta_n": 256, "cta_k": 64, "stages": 3}
    config = KernelConfig(**tile, raster="along_m", swizzle=8, fast_accum=True)
    expected = predict(GemmProblem.of(4096, 4096, 4096), config, "h200", MODEL)
    assert time_us == pytest.approx(expected.runtime_us)


def test_other_common_names_are_known():
    tile = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64}
    arguments = {"m": 1, "n": 2, "k": 3, **tile, "SPLIT_K": 2}
    config = config_from(arguments)
    assert (config.cta_m, config.cta_n, config.swizzle, config.split_k, config.stages) == (64, 32, 1, 2, 3)
    problem = problem_from({"a": FakeTensor("torch.float8_e4m3fn"), **arguments})
    assert (problem.m, problem.n, problem.k, problem.a_dtype.name) == (1, 2, 3, "e4m3")


def test_a_tensor_descriptor_tells_its_type():
    descriptor = type("TensorDescriptor", (), {"base": FakeTensor("torch.float16")})()
    assert problem_from({"desc": descriptor, **SIZES}).a_dtype.name == "fp16"


@pytest.mark.parametrize(
    ("config", "output_tile", "fits"),
    [
        # 128x256 over 4 warps is 256 accumulators a thread; over 8 it is 128.
        (FakeConfig(num_warps=4), False, False),
        (FakeConfig(num_warps=8), False, True),
        # A stage is (128 + 256) x 64 x 2 = 49,152 bytes, the output tile 65,536; an H200 CTA has 232,448.
        (FakeConfig(num_stages=4), False, True),
        (FakeConfig(num_stages=5), False, False),
        (FakeConfig(num_stages=3), True, True),
        (FakeConfig(num_stages=4), True, False),
    ],
)
def test_what_does_not_fit_takes_for_ever_and_is_pruned(config, output_tile, fits):
    perf_model = triton_perf_model("h200", model=MODEL, dtype="bf16", output_tile_in_smem=output_tile)
    assert math.isfinite(perf_model(**SIZES, **config.all_kwargs())) == fits
    small = FakeConfig({**TILE, "BLOCK_N": 64})
    kept = perf_model.early_config_prune([config, small], SIZES)
    assert kept == ([config, small] if fits else [small])


def test_a_pruner_never_returns_an_empty_list():
    hopeless = [FakeConfig(num_warps=1), FakeConfig(num_stages=9)]
    prune = prune_configs_by("h200", model=MODEL, dtype="bf16")["early_config_prune"]
    assert prune(hopeless, SIZES) == hopeless


def test_missing_arguments_are_said_in_words():
    perf_model = triton_perf_model("h200", model=MODEL, dtype="bf16")
    with pytest.raises(InputError, match="without an argument for k; expected one of K, k"):
        perf_model(M=1, N=1, **TILE)
    with pytest.raises(InputError, match="for cta_m; expected one of BLOCK_M, BLOCK_SIZE_M"):
        perf_model(**SIZES)
    with pytest.raises(InputError, match="no tensor among"):
        triton_perf_model("h200", model=MODEL)(**SIZES, **TILE)
    with pytest.raises(InputError, match="k is None; expected a whole number"):
        perf_model(**{**SIZES, "K": None}, **TILE)


@pytest.mark.parametrize("top_k", [3, 0.5])
def test_tritons_own_autotuner_times_only_what_the_model_picks(top_k):
    triton = pytest.importorskip("triton")
    timed = []
    configs = [
        triton.Config({**TILE, "BLOCK_N": n}, num_warps=warps, num_stages=3)
        for n in (64, 128, 256)
        for warps in (4, 8)
    ]

    def matmul(a, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M):
        """The body never runs: the autotuner calls `run` of what stands for the kernel."""

    class Kernel:
        fn = staticmethod(matmul)
        arg_names = ("a", "M", "N", "K", "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")

        def run(self, *args, **kwargs):
            timed.append((kwargs["BLOCK_N"], kwargs["num_warps"]))

    def bench(call, quantiles):
        call()
        return [1.0, 1.0, 1.0]

    tuner = triton.autotune(
        configs,
        key=["M", "N", "K"],
        prune_configs_by=prune_configs_by("h200", top_k=top_k, model=MODEL),
        do_bench=bench,
    )(Kernel())
    tuner.run(FakeTensor(), 4096, 4096, 4096, grid=(1,))
    assert len(tuner.configs_timings) in (3, 2)
    perf_model = triton_perf_model("h200", model=MODEL)
    times = sorted(perf_model(a=FakeTensor(), **SIZES, **config.all_kwargs()) for config in configs)
    picked = [perf_model(a=FakeTensor(), **SIZES, **config.all_kwargs()) for config in tuner.configs_timings]
    assert sorted(picked) == times[: len(picked)]
    assert (256, 4) not in timed
