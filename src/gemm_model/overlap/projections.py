"""The projections whose surfaces are measured: weight matrices of real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_model.overlap.config import KernelBuild

EXTRA_CLOCKS = (0, 8000, 17000)
"""The previous kernel as it is, and about 4 and 9 us longer."""
TEST_EXTRA_CLOCKS = (0, 12000)
"""The same for `TEST_PROJECTIONS`: as it is, and about 6 us longer."""


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

TEST_PROJECTIONS = (
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
"""Shapes to test the model and the tuner with, never to fit them to."""
