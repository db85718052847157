"""Measuring attention kernels on this machine's GPU: flash-attn-4, and what torch's own attention runs.

Each row is checked at some query rows against fp32 before it is timed: equal calls in a CUDA graph, replayed
between events, with a warm L2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gemm_model.bench.captured_graph import captured, elapsed_us
from gemm_model.bench.provider import KernelError
from gemm_model.config.numbers import room_numbers
from gemm_model.core.attention import AUTO, KERNELS, AttentionConfig, AttentionProblem
from gemm_model.core.files import atomic_write, csv_rows
from gemm_model.errors import MissingExtraError, extra_needed

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TIMED = ("runtime_us", "min_us", "max_us", "calls", "samples_us")
MEASURED = (*TIMED, "relative_error", "disposition", "reason")

Call = Callable[[], torch.Tensor]
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def operands_of(problem: AttentionProblem, device: str) -> Operands:
    """Random Q, K and V, (batch, length, heads, size), without the batch if lengths vary; normal, as after norms."""
    lead = [[problem.batch, problem.seq_q], [problem.batch, problem.seq_kv]]
    if problem.lengths:
        lead = [[sum(each)] for each in zip(*problem.lengths, strict=True)]
    made = partial(torch.randn, dtype=TYPES[problem.dtype.name], device=device)
    k, v = (made(*lead[1], problem.kv_heads, size) for size in (problem.head_dim, problem.head_dim_v))
    return made(*lead[0], problem.heads, problem.head_dim), k, v


def _starts(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=torch.int32)


def flash_attention(problem: AttentionProblem, config: AttentionConfig, operands: Operands) -> Call:
    """A call of flash-attn-4's kernel; splits as so many more sequences, then the combining kernel."""
    try:
        from flash_attn.cute.interface import _flash_attn_fwd
    except ImportError:
        raise MissingExtraError(extra_needed("flash_attention", "flash-attn-4", "libraries")) from None
    from gemm_model.attention.choice import flash_attn_arguments

    if (config.tile_m == AUTO) != (config.tile_n == AUTO) or config.consumer_groups > config.tile_m:
        raise KernelError("one of tile_m and tile_n is empty; expected both or none")
    words = {**flash_attn_arguments(problem, config), "num_splits": 1}
    q, k, v = operands
    out = torch.empty(*q.shape[:-1], problem.head_dim_v, dtype=q.dtype, device=q.device)
    if problem.lengths:
        queries, keys = zip(*problem.lengths, strict=True)
        words |= {"cu_seqlens_q": _starts(queries, q.device), "cu_seqlens_k": _starts(keys, q.device)}
        words |= {"max_seqlen_q": problem.seq_q, "max_seqlen_k": problem.seq_kv}
    splits = config.num_splits
    if splits == 1:
        return lambda: _flash_attn_fwd(q, k, v, out=out, **words)[0]
    if problem.seq_q != 1 or problem.seq_kv % splits or problem.lengths:
        raise KernelError(f"num_splits is {splits}; expected one query and a multiple of it as keys")
    from gemm_model.bench.attention_combine import combine

    many = problem.batch * splits
    queries = q.repeat_interleave(splits, 0)
    parts_k, parts_v = (each.view(many, problem.seq_kv // splits, *each.shape[2:]) for each in (k, v))
    part = torch.empty(many, *out.shape[1:], dtype=q.dtype, device=q.device)
    lse = torch.empty(many, problem.heads, 1, dtype=torch.float32, device=q.device)

    def split() -> torch.Tensor:
        _flash_attn_fwd(queries, parts_k, parts_v, out=part, lse=lse, **words)
        combine(part, lse, out, splits)  # type: ignore[no-untyped-call]
        return out

    return split


def torch_attention(problem: AttentionProblem, config: AttentionConfig, operands: Operands) -> Call:
    """A call of scaled_dot_product_attention with cuDNN or FlashAttention 2 alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if problem.window or problem.lengths or (problem.causal and problem.seq_q != problem.seq_kv):
        raise KernelError("torch's attention masks from the first key on and takes one length; expected such")
    backend = SDPBackend.CUDNN_ATTENTION if config.kernel == "cudnn_attention" else SDPBackend.FLASH_ATTENTION
    turned = [each.transpose(1, 2) for each in operands]

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            found = torch.nn.functional.scaled_dot_product_attention(
                *turned, is_causal=problem.causal, enable_gqa=problem.group > 1
            )
        return found.transpose(1, 2)

    return call


PROVIDERS = {KERNELS[0]: flash_attention, **dict.fromkeys(KERNELS[1:3], torch_attention)}


def relative_error(problem: AttentionProblem, operands: Operands, out: torch.Tensor) -> float:
    """The largest relative error of three query rows of the first, middle and last sequence, against fp32."""
    worst = 0.0
    lengths = problem.lengths or ((problem.seq_q, problem.seq_kv),) * problem.batch
    of_q, of_kv = ([pair[side] for pair in lengths] for side in (0, 1))
    sizes = (of_q, of_kv, of_kv, of_q)
    each_of = zip((*operands, out), sizes, strict=True)
    parts = [each.reshape(-1, *each.shape[-2:]).split(lengths) for each, lengths in each_of]
    for number in {0, len(lengths) // 2, len(lengths) - 1}:
        q, k, v, o = (part[number] for part in parts)
        for row in {0, len(q) // 2, len(q) - 1} if len(q) and len(k) else ():
            head = row % problem.heads
            last = row + len(k) - len(q) if problem.causal else len(k) - 1
            first = max(last - problem.window, 0) if problem.window else 0
            k_head, v_head = (each[first : last + 1, head // problem.group].float() for each in (k, v))
            scores = k_head @ q[row, head].float() / problem.head_dim**0.5
            if problem.softcap:
                scores = problem.softcap * torch.tanh(scores / problem.softcap)
            wanted = torch.softmax(scores, 0) @ v_head
            error = (o[row, head].float() - wanted).norm() / wanted.norm()
            worst = max(worst, float(error)) if bool(torch.isfinite(error)) else float("inf")
    return worst


def times_us(call: Call) -> tuple[list[float], int]:
    """Times of a call in replays of a graph of equal calls, in order of size [us], and calls of a graph."""
    once = elapsed_us(call)
    numbers = room_numbers("bench")
    calls = max(1, min(int(numbers.most_attention_calls), round(numbers.attention_graph_us / once)))
    graph = captured([call] * calls)
    graph.replay()
    return sorted(elapsed_us(graph.replay) / calls for _ in range(int(numbers.attention_replays))), calls


def measured(problem: AttentionProblem, config: AttentionConfig) -> dict[str, Any]:
    """One row's MEASURED cells: times of a checked kernel, or why there are none."""
    try:
        if config.kernel not in PROVIDERS:
            raise KernelError(f"kernel is {config.kernel}; expected one of {', '.join(PROVIDERS)}")
        operands = operands_of(problem, "cuda")
        call = PROVIDERS[config.kernel](problem, config, operands)
        error = relative_error(problem, operands, call())
        if error > room_numbers("bench").largest_attention_error:
            return {"disposition": "wrong", "relative_error": error, "reason": "differs from fp32"}
        samples, calls = times_us(call)
    except (KernelError, RuntimeError, AssertionError, KeyError) as failed:
        return {"disposition": "failed", "reason": str(failed).partition("\n")[0][:200]}
    times = {"runtime_us": round(median(samples), 3), "min_us": samples[0], "max_us": samples[-1]}
    texts = {"samples_us": " ".join(f"{each:.3f}" for each in samples), "relative_error": f"{error:.5f}"}
    return {**times, **texts, "calls": calls, "disposition": "ok", "reason": ""}


def require_gpu() -> None:
    """Raise MissingExtraError where torch finds no GPU."""
    if not torch.cuda.is_available():
        raise MissingExtraError("attention is measured on an NVIDIA GPU; torch finds none")


def measure_rows(
    rows: Sequence[Mapping[str, str]],
    kernels: Sequence[tuple[AttentionProblem, AttentionConfig]],
    output: Path,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Measure rows of a table and write each as it comes; returns how many have a time."""
    names = [name for name in rows[0] if name not in MEASURED]
    done: list[dict[str, Any]] = []
    for row, kernel in zip(rows, kernels, strict=True):
        done.append({**{name: row[name] for name in names}, **measured(*kernel)})
        atomic_write(output, csv_rows(done, [*names, *MEASURED]))
        advance(1)
    return sum(row["disposition"] == "ok" for row in done)
