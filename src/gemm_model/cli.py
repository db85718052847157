"""The command `gemm-model`: finds the verb's module, runs it, and turns errors into exit codes.

Exit codes: 0 fine, 1 a threshold missed, 2 bad input, 3 a GPU or an extra is missing, 4 a partial result,
128 + the signal's number where one ended the run.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from gemm_model.commands.options import add_verb, check_endings
from gemm_model.config import read_toml
from gemm_model.errors import GemmModelError, InputError

if TYPE_CHECKING:
    from gemm_model.report.document import Document

VERBS: dict[str, dict[str, Any]] = read_toml("verbs")
"""Summary and examples of each verb; a module of `commands` runs it."""

OVERRIDE = re.compile(r"(\+\+|\+|~)?[A-Za-z_][\w.]*=")
_LONG_WORD = re.compile(r"[\w.+-]{300,}")
_ENDING_SIGNALS = ("SIGTERM", "SIGHUP")
UNWRITABLE_STDOUT = 2


class Ended(BaseException):
    """A signal asked the run to end; files in flight are removed on the way out."""

    def __init__(self, number: int) -> None:
        self.number = number


class OneSentenceParser(argparse.ArgumentParser):
    """argparse that reports a bad argument in one sentence, shows defaults and records which options were
    given.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._defaults_apart: dict[str, Any] = {}

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print like argparse, but do not swallow an error such as a full disk."""
        if message:
            (file or sys.stderr).write(message)

    def keep_defaults_apart(self) -> None:
        """Call after all options are added: help then shows defaults, and `with_defaults` knows what was
        given.
        """
        for action in self._actions:
            if action.dest in ("help", "version", "verb") or action.default is argparse.SUPPRESS:
                continue
            # argparse holds the default of such an argument against its choices.
            if action.nargs == "?" and not action.option_strings:
                continue
            self._defaults_apart[action.dest] = action.default
            if _is_shown(action):
                nothing = action.default is None or action.default in ("", [])
                shown = "none" if nothing else "off" if action.default is False else action.default
                action.help = f"{action.help or ''} (default: {shown})".lstrip()
            action.default = argparse.SUPPRESS

    def apart(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The `key=value` words of a command line, and the rest of it; a word after an option is its value.

        A value that begins with a minus is joined to its option by an equals sign: argparse takes it for an
        option, unless it is a plain number, and reports a missing value.
        """
        options = {name: action for action in self._actions for name in action.option_strings}
        overrides: list[str] = []
        rest: list[str] = []
        for word in words:
            before = options.get(rest[-1]) if rest else None
            waits = before is not None and before.nargs is None
            if waits and word.startswith("-") and not word.startswith("--") and word not in options:
                rest[-1] += f"={word}"
            else:
                (overrides if OVERRIDE.match(word) and not waits else rest).append(word)
        return overrides, rest

    def with_defaults(self, args: argparse.Namespace) -> argparse.Namespace:
        """The parsed options with their defaults; `given` names those of the command line."""
        args.given = frozenset(name for name in self._defaults_apart if hasattr(args, name))
        for name, default in self._defaults_apart.items():
            if not hasattr(args, name):
                setattr(args, name, default)
        return args


def _is_shown(action: argparse.Action) -> bool:
    """Whether the help should add the default: that of an option, if the words do not tell it."""
    if action.help == argparse.SUPPRESS or "default" in (action.help or ""):
        return False
    return action.option_strings != [] and not action.required


def _run(verb: str, args: argparse.Namespace) -> Document | None:
    """Only the module of the verb that runs is imported: the others may need packages that are not installed."""
    check_endings(args)
    found: Document | None = import_module(f"gemm_model.commands.{verb.replace('-', '_')}").run(args)
    return found


