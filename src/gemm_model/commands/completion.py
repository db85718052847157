"""`gemm-model completion`: a script that completes the command's words in a shell."""

from __future__ import annotations

import argparse
import sys

from gemm_model.commands import common

SHELLS = ("bash", "zsh", "tcsh")
EXAMPLES = ("bash > ~/.local/share/bash-completion/completions/gemm-model", "zsh > ~/.zfunc/_gemm-model")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")


def run(args: argparse.Namespace) -> int:
    import shtab

    common.no_overrides(args)
    sys.stdout.write(shtab.complete(args.whole_parser(), args.shell).rstrip("\n") + "\n")
    return 0
