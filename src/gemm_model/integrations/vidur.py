"""Per-operator tables of a model as the simulator Vidur 0.0.26 reads them: a data set in its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from gemm_model.core.files import atomic_path, atomic_write
from gemm_model.core.gpu import GpuSpec

REVISION = "predicted"
"""The data set's only revision."""


def model_name(path: str) -> str:
    """What Vidur calls a model, by its config.json or its folder: `meta-llama/Llama-3-8B`."""
    place = Path(path).resolve().as_posix().removesuffix(".json").removesuffix("/config")
    return "/".join(place.split("/")[-2:])


def write_dataset(cache: Path, gpu: GpuSpec, model: str, tables: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write `mlp` and `attention` as the data set `gemm-model/CARD-MODEL` of Vidur's cache; the files.

    Vidur's name of a card is ours up to the form: `h100` for `h100_sxm`.
    """
    card = gpu.name.partition("_")[0]
    place = cache / "profiling_data" / "compute" / f"datasets--gemm-model--{card}-{model.replace('/', '-')}"
    snapshot = place / "snapshots" / REVISION
    files = [snapshot / f"{name}.csv.xz" for name in tables]
    for file, table in zip(files, tables.values(), strict=True):
        with atomic_path(file) as temporary:
            table.to_csv(temporary, index=False)
    atomic_write(snapshot / "config.json", json.dumps({"model": model, "device_sku": card}))
    atomic_write(place / "refs" / "main", REVISION)
    return files
