"""Errors that end a command, each with its exit code."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager


class GemmModelError(Exception):
    """Base of this package's errors: one clear sentence for the user, no traceback."""

    exit_code = 1


class InputError(GemmModelError):
    """Unusable input. The message says which file, row and column, and what was expected."""

    exit_code = 2


def require_one_of(found: str, value: object, known: Collection[object]) -> None:
    """Raise an InputError that says what was found, unless `value` is a known one."""
    if value not in known:
        raise InputError(f"{found}; expected one of {', '.join(map(str, known))}")


class RefusedKernelError(InputError):
    """Kernels that cannot run: their rows in the batch, and the reason of the first."""

    def __init__(self, rows: Sequence[int], reason: str) -> None:
        super().__init__(reason)
        self.rows = rows
        self.reason = reason

    def at(self, places: Sequence[int]) -> RefusedKernelError:
        """The same of a larger batch, in which this one's rows have these places."""
        return RefusedKernelError([places[row] for row in self.rows], self.reason)


def refuse_all(found: Sequence[RefusedKernelError]) -> None:
    """Raise one error for the rows of all these, with the reason of the first row; none for none."""
    if found:
        rows = sorted(row for each in found for row in each.rows)
        raise RefusedKernelError(rows, min(found, key=lambda each: each.rows[0]).reason)


class MissingExtraError(GemmModelError):
    """A GPU or an optional package is needed and is not there."""

    exit_code = 3


def extra_needed(what: str, package: str, extra: str) -> str:
    """The sentence that says how to install what an option needs."""
    return f"{what} needs {package}; install it with: pip install 'gemm-model[{extra}]'"


@contextmanager
def importing(needs: str) -> Iterator[None]:
    """Raise MissingExtraError with the sentence `needs` where a package is not there; `{name}` is its name."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(needs.replace("{name}", repr(error.name))) from error


class PartialResultError(GemmModelError):
    """The work ended early (time-out, interruption); what was found so far has been reported."""

    exit_code = 4
