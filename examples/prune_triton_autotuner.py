"""Leave Triton's autotuner four configurations in place of all of them, before anything is compiled."""

import triton

from gemm_model.integrations.triton import prune_configs_by

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "GROUP_M": 8}, num_stages=stages, num_warps=8)
    for m in (64, 128, 256)
    for n in (64, 128, 256)
    for stages in (3, 4)
]
PRUNE = prune_configs_by("h200", top_k=4, dtype="bf16")
"""Goes into `triton.autotune(CONFIGS, key=["M", "N", "K"], prune_configs_by=PRUNE)`."""


def main() -> None:
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    fitting = PRUNE["early_config_prune"](CONFIGS, sizes)
    # What the autotuner does with its perf_model: rank those that fit, keep the first top_k.
    ranked = sorted(fitting, key=lambda config: PRUNE["perf_model"](**sizes, **config.all_kwargs()))
    print(f"{len(CONFIGS)} configurations, {len(fitting)} fit into the card, these are compiled and timed:")
    for config in ranked[: PRUNE["top_k"]]:
        print(config)


if __name__ == "__main__":
    main()
