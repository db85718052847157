"""Options of the verbs, as `config/commands` declares them: one file a verb, and one for each shared set."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gemm_model.config import CONFIG_DIR
from gemm_model.core.errors import InputError
from gemm_model.core.regimes import REGIME_ALIASES, REGIME_NAMES, regime_name


def whole_number(text: str) -> int:
    """A whole number of at most 18 digits, because Python refuses numbers of thousands of digits."""
    if len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text[:12]}... has {len(text)} characters; expected at most 18")
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def regime(text: str) -> str:
    """A regime by its own name or another one."""
    name = regime_name(text)
    if name not in REGIME_NAMES:
        expected = ", ".join((*REGIME_NAMES, *REGIME_ALIASES))
        raise argparse.ArgumentTypeError(f"{text!r} is no regime; expected one of {expected}")
    return name


KINDS = {"path": Path, "whole": whole_number, "float": float, "regime": regime}
"""What `kind` reads a word as; text where it is left out."""


def between(
    option: str, read: Callable[[str], float], least: float, most: float | None
) -> Callable[[str], float]:
    """What reads a number of an option and refuses one below `least` or above `most`."""
    expected = f"at least {least}" if most is None else f"{least} to {most:.10g}"

    def number(text: str) -> float:
        found = read(text)
        if not least <= found <= (math.inf if most is None else most):
            raise InputError(f"{option} is {text}; expected {expected}")
        return found

    return number


def add_options(
    parser: argparse._ActionsContainer, name: str, **words: Any
) -> dict[str, argparse._ArgumentGroup]:
    """Add the options of `config/commands/{name}.toml`; returns their groups by title.

    `{word}` in a value is one of `words`: the value itself where it stands alone, its names within a text.
    """
    groups = {}
    for option, settings in _declared(name).items():
        if all(isinstance(each, Mapping) for each in settings.values()):
            groups[option] = parser.add_argument_group(option)
            for inner, of_inner in settings.items():
                _add(groups[option], inner, of_inner, words)
        else:
            _add(parser, option, settings, words)
    return groups


@cache
def _declared(name: str) -> dict[str, Any]:
    return tomllib.loads((CONFIG_DIR / "commands" / f"{name}.toml").read_text(encoding="utf-8"))


def _add(
    parser: argparse._ActionsContainer, option: str, declared: Mapping[str, Any], words: Mapping[str, Any]
) -> None:
    """Add one option: argparse's own settings, and `or` (another name), `kind`, `least`, `most` and `hidden`."""
    settings = {key: _filled(value, words, whole=key != "help") for key, value in declared.items()}
    names = [option, *([settings.pop("or")] if "or" in settings else [])]
    if "kind" in settings:
        settings["type"] = KINDS[settings.pop("kind")]
    if "least" in settings:
        least, most = settings.pop("least"), settings.pop("most", None)
        settings["type"] = between(option, settings["type"], least, most)
    if settings.get("action") == "append":
        settings.setdefault("default", [])
    if settings.pop("hidden", False):
        settings["help"] = argparse.SUPPRESS
    if settings.get("default") == "suppressed":
        settings["default"] = argparse.SUPPRESS
    parser.add_argument(*names, **settings)


def _filled(value: Any, words: Mapping[str, Any], *, whole: bool) -> Any:
    if not isinstance(value, str) or "{" not in value:
        return value
    if whole and value[1:-1] in words:
        return words[value[1:-1]]
    texts = {
        name: ", ".join(each) if isinstance(each, Iterable) and not isinstance(each, str) else each
        for name, each in words.items()
    }
    return value.format_map(texts)
