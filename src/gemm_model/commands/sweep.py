"""One question for many values of a number (`--sweep 'm=1..8192 by 2x'`): a table and a plot."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.commands import common
from gemm_model.commands.common import but
from gemm_model.commands.compare import Asked, cards_asked, caveats
from gemm_model.core.attention import SIZES
from gemm_model.core.conv import WORDS
from gemm_model.errors import InputError
from gemm_model.report.document import Document, text_table

OPTIONS = ("sweep", "plot")
EXPECTED = "expected such as 'm=1..8192 by 2x' or 'k=64..4096 by 64'"
SWEPT = ("m", "n", "k", "batch", "stages", "swizzle", "split_k", "sms", "experts", "tokens", "top_k")
"""Options that hold one number; any key of the configuration, such as gpu.sm_clk_mhz, is swept as well."""
MOST_VALUES = 1000
MOST_NOTES = 5
BAR = 30
"""Characters of the most TFLOP/s [1]; texts; chosen."""
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_SWEEP = re.compile(rf"\s*([A-Za-z_][\w.]*)\s*=\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s+by\s+{_NUMBER}\s*(x?)\s*")


def asked(args: argparse.Namespace) -> bool:
    """Whether the command sweeps. Raises InputError for a plot of nothing."""
    if args.sweep is None:
        common.refuse_given(args, ("plot",), "without --sweep")
        return False
    common.check_outputs(args.output, args.plot)
    return True


def values_of(text: str) -> tuple[str, list[float]]:
    """The name and the values of 'NAME=FIRST..LAST by STEP' or 'by FACTORx'; none lies above LAST.

    Raises InputError for other words, a step that never ends, and more than MOST_VALUES values.
    """
    found = _SWEEP.fullmatch(text)
    if found is None:
        raise InputError(f"--sweep is {text[:60]!r}; {EXPECTED}")
    first, last, step = map(float, found.group(2, 3, 4))
    factor = found[5] == "x"
    if last < first or step <= factor or (factor and first == 0.0):
        why = (
            "a last value of at least the first, and a step above 0 or from a first above 0 a factor above 1"
        )
        raise InputError(f"--sweep is {text.strip()!r}; expected {why}")
    # A last value that rounding puts just above the end belongs to it.
    steps = (np.log(last / first) / np.log(step) if factor else (last - first) / step) + 1e-9
    if (count := int(steps) + 1) > MOST_VALUES:
        raise InputError(f"--sweep is {text.strip()!r}: {count} values; expected at most {MOST_VALUES}")
    places = np.arange(count)
    return found[1], (first * step**places if factor else first + step * places).tolist()


def sweep(args: argparse.Namespace, answer: Asked) -> Document:
    """The answer for each value, and on each card of --gpu; what cannot run is noted."""
    name, values = values_of(args.sweep)
    cards = cards_asked(args) or [args.gpu]
    if "." not in name:
        values = list(dict.fromkeys(map(round, values)))
    common.refuse_given(args, ("html", name), "with --sweep")
    if any(word.lstrip("+").startswith(f"{name}=") for word in args.overrides):
        raise InputError(f"--sweep {name} comes with {name}=; expected one of them")
    found, reasons = [], []
    with common.progress("sweeping", len(values) * len(cards)) as advance:
        for card in cards:
            for value in values:
                try:
                    found.append((card, value, answer(_at(args, name, value, card))))
                except InputError as error:
                    reasons.append((value, error))
                advance(1)
    if not found:
        raise reasons[0][1]
    called = f"swept_{name}" if args.conv is not None and name in WORDS else name
    rows = [
        ({"gpu": card} if len(cards) > 1 else {}) | {called: value, **each.row} for card, value, each in found
    ]
    left_out = [f"left out: {name}={value}: {error}" for value, error in reasons[:MOST_NOTES]]
    left_out += [f"left out: {len(reasons)} values in all"] if len(reasons) > MOST_NOTES else []
    return Document(
        gpu=None if len(cards) > 1 else common.settings(args).gpu.name,
        model=common.settings(but(args, gpu=cards[0])).model,
        result={"sweep": name, "values": len(values)},
        rows=[{**each.columns, **row} for row, (_, _, each) in zip(rows, found, strict=True)],
        notes=[*left_out, *caveats(each for _, _, each in found)],
        text=lambda: _text(rows),
        files=[(args.plot, lambda path: _plot(rows, called, path))],
    )


def _plot(rows: list[dict[str, Any]], name: str, path: Path) -> None:
    from gemm_model.report.plots import swept

    swept(rows, name, path)


def _at(args: argparse.Namespace, name: str, value: float, card: str | None) -> argparse.Namespace:
    """The options with one value of what is swept."""
    if "." in name:
        return but(args, gpu=card, overrides=[*args.overrides, f"{name}={value:.12g}"])
    option = "conv" if args.conv is not None and name in WORDS else ""
    if args.attention is not None and name != "sms":
        option = "attention" if name in SIZES or name == "window" else "attention_config"
    if (words := getattr(args, option, None)) is not None:
        kept = [word for word in re.split(r"[\s,]+", words) if not word.startswith(f"{name}=")]
        return but(args, gpu=card, **{option: " ".join((*kept, f"{name}={value:.0f}"))})
    if name not in SWEPT or not hasattr(args, name):
        known = ", ".join(each for each in SWEPT if hasattr(args, each))
        raise InputError(
            f"--sweep is over {name!r}; expected one of {known}, or a key such as gpu.sm_clk_mhz"
        )
    return but(args, gpu=card, given=args.given | {name}, **{name: int(value)})


def _text(rows: list[dict[str, Any]]) -> str:
    most = max(row["tflops"] or 0.0 for row in rows) or 1.0
    return text_table([{**row, "": "#" * round(BAR * (row["tflops"] or 0.0) / most)} for row in rows])
