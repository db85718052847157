"""Take CUTLASS's operators in the order of their predicted times, beside what nvMatmulHeuristics would take."""

import torch
from cutlass.operators import GemmArguments, get_operators

from gemm_model import predict
from gemm_model.integrations.cutlass_operators import GemmModelHeuristic, config_of, problem_of
from gemm_model.integrations.nvmatmul import NvMatmulHeuristics

M, N, K = 4096, 4096, 4096


def main() -> None:
    a, weight = (torch.empty(rows, K, dtype=torch.bfloat16) for rows in (M, N))
    out = torch.empty(M, N, dtype=torch.bfloat16)
    asked = GemmArguments(a, weight.T, out, accumulator_type=torch.float32)
    given = {"target_sm": "90a", "heuristic": GemmModelHeuristic(gpu="h200"), "limit": 4}
    for operator in get_operators(asked, **given):
        config = config_of(operator.metadata.design)
        time_us = predict(problem_of(asked), config, "h200").runtime_us
        tile = f"{config.cta_m}x{config.cta_n} {config.cluster_m}x{config.cluster_n}"
        print(f"gemm-model: {tile} {time_us:.1f} us")
    for candidate, time_us in NvMatmulHeuristics("h200").rank(problem_of(asked), 4):
        config = candidate.config
        tile = f"{config.cta_m}x{config.cta_n} {config.cluster_m}x{config.cluster_n}"
        print(f"nvMatmulHeuristics: {tile} {time_us:.1f} us")


if __name__ == "__main__":
    main()
