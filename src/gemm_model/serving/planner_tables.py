"""Operators of given models as planners' tables hold them: attention and experts of aiconfigurator, layers of Vidur.

aiconfigurator 0.12 times what a layer of vLLM runs: attention with the cache's writes, experts with their activation
and sum. Vidur reads tables `mlp` and `attention` of a model: medians [ms] by operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from gemm_model.config.numbers import room_numbers
from gemm_model.core.attention import AttentionProblem
from gemm_model.core.dtypes import element_type
from gemm_model.core.elementwise import smooth_maximum
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.problem import GemmProblem
from gemm_model.core.regimes import GRAPH, SUSTAINED
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import Attention, Experts, ModelShapes
from gemm_model.serving.choose import Routing, choose_layers
from gemm_model.serving.frameworks import framework_of
from gemm_model.serving.layers import MoeCell, Parallelism, moe_cells
from gemm_model.serving.model_parts import Step, parts_of
from gemm_model.serving.model_time import Card

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LENGTHS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Sequences, and keys of each, of the tables; planners interpolate between them."""
LONGEST, CHUNK, REQUESTS = 2**15, 2**13, 128
"""Longest sequence and part of a prefill of Vidur's tables [tokens], most sequences that decode [1]; its profiler's."""
MOST_NEW, MOST_KEYS = 2**17, 2**20
"""Most new tokens of a prefill and most keys of a decode [tokens]; those of aiconfigurator's own tables."""
PAGE = 64
"""Keys of a page [keys]; aiconfigurator 0.12, its collector of vLLM's attention."""
VIDUR_PARTS = {
    **{"qkv": "attn_pre_proj", "output projection": "attn_post_proj", "down": "mlp_down_proj"},
    **{"gate-up": "mlp_up_proj", "up": "mlp_up_proj"},
}
"""Vidur's names of products."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
"""aiconfigurator's skewed routings, and their exponents: an expert's share is drawn from such a distribution."""
MOE_TYPES = {("e4m3", "tensor"): "fp8", ("e4m3", "block128x128"): "fp8_block"}
FEW_ROWS = (0.01, 2.0)
"""Its least and largest draw where there are at most as many rows as experts; else 1 and 0.8 of the tokens."""
SUMMED = 4
"""Rows of a token that vLLM sums by a kernel of its own at most (csrc/moe/moe_align_sum_kernels.cu), and that torch's,
which sums more, takes at once [1]: six last as long as eight."""
Advance = Callable[[int], None]
Row = Callable[[], dict[str, Any]]
"""Predicts a row of a table."""


@dataclass(frozen=True, slots=True)
class _Heads:
    """Attention of one card."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    dtype: str