def parser_of(verb: str | None) -> tuple[OneSentenceParser, OneSentenceParser | None]:
    """The command's parser with the options of one verb, or of all where it is None; and that verb's own."""
    parser = OneSentenceParser(
        prog="gemm-model",
        description="How fast a GPU matrix multiplication will run, and why, without running it.",
        epilog="Words key=value change the configuration, such as gpu.sm_clk_mhz=1500 (see --cfg of a verb).",
    )
    parser.add_argument(
        "--version", action="store_true", help="version, and fingerprints of data and calibrations"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    named = None
    # The other verbs' parsers would take longer than the one that was named.
    for name in [verb] if verb in VERBS else VERBS:
        of_verb = VERBS[name]
        summary = of_verb["summary"]
        child = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if verb in (name, None):
            add_verb(child, name)
            child.set_defaults(run=partial(_run, name))
            child.epilog = "\n".join(
                ["examples:", *(f"  gemm-model {name} {words}" for words in of_verb["examples"])]
            )
            child.keep_defaults_apart()
            named = child
    return parser, named if verb is not None else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    if argv is None:
        _prepare_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words if word in VERBS), None)
    name = "gemm-model" if verb is None else f"gemm-model {verb}"
    return run_and_report(name, lambda: run_command(words))


def run_command(words: Sequence[str]) -> int:
    """Run the command, also one made of others; returns the exit code. Raises GemmModelError."""
    if unreadable := next((word for word in words if "\0" in word), None):
        raise InputError(f"{unreadable!r}: a NUL character; expected text")
    named = next((word for word in words if not word.startswith("-") and not OVERRIDE.match(word)), "")
    parser, child = parser_of(named)
    overrides, rest = (child or parser).apart(words)
    for action in child._actions if child is not None and "--cfg" in rest else ():
        action.required = False  # it needs no input
    args = parser.parse_args(rest)
    if args.version:
        from gemm_model.report.fingerprints import version_text

        print(version_text())
        return 0
    if child is None:
        raise InputError(f"no verb given; expected one of {', '.join(VERBS)} (see gemm-model --help)")
    args = child.with_defaults(args)
    args.overrides = overrides
    args.run_words, args.whole_parser = run_command, lambda: parser_of(None)[0]
    if getattr(args, "cfg", False):
        from gemm_model.commands.configuration import run

        args.run = run
    answer = args.run(args)
    if answer is not None:
        from gemm_model.commands.common import show

        show(args, answer)
    return 0


def run_and_report(name: str, work: Callable[[], int]) -> int:
    """Run `work` and turn this package's errors into one sentence on stderr and their exit code.

    `name` begins the sentence.
    """
    try:
        with _ended_by_signals():
            try:
                result = work()
            except SystemExit as stop:  # argparse's, after --help
                result = int(stop.code or 0)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
    except GemmModelError as error:
        return _fail(f"{name}: {error}", error.exit_code)
    except BrokenPipeError:
        # The reader of stdout went away (`gemm-model ... | head`): nothing is left to say.
        _drop_stdout()
        return 0
    except OSError as error:
        _drop_stdout()
        place = "stdout" if error.filename is None else error.filename
        return _fail(f"{name}: {place}: cannot be read or written ({error.strerror})", UNWRITABLE_STDOUT)
    except KeyboardInterrupt:
        return _fail(f"{name}: interrupted", 128 + signal.SIGINT)
    except Ended as end:
        return _fail(f"{name}: ended by signal {end.number}", 128 + end.number)


def _prepare_streams() -> None:
    """A closed stdout or stderr takes what is written; what a terminal's encoding lacks is spelled out."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(sentence: str, exit_code: int) -> int:
    # A text from a file or the command line may hold anything: half a character, thousands of digits.
    shortened = _LONG_WORD.sub(lambda word: f"{word[0][:40]}... ({len(word[0])} characters)", sentence)
    print(shortened.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    return exit_code


def _drop_stdout() -> None:
    """What stdout still holds goes nowhere: Python would fail once more to write it at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets signals that end the process unwind it, so that temporary files go; in the main thread alone."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise Ended(number)

    numbers = [getattr(signal, name) for name in _ENDING_SIGNALS if hasattr(signal, name)]
    try:
        before = {number: signal.signal(number, end) for number in numbers}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
