"""The kernel families, found by name and architecture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.config import read_toml
from gemm_model.config.mechanisms import OF_LIBRARIES
from gemm_model.core import epilogue
from gemm_model.core.batch import GemmBatch, IntArray
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import AUTO_KERNEL, KERNELS
from gemm_model.core.records import require_kind
from gemm_model.errors import InputError
from gemm_model.kernels.family import ConfigSpace, KernelFamily, ResourceRules, TileOrder, TilePeriod, always

PARTS = {
    "space": ConfigSpace,
    "resources": ResourceRules,
    "tile_order": TileOrder,
    "tile_period": TilePeriod,
}
"""Records that a family consists of, by the name of their table."""
_TABLES: dict[str, dict[str, Any]] = read_toml("families")
_RULE = re.compile(r"\w+\.\w+")


@cache
def _described(family: str, part: str = "") -> dict[str, Any]:
    """What tables say of a family, or of a part of it, behind those that they are like."""
    table = _TABLES[family]
    own = table.get(part, {}) if part else {key: table[key] for key in table if key not in PARTS}
    like = table.get("like", ()) if "like" not in own or not part else filter(None, [own["like"]])
    found = {key: value for other in like for key, value in _described(other, part).items()}
    return {**found, **{key: _value(own[key]) for key in own if key != "like"}}


def _value(value: Any) -> Any:
    """A value of a table: lists as tuples, and the rule of this folder that a word with a dot names."""
    if isinstance(value, list):
        return tuple(map(_value, value))
    if isinstance(value, str) and _RULE.fullmatch(value):
        module, _, name = value.partition(".")
        return getattr(import_module(f"gemm_model.kernels.{module}"), name)
    return value


def _part(kind: type[Any], entries: Mapping[str, Any]) -> Any:
    """A record of a family; a number in place of a rule is the rule that is always that number."""
    rules = {spec.name for spec in fields(kind) if str(spec.type).startswith("Callable")}
    numbers = {key: always(entries[key]) for key in rules & set(entries) if not callable(entries[key])}
    return kind(**{**entries, **numbers})


def _family(name: str) -> KernelFamily:
    """The family of a table."""
    whole = dict(_described(name))
    lacks, also = (whole.pop(key, ()) for key in ("lacks", "also"))
    known = (getattr(epilogue, word, ()) if word.isupper() else (word,) for word in whole.pop("knows"))
    return KernelFamily(
        **whole,
        **{part: _part(kind, _described(name, part)) for part, kind in PARTS.items()},
        knows=frozenset(chain.from_iterable(known)),
        mechanisms=(*(each for each in OF_LIBRARIES if each not in lacks), *also),
    )


_FAMILIES: dict[tuple[str, str], KernelFamily] = {
    (family.name, architecture): family
    for family in (_family(name) for name in _TABLES if "architectures" in _described(name))
    for architecture in family.architectures
}
"""Families by name and architecture; the first of an architecture is its default."""

ANY_FAMILY = "any"
"""The word for all families of the GPU, where kernels are ranked."""

TORCH_FAMILY = "cublas"
"""The library that torch calls for its matrix multiplications."""

_DEFAULTS = {arch: family for (_, arch), family in reversed(_FAMILIES.items())}


def families(gpu: GpuSpec | str | Path | None = None) -> tuple[str, ...]:
    """Names of the kernel families, all or those that have kernels for a GPU, the default one first.

    `gpu` is a GpuSpec, a name or a YAML file. Raises InputError for anything else.
    """
    architecture = None if gpu is None else as_gpu(gpu).kernel_architecture
    return tuple(dict.fromkeys(name for name, arch in _FAMILIES if architecture in (None, arch)))


def names_in_tables() -> Mapping[str, str]:
    """Names in the column `kernel` of measured tables -> the family's name."""
    return {name: name for name in KERNELS} | {
        provider: family.name for family in _FAMILIES.values() for provider in family.providers
    }


def sums_stay() -> frozenset[str]:
    """Families whose fp8 sums never leave the tensor core's accumulators on some architecture."""
    return frozenset(family.name for family in _FAMILIES.values() if not family.space.slow_sums)


def family_of(name: str, gpu: GpuSpec) -> KernelFamily:
    """The family called `name` on a GPU, 'auto' for the GPU's default one.

    Raises InputError for an unknown name, and for a family that has no kernels for the GPU.
    """
    architecture = gpu.kernel_architecture
    shared = _DEFAULTS.get(architecture) if name == AUTO_KERNEL else _FAMILIES.get((name, architecture))
    found = _FAMILIES.get((name, gpu.architecture), shared)
    if found is not None:
        return found
    known = families(gpu)
    if not known:
        architectures = ", ".join(dict.fromkeys(arch for _, arch in _FAMILIES))
        raise InputError(
            f"no kernel family has kernels for {gpu.architecture} of GPU {gpu.name}; expected {architectures}"
        )
    if name not in KERNELS:
        raise _unknown(name, (AUTO_KERNEL, *known))
    raise InputError(
        f"kernel family {name!r} is not described on {gpu.name} ({gpu.architecture}); "
        f"expected one of {AUTO_KERNEL}, {', '.join(known)}"
    )


def _unknown(name: str, known: Iterable[str]) -> InputError:
    return InputError(f"unknown kernel family {name!r}; expected one of {', '.join(known)}")


def families_of(name: str, gpu: GpuSpec) -> tuple[KernelFamily, ...]:
    """The families to choose from: all of the GPU's for 'any', else the one called `name`.

    Raises InputError like `family_of`.
    """
    require_kind("family", name, str)
    if name != ANY_FAMILY and name not in (AUTO_KERNEL, *KERNELS) and families(gpu):
        raise _unknown(name, (ANY_FAMILY, AUTO_KERNEL, *families(gpu)))
    names = families(gpu) if name == ANY_FAMILY else ()
    return tuple(family_of(each, gpu) for each in names or (name,))


def family_at(code: int, gpu: GpuSpec) -> KernelFamily:
    """The family of a value of `GemmBatch.kernel`; raises InputError like `family_of`."""
    return family_of(KERNELS[code], gpu)


def by_family(batch: GemmBatch, gpu: GpuSpec) -> Iterator[tuple[KernelFamily, IntArray]]:
    """The families of a batch's rows, each with the positions of its rows."""
    for code in np.unique(batch.kernel):
        yield family_at(int(code), gpu), np.flatnonzero(batch.kernel == code)
