"""A real transformer block (the sizes of Llama 3 8B, bf16): GEMM times measured, and predicted without a GPU.

    python benchmarks/transformer_block.py measure --output measured.csv      on a GPU
    python benchmarks/transformer_block.py compare --measured measured.csv    anywhere with torch

`measure` profiles forward and backward passes after pauses, so that the card is rested; a row is one operator
with given shapes, its time the median of the passes. `compare` runs the same block on meta tensors under
GemmTimer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from gemm_model import GemmProblem, GemmTimer
from gemm_model.core.files import atomic_path

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
TOKENS = (256, 1024, 2048, 4096, 8192)
PASSES = 9
PAUSE_S = 0.1
GEMM_OPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_mm")
ATTENTION_OPS = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.key = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.value = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.output = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        query = self.query(x).view(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2)
        key = self.key(x).view(batch, tokens, KV_HEADS, HEAD_DIM).transpose(1, 2)
        value = self.value(x).view(batch, tokens, KV_HEADS, HEAD_DIM).transpose(1, 2)
        key, value = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD_DIM))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, FFN, bias=False)
        self.up = nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.feed_forward_norm = nn.RMSNorm(HIDDEN)
        self.feed_forward = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


def block_and_input(tokens: int, device: str) -> tuple[nn.Module, torch.Tensor]:
    with torch.device(device):
        block = Block().to(torch.bfloat16)
        x = torch.randn(1, tokens, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    return block, x


def measure(output: Path) -> None:
    """Device time of every GEMM and attention operator of forward and backward passes."""
    rows = []
    for tokens in TOKENS:
        block, x = block_and_input(tokens, "cuda")
        block(x).sum().backward()
        torch.cuda.synchronize()
        passes, forward_us = [], []
        for _ in range(PASSES):
            time.sleep(PAUSE_S)
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
                out = block(x)
                out.backward(torch.ones_like(out))
                torch.cuda.synchronize()
            passes.append(_operator_times(profile))
            time.sleep(PAUSE_S)
            forward_us.append(_forward_us(block, x))
        for key, (calls, _) in passes[0].items():
            times = sorted(run[key][1] for run in passes)
            operator, shapes = key
            rows.append(
                {
                    "tokens": tokens,
                    "operator": operator,
                    "shapes": shapes,
                    "calls": calls,
                    "measured_us": times[len(times) // 2],
                    "min_us": times[0],
                    "max_us": times[-1],
                }
            )
        middle = sorted(forward_us)[len(forward_us) // 2]
        rows.append(
            {"tokens": tokens, "operator": "forward pass", "shapes": "[]", "calls": 1, "measured_us": middle}
        )
        print(f"{tokens} tokens: forward {middle:.0f} us, {len(passes[0])} operators", flush=True)
    with atomic_path(output) as path:
        pd.DataFrame(rows).to_csv(path, index=False)


def _operator_times(profile: torch.profiler.profile) -> dict[tuple[str, str], tuple[int, float]]:
    """Calls and device time in us of each GEMM and attention operator by its input shapes."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in profile.events():
        if event.name in GEMM_OPS or event.name in ATTENTION_OPS:
            shapes = json.dumps([shape for shape in event.input_shapes if shape])
            found[event.name, shapes].append(event.device_time_total)
    return {key: (len(times), sum(times)) for key, times in found.items()}


def predicted(tokens: int) -> pd.DataFrame:
    """The same operators of one forward and backward pass, as GemmTimer predicts them from meta tensors."""
    block, x = block_and_input(tokens, "meta")
    with GemmTimer("h200", display=False) as timer:
        out = block(x)
        out.backward(torch.ones_like(out))
    rows = []
    for timing in timer.timings:
        work = timing.work
        if isinstance(work, GemmProblem):
            kind, shape = "GEMM", f"{work.m}x{work.n}x{work.k}"
        else:
            kind, shape = "attention", "backward" if work.backward else "forward"
        rows.append({"kind": kind, "shape": shape, "predicted_us": timing.total_us, "calls": timing.count})
    return pd.DataFrame(rows).groupby(["kind", "shape"], as_index=False).sum()


def measured_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Measured time of each shape; torch's operands are (m, k) and (k, n)."""
    rows = []
    for row in table[table["operator"] != "forward pass"].itertuples():
        shapes = json.loads(row.shapes)
        if row.operator in GEMM_OPS:
            (m, k), n = shapes[0], shapes[1][1]
            kind, shape = "GEMM", f"{m}x{n}x{k}"
        else:
            kind, shape = "attention", "backward" if "backward" in row.operator else "forward"
        rows.append(
            {"kind": kind, "shape": shape, "measured_us": row.measured_us, "measured_calls": row.calls}
        )
    return pd.DataFrame(rows).groupby(["kind", "shape"], as_index=False).sum()


def compare(path: Path) -> None:
    """Print measured and predicted times side by side, and how far they are apart."""
    table = pd.read_csv(path)
    parts = []
    for tokens, rows in table.groupby("tokens"):
        both = measured_rows(rows).merge(predicted(int(tokens)), on=["kind", "shape"], how="outer")
        parts.append(both.assign(tokens=tokens))
    both = pd.concat(parts, ignore_index=True)
    assert (both["measured_calls"] == both["calls"]).all(), "the passes ran other operators"
    both["ratio"] = both["predicted_us"] / both["measured_us"]
    columns = ["tokens", "kind", "shape", "calls", "measured_us", "predicted_us", "ratio"]
    print(both[columns].to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    for kind, rows in both.groupby("kind"):
        error = (rows["ratio"] - 1.0).abs()
        print(f"{kind}: |predicted / measured - 1| mean {error.mean():.1%}, worst {error.max():.1%}")
        totals = rows.groupby("tokens")[["measured_us", "predicted_us"]].sum()
        totals["ratio"] = totals["predicted_us"] / totals["measured_us"]
        print(totals.to_string(float_format=lambda value: f"{value:.4g}"))


def _forward_us(block: nn.Module, x: torch.Tensor) -> float:
    """A whole forward pass between events, behind enough work that no launch is waited for."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.no_grad():
        torch.cuda._sleep(2_000_000)
        begin.record()
        block(x)
        end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--output", type=Path, required=True)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("--measured", type=Path, required=True)
    args = parser.parse_args()
    if args.verb == "measure":
        measure(args.output)
    else:
        compare(args.measured)


if __name__ == "__main__":
    main()
