"""The frameworks' own loaders of configurations, from their packages, beside stand-ins for their imports.

A package is the one in GEMM_MODEL_FRAMEWORKS, or is downloaded once and unpacked into the user's cache.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import types
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gemm-model" / "frameworks"


class _AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class StandIn(types.ModuleType):
    """A module that has every name: a class that takes any arguments and holds None for every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _AnyName(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, value)
        return value


class _Finder:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != self.package:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


@contextmanager
def stand_ins(package: str) -> Any:
    """Within, `import package.anything` gives stand-ins."""
    held = {name: module for name, module in sys.modules.items() if name.split(".")[0] == package}
    for name in held:
        del sys.modules[name]
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules.update(held)


def package_folder(package: str) -> Path:
    """The unpacked Python files of a framework; skips the test where they cannot be had."""
    given = os.environ.get("GEMM_MODEL_FRAMEWORKS")
    if given and (Path(given) / package).is_dir():
        return Path(given)
    folder = CACHE / f"{package}-{VERSIONS[package]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Test processes run side by side: the first one downloads, the others wait for it.
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _download(package, folder)
    return folder


def _download(package: str, folder: Path) -> None:
    wheels = folder.with_suffix(".wheels")
    wheels.mkdir(parents=True, exist_ok=True)
    words = ("download", f"{package}=={VERSIONS[package]}", "--no-deps", "--only-binary", ":all:")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet", "--dest", str(wheels)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = list(wheels.glob("*.whl"))
    if not found:
        pytest.skip(f"{package} {VERSIONS[package]} cannot be downloaded: {done.stderr.strip()[-200:]}")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(found[0]) as wheel:
        wheel.extractall(part, [name for name in wheel.namelist() if name.endswith(".py")])
    part.rename(folder)
    found[0].unlink()


def load_file(path: Path, name: str) -> types.ModuleType:
    """A source file as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
