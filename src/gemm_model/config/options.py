"""Options of models, held to the kind of value that the package's own configuration gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gemm_model.config import CONFIG_DIR, read_yaml_mapping
from gemm_model.errors import InputError

LARGEST = 1e15
"""Largest number [any]; all options; far beyond what any of them means, and sums and products stay finite."""
POSITIVE_ENDINGS = ("_per_us", "_per_clk", "efficiency")
"""Of names of rates and shares that something is divided by."""


def check_options(model: str, options: Mapping[str, Any]) -> None:
    """Raise InputError for an option that is not of its packaged value's kind: number, text, flag, mapping.

    Objects in place of texts (a calibration that was loaded) pass; names are the model's to check.
    """
    packaged = packaged_options(model)
    for name, value in options.items():
        if name in packaged:
            _check(f"{model}: {name}", name, value, packaged[name])


@lru_cache(maxsize=16)
def packaged_options(model: str) -> Mapping[str, Any]:
    """The options of a model, as the package sets them."""
    found = read_yaml_mapping(CONFIG_DIR / "model" / f"{model}.yaml", "a model's options")["model_opts"]
    return found if isinstance(found, Mapping) else {}


def _check(where: str, name: str, value: Any, packaged: Any) -> None:
    if isinstance(packaged, bool):
        good, expected = isinstance(value, bool), "true or false"
    elif isinstance(packaged, int | float):
        good, expected = _is_number(value), f"a number of at most {LARGEST:g}"
        if name.endswith(POSITIVE_ENDINGS):
            good, expected = good and value > 0, f"a number above 0, of at most {LARGEST:g}"
    elif isinstance(packaged, str):
        good = value is not None and not isinstance(value, bool | int | float | list | Mapping)
        expected = "a text"
    elif isinstance(packaged, Mapping):
        good, expected = isinstance(value, Mapping), "a mapping"
    else:
        good, expected = isinstance(value, list | tuple | set | frozenset), "a list"
    if not good:
        raise InputError(f"{where} is {value!r}; expected {expected}")
    if isinstance(packaged, Mapping):
        for key, inner in value.items():
            if key in packaged:
                _check(f"{where}.{key}", str(key), inner, packaged[key])


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and abs(value) <= LARGEST
