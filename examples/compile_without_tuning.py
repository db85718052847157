"""Choose Inductor's kernels without a GPU: a table for torch._inductor.lookup_table."""

import torch

from gemm_model.integrations.inductor import lookup_table

WIDTH, HIDDEN, TOKENS = 4096, 11008, 512


def main() -> None:
    with torch.device("meta"):
        layers = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        model = torch.nn.Sequential(*layers).to(torch.bfloat16)
        tokens = torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16)
    # A key tells operator, sizes, strides and types; its entries are the ways of least predicted time.
    for key, entries in lookup_table(model, [tokens], "h200", confirm=2).items():
        print(key, *entries, sep="\n  ")


if __name__ == "__main__":
    main()
