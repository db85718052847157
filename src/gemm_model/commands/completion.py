"""`gemm-model completion`: a script that completes the command's words in a shell."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.report.document import Document


def run(args: argparse.Namespace) -> Document:
    import shtab

    common.no_overrides(args)
    script = shtab.complete(args.whole_parser(), args.shell)
    return Document(result={"shell": args.shell, "script": script}, text=lambda: script)
