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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.core.errors import InputError
from gemm_model.core.files import atomic_path
from gemm_model.core.straight import TEMPLATES, Symbol, Texts, Trace, needed_by, symbols_inside, trace_of

COMPILER = "GEMM_MODEL_CC"
"""Environment variable: the compiler that makes formulas faster, such as `cc`."""
FLAGS = "-O3 -march=native -fPIC -shared -fopenmp-simd -ffp-contract=off -fno-math-errno -fno-trapping-math"
"""For this processor; no operation is merged with another, so that a number gets what Python gives it."""
HEAD = """#include <math.h>
#if defined __x86_64__ && defined __GLIBC__ && !defined __clang__
__attribute__((__simd__("notinbranch"))) double pow(double, double);
__attribute__((__simd__("notinbranch"))) double exp(double);
#endif"""
"""Of several numbers at once, where the C library has such functions."""
EXPRESSIONS = TEMPLATES | {
    "power": "pow({}, {})",
    "bitwise_and": "(double)((long)({}) & (long)({}))",
    "bitwise_or": "(double)((long)({}) | (long)({}))",
    "logical_not": "(!{})",
    "maximum": "({0} >= {1} ? {0} : {1})",
    "minimum": "({0} <= {1} ? {0} : {1})",
    "where": "({} ? {} : {})",
    "floor": "floor({})",
    "ceil": "ceil({})",
    "int": "trunc({})",
    "float": "{}",
    "take": "{}[(long)({})]",
}
"""Operations, by numpy's names, on doubles: conditions are 0 and 1."""
TRUTHS = frozenset(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_not"])
"""Operations whose results are conditions."""
KEPT = frozenset(["add", "subtract", "multiply", "negative", "bitwise_and", "bitwise_or", "where"])
"""Operations whose results are of the kind of their operands."""
KINDS = {
    "number": ("{}", "{}"),
    "condition": ("({} != 0.0)", "({} != 0.0)"),
    "place": ("int({})", "{}.astype(np_int64)"),
}
"""What a double stands for: the text that makes it of a number and of a column."""
INDICES = "i", "i*kernels + kernel", "i*orders + order", "(i*orders + order)*kernels + kernel"
"""Where the i-th value of some axes lies among those, by axes."""
FOR_KERNELS = "#pragma omp simd\nfor (long kernel = 0; kernel < kernels; kernel++) {"


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
    library = machine_code("\n".join([HEAD, *(part.source() for part in parts)]))
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


class _Part:
    """The operations of a trace between calls of Python: what some values come to, of others."""

    def __init__(self, trace: Trace, given: Sequence[Symbol], wanted: Any) -> None:
        self.trace, self.wanted = trace, wanted
        self.name = f"part{len(given)}"
        self.given = [[each for each in given if each.axes == axes] for axes in range(4)]
        """By axes."""
        self.places = [[place for place, each in enumerate(given) if each.axes == axes] for axes in range(4)]
        self.needed = needed_by(wanted, given)
        found = {id(each): each for each in symbols_inside(wanted) if id(each) in self.needed}
        self.out = [[each for each in found.values() if each.axes == axes] for axes in range(4)]
        self.texts: dict[int, str] = {}
        self.tables: dict[int, str] = {}
        """Definitions of tables that operations read."""

    def source(self) -> str:
        """A function in C of the given values, one kind of axes after another, that writes the wanted ones.

        Loops over kernels are innermost, since these lie side by side; `kept` has a column for each value of a
        kernel that its tile orders share.
        """
        lines = []
        for name, const, symbols in (("in", "const ", self.given), ("out", "", self.out)):
            for axes, size in enumerate(("1", "kernels", "orders")):
                before = f"{name}{axes}" if axes else name
                lines.append(
                    f"{const}double *restrict {name}{axes + 1} = {before} + {len(symbols[axes])}*{size};"
                )
        shared = [each for each in self._reads(3) if each.axes == 1 and id(each) in self.needed]
        lines += [*self._level(0), FOR_KERNELS, *self._level(1)]
        places = [f"kept[{place}*kernels + kernel]" for place in range(len(shared))]
        lines += [f"{place} = {self._text(each)};" for place, each in zip(places, shared, strict=True)]
        lines += ["}", "for (long order = 0; order < orders; order++) {", *self._level(2), FOR_KERNELS]
        lines += [
            f"const double {self._text(each)} = {place};" for place, each in zip(places, shared, strict=True)
        ]
        lines += [*self._inputs(1), *self._level(3), "}}}"]
        self.shared = len(shared)
        head = f"void {self.name}(const double *restrict in, double *restrict out, double *restrict kept,"
        return "\n".join([*self.tables.values(), f"{head} const long kernels, const long orders) {{", *lines])

    def _reads(self, axes: int) -> Iterable[Symbol]:
        """What operations along some axes read, each once."""
        users = [each for each in self.needed.values() if each.axes == axes]
        return {id(each): each for user in users for each in symbols_inside(user.arguments)}.values()

    def _inputs(self, axes: int) -> Iterator[str]:
        for place, symbol in enumerate(self.given[axes]):
            yield self._named(symbol, f"in{axes or ''}[{_index(axes, place)}]")

    def _level(self, axes: int) -> Iterator[str]:
        """What is computed of values along some axes."""
        yield from self._inputs(axes)
        for symbol in self.trace.block:
            if id(symbol) in self.needed and symbol.axes == axes:
                yield from self._lines(symbol)
        for place, symbol in enumerate(self.out[axes]):
            yield f"out{axes or ''}[{_index(axes, place)}] = {self._text(symbol)};"

    def _named(self, symbol: Symbol, text: str) -> str:
        self.texts.setdefault(id(symbol), f"t{len(self.texts)}")
        return f"const double {self.texts[id(symbol)]} = {text};"

    def _lines(self, symbol: Symbol) -> Iterator[str]:
        if symbol.name == "loop":
            yield from self._loop(*symbol.arguments)
        else:
            yield self._named(symbol, EXPRESSIONS[symbol.name].format(*map(self._text, symbol.arguments)))

    def _loop(self, body: Any, steps: int, states: Any, state: Any, after: Any, done: Any) -> Iterator[str]:
        """All steps of a loop; a kernel that is done keeps its state."""
        names = [f"s{len(self.texts)}_{place}" for place in range(len(states))]
        self.texts |= {id(each): name for each, name in zip(states, names, strict=True)}
        for name, each in zip(names, state, strict=True):
            yield f"double {name} = {self._text(each)};"
        yield f"double on{names[0]} = 1.0;"
        one = ["{"]
        for symbol in body:
            if id(symbol) in self.needed:
                one += self._lines(symbol)
        one.append(f"on{names[0]} = {self._text(done)} ? 0.0 : on{names[0]};")
        for name, each in zip(names, after, strict=True):
            one.append(f"const double n{name} = on{names[0]} ? {self._text(each)} : {name};")
        # Written out, since a loop within stops the compiler from taking several kernels at once.
        yield from [*one, *(f"{name} = n{name};" for name in names), "}"] * steps

    def _text(self, value: Any) -> str:
        if isinstance(value, Symbol):
            return self.texts[id(value)]
        if isinstance(value, np.ndarray):
            name = f"{self.name}_{len(self.tables)}"
            entries = ", ".join(map(_literal, value.ravel().tolist()))
            found = self.tables.setdefault(id(value), f"static const double {name}[] = {{{entries}}};")
            return found.split()[3][:-2]
        return _literal(value)

    def function(self, library: ctypes.CDLL) -> Callable[[Sequence[Any]], Any]:
        """Of the given values in order; returns the wanted ones, as numbers and columns like those given."""
        run, texts, places = library[self.name], Texts(), self.places
        run.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_long, ctypes.c_long]
        run.restype = None
        counts = [len(symbols) for symbols in self.out]
        inputs, outputs = sum(map(len, places)), sum(counts)
        for axes, symbols in enumerate(self.given):
            texts.texts |= {
                id(each): f"v[{place}]" for each, place in zip(symbols, places[axes], strict=True)
            }
        for place, symbol in enumerate(each for symbols in self.out for each in symbols):
            texts.texts[id(symbol)] = KINDS[_kind(symbol)][bool(symbol.axes)].format(f"o[{place}]")
        texts.scope |= {"np_int64": np.int64}
        exec(f"def build(v, o):\n return {texts.of(self.wanted)}", texts.scope)
        build: Callable[[Sequence[Any], Sequence[Any]], Any] = texts.scope["build"]

        def of_numbers(values: Sequence[Any]) -> Any:
            found, kept = (ctypes.c_double * outputs)(), None
            run((ctypes.c_double * inputs)(*values), found, kept, 1, 1)
            return build(values, found[:])

        def of_columns(values: Sequence[Any]) -> Any:
            numbers, *columns = [[values[place] for place in found] for found in places]
            kernels = next((each.shape[-1] for each in (*columns[0], *columns[2])), 1)
            orders = next((len(each) for each in (*columns[1], *columns[2])), 1)
            shapes = (), (kernels,), (orders, 1), (orders, kernels)
            pieces = [numbers, *(each.ravel() for some in columns for each in some)]
            given = np.concatenate(pieces, dtype=np.float64, casting="unsafe")
            room = sum(count * math.prod(shape) for count, shape in zip(counts, shapes, strict=True))
            found = np.empty(room + self.shared * kernels)
            start = found.ctypes.data
            run(given.ctypes.data, start, start + found.itemsize * room, kernels, orders)
            results: list[Any] = found[: counts[0]].tolist()
            end = counts[0]
            for count, shape in zip(counts[1:], shapes[1:], strict=True):
                begin, end = end, end + count * math.prod(shape)
                results.extend(found[begin:end].reshape(count, *shape))
            return build(values, results)

        return of_columns if self.trace.axes else of_numbers


def _kind(value: Any) -> str:
    """Which of KINDS a value is."""
    if not isinstance(value, Symbol):
        return "condition" if isinstance(value, bool) else "place" if isinstance(value, int) else "number"
    if value.name in TRUTHS:
        return "condition"
    if value.name == "int":
        return "place"
    kinds = {_kind(each) for each in value.arguments[value.name == "where" :]} if value.name in KEPT else ()
    return kinds.pop() if len(kinds) == 1 else "number"


def _index(axes: int, place: int) -> str:
    return INDICES[axes].replace("i", str(place), 1)


def _literal(value: float) -> str:
    number = float(value)
    return number.hex() if np.isfinite(number) else "INFINITY" if number > 0.0 else "-INFINITY"
