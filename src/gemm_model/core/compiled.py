"""Traced formulas as machine code, made by the C compiler that the environment names.

They are the operations that `straight` writes in Python, on the same numbers. Without that variable, or where the
compiler fails, formulas run in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.core.files import atomic_path
from gemm_model.core.straight import Symbol, Texts, Trace, needed_by, symbols_inside, trace_of
from gemm_model.errors import InputError

COMPILER = "GEMM_MODEL_CC"
"""Environment variable: the compiler that makes formulas faster, such as `cc`."""
FLAGS = "-O3 -march=native -fPIC -shared -fopenmp-simd -ffp-contract=off -fno-math-errno -fno-trapping-math"
"""For this processor; no operation is merged with another, so that a number gets what Python gives it."""
OPERATIONS = Path(__file__).with_suffix(".h").read_text()
"""In C, by numpy's names."""
RESULTS = dict.fromkeys(
    ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_not"], "({} != 0.0)"
) | {"int": "np_int64({})", "bitwise_and": "({} != 0.0)", "bitwise_or": "({} != 0.0)"}
"""What a result that is no real number stands for: formulas combine conditions alone bit by bit."""
SIZES = "1", "kernels", "orders", "orders*kernels"
"""How many numbers a value is, by its axes."""
INDICES = "0", "kernel", "order", "order*kernels + kernel"
"""Which of them is computed."""
FOR_KERNELS = "#pragma omp simd\nfor (long kernel = 0; kernel < kernels; kernel++) {"
FOR_ORDERS = "for (long order = 0; order < orders; order++) {"


