"""The time of a transformer on a card: every GEMM and attention of a pass, predicted part by part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.attention.choice import rank_attention
from gemm_model.attention.kernels import kernels_on
from gemm_model.attention.model import AttentionModel
from gemm_model.choice.selection import Call, Ranker, summed_band
from gemm_model.core.attention import AttentionProblem
from gemm_model.core.dtypes import element_type
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.problem import GemmProblem
from gemm_model.core.regimes import GRAPH, SUSTAINED
from gemm_model.errors import InputError, require_one_of
from gemm_model.integrations.huggingface import ModelShapes, read_config
from gemm_model.kernel_model.calibration_file import regime_band
from gemm_model.kernels.registry import TORCH_FAMILY
from gemm_model.serving.choose import candidates, shortlist
from gemm_model.serving.layers import Parallelism
from gemm_model.serving.model import launches_of, times_of
from gemm_model.serving.model_parts import LatentDecode, Part, Step, Work, parts_of
from gemm_model.serving.problem import ServedProduct
from gemm_model.serving.routing import check_routing

SERVERS = "flash_attention_3"
REGIMES = (SUSTAINED, GRAPH)
"""Regimes of kernels that follow each other in a CUDA graph: at a settled clock, or on a rested card."""


@dataclass(frozen=True, slots=True)
class PartTime:
    """One part and its prediction."""

    part: Part
    call: Call

    @property
    def total_us(self) -> float:
        """Of all calls of a pass."""
        return self.part.count * self.call.time_us

    @property
    def flop(self) -> float:
        """FLOP of all calls of a pass on one card."""
        return float(self.part.count * self.part.work.flop)


@dataclass(frozen=True, slots=True)
class ModelTime:
    """A pass through a model on `parallel.cards` cards of one kind, which work at the same time."""

    gpu: str
    layers: int
    step: Step
    parallel: Parallelism
    parts: tuple[PartTime, ...]
    caveats: tuple[str, ...]

    @property
    def total_us(self) -> float:
        """Time of the pass: the sum of its parts on one card."""
        return sum(each.total_us for each in self.parts)

    @property
    def layer_us(self) -> float:
        """Time of the mean layer, without the head."""
        return sum(each.total_us for each in self.parts if each.part.name != "lm_head") / self.layers

    @property
    def error_band(self) -> float | None:
        """Relative error of the total (`choice.selection.summed_band`)."""
        return summed_band([(each.call, each.total_us) for each in self.parts])

    @property
    def us_per_token(self) -> float:
        """Time of the pass over the new tokens of all its sequences."""
        return self.total_us / self.step.tokens

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each part: times in us, FLOP of one card; of a GEMM with its fastest kernel (`Call.columns`)."""
        for each in self.parts:
            call, found = (
                each.call,
                {"phase": self.step.phase, "part": each.part.name, "count": each.part.count},
            )
            found |= {**each.part.fields, **call.columns, "flop": each.flop, "call_us": call.time_us}
            found |= {"total_us": each.total_us, "us_per_token": each.total_us / self.step.tokens}
            found |= {"share": each.total_us / self.total_us, "limiter": call.limiter}
            yield found | {"error_band": call.error_band}

    def usd_per_million_tokens(self, usd_per_hour: float) -> float:
        """What a million new tokens cost at a price of one card."""
        return usd_per_hour / 3.6e9 * self.us_per_token * self.parallel.cards * 1e6


