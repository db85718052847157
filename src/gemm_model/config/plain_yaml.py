"""Reading YAML files that a user gives: plain values and nothing else, within limits."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_model.errors import InputError

MAX_BYTES = 16 << 20
"""Largest file [B]; all YAML; chosen: far more than any calibration."""
MAX_DEPTH = 16
"""Levels of mappings and lists inside one another [1]; all YAML; chosen: the deepest file of the package has
five."""
MAX_WHOLE_NUMBER = 2**53
"""Largest whole number [1]; all YAML; beyond it a double no longer holds every one."""
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
}
"""Which plain scalars are no texts, and the characters that they begin with: YAML 1.2's core schema.

In YAML 1.1, which PyYAML reads, `off` is a flag, `1e3` a text and `1:30` a number."""


def read_yaml_mapping(path: Path, what: str, *, infinite: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file: texts, finite numbers, true, false, null, lists and mappings of them.

    Raises InputError, naming file, line and place, for a file that is not there, is too large, nests too
    deeply, refers from one place to another (anchors, aliases, tags), repeats a key, or holds something else.
    A text such as `${...}` is a text: nothing is filled in. `what` says what the file should describe;
    `infinite` lets `.inf` stand for no limit.
    """
    text = _read_text(path, what)
    values = parse_yaml(text, str(path), infinite=infinite)
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a YAML mapping with {what}")
    for key in values:
        if not isinstance(key, str):
            raise InputError(f"{path}: key {key!r}; expected a text")
    return values


def parse_yaml(text: str, where: str, *, infinite: bool = False) -> Any:
    """The value that a YAML text describes, as `read_yaml_mapping` reads it; `where` names it in errors."""
    import yaml

    try:
        _check_events(text, where)
        value = yaml.load(text, Loader=_loader())
    except yaml.YAMLError as error:
        # libyaml refuses the deepest texts before it tells of their first bracket.
        if "nesting depth" in _reason(error):
            raise InputError(f"{where}: nested more than {MAX_DEPTH} levels deep") from None
        raise InputError(f"{where}: not readable as YAML ({_reason(error)})") from None
    except ValueError as error:
        # Of a number: too many digits, or a date that no calendar has.
        raise InputError(f"{where}: holds a value that is none ({error})") from None
    _check_plain(value, where, "", infinite)
    return value


def _read_text(path: Path, what: str) -> str:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory; expected a YAML file with {what}")
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected a YAML file with {what}")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path}: {size} bytes; expected a YAML file of at most {MAX_BYTES}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file; expected a YAML file with {what}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a YAML file") from None
    except ValueError as error:  # a zero byte in the name
        raise InputError(f"{str(path)!r}: no such file ({error}); expected a YAML file") from None


@lru_cache(maxsize=1)
def _loader() -> Any:
    """PyYAML's safe loader with the scalars of YAML 1.2 alone, which refuses a key that stands twice."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class PlainLoader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - PyYAML passes it
            result: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise yaml.YAMLError(f"line {line}: a key is a list or a mapping; expected a text")
                key = self.construct_object(key_node)
                if key in result:
                    raise yaml.YAMLError(f"line {line}: key {key!r} appears twice; expected each key once")
                result[key] = self.construct_object(value_node, deep=True)
            return result

    PlainLoader.yaml_implicit_resolvers = {}
    for name, (pattern, first) in _SCALARS.items():
        PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"(?:{pattern})$"), first)
    PlainLoader.add_constructor(
        "tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, deep=True)
    )
    return PlainLoader


def _check_events(text: str, where: str) -> None:
    """Refuse what takes long, or much memory, to build: deep nesting, aliases; and tags of other types."""
    import yaml

    depth = 0
    event: Any
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise InputError(f"{where}: line {line}: nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise InputError(f"{where}: line {line}: an anchor or alias; expected every value in its place")
        if getattr(event, "tag", None) is not None:
            raise InputError(f"{where}: line {line}: tag {event.tag}; expected plain values")


def _check_plain(value: Any, where: str, place: str, infinite: bool) -> None:
    """Refuse values that are no texts, finite numbers, flags, nulls, lists or mappings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            below = f"{place}.{key}" if place else str(key)
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise InputError(f"{where}: key {below}; expected a text or a whole number")
            _check_plain(inner, where, below, infinite)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_plain(inner, where, f"{place}[{position}]", infinite)
    elif isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and not infinite)):
        raise InputError(f"{where}: {place} is {value}; expected a finite number")
    elif isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
        raise InputError(f"{where}: {place} is a whole number beyond 2^53; expected a smaller one")


def _reason(error: Exception) -> str:
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None:
        return " ".join(str(error).split())[:200]
    return f"{problem}, line {mark.line + 1}" if mark is not None else str(problem)
