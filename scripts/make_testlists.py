"""Write `testlists/*.csv`: GEMM shapes of published architectures, squares, and a seeded random list.

Run from the repository root: `python scripts/make_testlists.py`. D[m, n] = A[m, k] x B[n, k]^T; m is the
number of tokens in forward GEMMs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Shape = tuple[int, int, int]

SEED = 20261121


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix: `out_features` x `in_features`."""

    name: str
    in_features: int
    out_features: int

    def forward(self, tokens: int) -> Shape:
        return tokens, self.out_features, self.in_features

    def input_gradient(self, tokens: int) -> Shape:
        return tokens, self.in_features, self.out_features

    def weight_gradient(self, tokens: int) -> Shape:
        return self.out_features, self.in_features, tokens


def deepseek_v3() -> list[Linear]:
    """The weights of a DeepSeek-V3 layer (DeepSeek-V3 technical report, section 4.2, and its config.json)."""
    hidden, vocabulary, heads = 7168, 129280, 128
    q_rank, kv_rank, rope, head, value = 1536, 512, 64, 128, 128
    dense, expert, experts = 18432, 2048, 256
    return [
        Linear("q_a_proj", hidden, q_rank),
        Linear("q_b_proj", q_rank, heads * (head + rope)),
        Linear("kv_a_proj", hidden, kv_rank + rope),
        Linear("kv_b_proj", kv_rank, heads * (head + value)),
        Linear("o_proj", heads * value, hidden),
        Linear("dense gate or up", hidden, dense),
        Linear("dense down", dense, hidden),
        Linear("expert gate or up", hidden, expert),
        Linear("expert down", expert, hidden),
        Linear("router", hidden, experts),
        Linear("lm_head", hidden, vocabulary),
    ]


def transformer(
    hidden: int, intermediate: int, heads: int, kv_heads: int, head: int, vocabulary: int
) -> list[Linear]:
    """The weights of a layer with grouped-query attention and a gated MLP, fused as inference engines do."""
    return [
        Linear("qkv", hidden, (heads + 2 * kv_heads) * head),
        Linear("o", heads * head, hidden),
        Linear("gate and up", hidden, 2 * intermediate),
        Linear("down", intermediate, hidden),
        Linear("lm_head", hidden, vocabulary),
    ]


LLAMA_3_8B = transformer(4096, 14336, 32, 8, 128, 128256)
LLAMA_3_70B = transformer(8192, 28672, 64, 8, 128, 128256)
QWEN_2_5_7B = transformer(3584, 18944, 28, 4, 128, 152064)
QWEN_2_5_72B = transformer(8192, 29568, 64, 8, 128, 152064)
DECODE_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PREFILL_TOKENS = (512, 2048, 8192)


def training_shapes(layers: list[Linear], tokens: int) -> list[Shape]:
    return [
        shape
        for layer in layers
        for shape in (layer.forward(tokens), layer.input_gradient(tokens), layer.weight_gradient(tokens))
    ]


def inference_shapes(layers: list[Linear], tokens: tuple[int, ...]) -> list[Shape]:
    return [layer.forward(count) for layer in layers for count in tokens]


def square_shapes() -> list[Shape]:
    sizes = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384)
    return [(size, size, size) for size in sizes]


def random_shapes(count: int) -> list[Shape]:
    """Log-uniform sizes, m from 1 to 16384 and n, k from 64 to 16384, in multiples of 1, 8 and 64."""
    generator = np.random.default_rng(SEED)
    shapes: list[Shape] = []
    while len(shapes) < count:
        low, high = np.log([1, 64, 64]), np.log([16384, 16384, 16384])
        quantum = generator.choice([1, 8, 64], size=3, p=[0.2, 0.3, 0.5])
        sizes = np.maximum(1, np.round(np.exp(generator.uniform(low, high)) / quantum)) * quantum
        m, n, k = (int(size) for size in sizes)
        if 1e6 <= float(m) * n * k <= 1.5e12:
            shapes.append((m, n, k))
    return shapes


LISTS = {
    "dsv3": (
        "DeepSeek-V3 linear layers at sequence 4096, forward, input gradient and weight gradient",
        "DeepSeek-V3 technical report: vocabulary 129280, hidden 7168, intermediate 18432 and 2048, "
        "q/kv low rank 1536 and 512+64, 128 heads, 256 experts",
        lambda: training_shapes(deepseek_v3(), 4096),
    ),
    "llama3_decode": (
        "Llama-3 8B and 70B linear layers, decode with 1 to 256 tokens",
        "Llama 3 model cards: hidden 4096/8192, intermediate 14336/28672, heads 32/64, kv heads 8",
        lambda: inference_shapes(LLAMA_3_8B + LLAMA_3_70B, DECODE_TOKENS),
    ),
    "llama3_prefill": (
        "Llama-3 8B and 70B linear layers, prefill with 512 to 8192 tokens",
        "Llama 3 model cards: hidden 4096/8192, intermediate 14336/28672, heads 32/64, kv heads 8",
        lambda: inference_shapes(LLAMA_3_8B + LLAMA_3_70B, PREFILL_TOKENS),
    ),
    "qwen2_5_decode": (
        "Qwen2.5 7B and 72B linear layers, decode with 1 to 256 tokens",
        "Qwen2.5 model cards: hidden 3584/8192, intermediate 18944/29568, heads 28/64, kv heads 4/8",
        lambda: inference_shapes(QWEN_2_5_7B + QWEN_2_5_72B, DECODE_TOKENS),
    ),
    "qwen2_5_prefill": (
        "Qwen2.5 7B and 72B linear layers, prefill with 512 to 8192 tokens",
        "Qwen2.5 model cards: hidden 3584/8192, intermediate 18944/29568, heads 28/64, kv heads 4/8",
        lambda: inference_shapes(QWEN_2_5_7B + QWEN_2_5_72B, PREFILL_TOKENS),
    ),
    "square": ("Squares", "powers of two and their multiples by 1.25, 1.5 and 3", square_shapes),
    "random": (
        "Random shapes, log-uniform, aligned and not",
        f"numpy default_rng({SEED}), see scripts/make_testlists.py",
        lambda: random_shapes(160),
    ),
}


def list_text(name: str) -> str:
    """The text of one list: two comment lines (what, source), the header, and each distinct shape once."""
    title, source, shapes = LISTS[name]
    rows = [f"{m},{n},{k}" for m, n, k in dict.fromkeys(shapes())]
    return "\n".join([f"# {title}", f"# source: {source}", "m,n,k", *rows]) + "\n"


def main() -> int:
    folder = Path(__file__).parent.parent / "testlists"
    folder.mkdir(exist_ok=True)
    for name in LISTS:
        (folder / f"{name}.csv").write_text(list_text(name), encoding="utf-8")
        print(f"wrote testlists/{name}.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