def predict_model(
    config: ModelShapes | Path | str,
    step: Step,
    gpu: GpuSpec | str | Path = "h200",
    parallel: Parallelism | None = None,
    *,
    regime: str = SUSTAINED,
    routing: str = "uniform",
) -> ModelTime:
    """Predict every GEMM and attention of one pass through a model, as the kernels of a CUDA graph.

    `config` is a `config.json` or what `read_config` made of it. GEMMs are the library's own calls (cuBLAS,
    with what its heuristic choice loses), attention the fastest configuration of the GPU's first kernel, experts
    and weights with scales of 128 x 128 the tuned Triton kernels of vLLM and SGLang. `regime` is 'sustained'
    (the clock has settled under the power cap, as on a busy server) or 'graph' (a rested card); `routing` that
    of tokens to experts. Raises InputError for what is no transformer, a parallelism that does not divide it,
    and weights that no kernel of the model multiplies on the card.

    >>> from gemm_model import Parallelism, Step, predict_model
    >>> step = Step(batch=32, keys=2048)
    >>> found = predict_model("examples/llama_8b.json", step, "h200", Parallelism(tensor=2))
    >>> [(each.part.name, each.part.count) for each in found.parts][:2]
    [('qkv', 32), ('attention', 32)]
    >>> found.step.phase, 3000 < found.total_us < 4000, found.error_band < 0.1
    ('decode', True, True)
    """
    require_one_of(f"regime is {regime!r}", regime, REGIMES)
    check_routing(routing)
    shapes = config if isinstance(config, ModelShapes) else read_config(config)
    parallel = parallel or Parallelism()
    card = Card(as_gpu(gpu), regime, routing)
    times = tuple(PartTime(part, card.call(part.work)) for part in parts_of(shapes, step, parallel))
    return ModelTime(card.gpu.name, shapes.layers, step, parallel, times, tuple(_caveats(shapes, times)))


def _caveats(shapes: ModelShapes, times: Sequence[PartTime]) -> Iterator[str]:
    yield "norms, activations and what cards send to each other are not in these times"
    yield from (f"{name} is not in these times" for name in shapes.left_out)
    if not shapes.vocabulary:
        yield "no vocab_size: no head" + ("" if shapes.window else ", and queries see keys on both sides")
    if shapes.linear_layers:
        yield f"linear attention is not modelled: {shapes.linear_layers} layers count without it"
    if any(isinstance(each.part.work, LatentDecode) for each in times):
        yield "attention over latent keys is a lower bound: its products, or the cache read once"
    unknown = [each.part.name for each in times if each.call.error_band is None]
    if unknown and len(unknown) < len(times):
        yield f"no band of their own, so that they take the widest of the others: {', '.join(unknown)}"


class Card:
    """Predicts parts on one card."""

    def __init__(self, gpu: GpuSpec, regime: str, routing: str) -> None:
        self.gpu, self.routing, self.regime_band = gpu, routing, regime_band(regime)
        # The kernel before has written the first operand of each.
        self.ranker = Ranker(gpu, family=TORCH_FAMILY, options={"regime": regime, "l2": "written"})
        self.attention = AttentionModel(gpu, settled=regime == SUSTAINED)

    def call(self, work: Work) -> Call:
        """One call."""
        if isinstance(work, GemmProblem):
            found = self.ranker.call(work)
            return replace(found, own_band=math.hypot(self.regime_band, found.own_band))
        return replace(self._other(work), columns=self.ranker.place)

    def _other(self, work: AttentionProblem | ServedProduct | LatentDecode) -> Call:
        """Of what is no GEMM."""
        if isinstance(work, AttentionProblem):
            # Servers, whose caches have pages, run FlashAttention 3 where there is one.
            own = SERVERS if work.page_size and SERVERS in kernels_on(self.gpu) else "auto"
            return Call.of(rank_attention(work, self.gpu, own, self.attention).best.prediction)
        if isinstance(work, ServedProduct):
            return self._served(work)
        math_us = work.flop / self.gpu.flop_per_us(element_type(work.dtype).math_kind)
        dram_us = work.dram_bytes / self.gpu.dram_read_bytes_per_us
        return Call(time_us=max(math_us, dram_us), limiter="TENSOR" if math_us > dram_us else "DRAM")

    def _served(self, work: ServedProduct) -> Call:
        """Of the fastest configuration of the frameworks' grid."""
        grid = candidates(work.smallest, self.gpu)
        if not len(grid):
            raise InputError(f"no configuration of the served kernels fits {self.gpu.name}")
        found = shortlist([launches_of(work, grid, self.gpu, self.routing)], 0, apart=True)
        best = int(np.argmin(found.times[0]))
        limiter = times_of(found.launches[0]).limiter[best].replace("start", "launch")
        return Call(time_us=float(found.times[0][best]), limiter=limiter.upper())
