"""One question to several cards (`--gpu h200,b200_sxm`): ratios, bands, and whether they overlap."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gemm_model.commands import common
from gemm_model.commands.common import but
from gemm_model.core.fields import problem_fields
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError
from gemm_model.kernels.registry import family_of
from gemm_model.report.document import Document, File, text_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a verb answers for one card and one value of every option."""

    kernel: Mapping[str, Any]
    """Columns that say which kernel it is."""
    prediction: Prediction
    flop: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What a table has beside: problem, card, regime, L2 and kernel."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Further columns; those that begin with UNSHOWN are left out of the text."""
    files: Sequence[File] = ()

    @property
    def row(self) -> dict[str, Any]:
        found = self.prediction
        times = {"predicted_us": found.runtime_us, "error_band": found.error_band}
        times |= {"tflops": self.flop / found.runtime_us / 1e6 if found.runtime_us else None}
        return {**self.kernel, **times, "limiter": found.limiter}


def answer_of(
    problem: GemmProblem, found: Prediction, kernel: dict[str, Any], columns: dict[str, Any], **beside: Any
) -> Answer:
    """The answer about a GEMM; `columns` say where it holds and by which kernel."""
    columns = {**problem_fields(problem), **columns}
    return Answer(kernel=kernel, columns=columns, prediction=found, flop=problem.flop, beside=beside)


UNSHOWN = "elasticity_"
WORTH_TELLING = 0.1
"""Least share of a runtime that a table names [1]; texts; chosen."""
Asked = Callable[[argparse.Namespace], Answer]


def cards_asked(args: argparse.Namespace) -> list[str]:
    """The cards of --gpu where it names several; else none. Raises InputError where two are the same."""
    if args.gpu is None or "," not in args.gpu:
        return []
    cards = common.listed(args.gpu)
    if len(set(cards)) < 2 or len(set(cards)) < len(cards):
        raise InputError(f"--gpu is {args.gpu}; expected different cards, such as h200,b200_sxm")
    return cards


def compare(args: argparse.Namespace, answer: Asked) -> Document:
    """The answer of each card beside that of the first."""
    found = {card: answer(but(args, gpu=card)) for card in cards_asked(args)}
    first = next(iter(found.values())).prediction
    rows: list[dict[str, Any]] = []
    for card, each in found.items():
        other = each.prediction
        ratio = beside(first.runtime_us, other.runtime_us, first.error_band, other.error_band)
        rows.append({"gpu": card, **each.row, **ratio, **each.beside})
    return Document(
        model=common.settings(but(args, gpu=rows[0]["gpu"])).model,
        result={"compared_with": rows[0]["gpu"]},
        rows=[{**each.columns, **row} for row, each in zip(rows, found.values(), strict=True)],
        notes=caveats(found.values()),
        text=lambda: text_table(
            [{name: row[name] for name in row if not name.startswith(UNSHOWN)} for row in rows]
        ),
        files=[file for each in found.values() for file in each.files],
    )


def against(text: str, known: Iterable[str], expected: str) -> tuple[list[str], list[str], GpuSpec | None]:
    """The library, the changes and the card of --against; raises InputError for other words than `expected`."""
    words = [word.removeprefix("gpu=") for word in common.listed(text.replace(" ", ","))]
    names = [word for word in words if word[:1].isalpha() and "=" not in word]
    kernels = [word for word in names if word in known]
    cards = [word for word in names if word not in known]
    if not words or max(len(cards), len(kernels)) > 1:
        raise InputError(f"--against is {text!r}; expected {expected}, and at most one card")
    try:
        gpu = load_gpu(cards[0]) if cards else None
    except InputError as error:
        called = f"no library is called {cards[0]!r} ({', '.join(known)})"
        raise InputError(f"--against: {called}; {error}") from None
    return kernels, [word for word in words if word not in names], gpu


def kernel_fields(config: KernelConfig, gpu: GpuSpec) -> dict[str, Any]:
    """Columns of a kernel."""
    tile = (config.cta_m, config.cta_n, *((config.cta_k,) if config.cta_k else ()))
    return {
        "kernel": family_of(config.kernel, gpu).name,
        "cta": "x".join(map(str, tile)),
        "cluster": f"{config.cluster_m}x{config.cluster_n}",
    }


def limits(elasticities: Mapping[str, float]) -> dict[str, Any]:
    """Columns of what limits a kernel: the share of the runtime that each resource's speed governs."""
    words = ", ".join(f"{name} {share:.0%}" for name, share in elasticities.items() if share >= WORTH_TELLING)
    return {"limited_by": words} | {
        f"{UNSHOWN}{name.lower().replace(' ', '_')}": share for name, share in elasticities.items()
    }


def caveats(answers: Iterable[Answer]) -> list[str]:
    """What to keep in mind of any answer, each sentence once."""
    return list(dict.fromkeys(chain.from_iterable(each.prediction.caveats for each in answers)))


def beside(first_us: float, other_us: float, *bands: float | None) -> dict[str, Any]:
    """Columns of a time beside the first: their ratio, and whether they lie within each other's `bands`, if known."""
    # Work of length 0 takes no time on any card.
    ratio = other_us / first_us if first_us else 1.0
    known = [1.0 + band for band in bands if band is not None]
    inside = "yes" if max(ratio, 1.0 / ratio) <= math.prod(known) else "no"
    return {"ratio": ratio, "inside_bands": inside if len(known) == len(bands) else None}
