"""Times of configurations through the kernels of the vLLM that is installed; none of its code is here.

Weights are cold as in a served model: launches of a CUDA graph take routings, and copies of small weights, in
turn. Data are random.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from gemm_model.bench.captured_graph import captured, elapsed_us
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.serving.frameworks import device_word
from gemm_model.serving.problem import BLOCK, ServedProduct
from gemm_model.serving.tile_config import TileConfig

LAYERS = "vllm.model_executor.layers."
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
COLD_BYTES = 120_000_000
"""Weights that launches take in turn [B]; small weights; chosen: twice an H200's L2."""
MOST_COPIES = 64
REPLAYS = 5
"""Replays of a graph [1], of which the median counts; every time; chosen."""
PART = 1 << 27
"""Elements that are made at once [elements]; random data; chosen: a GB of floats at most."""

Launch = Callable[[], object]


def graph_us(launches: Sequence[Launch]) -> float:
    """Time of a launch within a CUDA graph of all of them [us]."""
    launches[0]()  # compiles
    torch.cuda.synchronize()
    graph = captured(launches)
    graph.replay()
    return sorted(elapsed_us(graph.replay) / len(launches) for _ in range(REPLAYS))[REPLAYS // 2]


def random_tensor(shape: tuple[int, ...], kind: torch.dtype, device: str) -> torch.Tensor:
    found = torch.empty(shape, dtype=kind, device=device)
    for part in found.view(-1).split(PART):
        part.copy_(torch.randn(part.shape, device=device, dtype=torch.bfloat16))
    return found


def scales(product: ServedProduct, rows: int, lead: tuple[int, ...], device: str) -> list[Any]:
    """Scales of A and B, random; None without any."""
    if product.scaling == "none":
        return [None, None]
    blocks = -(-product.k // BLOCK)
    shapes = ((rows, blocks), (*lead, -(-product.n // BLOCK), blocks))
    return [
        torch.rand(each, device=device) + 0.5 for each in (shapes if product.block_scaled else ((1,), lead))
    ]


def aligned(ids: torch.Tensor, cta_m: int, experts: int, total: int) -> tuple[torch.Tensor, ...]:
    """Pairs of token and expert sorted by expert, each expert padded to whole tiles of `cta_m` rows.

    Returns positions of pairs (their number stands for padding), the expert of each tile (-1: on another
    card), and the padded rows; as long as the launcher allows for.
    """
    flat, pairs = ids.reshape(-1).long(), ids.numel()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=total)
    tiles = (counts + cta_m - 1) // cta_m
    shift = (torch.cumsum(tiles, 0) - tiles) * cta_m - (torch.cumsum(counts, 0) - counts)
    rows = pairs + total * (cta_m - 1)
    size = -(-(min(rows, pairs * cta_m) if pairs < total else rows) // cta_m) * cta_m
    sorted_ids = torch.full((size,), pairs, dtype=torch.int32, device=ids.device)
    sorted_ids[torch.arange(pairs, device=ids.device) + shift[flat[order]]] = order.int()
    owner = torch.full((size // cta_m,), -1, dtype=torch.int32, device=ids.device)
    owners = torch.arange(total, dtype=torch.int32, device=ids.device).repeat_interleave(tiles)
    owner[: len(owners)] = torch.where(owners < experts, owners, -1)
    return sorted_ids, owner, tiles.sum().int().reshape(1) * cta_m


@dataclass(frozen=True, slots=True)
class VllmTimer:
    """Times products by vLLM's own launchers, given as its modules; `measure` times launches [us]."""

    experts_module: Any
    dense_module: Any
    measure: Callable[[Sequence[Launch]], float] = graph_us
    device: str = "cuda"

    @classmethod
    def installed(cls, card: str) -> VllmTimer:
        """With the vLLM of this environment; raises MissingExtraError without it or another GPU than `card`."""
        here = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        if device_word(here) != device_word(card):
            raise MissingExtraError(f"--confirm needs a GPU {card}; the one here is {here}")
        try:
            experts = importlib.import_module(LAYERS + "fused_moe.fused_moe")
            return cls(experts, importlib.import_module(LAYERS + "quantization.utils.fp8_utils"))
        except (ImportError, OSError, RuntimeError) as error:
            raise MissingExtraError(f"--confirm needs vllm, which cannot be imported ({error})") from error

    def times_us(self, product: ServedProduct, configs: Sequence[TileConfig]) -> list[float]:
        """Time of each configuration [us], a mean of two; infinite where it does not compile or run.

        All are timed there and back, so that an even drift of a card that heats favours none. Raises
        MissingExtraError where none runs, InputError for types that are not timed.
        """
        timed = product.scaling != "channel" and not product.weights_only
        if product.in_dtype not in TYPES or not timed:
            raise InputError(
                f"--confirm: {product.in_dtype} scaled by {product.scaling} is not timed; "
                "expected bf16, fp16 or fp8 (scaled by tensor or in blocks)"
            )
        launches_of = (self._dense if product.experts_total == 1 else self._experts)(product)
        times, why = dict.fromkeys(configs, 0.0), ""
        for config in (*configs, *reversed(configs)):
            try:
                times[config] += self.measure(launches_of(config)) / 2.0
            except Exception as error:  # Triton's passes fail with exceptions of many kinds
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                times[config] = math.inf
        if math.isinf(min(times.values())):
            raise MissingExtraError(f"--confirm: vllm's kernel does not run here ({why})")
        return [times[config] for config in configs]

    def _operands(self, product: ServedProduct, rows: int, lead: tuple[int, ...]) -> tuple[Any, list[Any]]:
        """A, and copies of B that L2 does not hold together."""
        kind = TYPES[product.in_dtype]
        b = random_tensor((*lead, product.n, product.k), kind, self.device)
        copies = min(MOST_COPIES, -(-COLD_BYTES // (b.numel() * b.element_size())))
        return random_tensor((rows, product.k), kind, self.device), [
            b,
            *(b.clone() for _ in range(copies - 1)),
        ]

    def _experts(self, product: ServedProduct) -> Callable[[TileConfig], list[Launch]]:
        """Launches of fused experts, one a routing."""
        import triton.language as tl

        tokens, topk, pairs = product.tokens, product.topk, product.tokens * product.topk
        rows, lead = tokens if product.gathered else pairs, (product.experts,)
        a, weights = self._operands(product, rows, lead)
        a_scale, b_scale = scales(product, rows, lead, self.device)
        half = product.in_dtype == "fp16"
        out = random_tensor((tokens, topk, product.n), torch.float16 if half else torch.bfloat16, self.device)
        routed = None if product.gathered else torch.rand((tokens, topk), device=self.device)
        count = max(len(weights), 8 if pairs <= 8192 else 2)
        scores = torch.rand((count, tokens, product.experts_total), device=self.device)
        few = pairs * 4 <= product.experts_total == product.experts

        def launch(config: TileConfig, b: torch.Tensor, routing: tuple[torch.Tensor | None, ...]) -> None:
            self.experts_module.invoke_fused_moe_triton_kernel(
                a, b, out, a_scale, b_scale, routed, *routing, not product.gathered,
                topk if product.gathered else 1, config.as_mapping(), tl.float16 if half else tl.bfloat16,
                product.in_dtype == "e4m3", False, False, False, False,
                [BLOCK, BLOCK] if product.block_scaled else None,
            )  # fmt: skip

        def routing_of(ids: torch.Tensor, cta_m: int) -> tuple[torch.Tensor | None, ...]:
            if few:  # vLLM gives each pair a tile of its own
                return (
                    None,
                    ids.view(-1),
                    torch.full((1,), pairs * cta_m, dtype=torch.int32, device=self.device),
                )
            return aligned(ids, cta_m, product.experts, product.experts_total)

        return lambda config: [
            functools.partial(launch, config, weights[index % len(weights)], routing_of(ids, config.cta_m))
            for index, ids in enumerate(scores.topk(topk, dim=-1).indices.int())
        ]

    def _dense(self, product: ServedProduct) -> Callable[[TileConfig], list[Launch]]:
        """Launches of the dense kernel, one a copy of the weights."""
        a, weights = self._operands(product, product.tokens, ())
        a_scale, b_scale = scales(product, product.tokens, (), self.device)
        module, name = self.dense_module, "get_w8a8_block_fp8_configs"

        def launch(config: TileConfig, b: torch.Tensor) -> None:
            with mock.patch.object(module, name, return_value={1: config.as_mapping()}):
                module.w8a8_triton_block_scaled_mm(a, b, a_scale, b_scale, [BLOCK, BLOCK], torch.bfloat16)

        return lambda config: [functools.partial(launch, config, b) for b in weights]
