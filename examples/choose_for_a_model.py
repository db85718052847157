"""Choose a kernel for each GEMM of a model's layer, and tell which choices are close."""

from gemm_model import GemmProblem, rank

TOKENS = 2048
LAYERS = {
    "qkv": (6144, 4096),
    "attention output": (4096, 4096),
    "gate and up": (28672, 4096),
    "down": (4096, 14336),
}
"""Llama 3 8B: outputs and inputs of each linear layer."""


def main() -> None:
    total_us = 0.0
    for name, (outputs, inputs) in LAYERS.items():
        ranking = rank(GemmProblem.of(TOKENS, outputs, inputs, "bf16"), "h200", top_k=4)
        config, prediction = ranking.best.candidate.config, ranking.best.prediction
        total_us += prediction.runtime_us
        print(
            f"{name:18s} {config.cta_m}x{config.cta_n} cluster {config.cluster_m}x{config.cluster_n} "
            f"{config.schedule:11s} {prediction.runtime_us:7.1f} us, limited by {prediction.limiter}, "
            f"{ranking.tied_with_best - 1} kernels tie"
        )
    print(f"all four: {total_us:.1f} us")


if __name__ == "__main__":
    main()
