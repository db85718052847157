"""Formulas traced into one straight function: the same operations in the same order, without calls and records.

A formula that is called with symbols leaves the operations behind that it is made of. What does not depend
on a symbol is computed at once, what is asked for twice is kept once, and what nobody needs is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeAlias

import numpy as np

_METHODS = "add sub mul truediv pow and or lt le gt ge eq ne"
_SIGNS = "+ - * / ** & | < <= > >= == !="
_NAMES = (
    "add subtract multiply divide power bitwise_and bitwise_or"
    " less less_equal greater greater_equal equal not_equal"
)
TEMPLATES = {
    name: f"({{}} {sign} {{}})" for name, sign in zip(_NAMES.split(), _SIGNS.split(), strict=True)
} | {
    "negative": "(-{})",
    "logical_not": "(not {})",
    "maximum": "({0} if {0} >= {1} else {1})",
    "minimum": "({0} if {0} <= {1} else {1})",
    "where": "({1} if {0} else {2})",
    "floor": "({} // 1.0)",
    "ceil": "(-(-{} // 1.0))",
    "sqrt": "sqrt({})",
    "exp": "exp({})",
    "int": "int({})",
    "float": "float({})",
    "take": "{}.item({})",
    "item": "{}[{}]",
}
"""Operations, by numpy's names, on Python numbers."""
OF_COLUMNS = {
    "logical_not": "np_logical_not({})",
    "where": "np_where({}, {}, {})",
    "int": "{}.astype(np_int64)",
    "float": "{}.astype(np_float64)",
    "take": "{}.take({})",
}
"""Operations that columns take otherwise."""
INTO = frozenset(
    ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "floor", "ceil", "sqrt", "exp"]
)
"""Operations that write into a column which nobody needs any more."""
NEUTRAL = {("add", 0.0), ("multiply", 1.0), ("divide", 1.0), ("subtract", 0.0)}
NEUTRAL |= {("bitwise_and", True), ("bitwise_or", False)}
"""Operations that leave a value as it is, with the second operand that does so."""
DECIDED = {("multiply", 0.0), ("bitwise_and", False), ("bitwise_or", True)}
"""Operations whose second operand is the result, whatever the first one is."""
LONGEST = 300
"""Longest expression that becomes part of another one [characters]; chosen: a parser nests 200 brackets."""


class Symbol:
    """A number or column that is known when the function runs, or an operation on such."""

    __slots__ = ("arguments", "axes", "block", "name", "trace")

    def __init__(self, trace: Trace, name: str, arguments: Sequence[Any], block: Block, axes: int) -> None:
        self.trace, self.name, self.arguments, self.block, self.axes = trace, name, arguments, block, axes

    def __neg__(self) -> Any:
        return self.trace.made("negative", self)

    def __bool__(self) -> bool:
        raise TypeError("a formula asks whether a symbol is true")

    def any(self) -> bool:
        """Formulas that ask take the way that serves both answers."""
        return True

    def astype(self, kind: type) -> Any:
        return self.trace.made("int" if kind is np.int64 else "float", self)

    def __array_ufunc__(self, ufunc: np.ufunc, _method: str, *inputs: Any) -> Any:
        return self.trace.made(ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, _types: Any, inputs: Any, _named: Any) -> Any:
        return self.trace.made(function.__name__, *inputs)


for _method, _name in zip(_METHODS.split(), _NAMES.split(), strict=True):
    setattr(Symbol, f"__{_method}__", lambda self, other, name=_name: self.trace.made(name, self, other))
    setattr(Symbol, f"__r{_method}__", lambda self, other, name=_name: self.trace.made(name, other, self))
