"""Archives of forests: an .npz file with their arrays by name, and facts about them."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.core.files import atomic_path
from gemm_model.errors import InputError
from gemm_model.kernel_model.forest import FOREST_ARRAYS, Forest

MAX_BYTES = 64 << 20
"""Largest arrays of a file [B]; all residuals; chosen: those of the package take a megabyte."""
UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, AttributeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError),
)
"""Errors of `zipfile` and `numpy.load` on damaged archives; RuntimeError: a member is encrypted, or its
compression is unknown."""


def read_archive(path: Path) -> tuple[Any, dict[str, Any]]:
    """A file's facts about its forests, and their arrays by name.

    Raises InputError if there is no such file, or it is no archive of forests.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a residual of gemm-model calibrate")
    try:
        with zipfile.ZipFile(path) as members:
            size = sum(member.file_size for member in members.infolist())
        if size > MAX_BYTES:
            raise InputError(f"{path}: holds {size} bytes; expected a residual of at most {MAX_BYTES}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
    except UNREADABLE:
        raise InputError(
            f"{path}: not a residual of gemm-model calibrate; expected an .npz file that it wrote"
        ) from None
    return about, arrays


def forest_of(arrays: Mapping[str, Any], name: str, features: int, path: Path) -> Forest:
    """The forest of one name among a file's arrays; raises InputError where they are damaged."""
    found = {}
    for array in FOREST_ARRAYS:
        key = f"{name}.{array}"
        if key not in arrays:
            raise InputError(f"{path}: array {key} is missing")
        found[array] = arrays[key]
    try:
        return Forest(features=features, **found)
    except ValueError as error:
        raise InputError(f"{path}, {name}: {error}") from None


def write_archive(about: Mapping[str, Any], forests: Mapping[str, Forest], path: Path) -> None:
    """The file that `read_archive` reads; the same forests give the same bytes."""
    arrays = {
        f"{name}.{array}": getattr(forest, array)
        for name, forest in forests.items()
        for array in FOREST_ARRAYS
    }
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, about=np.array(json.dumps(about)), **arrays)