def tables_of(rows: Sequence[tuple[str, Row]], advance: Advance = lambda _: None) -> dict[str, pd.DataFrame]:
    """Tables by name, each row predicted in turn; `advance` gets the number of rows done."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, row in rows:
        found.setdefault(name, []).append(row())
        advance(1)
    return {name: pd.DataFrame(of_table) for name, of_table in found.items()}


def aiconfigurator_rows(models: Sequence[ModelShapes], gpu: GpuSpec, cards: int) -> Iterator[tuple[str, Row]]:
    """Rows of `context_attention_perf`, `generation_attention_perf` and `moe_perf`: latency [ms] of one layer.

    Of every share of the heads, and of the experts, that 1, 2, 4, ... of `cards` cards hold. Experts have rows
    with weights of 16 bits, and of fp8 where a checkpoint has them. Latent attention has other tables: left
    out. Raises InputError for weights that no kernel of vLLM multiplies.
    """
    card = Card(gpu, GRAPH, "uniform")
    for heads in dict.fromkeys(each for model in models for each in _heads(model, cards)):
        for batch, keys in product(BATCHES, LENGTHS):
            if batch * keys <= MOST_NEW:
                yield "context_attention_perf", partial(_attention_row, card, heads, batch, keys, keys)
            if batch * keys <= MOST_KEYS:
                yield "generation_attention_perf", partial(_attention_row, card, heads, batch, 1, keys)
    plain = [replace(model, quantization=None) for model in models]
    for model in dict.fromkeys((*plain, *models)):
        for tensor, expert in _spreads(model.experts, cards):
            (cell,) = moe_cells(model, Parallelism(tensor=tensor * expert, expert=expert))
            for tokens, routing in product(TOKENS, ("balanced", *POWER_LAWS)):
                yield "moe_perf", partial(_experts_row, tensor, cell, gpu, tokens, routing)


def products_of(models: Sequence[ModelShapes], cards: int) -> list[tuple[int, int]]:
    """Sizes n and k of each product of the layers, with weights of 16 bits, on 1, 2, 4, ... of `cards` cards."""
    found: set[tuple[int, int]] = set()
    for model, ranks in product(models, _powers_of_two(cards)):
        with suppress(InputError):  # such a share of the model is none
            parts = parts_of(replace(model, quantization=None), Step(keys=1), Parallelism(tensor=ranks))
            works = [each.work for each in parts if isinstance(each.work, GemmProblem)]
            found |= {(work.n, work.k) for work in works if work.batch == 1}
    return sorted(found)


def _heads(model: ModelShapes, cards: int) -> Iterator[_Heads]:
    own = model.attention
    if not isinstance(own, Attention) or element_type(model.dtype).bits != 16:
        return
    for ranks in _powers_of_two(cards):
        if own.heads % ranks == 0:
            for window in {0, model.window if model.windowed_layers else 0}:
                kv_heads = max(own.kv_heads // ranks, 1)
                yield _Heads(own.heads // ranks, kv_heads, own.head_dim, window, model.dtype)


def _attention_row(card: Card, heads: _Heads, batch: int, queries: int, keys: int) -> dict[str, Any]:
    """A layer's attention: the kernel on pages, what vLLM runs beside it, and the new keys and values it writes."""
    prefill = queries > 1
    seen = keys if prefill or not heads.window else min(keys, heads.window)
    own: dict[str, Any] = {"heads": heads.heads, "kv_heads": heads.kv_heads, "dtype": heads.dtype}
    own |= {"head_dim": heads.head_dim, "head_dim_v": heads.head_dim, "page_size": PAGE}
    own |= {"causal": prefill, "window": max(heads.window - 1, 0) if prefill else 0}
    problem = AttentionProblem.of(batch=batch, seq_q=queries, seq_kv=seen, **own)
    time_us = card.call(problem).time_us + room_numbers("serving").attention_beside_us
    time_us += _cache_write_us(card.gpu, batch * queries, heads.kv_heads * heads.head_dim)
    sizes = {"batch_size": batch, "isl": queries, "num_heads": heads.heads}
    sizes |= {"num_key_value_heads": heads.kv_heads, "head_dim": heads.head_dim, "beam_width": 1}
    types = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    step = 0 if prefill else keys - queries
    return {**sizes, **types, "step": step, "window_size": heads.window, "latency": time_us / 1e3}


