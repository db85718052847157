"""Blocks of models in CUDA graphs: each kernel's time measured, and its GEMMs predicted without a GPU.

    python benchmarks/model_blocks.py measure --output blocks.csv              on a GPU; goes on with a table
    python benchmarks/model_blocks.py compare --measured blocks.csv --output blocks_predicted.csv

`measure` captures a few copies of a block, each with weights of its own, so that weights are cold as in a
model, and replays the graph after pauses. A row is one kernel of a block: CUPTI's time of it, the median over
copies and replays. The operator and the module that launched it are known from an eager pass, whose kernels
come in the same order. `compare` runs the same blocks on meta tensors under GemmTimer.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from gemm_model import GemmTimer
from gemm_model.core.files import atomic_path
from gemm_model.errors import InputError
from gemm_model.integrations.torch_operators import GEMM

CONTEXT = 1024
"""Tokens that the key and value caches of a decode step hold."""
ROPE_BASE = 500000.0
COLD_L2_MULTIPLE = 4
MOST_COPIES = 16
REPLAYS = 7
PAUSE_S = 0.05
LABEL = "op:"
COLUMNS = (
    *("gpu", "block", "phase", "tokens", "order", "module", "op", "m", "n", "k", "dtype", "kernel_name"),
    *("runtime_us", "min_us", "max_us", "share", "copies", "detail"),
)


class Attention(nn.Module):
    """Grouped-query attention with fused projections; with a cache, one query a sequence.

    Causal attention has rotary positions, of up to `length` tokens.
    """

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, length: int, *, bias: bool, causal: bool
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.causal = heads, kv_heads, causal
        self.head_dim = 128 if kv_heads < heads else hidden // heads
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.head_dim, bias=bias)
        self.output = nn.Linear(heads * self.head_dim, hidden, bias=bias and kv_heads == heads)
        half = self.head_dim // 2
        rates = ROPE_BASE ** -torch.arange(half).div(half)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> Tensor:
        sequences, tokens, _ = x.shape
        parts = self.qkv(x).view(sequences, tokens, -1, self.head_dim).transpose(1, 2)
        query, key, value = parts.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if self.causal:
            query, key = self._rotated(query), self._rotated(key)
        if cache is not None:
            cache[0][:, :, -1:], cache[1][:, :, -1:] = key, value
            key, value = cache
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal and cache is None, enable_gqa=self.kv_heads < self.heads
        )
        return self.output(mixed.transpose(1, 2).reshape(sequences, tokens, self.heads * self.head_dim))

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        cosine, sine = self.cosine, self.sine
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class GatedFeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class FeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Mixture(nn.Module):
    """Mixture of experts whose tokens are spread evenly: shapes that do not depend on data."""

    def __init__(self, hidden: int, ffn: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(hidden, ffn) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights = self.router(tokens).softmax(dim=-1)[:, : self.chosen]
        spread = tokens.repeat(self.chosen, 1).chunk(len(self.experts))
        out = torch.cat([expert(part) for expert, part in zip(self.experts, spread, strict=True)])
        mixed = out.view(self.chosen, *tokens.shape) * weights.T[..., None]
        return mixed.sum(dim=0).view_as(x)


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module | None, ffn: nn.Module) -> None:
        super().__init__()
        self.attention, self.ffn = attention, ffn
        self.norms = nn.ModuleList(norm() for _ in range(1 if attention is None else 2))

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if self.attention is not None:
            x = x + self.attention(self.norms[0](x), cache)
        return x + self.ffn(self.norms[-1](x))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Published sizes of a model's block."""

    hidden: int
    ffn: int
    heads: int = 0
    kv_heads: int = 0
    qkv_bias: bool = False
    experts: int = 0
    gated: bool = True

    def block(self, length: int) -> Block:
        if self.experts:
            return Block(
                partial(nn.RMSNorm, self.hidden), None, Mixture(self.hidden, self.ffn, self.experts, 2)
            )
        attention = Attention(
            self.hidden, self.heads, self.kv_heads, length, bias=self.qkv_bias, causal=self.gated
        )
        if self.gated:
            return Block(partial(nn.RMSNorm, self.hidden), attention, GatedFeedForward(self.hidden, self.ffn))
        return Block(partial(nn.LayerNorm, self.hidden), attention, FeedForward(self.hidden, self.ffn))


