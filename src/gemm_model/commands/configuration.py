"""`--cfg` of every verb that reads the configuration: each value with its source."""

from __future__ import annotations

import argparse
from typing import Any

from gemm_model.commands import common
from gemm_model.core.settings import Settings
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    """GPU, model and options as the verb would use them."""
    chosen = common.settings(args)
    rows = [
        {"key": key, "value": _shown(_value_of(chosen, key)), "source": source}
        for key, source in sorted(chosen.sources.items())
        if key.partition(".")[0] in args.parts and not key.startswith("gpu.sources")
    ]
    return common.document(chosen, rows=rows)


def _value_of(chosen: Settings, key: str) -> Any:
    part, *names = key.split(".")
    value: Any = {"gpu": chosen.gpu, "model": chosen.model, "model_opts": chosen.options}[part]
    for name in names:
        inner: int | str = int(name) if name.isdecimal() else name
        value = value.get(inner) if hasattr(value, "get") else getattr(value, name)
    return value


def _shown(value: Any) -> str:
    return str(dict(value)) if hasattr(value, "items") else str(value)
