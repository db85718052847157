"""The command `gemm-model`: finds the verb's module, runs it, and turns errors into exit codes.

Exit codes: 0 fine, 1 a threshold missed, 2 bad input, 3 a GPU or an extra is missing, 4 a partial result.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from gemm_model import __version__
from gemm_model.core.errors import GemmModelError, InputError

VERBS = {
    "predict": "predict runtimes of a table of kernels, or of one kernel, and explain them",
    "explain": "say why one kernel takes its time, and what would change it",
    "benchmark": "measure real kernels on this machine's GPU, and keep every row",
    "characterize": "measure a GPU's own numbers and write its description",
    "calibrate": "fit the kernel model's parameters to measured tables",
    "rank": "choose a kernel configuration for a problem, or for a table of problems, by prediction",
    "portfolio": "choose the few kernels that together serve a list of shapes best",
    "torch": "predict the GEMMs of a PyTorch model, module by module, without running it",
    "cutlass-profiler": "write test lists for the CUTLASS profiler, and read its results as measurements",
    "simulate": "simulate one SM's producer/consumer pipeline by events: trace for Perfetto, table, plot",
    "solve": "find the tile and ring buffer that run fastest, by exact search or by a proof with Z3",
    "estimate": "estimate a pipeline machine's rates and latencies from measured kernels",
    "overlap": "predict and tune chains of norms and GEMMs under programmatic dependent launch",
    "hierarchy": "match the throughput of every memory level to what the datapath demands",
}

_OVERRIDE = re.compile(r"(\+\+|\+|~)?[A-Za-z_][\w.]*=")


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The `key=value` words of a command line, and the rest of it."""
    overrides = [word for word in words if _OVERRIDE.match(word)]
    return overrides, [word for word in words if not _OVERRIDE.match(word)]


class OneSentenceParser(argparse.ArgumentParser):
    """argparse that reports a bad argument in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = OneSentenceParser(
        prog="gemm-model",
        description="How fast a GPU matrix multiplication will run, and why, without running it.",
    )
    parser.add_argument("--version", action="version", version=f"gemm-model {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    named = next((word for word in argv if not word.startswith("-")), None)
    for verb, summary in VERBS.items():
        child = verbs.add_parser(verb, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if verb == named:
            # Only the verb that runs is imported: the others may need packages that are not installed.
            module = import_module(f"gemm_model.commands.{verb.replace('-', '_')}")
            module.add_arguments(child)
            child.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_and_report(lambda: run_command(words))


def run_command(words: Sequence[str]) -> int:
    """Run the command, also one made of others; returns the exit code. Raises GemmModelError."""
    overrides, rest = split_overrides(words)
    args = _parser(rest).parse_args(rest)
    args.overrides = overrides
    result: int = args.run(args)
    return result


def run_and_report(work: Callable[[], int]) -> int:
    """Run `work` and turn this package's errors into one sentence on stderr and their exit code."""
    try:
        result = work()
        sys.stdout.flush()
        return result
    except GemmModelError as error:
        print(f"gemm-model: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout went away (`gemm-model ... | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("gemm-model: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
