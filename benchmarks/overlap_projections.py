"""The projections whose surfaces are measured: weight matrices of real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_model.overlap.config import KernelBuild

EXTRA_CLOCKS = (0, 8000, 17000)
"""The previous kernel as it is, and about 4 and 9 us longer."""
TWO_EXTRA_CLOCKS = (0, 12000)
"""The same for `OTHER_PROJECTIONS` and `TEST_PROJECTIONS`: as it is, and about 6 us longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One weight matrix of a model: m output features, k input features, n tokens."""

    name: str
    m: int
    k: int
    n: int = 16
    a_type: str = "e4m3"
    b_type: str = "e5m2"


def describe(p: Projection, build: KernelBuild, extra: int) -> dict[str, Any]:
    """Columns of a surface: problem, build and previous kernel."""
    return {
        "name": p.name,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "a_type": p.a_type,
        "b_type": p.b_type,
        "split_k": build.split_k,
        "stages": build.stages,
        "clusters": build.clusters,
        "fill_delay_clocks": build.fill_delay_clocks,
        "extra_clocks": extra,
    }


PROJECTIONS = (
    Projection(name="llama3-8b qkv", m=6144, k=4096),
    Projection(name="llama3-8b out", m=4096, k=4096),
    Projection(name="llama3-8b gate-up", m=28672, k=4096),
    Projection(name="llama3-8b down", m=4096, k=14336),
    Projection(name="llama3-70b qkv", m=10240, k=8192),
    Projection(name="llama3-70b out", m=8192, k=8192),
    Projection(name="llama3-70b down", m=8192, k=28672),
    Projection(name="deepseek-v3 q-kv-a", m=2112, k=7168),
    Projection(name="deepseek-v3 q-b", m=24576, k=1536),
    Projection(name="deepseek-v3 out", m=7168, k=16384),
    Projection(name="deepseek-v3 expert gate-up", m=4096, k=7168),
    Projection(name="deepseek-v3 expert down", m=7168, k=2048),
    Projection(name="deepseek-v3 expert up", m=2048, k=7168),
    Projection(name="llama3-70b out, 64 tokens", m=8192, k=8192, n=64),
    Projection(name="llama3-8b out, bf16", m=4096, k=4096, a_type="bf16", b_type="bf16"),
)

OTHER_PROJECTIONS = (
    Projection(name="5120 x 5120", m=5120, k=5120),
    Projection(name="14336 x 4096", m=14336, k=4096),
    Projection(name="1536 x 7168", m=1536, k=7168),
    Projection(name="18432 x 7168", m=18432, k=7168),
    Projection(name="7168 x 18432", m=7168, k=18432),
    Projection(name="3072 x 3072", m=3072, k=3072),
    Projection(name="12288 x 4096", m=12288, k=4096),
    Projection(name="8192 x 2048, 8 tokens", m=8192, k=2048, n=8),
    Projection(name="6144 x 4096, 32 tokens", m=6144, k=4096, n=32),
    Projection(name="6144 x 4096, bf16", m=6144, k=4096, a_type="bf16", b_type="bf16"),
    Projection(name="5120 x 5120, 64 tokens", m=5120, k=5120, n=64),
    Projection(name="qwen2.5-7b qkv, 1 token", m=4608, k=3584, n=1),
    Projection(name="qwen2.5-7b down", m=3584, k=18944),
    Projection(name="qwen3-30b-a3b expert gate-up", m=1536, k=2048),
    Projection(name="qwen2.5-72b down, 128 tokens", m=8192, k=29568, n=128),
    Projection(name="mistral-small-24b qkv", m=6144, k=5120),
    Projection(name="mixtral-8x22b expert up, 32 tokens", m=16384, k=6144, n=32),
    Projection(name="gemma-3-27b down, 64 tokens", m=5376, k=21504, n=64),
    Projection(name="gemma-2-9b gate-up, bf16", m=28672, k=3584, a_type="bf16", b_type="bf16"),
    Projection(name="gpt-oss-120b qkv, bf16, 4 tokens", m=5120, k=2880, n=4, a_type="bf16", b_type="bf16"),
    Projection(name="gpt-oss-120b out, bf16", m=2880, k=4096, a_type="bf16", b_type="bf16"),
    Projection(name="llama4-scout expert down, 24 tokens", m=5120, k=8192, n=24),
    Projection(name="llama4-scout expert gate-up, 8 tokens", m=16384, k=5120, n=8),
)
"""Shapes beside the main ones that the model is fitted to: other models and sizes, tokens and types."""

TEST_PROJECTIONS = (
    Projection(name="olmo-2-7b gate-up", m=22016, k=4096),
    Projection(name="qwen3-4b down, 8 tokens", m=2560, k=9728, n=8),
    Projection(name="phi-4 down", m=5120, k=17920),
    Projection(name="phi-4 qkv, 32 tokens", m=7680, k=5120, n=32),
    Projection(name="llama3.2-3b down, bf16", m=3072, k=8192, a_type="bf16", b_type="bf16"),
    Projection(name="llama3.2-1b down, 1 token", m=2048, k=8192, n=1),
    Projection(name="deepseek-v2-lite expert down", m=2048, k=1408),
    Projection(name="glm-4.5-air expert gate-up, 24 tokens", m=2816, k=4096, n=24),
    Projection(name="gemma-3-12b down", m=3840, k=15360),
    Projection(name="command-r-plus out, 64 tokens", m=12288, k=12288, n=64),
    Projection(name="granite-3-8b gate-up, 4 tokens", m=25600, k=4096, n=4),
    Projection(name="qwen3-30b-a3b out, bf16, 8 tokens", m=2048, k=4096, n=8, a_type="bf16", b_type="bf16"),
    Projection(name="llama3.2-3b gate-up", m=16384, k=3072),
    Projection(name="qwen3-4b gate-up", m=19456, k=2560),
    Projection(name="qwen3-14b qkv", m=7168, k=5120),
    Projection(name="qwen3-8b down, bf16", m=4096, k=12288, a_type="bf16", b_type="bf16"),
    Projection(name="gemma-3-4b down", m=2560, k=10240),
    Projection(name="smollm3-3b down, 64 tokens", m=2048, k=11008, n=64),
    Projection(name="hunyuan-a13b expert down, 32 tokens", m=4096, k=3072, n=32),
    Projection(name="olmo-2-13b down, 128 tokens", m=5120, k=13824, n=128),
    Projection(name="qwen3-8b gate-up, 32 tokens", m=24576, k=4096, n=32),
    Projection(name="mistral-7b down, 48 tokens", m=4096, k=14336, n=48),
    Projection(name="gemma-3-4b gate-up, 32 tokens", m=20480, k=2560, n=32),
    Projection(name="llama3.2-1b qkv, 64 tokens", m=3072, k=2048, n=64),
    Projection(name="granite-3-2b down, 40 tokens", m=2048, k=8192, n=40),
    Projection(name="qwen2.5-3b down, bf16, 32 tokens", m=2048, k=11008, n=32, a_type="bf16", b_type="bf16"),
)
"""Shapes to test the model and the tuner with, never to fit them to."""
