"""Options of the verbs, as `config/commands` declares them: one file a verb, and one for each shared set."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemm_model.config import YAML_SUFFIXES, read_toml
from gemm_model.core.regimes import REGIME_ALIASES, REGIME_NAMES, regime_name
from gemm_model.errors import InputError, MissingExtraError, extra_needed


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


def page_path(text: str) -> Path:
    """The name of a page that can be written, checked before the work."""
    from gemm_model.report.page.html import check_page

    check_page(Path(text))
    return Path(text)


KINDS = {"path": Path, "page": page_path, "whole": whole_number, "float": float, "regime": regime}
"""What `kind` reads a word as; text where it is left out."""
TOKENS = 2048
"""Tokens of a prompt and of a context where neither is given [tokens]; chosen: a usual request."""
ENDINGS = {
    "plot": (".png", ".svg", ".pdf"),
    "trace": (".json",),
    "csv": (".csv",),
    "table": (".csv", ".csv.gz"),
    "yaml": YAML_SUFFIXES,
}
"""What the name of a file `ends` in."""
_WORD = re.compile(r"\{([\w.]+)\}")


def check_endings(args: argparse.Namespace) -> None:
    """Raise InputError for a file of an option with `ends` whose name ends otherwise."""
    for option, suffixes in args.ends.items():
        path = getattr(args, option.removeprefix("--"))
        if path is not None:
            check_suffix(option, path, suffixes)


def check_suffix(option: str, path: Path, suffixes: tuple[str, ...]) -> None:
    """Raise InputError unless a file's ending is a known format; devices and pipes need no ending.

    Raises MissingExtraError for a plot without matplotlib.
    """
    if suffixes is ENDINGS["plot"] and find_spec("matplotlib") is None:
        raise MissingExtraError(extra_needed(option, "matplotlib", "plot"))
    if path.name.endswith(suffixes) or (path.exists() and not path.is_file()):
        return
    endings = " or ".join(suffixes) if len(suffixes) < 3 else f"one of {', '.join(suffixes)}"
    raise InputError(f"{option} {path}: expected a name that ends in {endings}")


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


def add_verb(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the options that `config/commands/{verb}.toml` declares, then those of the sets that it `uses`.

    What a verb declares of an option of such a set goes before what the set says. `defaults` are values without
    an option, `about` stands behind the summary.
    """
    own = read_toml(f"commands/{verb}")
    sets = [read_toml(f"commands/{name}") for name in own.get("uses", ())]
    found: dict[str, dict[str, Any]] = {}
    for declared in (own, *sets):
        for option, settings in declared.items():
            if isinstance(settings, Mapping):
                found[option] = {**settings, **found.get(option, {})}
    parser.set_defaults(**{name: _filled(value, {}) for name, value in found.pop("defaults", {}).items()})
    ends = {option: ENDINGS[settings["ends"]] for option, settings in found.items() if "ends" in settings}
    parser.set_defaults(ends=ends)
    parser.description = "\n\n".join(filter(None, (parser.description, own.get("about")))) or None
    for option, settings in found.items():
        if all(isinstance(each, Mapping) for each in settings.values()):
            group = parser.add_argument_group(option)
            for inner, of_inner in settings.items():
                _add(group, inner, of_inner)
        else:
            _add(parser, option, settings)


def _add(parser: argparse._ActionsContainer, option: str, declared: Mapping[str, Any]) -> None:
    """Add one option: argparse's own settings, and `or` (another name), `earlier` (one that help leaves out),
    `kind`, `ends`, `least`, `most`, `hidden`, and `words` of its texts.
    """
    words = declared.get("words", {})
    settings = {key: _filled(value, words) for key, value in declared.items() if key not in ("words", "ends")}
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
    earlier = settings.pop("earlier", None)
    action = parser.add_argument(*names, **settings)
    if earlier is not None:
        parser.add_argument(earlier, dest=action.dest, type=settings["type"], help=argparse.SUPPRESS)


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    """A setting with what its `{word}` stand for: one of `words`, or a name of the package by its path.

    A value that is such a word alone is the value itself; within a text its names are listed.
    """
    if not isinstance(value, str):
        return value
    if (whole := _WORD.fullmatch(value)) and whole[1] not in words:
        return _named(whole[1])
    while found := _WORD.search(value):
        known = words.get(found[1]) or _named(found[1])
        text = ", ".join(known) if isinstance(known, Iterable) and not isinstance(known, str) else str(known)
        value = value[: found.start()] + text + value[found.end() :]
    return value


def _named(path: str) -> Any:
    """What a module of the package calls so, or what the function of that name returns."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(f"gemm_model.{module}"), name)
    return found() if callable(found) else found