Block: TypeAlias = list[Symbol]


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Stands for an input that is no constant: a number, or a column along some `axes` (bits)."""

    axes: int


class Trace:
    """The operations that formulas leave behind."""

    def __init__(self, inputs: Sequence[Extent]) -> None:
        self.known: dict[tuple[Any, ...], Symbol] = {}
        self.block: Block = []
        self.axes = reduce(or_, [each.axes for each in inputs], 0)
        self.inputs = [self._symbol("input", (f"i{place}",), each.axes) for place, each in enumerate(inputs)]

    def _symbol(self, name: str, arguments: Sequence[Any], axes: int) -> Symbol:
        """A symbol in the block of the loop that it needs."""
        blocks = [each.block for each in arguments if isinstance(each, Symbol)]
        block = next((block for block in blocks if block is not self.block), self.block)
        block.append(Symbol(self, name, arguments, block, axes))
        return block[-1]

    def made(self, name: str, *arguments: Any) -> Any:
        """The symbol of an operation, or what it comes to."""
        simple = _simplified(name, arguments)
        if simple is not None:
            return simple
        key = (name, *map(_key, arguments))
        if key not in self.known:
            axes = reduce(or_, [each.axes for each in arguments if isinstance(each, Symbol)])
            self.known[key] = self._symbol(name, arguments, axes)
        return self.known[key]

    def loop(self, step: Callable[..., Any], state: Sequence[Any], steps: int) -> tuple[Any, ...]:
        """The state after `steps`, or once `step` says that it is done (`elementwise.repeated`)."""
        body: Block = []
        states = tuple(Symbol(self, "state", (), body, self.axes) for _ in state)
        after, done = step(*states)
        # What is known of a state within the loop does not hold behind it.
        self.known = {key: found for key, found in self.known.items() if found.block is not body}
        loop = self._symbol("loop", (), self.axes)
        for each in states:
            each.block, each.arguments = self.block, (loop,)
        loop.arguments = body, steps, states, state, after, done
        return states


def _simplified(name: str, arguments: Sequence[Any]) -> Any:
    """The result of an operation that needs none, else None."""
    first, second = arguments[0], arguments[-1]
    if name in ("add", "multiply", "bitwise_and", "bitwise_or") and not isinstance(first, Symbol):
        first, second = second, first
    if isinstance(second, float | int):
        if (name, second) in NEUTRAL:
            return first
        if (name, second) in DECIDED:
            return second
        if name == "maximum" and second == 0.0 and isinstance(first, Symbol) and first.name == "sqrt":
            return first
    elif name == "subtract" and first is second:
        return 0.0
    if name == "divide" and isinstance(first, float) and first == 0.0:
        return 0.0
    return second if name == "where" and _key(arguments[1]) == _key(second) else None


def _key(value: Any) -> Any:
    return (type(value), value) if isinstance(value, float | int) else id(value)


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """A pair that a function returns which a trace calls as it is, since its way depends on what it is given."""
    symbol = next((each for each in arguments if isinstance(each, Symbol)), None)
    if symbol is None:
        return function(*arguments)
    call = symbol.trace.made("call", function, *arguments)
    return symbol.trace.made("item", call, 0), symbol.trace.made("item", call, 1)


def straight(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
    """`function` as one function of those of its inputs that are an Extent; the others are constants.

    It may return tuples, lists and mappings of numbers. Raises TypeError for one that asks a symbol.
    """
    trace, results = trace_of(function, inputs)
    return _Writer(results).function(trace)


def trace_of(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Trace, Any]:
    """The operations of `function`, and its results as symbols; see `straight`."""
    trace = Trace([value for value in inputs if isinstance(value, Extent)])
    symbols = iter(tuple(trace.inputs))
    return trace, function(*(next(symbols) if isinstance(value, Extent) else value for value in inputs))


def symbols_inside(value: Any) -> Iterator[Symbol]:
    """The symbols of nested tuples, lists and mappings."""
    if isinstance(value, Symbol):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from symbols_inside(each)


def needed_by(results: Any, known: Sequence[Symbol] = ()) -> dict[int, Symbol]:
    """The symbols by id that results are made of, down to those `known`."""
    left, ends = list(symbols_inside(results)), set(map(id, known))
    needed: dict[int, Symbol] = {}
    while left:
        symbol = left.pop()
        if id(symbol) not in needed and id(symbol) not in ends:
            needed[id(symbol)] = symbol
            left += symbols_inside(symbol.arguments)
    return needed


class Texts:
    """Python texts of values, and what names in them stand for."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.texts: dict[int, str] = {}
        """Of symbols, by their ids."""

    def of(self, value: Any) -> str:
        """Of a symbol, a constant, or tuples, lists and mappings of such."""
        if isinstance(value, Symbol):
            return self.texts[id(value)]
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{name!r}: {self.of(each)}' for name, each in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"({''.join(f'{self.of(each)}, ' for each in value)})"
        return repr(value) if isinstance(value, float | int) else self.bound(value, str(id(value)))

    def bound(self, value: Any, name: str) -> str:
        name = "c_" + name.translate(str.maketrans(".-+", "_mp"))
        self.scope[name] = value
        return name


