"""Errors of torch and of the libraries behind it, as the benchmark's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gemm_model.bench.provider import KernelError, OutOfMemoryError


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, of at most 200 characters."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


@contextmanager
def as_kernel_errors(*kinds: type[BaseException], wanted: type[KernelError] = KernelError) -> Iterator[None]:
    """Raise OutOfMemoryError where the card is full, and `wanted` for errors of these kinds."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemoryError(first_line(error)) from error
    except kinds as error:
        raise wanted(first_line(error)) from error
