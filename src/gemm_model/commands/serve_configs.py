"""`gemm-model serve-configs`: files of Triton configurations for vLLM and SGLang, without tuning."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemm_model.commands import common
from gemm_model.config import gpu_names
from gemm_model.core.gpu import load_gpu
from gemm_model.core.processes import local_processes
from gemm_model.errors import InputError, MissingExtraError, extra_needed
from gemm_model.integrations.huggingface import read_config
from gemm_model.report.document import Document, text_table
from gemm_model.serving import write
from gemm_model.serving.choose import Chosen, Timer, choices_of, confirmed
from gemm_model.serving.frameworks import SGLANG, VLLM, Framework, device_word, framework_of, numbers_of
from gemm_model.serving.layers import DenseCell, Parallelism
from gemm_model.serving.model_list import listed_models
from gemm_model.serving.problem import BLOCK_FP8, MOE
from gemm_model.serving.routing import check_routing
from gemm_model.serving.write import Card, CellFile, Server, write_file

RANKS = (1, 2, 4, 8)
"""Tensor parallelism of `--models list` where --tp is left out [cards]; chosen: the sizes of one host."""
DEFAULT_TRITON = "3.6.0"
JUDGED = ("h200", "h100_sxm")
"""Cards on which choices of these kernels were measured."""
WORTH_PROCESSES = 48
"""Cells from which on several processes choose [1]; chosen: one takes a second to start."""


def run(args: argparse.Namespace) -> Document:
    common.no_overrides(args)
    server, cards = _server(args), _cards(args)
    files = write.files_of(_models(args), _parallel(args), cards, server)
    if not files:
        raise InputError(
            "nothing to write; expected a model with experts, or with fp8 weights in blocks of 128x128, "
            "and a card that multiplies them"
        )
    write.check_files(files, args.output, force=args.force)
    timer = _timer(args, server)
    rows = _write_all(args, files, server, timer)
    return Document(
        gpu=cards[0].gpu.name if len(cards) == 1 else None,
        result={"files": len(files), "variable": _line(args.output, server.framework)},
        rows=rows,
        notes=_notes(args, files, cards, server),
        text=lambda: text_table(_by_file(rows)),
        apart=True,
    )


def _timer(args: argparse.Namespace, server: Server) -> Timer | None:
    """What confirms choices, or None; raises InputError for what it does not time."""
    if not args.confirm:
        return None
    if args.device is None or server.framework.name != VLLM or args.routing != "uniform":
        raise InputError(
            "--confirm times vllm on the GPU of --device under uniform routing; expected no other"
        )
    try:
        from gemm_model.serving.vllm_timer import VllmTimer
    except ImportError as error:
        raise MissingExtraError(extra_needed("--confirm", "torch, beside vllm", "torch")) from error
    return VllmTimer.installed(args.device)


def _write_all(
    args: argparse.Namespace, files: Sequence[CellFile], server: Server, timer: Timer | None
) -> list[dict[str, Any]]:
    """Choose for every cell of every card, in as many processes as there are cores, and write its files."""
    rows: list[dict[str, Any]] = []
    by_cell: dict[Any, list[CellFile]] = {}
    for file in files:
        by_cell.setdefault((file.card.device, file.cell), []).append(file)
    with common.progress("choosing", len(by_cell)) as advance:
        for of_cell, choices in zip(
            by_cell.values(), _choices(list(by_cell.values()), server, args.confirm or 0), strict=True
        ):
            if timer is not None:
                choices = [confirmed(of_cell[0].cell, chosen, timer) for chosen in choices]
            for file in of_cell:
                write_file(file, choices, args.output)
                rows += [_row(file, chosen) for chosen in choices]
            advance(1)
    return rows


def _choices(cells: Sequence[Sequence[CellFile]], server: Server, best: int) -> Iterator[list[Chosen]]:
    asked = [(of[0].cell, of[0].card.gpu, server.framework.name, server.routing, best) for of in cells]
    if len(asked) < WORTH_PROCESSES:
        yield from map(choices_of, asked)
        return
    with local_processes(os.cpu_count() or 1) as executor:
        yield from executor.map(choices_of, asked, chunksize=4)


def _row(file: CellFile, chosen: Chosen) -> dict[str, Any]:
    config = file.config(chosen)
    return {
        "file": str(file.path),
        "gpu": file.card.gpu.name,
        "tokens": chosen.tokens,
        "kernel": BLOCK_FP8 if isinstance(file.cell, DenseCell) else MOE,
        **{name: getattr(config, name) for name in ("cta_m", "cta_n", "cta_k", "group_m", "warps", "stages")},
        "predicted_us": chosen.predicted_us,
        "default_us": chosen.default_us,
        "gain": chosen.gain,
        **(
            {}
            if chosen.timed_us is None
            else {"timed_us": chosen.timed_us, "default_timed_us": chosen.default_timed_us}
        ),
    }


def _by_file(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a file: what it gains over the default, as a geometric mean over its token counts."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["file"], []).append(math.log1p(min(row["gain"], 1e6)))
    return [
        {
            "file": name,
            "expected_gain": math.expm1(sum(logs) / len(logs)),
            "least": math.expm1(min(logs)),
            "most": math.expm1(max(logs)),
        }
        for name, logs in found.items()
    ]


def _line(folder: Path, framework: Framework) -> str:
    return f"export {framework.variable}={folder.resolve()}"


def _notes(
    args: argparse.Namespace, files: Sequence[CellFile], cards: Sequence[Card], server: Server
) -> list[str]:
    framework = server.framework
    dense = sum(file.path.parts[0] == "dense" for file in files)
    notes = [f"files written to {args.output}: {len(files)}"]
    if dense < len(files):
        notes.append(f"before you start {framework.name}: {_line(args.output, framework)}")
    if dense:
        notes.append(
            f"{framework.name} reads dense files from its package alone: "
            f"cp {args.output}/dense/*.json SITE_PACKAGES/{framework.dense_folder}/"
        )
    unproven = list(dict.fromkeys(card.gpu.name for card in cards if card.gpu.name not in JUDGED))
    if unproven:
        notes.append(f"these kernels were measured on {', '.join(JUDGED)}, not on {', '.join(unproven)}")
    return notes


def _server(args: argparse.Namespace) -> Server:
    framework = framework_of(args.framework)
    if args.framework_version is not None:
        framework.require_version(args.framework_version)
    if args.triton is not None and framework.name != SGLANG:
        raise InputError(f"--triton has no effect with {framework.name}; expected it left out")
    triton = args.triton or DEFAULT_TRITON
    numbers_of("Triton version", triton)
    check_routing(args.routing)
    return Server(framework=framework, triton=triton, routing=args.routing)


def _models(args: argparse.Namespace) -> list[Any]:
    if (args.config is None) == (args.models is None):
        raise InputError("expected one of --config and --models")
    return listed_models() if args.config is None else [read_config(args.config)]


def _cards(args: argparse.Namespace) -> list[Card]:
    if (args.device is None) == (args.gpus is None):
        raise InputError("expected one of --device and --gpus")
    every = [
        Card(device=device, gpu=gpu) for gpu in map(load_gpu, gpu_names()) for device in gpu.device_names
    ]
    if args.device is None:
        return every
    found = [card for card in every if device_word(card.device) == device_word(args.device)]
    if not found:
        known = ", ".join(dict.fromkeys(card.device for card in every))
        raise InputError(f"--device {args.device!r} is no card's name in CUDA; expected one of {known}")
    return found[:1]


def _parallel(args: argparse.Namespace) -> list[Parallelism]:
    ranks = RANKS if args.tp is None and args.models is not None else (1 if args.tp is None else args.tp,)
    return [Parallelism(tensor=each, expert=args.ep) for each in ranks]
