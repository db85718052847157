"""Reference pages of the documentation, made from the code: commands, Python names, configuration, numbers.

A hook of MkDocs (`mkdocs.yml`): the pages exist only while the site is built.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gemm_model
from gemm_model.bench.device import TimingSettings
from gemm_model.cli import VERBS
from gemm_model.commands.options import add_verb
from gemm_model.config.mechanisms import KERNEL, MECHANISMS
from gemm_model.core.gpu import QUANTITIES, GpuSpec
from gemm_model.kernel_model.calibration_file import load_calibration, silicon_entries
from gemm_model.pipeline.machine import PipelineMachine

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

UNITS = {
    "mac_per_us": "MAC/us",
    "bytes_per_us": "bytes/us",
    "elements_per_us": "1/us",
    "_us": "us",
    "_ms": "ms",
    "_s": "s",
    "_share": "1",
    "_mb": "MB",
    "_bytes": "bytes",
    "_mhz": "MHz",
}
"""Unit by the end of a key's name; the numbers of a GPU tell theirs (`QUANTITIES`)."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those of the folder."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def pages() -> dict[str, str]:
    """The generated pages by name."""
    return {"commands": commands(), "api": api(), "configuration": configuration(), "numbers": numbers()}


def commands() -> str:
    """Every verb with its options, from its own parser."""
    os.environ["COLUMNS"] = "100"
    lines = ["# Commands", "", "`gemm-model VERB --help` prints the same.", ""]
    lines += [
        "Exit codes: 0 fine, 1 a threshold missed, 2 bad input, 3 a GPU or an extra is missing, "
        "4 a partial result.",
        "",
    ]
    for verb, of_verb in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"gemm-model {verb}", add_help=False)
        add_verb(parser, verb)
        lines += [
            f"## {verb}",
            "",
            of_verb["summary"][0].upper() + of_verb["summary"][1:] + ".",
            "",
            "```text",
            parser.format_usage().rstrip(),
            "```",
            "",
        ]
        lines += ["| option | meaning |", "|---|---|"]
        lines += [f"| {_option(action)} | {_cell(_help(action))} |" for action in parser._actions]
        lines.append("")
    return "\n".join(lines)


def _option(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    choices = f" ({', '.join(map(str, action.choices))})" if action.choices else ""
    return _cell(names + choices)


def _help(action: argparse.Action) -> str:
    values = {**vars(action), "prog": "gemm-model"}
    return (action.help or "") % values + (" (required)" if action.required else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def api() -> str:
    """The package's public names: functions, then types."""
    lines = ["# Python", "", "`from gemm_model import ...`", ""]
    for name in sorted(gemm_model.__all__, key=lambda each: (each[0].isupper(), each)):
        found = getattr(gemm_model, name)
        # A submodule of the same name may stand before a function, and a function have another name at home.
        module = isinstance(found, ModuleType)
        at_home = (f"gemm_model.{name}", name) if module else (found.__module__, found.__name__)
        lines += [f"::: {'.'.join(at_home)}", ""]
    return "\n".join(lines)


def configuration() -> str:
    """The keys of GPU files, pipeline machines and timing with their units, and the options of each model."""
    lines = [
        "# Configuration",
        "",
        "Any `key=value` word of a command changes a key: `gpu.sm_clk_mhz=1500`, `model_opts.l2=warm`.",
        "",
    ]
    for title, kind in (
        ("A GPU (`gpu.*`, `--gpu FILE`)", GpuSpec),
        ("A pipeline machine (`--machine FILE`)", PipelineMachine),
        ("Timing (`timing.*`)", TimingSettings),
    ):
        lines += [f"## {title}", "", "| key | unit | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {unit_of(name)} | {_cell(default)} | {_cell(meaning)} |"
            for name, default, meaning in documented_fields(kind)
        ]
        lines.append("")
    lines += ["## Options of the models (`model_opts.*`)", ""]
    for path in sorted(files("gemm_model.config").joinpath("model").iterdir(), key=lambda each: each.name):
        text = path.read_text(encoding="utf-8").replace("# @package _global_\n", "").rstrip()
        lines += [f"### {path.name.removesuffix('.yaml')}", "", "```yaml", text, "```", ""]
    return "\n".join(lines)


def numbers(calibration: str = "h200:quack") -> str:
    """Every mechanism of the calibrated model with its numbers, as a calibration has them."""
    known = load_calibration(calibration)
    values = {kind: found.values() for kind, found in known.numbers.items()}
    total = sum(len(mechanism.numbers) for mechanism in MECHANISMS)
    lines = [
        "# Mechanisms and their numbers",
        "",
        f"The {len(MECHANISMS)} mechanisms of the [calibrated model](../model.md) and their {total} numbers, "
        f"with the values of the calibration `{calibration}` for each rate class of operand types. `without` "
        "takes a mechanism's name and gives its numbers their neutral values, which switch it off. Numbers of "
        "the *card* are the same for all families. A fitted number has a 90 % half-width; *measured* is what "
        "direct measurements leave to the fit.",
        "",
    ]
    card = silicon_entries(known.silicon, calibration)
    page = (Path(__file__).parents[1] / "docs" / "evidence" / "ablation.md").read_text()
    without = dict(re.findall(r"\n\| (\w+) \| (\S+)", page))
    for mechanism in MECHANISMS:
        off = without.get(mechanism.name, "not judged")
        meaning = f"{' '.join(mechanism.meaning.split())} Error [without it](../evidence/ablation.md): {off}."
        lines += [f"## {mechanism.name}", "", meaning, ""]
        columns = ["number", "unit", "meaning", "of", *values, "90 %", "measured", "neutral", "source"]
        lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for number in mechanism.numbers:
            owner = "kernel" if number.of == KERNEL else "card"
            widths = {each.get(number.name, 0.0) for each in known.intervals.values()} - {0.0}
            width = ", ".join(f"{each:.2g}" for each in sorted(widths))
            measured = " to ".join(f"{each:g}" for each in card.get(number.name, {}).get("measured", ()))
            of_kinds = [f"{each[number.name]:.4g}" for each in values.values()]
            neutral = "" if number.neutral is None else f"{number.neutral:g}"
            name = f"`{number.name.removeprefix(mechanism.name + '.')}`"
            source = known.sources.get(number.name, number.source)
            cells = [name, number.unit, number.meaning, owner, *of_kinds, width, measured, neutral, source]
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines.append("")
    return "\n".join(lines)


def unit_of(key: str) -> str:
    """The unit of a key: that of the GPU's quantity, or what its name ends in; empty where there is none."""
    if key in QUANTITIES:
        return QUANTITIES[key].unit
    return next((unit for end, unit in UNITS.items() if key.endswith(end)), "")


def documented_fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and docstring of each field of a dataclass, as its source has them."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            has_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            meaning = str(following.value.value) if has_text else ""  # type: ignore[union-attr]
            default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
            yield node.target.id, default, meaning
