"""What a library's provider offers, without the library: its modules are imported with nothing in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = ("cuda", "cutlass", "cutlass_library", "nvmath", "quack", "torch", "triton", "tvm_ffi")
"""Packages of kernels and of the GPU, none of which says which kernels a provider offers."""


class Nothing:
    """Stands for whatever an absent package holds: it can be called, inherited from and asked for more."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, _: str) -> Nothing:
        return Nothing()

    def __call__(self, *_: object, **__: object) -> Nothing:
        return Nothing()


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, origin="absent", is_package=True) if _apart(name) else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda _: Nothing()  # type: ignore[method-assign]


def _apart(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


@contextmanager
def without_packages() -> Iterator[None]:
    """Import what needs these packages with nothing in their place, whether they are installed or not.

    No module that was imported so stays.
    """
    finder, packages = _Finder(), {name: sys.modules.pop(name) for name in [*sys.modules] if _apart(name)}
    before = set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if _apart(name) or name.startswith(f"{__package__}."):
                _forget(name)
        sys.modules.update(packages)


def _forget(module: str) -> None:
    parent, _, own = module.rpartition(".")
    del sys.modules[module]
    if parent in sys.modules:
        vars(sys.modules[parent]).pop(own, None)
