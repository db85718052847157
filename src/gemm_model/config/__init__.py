"""The configuration tree (YAML beside this file), changed by `key=value` words."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_model.config.plain_yaml import parse_yaml, read_yaml_mapping
from gemm_model.errors import InputError

__all__ = ["COMMAND_LINE", "CONFIG_DIR", "ResolvedConfig", "gpu_names", "is_yaml_file", "load_config"]
__all__ += ["load_gpu_mapping", "model_names", "read_toml", "read_yaml_mapping", "resolve_config"]

CONFIG_DIR = Path(__file__).parent
OF_ONE_CARD = ("name", "device_names", "validated")
"""Keys that a card does not take from the one that it is like."""
OLD_NAMES = {"b200": "b200_sxm"}
"""Names that once meant another card, and the card that each means now."""
NOTES = {"b200": "b200 is b200_sxm, whose clock runs free; locked at 1300 MHz it is b200_1300mhz"}
YAML_SUFFIXES = (".yaml", ".yml")
COMMAND_LINE = "command line"
_WORD = re.compile(r"(\+{0,2})([A-Za-z_][\w.]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """The configuration after all overrides: gpu, model, model_opts, timing."""

    values: dict[str, Any]
    gpu_source: str
    """The file that describes the GPU."""
    sources: Mapping[str, str]
    """Of each value, by its dotted key: the file that says so, or the command line."""

    def changed(self, key: str) -> bool:
        """Whether the command line set that value, or one inside it."""
        return any(
            source == COMMAND_LINE and (name == key or name.startswith(f"{key}."))
            for name, source in self.sources.items()
        )


@lru_cache(maxsize=64)
def read_toml(name: str) -> dict[str, Any]:
    """The content of a TOML file of this folder, by its name without the ending; not to be changed."""
    return tomllib.loads((CONFIG_DIR / f"{name}.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _gpu_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CONFIG_DIR / "gpu").glob("*.yaml")))


def gpu_names() -> list[str]:
    """Names of the GPUs that the package describes."""
    return list(_gpu_names())


@lru_cache(maxsize=1)
def model_names() -> list[str]:
    """Names of the models that the package configures."""
    return sorted(path.stem for path in (CONFIG_DIR / "model").glob("*.yaml"))


def is_yaml_file(name_or_path: str | Path) -> bool:
    """Whether a name is that of a file, not of something in the package."""
    return isinstance(name_or_path, Path) or name_or_path.endswith(YAML_SUFFIXES)


@lru_cache(maxsize=64)
def _packaged(place: str) -> dict[str, Any]:
    return read_yaml_mapping(CONFIG_DIR / place, "the package's configuration")


def load_gpu_mapping(name_or_path: str | Path) -> dict[str, Any]:
    """Plain values of a GPU description, from the package (a name in any case) or from a file."""
    return _gpu(name_or_path)[0]


def _gpu(name_or_path: str | Path, seen: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    """A GPU's values, and the file that they stand in; `seen` are the cards that are like it."""
    if is_yaml_file(name_or_path):
        found = read_yaml_mapping(Path(name_or_path), "a GPU description")
        return _like_another(found, str(name_or_path), seen), str(name_or_path)
    name = str(name_or_path).lower()
    if name in OLD_NAMES:
        found, place = _gpu(OLD_NAMES[name], seen)
        return {**found, "note": NOTES[name]}, place
    if name not in gpu_names():
        near = [known for known in gpu_names() if name and known.startswith(name)]
        near = near or get_close_matches(name, gpu_names(), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "expected one of `gemm-model list gpus`"
        raise InputError(f"unknown GPU {str(name_or_path)!r}; {hint} (or a YAML file)")
    place = f"config/gpu/{name}.yaml"
    return _like_another(deepcopy(_packaged(f"gpu/{name}.yaml")), place, seen), place


def _like_another(own: dict[str, Any], place: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """A description that says `like: another card` has that card's numbers where it has none of its own.

    A key without a value leaves out what the other card knows.
    """
    other, given, seen = own.pop("like", None), own.get("sources") or {}, (*seen, place)
    if other is None:
        return own
    if not isinstance(other, str) or other in seen:
        raise InputError(f"{place}: like is {other!r}; expected the name of another GPU")
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: sources is {given!r}; expected a mapping")
    try:
        found, _ = _gpu(other, seen)
    except InputError as error:
        raise InputError(f"{place}: like: {error}") from None
    found = {key: value for key, value in found.items() if key not in OF_ONE_CARD}
    sources = {key: f"taken from {other}: {source}" for key, source in found.get("sources", {}).items()}
    sources |= given
    values = {**found, **own}
    kept = {key: value for key, value in values.items() if value is not None}
    return {**kept, "sources": {key: source for key, source in sources.items() if key in kept}}


def load_config(overrides: Sequence[str] = (), defaults: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration after `key=value` overrides, as plain values: see `resolve_config`."""
    return resolve_config(overrides, defaults).values


def resolve_config(
    overrides: Sequence[str] = (), defaults: Mapping[str, str] | None = None
) -> ResolvedConfig:
    """The configuration after `key=value` overrides, each value with its source.

    `defaults` are choices ('gpu', 'model') that the overrides may replace. `gpu=` takes a name or the path
    of a YAML file, `key=value` changes a value that is there, `+key=value` adds one. Values are YAML:
    numbers, texts, lists, mappings. Raises InputError for an unknown key, name or value.
    """
    root = _packaged("config.yaml")
    choices = {**root["defaults"], **(defaults or {})}
    changes = []
    for word in overrides:
        match = _WORD.fullmatch(word)
        if match is None:
            raise InputError(f"override {word!r}: expected key=value")
        adds, key, text = match.groups()
        if key in ("gpu", "model"):
            choices[key] = text
        else:
            changes.append((key, parse_yaml(text, f"override {key}"), bool(adds)))
    gpu, gpu_source = _gpu(choices["gpu"])
    model_source = f"config/model/{_model_name(choices['model'])}.yaml"
    values: dict[str, Any] = {"gpu": gpu, **deepcopy(_packaged(model_source.removeprefix("config/")))}
    values["timing"] = deepcopy(root["timing"])
    sources = dict.fromkeys(_leaves(gpu, "gpu."), gpu_source)
    sources |= dict.fromkeys(_leaves({key: values[key] for key in ("model", "model_opts")}, ""), model_source)
    sources |= dict.fromkeys(_leaves(root["timing"], "timing."), "config/config.yaml")
    for key, value, adds in changes:
        _change(values, key, value, adds=adds)
        sources = {name: source for name, source in sources.items() if not f"{name}.".startswith(f"{key}.")}
        sources[key] = COMMAND_LINE
    return ResolvedConfig(values=values, gpu_source=gpu_source, sources=sources)


def _model_name(name: str) -> str:
    by_lower = {known.lower(): known for known in model_names()}
    found = by_lower.get(name.lower())
    if found is None:
        raise InputError(f"unknown model {name!r}; expected one of {', '.join(model_names())}")
    return found


def _change(values: dict[str, Any], key: str, value: Any, *, adds: bool) -> None:
    """Set the value of a dotted key; a key that is not there is an error, unless it is to be added."""
    *path, last = key.split(".")
    inner: Any = values
    for part in path:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise InputError(f"override {key}: no such place; expected one of {', '.join(values)}")
    whole_key = int(last) if last.isdecimal() and any(isinstance(known, int) for known in inner) else last
    if whole_key not in inner and inner and not adds:
        known = ", ".join(str(each) for each in inner)
        raise InputError(f"override {key}: no such key; expected one of {known}")
    inner[whole_key] = value


def _leaves(values: Mapping[Any, Any], prefix: str) -> list[str]:
    """Dotted keys of the values in nested mappings; an empty mapping is a value."""
    found: list[str] = []
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found += _leaves(value, f"{prefix}{key}.") if inner else [f"{prefix}{key}"]
    return found