BLOCKS = {
    "llama_3_8b": Sizes(hidden=4096, ffn=14336, heads=32, kv_heads=8),
    "qwen2_5_32b": Sizes(hidden=5120, ffn=27648, heads=40, kv_heads=8, qkv_bias=True),
    "mixtral_8x7b_moe": Sizes(hidden=4096, ffn=14336, experts=8),
    "vit_l_14": Sizes(hidden=1024, ffn=4096, heads=16, kv_heads=16, qkv_bias=True, gated=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A block with so many sequences of so many tokens; 'decode' reads a cache."""

    block: str
    phase: str
    sequences: int
    length: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.block, self.phase, str(self.sequences * self.length)

    def build(self, device: str) -> tuple[Block, tuple[Any, ...]]:
        """The block in bf16 with random weights, and its inputs."""
        sizes = BLOCKS[self.block]
        with torch.device(device):
            block = sizes.block(self.length).to(torch.bfloat16).requires_grad_(requires_grad=False)
            x = torch.randn(self.sequences, self.length, sizes.hidden, dtype=torch.bfloat16)
            if self.phase != "decode":
                return block, (x,)
            shape = (self.sequences, sizes.kv_heads, CONTEXT, 128)
            return block, (x, tuple(torch.randn(shape, dtype=torch.bfloat16) for _ in range(2)))


CASES = (
    *(
        Case(block=block, phase="decode", sequences=tokens, length=1)
        for block in ("llama_3_8b", "qwen2_5_32b")
        for tokens in (1, 16, 128)
    ),
    *(
        Case(block=block, phase="prefill", sequences=1, length=tokens)
        for block in ("llama_3_8b", "qwen2_5_32b")
        for tokens in (2048, 8192)
    ),
    *(Case(block="mixtral_8x7b_moe", phase="moe", sequences=1, length=tokens) for tokens in (64, 4096)),
    Case(block="vit_l_14", phase="images", sequences=32, length=257),
)


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator that launched a kernel; sizes are 0 where it is no GEMM."""

    module: str
    op: str
    m: int = 0
    n: int = 0
    k: int = 0
    dtype: str = ""


FIRST_OPERAND = {"mm": 0, "addmm": 1, "bmm": 0}


class Labels(TorchDispatchMode):
    """Puts a profiler range around each operator, numbered in `operators`."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []
        self._tracker = ModuleTracker()

    def __enter__(self) -> Labels:
        self._tracker.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._tracker.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.split("::")[-1]
        module = max(self._tracker.parents - {"Global"}, key=len, default="Global")
        found = Operator(module.removeprefix("Block").lstrip("."), name)
        if name in FIRST_OPERAND:
            a, b = args[FIRST_OPERAND[name] :][:2]
            dtype = str(a.dtype).removeprefix("torch.")
            found = Operator(found.module, name, a.shape[-2], b.shape[-1], a.shape[-1], dtype)
        self.operators.append(found)
        with record_function(f"{LABEL}{len(self.operators) - 1}"):
            return func(*args, **(kwargs or {}))


def launched_kernels(run: Callable[[], Any]) -> list[tuple[str, Operator]]:
    """Kernels of an eager pass in their order, each with its operator."""
    labels = Labels()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded, labels:
        run()
        torch.cuda.synchronize()
    found = []
    launches = [event for event in recorded.events() if event.kernels and not event.name.startswith(LABEL)]
    for event in sorted(launches, key=lambda event: event.time_range.start):
        parent = event
        while parent is not None and not parent.name.startswith(LABEL):
            parent = parent.cpu_parent
        operator = (
            labels.operators[int(parent.name.removeprefix(LABEL))] if parent else Operator("", event.name)
        )
        names = [kernel.name for kernel in event.kernels]
        found += [(name, operator) for name in names if not name.startswith(LABEL)]
    return found


def replayed_kernels(graph: torch.cuda.CUDAGraph) -> list[list[tuple[str, float]]]:
    """For each replay its kernels in their order, with their time in us."""
    replays = []
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(REPLAYS):
            time.sleep(PAUSE_S)
            graph.replay()
            torch.cuda.synchronize()
    kernels = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    count, rest = divmod(len(kernels), REPLAYS)
    if rest:
        raise RuntimeError(f"{len(kernels)} kernels in {REPLAYS} replays; expected as many in each")
    for first in range(0, len(kernels), count):
        part = kernels[first : first + count]
        replays.append([(event.name, event.time_range.end - event.time_range.start) for event in part])
    return replays


def graph_us(graph: torch.cuda.CUDAGraph) -> list[float]:
    """Time of each replay between events, after pauses, without a profiler."""
    times = []
    for _ in range(REPLAYS):
        time.sleep(PAUSE_S)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return times


def copies_of(block: nn.Module) -> int:
    """Blocks in turn until their weights make four times L2; at least two."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in block.parameters())
    cold = COLD_L2_MULTIPLE * torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(MOST_COPIES, -int(-cold // weights)))


@torch.no_grad()
def measured_rows(case: Case) -> list[dict[str, Any]]:
    """One row for each kernel of the block, and one for the whole of it (op 'graph')."""
    first, inputs = case.build("cuda")
    blocks = [(first, inputs), *(case.build("cuda") for _ in range(copies_of(first) - 1))]

    def run() -> None:
        x = inputs[0]
        for block, (_, *cache) in blocks:
            x = block(x, *cache)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    torch.cuda.synchronize()
    copies = len(blocks)
    common = {
        "gpu": torch.cuda.get_device_name(),
        **dict(zip(("block", "phase", "tokens"), case.key, strict=True)),
        "copies": copies,
    }
    whole = [time_us / copies for time_us in graph_us(graph)]
    rows = [{**common, "op": "graph", **_spread(whole)}]
    eager = launched_kernels(partial(first, *inputs))
    replays = replayed_kernels(graph)
    count, rest = divmod(len(replays[0]), copies)
    if rest:
        raise RuntimeError(f"{len(replays[0])} kernels in {copies} copies; expected as many in each")
    names = [name for name, _ in replays[0][:count]]
    same = names == [name for name, _ in eager]
    operators = [operator for _, operator in eager] if same else _matched(names, eager)
    for index in range(count):
        times = [replay[copy * count + index][1] for replay in replays for copy in range(copies)]
        operator = operators[index]
        rows.append(
            {
                **common,
                "order": index,
                **{name: getattr(operator, name) or "" for name in Operator.__slots__},
                "kernel_name": names[index],
                **_spread(times),
                "share": round(statistics.median(times) / statistics.median(whole), 5),
                "detail": "" if same else "operator found by the kernel's name",
            }
        )
    return rows


def _matched(names: list[str], eager: list[tuple[str, Operator]]) -> list[Operator]:
    """Operators by the kernels' names, the first of each name first, where a pass ran other kernels."""
    left = list(eager)
    found = []
    for name in names:
        place = next((index for index, (known, _) in enumerate(left) if known == name), None)
        found.append(Operator("", "") if place is None else left.pop(place)[1])
    return found


def _spread(times_us: list[float]) -> dict[str, float]:
    numbers = {"runtime_us": statistics.median(times_us), "min_us": min(times_us), "max_us": max(times_us)}
    return {name: round(value, 3) for name, value in numbers.items()}


@contextmanager
def table(
    output: Path,
) -> Iterator[tuple[csv.DictWriter[str], Callable[[], None], set[tuple[str, ...]]]]:
    """The table to append to, what puts its rows on the disk, and the cases that it holds."""
    done: set[tuple[str, ...]] = set()
    if output.exists():
        with output.open(newline="") as file:
            done = {(row["block"], row["phase"], row["tokens"]) for row in csv.DictReader(file)}
    with output.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        if not done and file.tell() == 0:
            writer.writeheader()
        yield writer, file.flush, done


def measure(output: Path) -> int:
    """Each case in turn; one that fails is said and left out. The exit code: 0, or 4 where one is missing."""
    missing = 0
    with table(output) as (writer, flush, done):
        for case in CASES:
            if case.key in done:
                continue
            try:
                rows = measured_rows(case)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
                missing += 1
                print(
                    f"{' '.join(case.key)}: {type(error).__name__}: {str(error).splitlines()[0]}",
                    file=sys.stderr,
                )
                torch.cuda.empty_cache()
                continue
            writer.writerows(rows)
            flush()
            print(
                f"{' '.join(case.key)}: {rows[0]['runtime_us']:.1f} us, {len(rows) - 1} kernels", flush=True
            )
            torch.cuda.empty_cache()
    return 4 if missing else 0


KEY = ["block", "phase", "tokens", "module", "m", "n", "k"]


def predicted_gemms(gpu: str, family: str, regime: str | None) -> pd.DataFrame:
    """Each block's GEMMs on meta tensors: the predicted time of all calls of a module."""
    rows = []
    for case in CASES:
        block, inputs = case.build("meta")
        with torch.no_grad(), GemmTimer(gpu, family=family, regime=regime, display=False) as timer:
            block(*inputs)
        rows += [
            {
                **dict(zip(KEY, case.key, strict=False)),
                "module": timing.module.removeprefix("Block").lstrip("."),
                **{name: getattr(timing.work, name) for name in ("m", "n", "k")},
                "predicted_us": timing.total_us,
            }
            for timing in timer.timings
            if timing.kind == GEMM
        ]
    return pd.DataFrame(rows).astype({"tokens": int})


def compared(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted time of each GEMM; a GEMM of two kernels (split-K) counts their sum."""
    gemms = (
        measured[measured["op"].isin(("mm", "addmm"))]
        .groupby(KEY, as_index=False, sort=False)["runtime_us"]
        .sum()
    )
    both = gemms.merge(predicted, on=KEY, how="left")
    if both["predicted_us"].isna().any():
        missing = both[both["predicted_us"].isna()].iloc[0]
        raise InputError(f"{missing['block']} {missing['module']}: measured, but not among the model's GEMMs")
    return both.assign(ratio=both["predicted_us"] / both["runtime_us"])


def sums(both: pd.DataFrame) -> pd.DataFrame:
    """GEMMs of each block in sum: time, ratio, and the mean error of the single ones."""
    cases = both.groupby(KEY[:3], sort=False)
    table = cases[["runtime_us", "predicted_us"]].sum()
    table["ratio"] = table["predicted_us"] / table["runtime_us"]
    table["mean_error"] = cases["ratio"].apply(lambda ratio: (ratio - 1.0).abs().mean())
    return table.reset_index()


def compare(args: argparse.Namespace) -> int:
    measured = pd.read_csv(args.measured)
    if "campaign" in measured:
        measured = measured[measured["campaign"] == args.campaign]
    both = compared(measured, predicted_gemms(args.gpu, args.family, args.regime))
    table = sums(both)
    print(both.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    error, off = (both["ratio"] - 1.0).abs(), (table["ratio"] - 1.0).abs()
    print(f"each GEMM: error {error.mean():.1%} on average, {error.quantile(0.95):.1%} at p95")
    print(f"sum of a block's GEMMs: {off.mean():.1%} off on average, {off.max():.1%} at most")
    with atomic_path(args.output) as path:
        both.to_csv(path, index=False)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument("--output", type=Path, required=True)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("--measured", type=Path, required=True)
    comparing.add_argument("--campaign", default="blocks", help="of a table that holds several")
    comparing.add_argument("--output", type=Path, required=True)
    comparing.add_argument("--gpu", default="h200")
    comparing.add_argument("--family", default="cublas", help="the library that torch calls")
    comparing.add_argument("--regime", help="default: the model's own for a stream of kernels")
    args = parser.parse_args()
    return measure(args.output) if args.verb == "measure" else compare(args)


if __name__ == "__main__":
    sys.exit(main())
