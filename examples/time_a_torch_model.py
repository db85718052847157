"""Predict the GEMM time of a PyTorch model on a GPU that this machine does not have, on meta tensors."""

import torch

from gemm_model import GemmTimer

WIDTH, HIDDEN, TOKENS = 4096, 14336, 2048


class FeedForward(torch.nn.Module):
    """A gated layer, as Llama has it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.gate(tokens)) * self.up(tokens))


def main() -> None:
    with torch.device("meta"):
        model = FeedForward().to(torch.bfloat16)
        tokens = torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    # Prints count, FLOP, predicted time and limiter of each module's GEMMs where the block ends.
    with GemmTimer(gpu="h200"):
        model(tokens).sum().backward()


if __name__ == "__main__":
    main()
