"""The conditions under which a table was measured, kept as JSON beside it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemm_model import __version__
from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_write

PACKAGES = (
    *("torch", "quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi", "triton", "cuda-bindings"),
    "numpy",
)


def package_versions() -> dict[str, str]:
    found = {"gemm-model": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """The command as given, with absolute paths shortened to their last part."""
    arguments = (os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:])
    return shlex.join([os.path.basename(sys.argv[0]), *arguments])


def environment_path(table: Path) -> Path:
    return table.with_suffix(".json")


def new_environment(
    device: dict[str, Any], sweep: str, settings: dict[str, Any], rows: int
) -> dict[str, Any]:
    return {
        **device,
        "packages": package_versions(),
        "commands": [command_line()],
        "started": [timestamp()],
        "sweep": sweep,
        "rows": rows,
        "settings": settings,
        "sentinel": [],
    }


def resumed_environment(path: Path, device: dict[str, Any], sweep: str) -> dict[str, Any]:
    """The environment of the run to resume. Raises InputError if the card or the sweep differ."""
    try:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{path}: not readable; expected the environment of the table to resume") from None
    if known.get("gpu_uuid") != device["gpu_uuid"]:
        raise InputError(
            f"{path}: measured on {known.get('gpu_uuid')}, this card is {device['gpu_uuid']}; cannot resume"
        )
    if known.get("sweep") != sweep:
        raise InputError(f"{path}: belongs to sweep {known.get('sweep')}, this one is {sweep}; cannot resume")
    known["commands"].append(command_line())
    known["started"].append(timestamp())
    return known


def write_environment(path: Path, environment: dict[str, Any]) -> None:
    atomic_write(path, json.dumps(environment, indent=1) + "\n")


def timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