class _Writer(Texts):
    """Writes the operations of a trace that the results need as Python."""

    def __init__(self, results: Any) -> None:
        super().__init__()
        self.results = results
        self.scope |= {"sqrt": math.sqrt, "exp": math.exp, "inf": math.inf}
        for name in (*INTO, "logical_not", "where", "int64", "float64"):
            self.scope[f"np_{name}"] = getattr(np, name)
        self.free: dict[int, list[str]] = {}
        """Columns that nobody needs any more, by axes."""
        self.kept = {id(each) for each in symbols_inside(results)}
        """Symbols that are needed further on."""
        self.anew: set[int] = set()
        """Columns that a loop makes anew in each step."""
        self.needed = needed_by(results)
        self.named = self._named()
        """Symbols that are read twice, or in another block, and get a name."""

    def _named(self) -> set[int]:
        reads = Counter([id(each) for each in symbols_inside(self.results)])
        named = set()
        for user in self.needed.values():
            for each in symbols_inside(user.arguments):
                reads[id(each)] += 1
                if user.block is not each.block or user.name in ("maximum", "minimum", "loop"):
                    named.add(id(each))
        return named | {symbol for symbol, times in reads.items() if times > 1}

    def function(self, trace: Trace) -> Callable[..., Any]:
        names = ", ".join(each.arguments[0] for each in trace.inputs)
        source = [f"def made({names}):", *self._lines(trace.block), f"return {self.of(self.results)}"]
        exec("\n ".join(source), self.scope)
        made: Callable[..., Any] = self.scope["made"]
        return made

    def _lines(self, block: Block) -> Iterator[str]:
        used = [symbol for symbol in block if id(symbol) in self.needed]
        last = []
        for symbol in reversed(used):
            users = [symbol, *(symbol.arguments[0] if symbol.name == "loop" else ())]
            needs = {id(each): each for user in users for each in symbols_inside(user.arguments)}
            last.append(
                [each for each in needs.values() if each.block is block and id(each) not in self.kept]
            )
            self.kept.update(needs)
        for symbol, done_with in zip(used, reversed(last), strict=True):
            if symbol.name == "loop":
                yield from self._loop(*symbol.arguments)
            elif symbol.name == "input":
                self.texts[id(symbol)] = symbol.arguments[0]
            elif line := self._line(symbol):
                yield line
            for each in done_with:
                if each.axes and each.name in INTO:
                    self.free.setdefault(each.axes, []).append(self.texts[id(each)])

    def _line(self, symbol: Symbol) -> str:
        """The line that computes a symbol; nothing for one that is written where it is read."""
        write, templates = (self._operand, OF_COLUMNS) if symbol.axes else (self.of, {})
        written, name = [write(each) for each in symbol.arguments], f"t{len(self.texts)}"
        if symbol.name == "call":
            text = f"{written[0]}({', '.join(written[1:])})"
        elif symbol.axes and symbol.name in INTO:
            text = f"np_{symbol.name}({', '.join(written)})"
            if self.free.get(symbol.axes) and id(symbol) not in self.anew:
                name = self.free[symbol.axes].pop()
                text = f"{text[:-1]}, out={name})"
        else:
            text = templates.get(symbol.name, TEMPLATES[symbol.name]).format(*written)
            if not symbol.axes and id(symbol) not in self.named and len(text) < LONGEST:
                self.texts[id(symbol)] = text
                return ""
        self.texts[id(symbol)] = name
        return f"{name} = {text}"

    def _loop(self, body: Block, steps: int, states: Any, state: Any, after: Any, done: Any) -> Iterator[str]:
        self.texts |= {id(each): f"s{place}_{len(self.texts)}" for place, each in enumerate(states)}
        self.anew |= {id(each) for each in after}
        self.kept |= self.anew
        names = ", ".join(map(self.of, states))
        yield f"{names} = {', '.join(map(self.of, state))}"
        yield f"for _ in range({steps}):"
        yield from (" " + line for line in self._lines(body))
        yield f" if {self.of(done)}{'.all()' if done.axes else ''}: break"
        yield f" {names} = {', '.join(map(self.of, after))}"

    def _operand(self, value: Any) -> str:
        """An operand of a column: numpy takes an array of no axes in half the time of a number."""
        return self.bound(np.array(value), repr(value)) if type(value) is float else self.of(value)
