"""Frozen records: fast ones for formulas, and ones read from plain values (YAML, JSON)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from gemm_model.config import read_toml
from gemm_model.errors import InputError, require_one_of

Record = TypeVar("Record")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `[^`]*`)?(?:.*`(\$[^`]*)`)?")
_PLAIN_NAMES: Mapping[str, str] = read_toml("other_names")["plain"]
_PLAIN_KINDS: Mapping[str, tuple[type, ...]]
_PLAIN_KINDS = {"int": (int,), "float": (int, float), "str": (str,), "object": (dict,)}

if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True)
    def formula_record(kind: type[Record]) -> type[Record]:
        """A frozen dataclass with slots for values that formulas pass on.

        Only the type checker sees it frozen. At run time its fields are set plainly, which takes a third of
        the time; a prediction makes a dozen of them.
        """
        return kind
else:
    formula_record = dataclass(slots=True)


def mapped(record: Record, change: Callable[[Any], Any]) -> Record:
    """The same record with each of its fields changed."""
    kind: Any = type(record)
    made: Record = kind(**{name: change(getattr(record, name)) for name in kind.__dataclass_fields__})
    return made


class ReadOnly(dict[Any, Any]):
    """What results and records share with later calls: nobody can change it; `dict(...)` copies it."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("what calls share is read-only; dict(...) copies it")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[Any, Any]]]:
        return ReadOnly, (dict(self),)


def require_kind(name: str, value: object, *kinds: type) -> None:
    """Raise InputError unless a value is of one of some kinds; None among the kinds allows None."""
    if not isinstance(value, kinds):
        expected = " or ".join(_a_kind(kind) for kind in kinds)
        raise InputError(f"{name} is of type {type(value).__name__}; expected {expected}")


def _a_kind(kind: type) -> str:
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    return "None" if kind is type(None) else f"{article} {kind.__name__}"


def record_from(kind: type[Record], values: Mapping[str, Any], where: str) -> Record:
    """A record of a dataclass from plain values of its fields, whose types are those of its annotations.

    Whole numbers become floats, lists become tuples, mappings become read-only. Raises InputError, whose
    message begins with `where`, for a missing or unknown key and for a value of another type. Errors of the
    record's own `__post_init__` pass through.
    """
    import msgspec

    known = {spec.name: spec for spec in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        require_one_of(f"{where}: unknown key {key!r}", key, known)
    needed = [name for name, each in known.items() if each.default is each.default_factory is MISSING]
    missing = [repr(name) for name in needed if name not in values]
    if missing:
        raise InputError(f"{where}: missing key{'s' * (len(missing) > 1)} {', '.join(missing)}")
    try:
        record = msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise InputError(f"{where}: {_sentence(str(error), values)}") from None
    for name in known:
        value = getattr(record, name)
        if isinstance(value, dict):
            object.__setattr__(record, name, ReadOnly(value))
    return record


def _sentence(message: str, values: Mapping[str, Any]) -> str:
    """'sm_count is 1.5; expected a whole number' from "Expected `int`, got `float` - at `$.sm_count`"."""
    match = _EXPECTED.match(message)
    if match is None:
        return message
    expected = " or ".join(_PLAIN_NAMES.get(name, name) for name in match.group(1).split(" | "))
    place = (match.group(2) or "$").removeprefix("$").removeprefix(".")
    first = re.split(r"[.\[]", place, maxsplit=1)[0]
    value, inside = values.get(first), "" if place == first else f" (at {place})"
    kind = _PLAIN_KINDS.get(match.group(1))
    if kind is not None and isinstance(value, Mapping) and place == f"{first}[...]":
        # msgspec does not name the key of a mapping's value.
        key, wrong = next(item for item in value.items() if type(item[1]) not in kind)
        return f"{first}.{key} is {wrong!r}; expected {expected}"
    return f"{first} is {value!r}{inside}; expected {expected}"
