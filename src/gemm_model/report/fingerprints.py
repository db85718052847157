"""Fingerprints of the data files and calibrations that predictions depend on."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from gemm_model import __version__
from gemm_model.config import CONFIG_DIR

DIGITS = 12
PARTS = ("gpu", "model", "pipeline", "numbers", "calibration")
"""Folders of the configuration; calibrations are listed file by file."""


def version_text() -> str:
    """Version, and the fingerprints of the configuration's parts and of each calibration."""
    lines = [f"gemm-model {__version__}"]
    lines += [f"{part:12} {_of_files(sorted((CONFIG_DIR / part).rglob('*.yaml')))}" for part in PARTS[:-1]]
    for path in sorted((CONFIG_DIR / PARTS[-1]).rglob("*")):
        if path.is_file():
            name = path.relative_to(CONFIG_DIR / PARTS[-1])
            lines.append(f"{PARTS[-1]:12} {_of_files([path])} {name}")
    return "\n".join(lines)


def _of_files(paths: list[Path]) -> str:
    """SHA-256 over names and contents, shortened."""
    digest = sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:DIGITS]