def compiled(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """What `straight` returns, as machine code; None without a compiler."""
    if not os.environ.get(COMPILER):
        return None
    trace, results = trace_of(function, inputs)
    parts, calls, given = [], [], list(trace.inputs)
    for call in [symbol for symbol in trace.block if symbol.name == "call"]:
        parts.append(_Part(trace, list(given), call.arguments[1:]))
        calls.append(call.arguments[0])
        given += [trace.made("item", call, place) for place in (0, 1)]
    parts.append(_Part(trace, given, results))
    library = machine_code("\n".join([OPERATIONS, *(part.source() for part in parts)]))
    if library is None:
        return None
    *before, last = [part.function(library) for part in parts]

    def made(*values: Any) -> Any:
        for asked, call in zip(before, calls, strict=True):
            values += tuple(call(*asked(values)))
        return last(values)

    return made


def machine_code(source: str) -> ctypes.CDLL | None:
    """The library of a source in C; None without a compiler, or if it makes none."""
    compiler = os.environ.get(COMPILER)
    return _library(source, compiler) if compiler else None


@cache
def _library(source: str, compiler: str) -> ctypes.CDLL | None:
    """The source as a library, which is kept for other processes; None if it cannot be made."""
    name = hashlib.sha256(f"{platform.node()} {compiler} {FLAGS}\n{source}".encode()).hexdigest()[:32]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-model" / "compiled"
    path = folder / f"{name}.so"
    try:
        if not path.exists():
            with atomic_path(path) as made:
                command = [compiler, *FLAGS.split(), "-x", "c", "-o", str(made), "-", "-lm"]
                subprocess.run(command, input=source, text=True, check=True, capture_output=True)
        return ctypes.CDLL(str(path))
    except (InputError, OSError, subprocess.CalledProcessError) as error:
        warnings.warn(
            f"{COMPILER}={compiler} makes no library, so formulas run in Python: {error}", stacklevel=2
        )
        return None


class _Part(Texts):
    """The operations of a trace between calls of Python: what some values come to, of others."""

    def __init__(self, trace: Trace, given: Sequence[Symbol], wanted: Any) -> None:
        super().__init__()
        self.trace, self.given, self.wanted = trace, given, wanted
        self.name = f"part{len(given)}"
        self.needed = needed_by(wanted, given)
        self.order = sorted(range(len(given)), key=lambda place: given[place].axes)
        """In which the given values are read: numbers first."""
        self.out = self._computed(wanted)
        readers = [each.arguments for each in self.needed.values() if each.axes == 3]
        self.kept = [each for each in self._computed(readers) if each.axes == 1]
        """Values of a kernel that its tile orders share."""

    def _computed(self, values: Any) -> list[Symbol]:
        """Those among values that this part computes, each once, those along fewer axes first."""
        found = {id(each): each for each in symbols_inside(values) if id(each) in self.needed}
        return sorted(found.values(), key=lambda each: each.axes)

    def source(self) -> str:
        """A function in C. Loops over kernels are innermost, since these lie side by side."""
        self.texts = _places("in", [self.given[place] for place in self.order])
        kept, out = _places("kept", self.kept), _places("out", self.out)
        lines = [*self._level(0, out), FOR_KERNELS, *self._level(1, out, kept), "}"]
        self.texts |= kept
        lines += [FOR_ORDERS, *self._level(2, out), FOR_KERNELS, *self._level(3, out), "}}}"]
        head = f"void {self.name}(const double *restrict in, double *restrict out, double *restrict kept,"
        return "\n".join([*self.scope.values(), f"{head} const long kernels, const long orders) {{", *lines])

    def _level(self, axes: int, *stored: Mapping[int, str]) -> Iterator[str]:
        """What is computed of values along some axes, and stored at places."""
        for symbol in self.trace.block:
            if id(symbol) in self.needed and symbol.axes == axes:
                yield from self._lines(symbol)
        for number, place in chain(*(places.items() for places in stored)):
            if self.needed[number].axes == axes:
                yield f"{place} = {self.texts[number]};"

    def _lines(self, symbol: Symbol) -> Iterator[str]:
        if symbol.name == "loop":
            yield from self._loop(*symbol.arguments)
        else:
            name = self.texts[id(symbol)] = f"t{len(self.texts)}"
            yield f"const double {name} = np_{symbol.name}({', '.join(map(self.of, symbol.arguments))});"

    def _loop(self, body: Any, steps: int, states: Any, state: Any, after: Any, done: Any) -> Iterator[str]:
        """All steps of a loop; a kernel that is done keeps its state."""
        names = [f"s{len(self.texts)}_{place}" for place in range(len(states))]
        on = f"on{len(self.texts)}"
        yield f"double {', '.join(map('{} = {}'.format, names, map(self.of, state)))}, {on} = 1.0;"
        self.texts |= {id(each): name for each, name in zip(states, names, strict=True)}
        one = ["{", *(line for each in body if id(each) in self.needed for line in self._lines(each))]
        one.append(f"{on} = {self.of(done)} ? 0.0 : {on};")
        one += [
            f"const double n{name} = {on} ? {self.of(each)} : {name};"
            for name, each in zip(names, after, strict=True)
        ]
        # Written out, since a loop within stops the compiler from taking several kernels at once.
        yield from [*one, *(f"{name} = n{name};" for name in names), "}"] * steps

    def bound(self, value: Any, name: str) -> str:
        """A table."""
        name = f"{self.name}_{name}"
        entries = ", ".join(map(repr, value.ravel().tolist()))
        self.scope[name] = f"static const double {name}[] = {{{entries}}};"
        return name

    def function(self, library: ctypes.CDLL) -> Callable[[Sequence[Any]], Any]:
        """Of the given values in order; returns the wanted ones, as numbers and columns like those given."""
        run, build, order, rows = library[self.name], self._built(), self.order, len(self.kept)
        run.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_long, ctypes.c_long]
        numbers = sum(not each.axes for each in self.given)
        counts = [sum(each.axes == axes for each in self.out) for axes in range(4)]
        along_kernels, along_orders = (
            next((place for place, each in enumerate(self.given) if each.axes & axis), None)
            for axis in (1, 2)
        )

        def of_numbers(values: Sequence[Any]) -> Any:
            found = (ctypes.c_double * counts[0])()
            run((ctypes.c_double * numbers)(*values), found, None, 1, 1)
            return build(values, found[:])

        def of_columns(values: Sequence[Any]) -> Any:
            kernels = 1 if along_kernels is None else values[along_kernels].shape[-1]
            orders = 1 if along_orders is None else len(values[along_orders])
            shapes = (), (kernels,), (orders, 1), (orders, kernels)
            read = [values[place] for place in order]
            pieces = [read[:numbers], *(each.ravel() for each in read[numbers:])]
            given = np.concatenate(pieces, dtype=np.float64, casting="unsafe")
            ends = list(accumulate(map(mul, counts, map(math.prod, shapes))))
            found, kept = np.empty(ends[-1]), np.empty(rows * kernels)
            run(given.ctypes.data, found.ctypes.data, kept.ctypes.data, kernels, orders)
            results: list[Any] = found[: ends[0]].tolist()
            for shape, begin, end in zip(shapes[1:], ends, ends[1:], strict=False):
                results.extend(found[begin:end].reshape(-1, *shape))
            return build(values, results)

        return of_columns if self.trace.axes else of_numbers

    def _built(self) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
        """The wanted values, of those given and those computed."""
        texts = Texts()
        texts.texts = {id(each): f"v[{place}]" for place, each in enumerate(self.given)}
        for place, each in enumerate(self.out):
            texts.texts[id(each)] = RESULTS.get(each.name, "{}").format(f"o[{place}]")
        texts.scope["np_int64"] = np.int64
        exec(f"def build(v, o):\n return {texts.of(self.wanted)}", texts.scope)
        build: Callable[[Sequence[Any], Sequence[Any]], Any] = texts.scope["build"]
        return build


def _places(name: str, symbols: Sequence[Symbol]) -> dict[int, str]:
    """Texts of values that lie one behind the other, by `id`."""
    found, before = {}, Counter[str]()
    for symbol in symbols:
        start = "".join(f"{count}*{size} + " for size, count in before.items())
        found[id(symbol)] = f"{name}[{start}{INDICES[symbol.axes]}]"
        before[SIZES[symbol.axes]] += 1
    return found
