"""`--cfg` of every verb that reads the configuration: each value with its source."""

from __future__ import annotations

import argparse
from typing import Any

from gemm_model.commands import common
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    """GPU, model and options as the verb would use them."""
    chosen = common.settings(args)
    rows = [
        {"key": key, "value": _shown(chosen.value(key)), "source": source}
        for key, source in sorted(chosen.sources.items())
        if key.partition(".")[0] in args.parts and not key.startswith("gpu.sources")
    ]
    return common.document(chosen, rows=rows)


def _shown(value: Any) -> str:
    return str(dict(value)) if hasattr(value, "items") else str(value)
