"""Files of configurations as vLLM and SGLang read them, for all cells of models on cards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemm_model.core.dtypes import element_type
from gemm_model.core.files import atomic_write, check_writable
from gemm_model.core.gpu import WITHOUT_BF16, GpuSpec
from gemm_model.errors import InputError
from gemm_model.integrations.huggingface import ModelShapes
from gemm_model.serving.choose import Chosen
from gemm_model.serving.frameworks import Framework
from gemm_model.serving.layers import DenseCell, MoeCell, Parallelism, dense_cells, moe_cells
from gemm_model.serving.tile_config import TileConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU and its name as CUDA reports it, which stands in the files' names."""

    device: str
    gpu: GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The framework that will read the files; `triton` names SGLang's folder."""

    framework: Framework
    triton: str
    routing: str = "uniform"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFile:
    """One file to write, below the folder of all."""

    path: Path
    card: Card
    cell: MoeCell | DenseCell
    down: bool = False

    def config(self, chosen: Chosen) -> TileConfig:
        """Of the product that this file is about."""
        return chosen.configs[-1 if self.down else 0]


def files_of(
    models: Sequence[ModelShapes], parallel: Sequence[Parallelism], cards: Sequence[Card], server: Server
) -> list[CellFile]:
    """The files of all models on all cards, each once; a card that lacks the type of the weights has none."""
    found: dict[Path, CellFile] = {}
    for shapes in models:
        for each in parallel:
            moe = moe_cells(shapes, each, fused_shared=server.framework.apart)
            dense = dense_cells(shapes, each)
            for card in cards:
                for file in _of_card(moe, dense, card, server):
                    found.setdefault(file.path, file)
    return list(found.values())


def _of_card(
    moe: Sequence[MoeCell], dense: Sequence[DenseCell], card: Card, server: Server
) -> Iterator[CellFile]:
    framework = server.framework
    for cell in moe:
        if not runs(cell.dtype, weights_only=cell.weights_only, gpu=card.gpu):
            continue
        for down in (False, True) if framework.apart else (False,):
            path = framework.moe_path(cell, card.device, server.triton, down=down)
            yield CellFile(path=path, card=card, cell=cell, down=down)
    for matrix in dense:
        if runs("e4m3", weights_only=False, gpu=card.gpu):
            yield CellFile(path=framework.dense_path(matrix, card.device), card=card, cell=matrix)


def runs(dtype: str, *, weights_only: bool, gpu: GpuSpec) -> bool:
    """Whether the frameworks' Triton kernels multiply this type on the card: from compute capability 8.0."""
    return gpu.architecture not in WITHOUT_BF16 and gpu.multiplies(
        element_type("bf16" if weights_only else dtype)
    )


def check_files(files: Sequence[CellFile], folder: Path, *, force: bool) -> None:
    """Raise InputError where a file is there already and --force is not, or could not be written."""
    for file in files:
        path = folder / file.path
        if path.exists() and not force:
            raise InputError(f"{path}: already there; expected --force to overwrite it, or another --output")
        check_writable(path)


def write_file(file: CellFile, choices: Sequence[Chosen], folder: Path) -> None:
    """One file, whole or not at all: token counts as keys, a configuration each."""
    content: dict[str, Any] = {str(each.tokens): file.config(each).as_mapping() for each in choices}
    atomic_write(folder / file.path, json.dumps(content, indent=4) + "\n")