def _spreads(experts: Experts | None, cards: int) -> Iterator[tuple[int, int]]:
    """Cards that share an expert, and groups that hold whole ones, where they divide the experts."""
    if experts is None:
        return
    for tensor in _powers_of_two(cards):
        for expert in _powers_of_two(cards // tensor):
            if experts.size % tensor == 0 and experts.count % expert == 0:
                yield tensor, expert


def _experts_row(tensor: int, cell: MoeCell, gpu: GpuSpec, tokens: int, name: str) -> dict[str, Any]:
    """A layer's experts on the busiest card: both products, what moves their rows, what vLLM runs beside them."""
    ranks = cell.experts_total // cell.experts
    routing: Routing = name
    if name in POWER_LAWS:
        routing = power_law_rows(tokens, cell, POWER_LAWS[name])
    rows = sum(routing) if not isinstance(routing, str) else max(tokens * cell.topk // ranks, 1)
    layer = [cell.product(tokens, down=down) for down in (False, True)]
    if ranks > 1 and rows:
        # The rows of this card, each as a token of its own.
        layer = [replace(each, tokens=rows, topk=1, experts_total=cell.experts) for each in layer]
    products_us = 0.0
    if rows:
        chosen = choose_layers([layer], gpu, framework_of("vllm"), routing)[0]
        # vLLM's files of tuned configurations name the experts of whole models; for a part of them there is none.
        products_us = chosen.predicted_us if ranks == 1 else chosen.default_us
    # The activation reads and writes the first product, the sum reads the second one; both of all cards' experts.
    # Where experts are spread, the second product is filled with zeros first.
    numbers, pairs = room_numbers("serving"), tokens * cell.topk
    summed = float((pairs + tokens) * cell.hidden)
    if cell.topk > SUMMED:
        summed = tokens * (-(-cell.topk // SUMMED) * SUMMED + 1) * cell.hidden / numbers.sum_share
    zeros = 0.0 if ranks == 1 else pairs * cell.hidden / numbers.fill_share
    moved = 3.0 * pairs * cell.size + summed + zeros
    time_us = products_us + numbers.experts_beside_us + _elementwise_us(gpu, 2.0 * moved)
    sizes = {"num_tokens": tokens, "hidden_size": cell.hidden, "inter_size": cell.size * tensor}
    sizes |= {"topk": cell.topk, "num_experts": cell.experts_total}
    sizes |= {"moe_tp_size": tensor, "moe_ep_size": ranks}
    dtype = MOE_TYPES.get((cell.dtype, cell.scaling), "bfloat16")
    return {"moe_dtype": dtype, **sizes, "distribution": name, "latency": time_us / 1e3}


@lru_cache(maxsize=1024)
def power_law_rows(tokens: int, cell: MoeCell, exponent: float) -> tuple[int, ...]:
    """Rows of each expert of the busiest card where experts' shares follow a power law, one draw for all sizes.

    No expert gets a token twice: what it cannot take goes to the others.
    """
    experts, pairs = cell.experts_total, tokens * cell.topk
    low, high = (1.0, 0.8 * tokens) if pairs > experts else FEW_ROWS
    places = (np.random.default_rng(0).permutation(experts) + 0.5) / experts
    power = 1.0 - exponent
    share = ((high**power - low**power) * places + low**power) ** (1.0 / power)
    rows = share / share.sum() * pairs
    for _ in range(experts):
        over = np.maximum(rows - tokens, 0.0).sum()
        if over <= 1e-9:
            break
        free = rows < tokens
        rows = np.minimum(rows, tokens) + np.where(free, over / max(free.sum(), 1), 0.0)
    whole = np.diff(np.round(np.cumsum(rows)), prepend=0.0).astype(int)
    ranks = whole.reshape(-1, cell.experts)
    return tuple(ranks[ranks.sum(axis=1).argmax()].tolist())


def vidur_rows(model: ModelShapes, gpu: GpuSpec, cards: int) -> Iterator[tuple[str, Row]]:
    """Rows of `mlp` and `attention` of a dense model, on 1, 2, 4, ... of `cards` cards: medians [ms].

    Products and attention are those of a settled clock; norms, activations, positions, sums and the cache's
    writes are a small kernel's own time and the bytes that they move. Raises InputError for a model with
    experts or latent attention.
    """
    own = model.attention
    if model.experts is not None or not isinstance(own, Attention) or model.linear_layers:
        raise InputError(f"{model.model_type}: Vidur's tables hold dense layers with softmax attention only")
    card = Card(gpu, SUSTAINED, "uniform")
    for ranks in _powers_of_two(cards):
        if own.heads % ranks or model.dense_size % ranks:
            continue
        layer, heads = (partial(make, card, model, own, ranks) for make in (_vidur_layer, _vidur_heads))
        yield from (("mlp", partial(layer, tokens)) for tokens in _steps(8, LONGEST))
        cached = _steps(256, LONGEST)
        for batch, keys in product(_steps(1, REQUESTS), cached):
            yield "attention", partial(heads, Step(batch=batch, keys=keys))
        for chunk, keys in product(_steps(32, CHUNK), (0, *cached)):
            if chunk + keys <= LONGEST:
                yield "attention", partial(heads, Step(queries=chunk, keys=keys + chunk))


def _steps(unit: int, most: int) -> list[int]:
    """Multiples of `unit`, to which Vidur rounds, up to `most`."""
    count = round(math.log2(most / unit) * room_numbers("serving").vidur_sizes) + 1
    return [*dict.fromkeys(unit * round(each) for each in np.geomspace(1, most / unit, count))]


def _vidur_layer(card: Card, model: ModelShapes, own: Attention, ranks: int, tokens: int) -> dict[str, Any]:
    step = Step(queries=tokens, keys=tokens)
    parts = parts_of(model, step, Parallelism(tensor=ranks))
    times_us = {
        VIDUR_PARTS[each.name]: card.call(each.work).time_us for each in parts if each.name in VIDUR_PARTS
    }
    kv_heads = max(own.kv_heads // ranks, 1)
    moved = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), 2 * model.hidden)
    moved |= {"mlp_act": (3 if model.gated else 2) * model.dense_size // ranks, "add": 3 * model.hidden}
    moved |= {"attn_rope": 2 * (own.heads // ranks + kv_heads) * own.head_dim}
    beside_us = room_numbers("serving").small_kernel_us
    times_us |= {
        name: beside_us + _elementwise_us(card.gpu, 2.0 * tokens * each) for name, each in moved.items()
    }
    sizes = {"n_head": own.heads, "n_kv_head": own.kv_heads}
    sizes |= {"n_embd": model.hidden, "n_expanded_embd": model.dense_size, "vocab_size": model.vocabulary}
    sizes |= {"num_tokens": tokens, "num_tensor_parallel_workers": ranks}
    return {**_medians(times_us), **sizes, "use_gated_mlp": model.gated}


def _vidur_heads(card: Card, model: ModelShapes, own: Attention, ranks: int, step: Step) -> dict[str, Any]:
    chunk = 0 if step.phase == "decode" else step.queries
    (part,) = [each for each in parts_of(model, step, Parallelism(tensor=ranks)) if each.name == "attention"]
    saved_bytes = 8.0 * step.tokens * max(own.kv_heads // ranks, 1) * own.head_dim
    saved_us = room_numbers("serving").small_kernel_us + _elementwise_us(card.gpu, saved_bytes)
    name = "attn_prefill" if chunk else "attn_decode"
    sizes = {"n_embd": model.hidden, "n_q_head": own.heads, "n_kv_head": own.kv_heads, "block_size": 16}
    sizes |= {"num_tensor_parallel_workers": ranks, "max_model_len": LONGEST, "batch_size": step.batch}
    sizes |= {"prefill_chunk_size": chunk, "kv_cache_size": step.keys - chunk}
    times_us = {name: card.call(part.work).time_us, "attn_kv_cache_save": saved_us}
    return {**_medians(times_us), **sizes, "is_prefill": bool(chunk)}


def _medians(times_us: Mapping[str, float]) -> dict[str, float]:
    return {f"time_stats.{name}.median": time_us / 1e3 for name, time_us in times_us.items()}


def _cache_write_us(gpu: GpuSpec, tokens: int, width: int) -> float:
    """Writing K and V of `width` 16-bit elements a token [us]: a CTA a token, of a thread an element up to 512."""
    numbers, threads = room_numbers("serving"), min(width, 512)
    by_registers = gpu.registers_per_sm // int(numbers.write_registers * threads)
    ctas = min(gpu.threads_per_sm // threads, by_registers, gpu.ctas_per_sm)
    waves_us = tokens / (gpu.sm_count * ctas) * numbers.token_write_clk / gpu.sm_clk_mhz
    return float(smooth_maximum(waves_us, _elementwise_us(gpu, 8.0 * tokens * width), numbers.write_order))


def _elementwise_us(gpu: GpuSpec, moved_bytes: float) -> float:
    """A kernel that only moves bytes, each once [us]."""
    return moved_bytes / gpu.dram_read_bytes_per_us


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
