"""The models, found by name; a module is imported when its model is first asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from gemm_model.config import YAML_SUFFIXES, is_yaml_file
from gemm_model.config.options import check_options
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.records import require_kind
from gemm_model.errors import InputError
from gemm_model.kernels.model import Model as Model

_MODULES = {
    "SOLModel": "gemm_model.classic_models.sol",
    "WSPersistentGEMMModel": "gemm_model.classic_models.ws_persistent",
    "PipelineModel": "gemm_model.pipeline.model",
    "KernelModel": "gemm_model.kernel_model.model",
    "MemoryHierarchyModel": "gemm_model.hierarchy.model",
    "OverlapModel": "gemm_model.overlap.model",
}

DEFAULT_MODEL = "KernelModel"
RESIDUAL_SUFFIX = ".npz"
"""Ending of files with residuals, which models take as an option."""
FILE_SUFFIXES = (*YAML_SUFFIXES, RESIDUAL_SUFFIX)


_BY_LOWER_NAME = {name.lower(): name for name in _MODULES} | {"warpspecializedmodel": DEFAULT_MODEL}
"""Models by lower-case name; the last entry is the kernel model's former name, found in older files."""


def models() -> list[str]:
    """Names of all models."""
    return list(_MODULES)


class _Registry(ModuleType):
    """A module that answers a call like `models()`.

    `gemm_model.models` names the function and, once it is imported, the module: both give the names.
    """

    def __call__(self) -> list[str]:
        return models()


sys.modules[__name__].__class__ = _Registry


def create_model(name: str, gpu: GpuSpec, options: Mapping[str, Any] | None = None) -> Model:
    """The model of that name for a GPU; raises InputError for an unknown name or option."""
    known = _BY_LOWER_NAME.get(str(name).lower())
    if known is None:
        raise InputError(f"unknown model {name!r}; expected one of {', '.join(_MODULES)}")
    name = known
    _require_mapping(options)
    check_options(name, options or {})
    model_class = getattr(import_module(_MODULES[name]), name)
    _require_options(name, model_class, options or {})
    try:
        model: Model = model_class(gpu, **(options or {}))
    except TypeError as error:
        raise InputError(f"{name}: {error}") from None
    return model


def _require_mapping(options: object) -> None:
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"options are {options!r}; expected a mapping of a model's options")


def _require_options(name: str, model_class: type[Model], options: Mapping[str, Any]) -> None:
    """Raise InputError for an option that a model does not have, or that it cannot do without."""
    parameters = signature(model_class).parameters.values()
    own = {each.name: each.default for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for option in options:
        if option not in own and not takes_any:
            expected = f"one of {', '.join(own)}" if own else "none"
            raise InputError(f"{name}: unknown option {option!r}; expected {expected}")
    for option, default in own.items():
        if default is Parameter.empty and option not in options:
            file = f"config/model/{name}.yaml"
            raise InputError(f"{name}: option {option!r} is missing; expected what {file} has")


def require_known(model: Model, *, beyond_plain: bool) -> None:
    """Raise InputError if a problem is no plain GEMM and the model supports only those."""
    if beyond_plain and not model.beyond_plain:
        raise InputError(
            f"{type(model).__name__} knows plain products alone; expected {DEFAULT_MODEL} or SOLModel"
        )


def lasting(gpu: GpuSpec | str | Path, options: Mapping[str, Any] | None) -> bool:
    """Whether GPU and options can be a cache key; a file may change, and an object cannot be compared.

    Raises InputError for options that are no mapping.
    """
    if not isinstance(gpu, GpuSpec | str) or (isinstance(gpu, str) and is_yaml_file(gpu)):
        return False
    _require_mapping(options)
    for value in (options or {}).values():
        if isinstance(value, str):
            if value.endswith(FILE_SUFFIXES):
                return False
        elif not isinstance(value, int | float):
            return False
    return True


@lru_cache(maxsize=64)
def _kept_model(name: str, gpu: GpuSpec | str, options: tuple[tuple[str, Any], ...]) -> Model:
    return create_model(name, as_gpu(gpu), dict(options))


def model_for(name: str, gpu: GpuSpec | str | Path, options: Mapping[str, Any] | None = None) -> Model:
    """A model ready to use; cached if GPU and options are `lasting`."""
    require_kind("model", name, str)
    if lasting(gpu, options):
        return _kept_model(name, gpu, tuple(sorted((options or {}).items())))
    return create_model(name, as_gpu(gpu), options)
