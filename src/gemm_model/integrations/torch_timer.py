"""`with GemmTimer(gpu="h200"): model(x)`: the predicted time of a PyTorch model's GEMMs, module by module.

In the manner of `torch.utils.flop_counter.FlopCounterMode`: operators are intercepted as they are dispatched,
so that meta and fake tensors do as well as real ones, and backward passes are seen like forward ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from runpy import run_path
from traceback import extract_tb
from typing import Any

import pandas as pd

from gemm_model.choice.selection import Call, Ranker, summed_band
from gemm_model.core.fields import ATTENTION, OK
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kind_columns import asked_of
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import GemmModelError, InputError, importing
from gemm_model.kernels.registry import TORCH_FAMILY, families, family_of
from gemm_model.models import DEFAULT_MODEL

with importing("GemmTimer needs the package torch: pip install 'gemm-model[torch]'"):
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from gemm_model.integrations import torch_operators as operators
    from gemm_model.integrations.torch_modules import RunningModules

BESIDE_TORCH_FAMILY = ("cudnn", "cutlass")
"""Families that torch takes its other kernels from."""

REGIMES_OF_A_MODEL: Mapping[str, str] = {"KernelModel": "graph"}
"""The regime of kernels that follow each other in a model's CUDA graph, by model for GEMMs."""
STATES_OF_L2: Mapping[str, Mapping[str, str]] = {"graph": {"l2": "written"}}
"""By regime what L2 holds when a model's GEMM begins: the kernel before has written its first operand."""

Work = GemmProblem | operators.Attention


@dataclass(frozen=True, slots=True)
class Timing:
    """One operator with given sizes in one module."""

    module: str
    operator: str
    kind: str
    """GEMM, batched GEMM, grouped GEMM, convolution or attention."""
    backward: bool
    work: Work
    count: int
    call: Call

    @property
    def total_us(self) -> float:
        return self.count * self.call.time_us

    @property
    def flop(self) -> float:
        return float(self.count * self.work.flop)

    @property
    def bounded(self) -> bool:
        """Whether the time is a lower bound alone."""
        return self.call.limiter.endswith("BOUND")


class GemmTimer:
    """Predicts every GEMM that runs inside the `with` block, as a family's library would run it.

    The family is cuBLAS by default: the library that torch calls, with what its heuristic choices
    take over its fastest kernels (`Ranker.heuristic_choice`); 'any' takes the best of all. mm, addmm, bmm,
    baddbmm, mv, linear and scaled_mm are ranked like any problem, with the bias, matrix or activation that
    they add;
    grouped_mm as groups of one size; convolutions as implicit GEMM of NHWC images. Where the family has no
    such kernels, those of the first one that has count; a model of plain GEMMs leaves out what goes beyond
    them. Fused attention is predicted forward as cuDNN's (FlashAttention 2's where there is none), and counts
    with a lower bound of its GEMMs' time backward. What has no prediction is counted by name:
    operators that multiply matrices in `unmodelled`, all others in `other_operators`. `regime` says
    what surrounds each launch (docs/regimes.md); None takes the model's own for a stream of kernels. In
    `graph` L2 holds what it can of the first operand, which the kernel before wrote, unless the option `l2`
    says otherwise. With `display` the table is printed when the block ends.

    Raises InputError for symbolic sizes and for an unknown GPU, model, family or regime.
    """

    def __init__(
        self,
        gpu: GpuSpec | str | Path = "h200",
        *,
        model: str = DEFAULT_MODEL,
        family: str = TORCH_FAMILY,
        regime: str | None = None,
        sms: int | None = None,
        options: Mapping[str, Any] | None = None,
        display: bool = True,
    ) -> None:
        chosen = dict(options or {})
        self.regime = regime or chosen.get("regime") or REGIMES_OF_A_MODEL.get(model)
        if self.regime is not None:
            chosen = {**STATES_OF_L2.get(self.regime, {}), **chosen, "regime": self.regime}
        self.ranker = Ranker(gpu, model=model, family=family, sms=sms, options=chosen)
        self._other_rankers: dict[str, Ranker] = {}
        self.display = display
        self.unmodelled: Counter[str] = Counter()
        """Calls by name (and reason) of operators that multiply matrices and have no prediction."""
        self.other_operators: Counter[str] = Counter()
        """Calls by name of the other operators that launch kernels."""
        self._calls: Counter[tuple[str, str, str, bool, Work]] = Counter()
        self._entered = ExitStack()
        self.modules = RunningModules()

    def __enter__(self) -> GemmTimer:
        for each in (self.modules, _FusedAttentionOnMeta(), _Interceptor(self)):
            self._entered.enter_context(each)
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._entered.close()
        if self.display and error is None:
            print(self)

    def record(self, module: str, operator: str, kind: str, work: Work) -> None:
        """Count one call of an operator in a module."""
        self._calls[module, operator, kind, self.modules.backward, work] += 1

    @property
    def timings(self) -> tuple[Timing, ...]:
        """All operators seen, in the order of their first call."""
        calls = self._calls.items()
        return tuple(Timing(*call, count, self._predicted(call[-1])) for call, count in calls)

    def _predicted(self, work: Work) -> Call:
        if isinstance(work, operators.Attention):
            if (found := work.predicted(self.ranker.gpu)) is not None:
                return Call.of(found, columns=self.ranker.place)
            time_us, limiter = work.bound_us(self.ranker.gpu)
            return Call(time_us=time_us, limiter=limiter, columns=self.ranker.place)
        work = work if self.ranker.model.beyond_plain else work.plain_twin
        return self._ranker_for(asked_of(work)).call(work)

    def _ranker_for(self, asked: tuple[str, ...]) -> Ranker:
        """Ranks kernels of the timer's family, or of the first one that does what is asked."""
        if not asked or any(family.knows.issuperset(asked) for family in self.ranker.families):
            return self.ranker
        for name in dict.fromkeys((TORCH_FAMILY, *BESIDE_TORCH_FAMILY, *families(self.ranker.gpu))):
            if family_of(name, self.ranker.gpu).knows.issuperset(asked):
                if name not in self._other_rankers:
                    self._other_rankers[name] = self.ranker.of_family(name)
                return self._other_rankers[name]
        return self.ranker

    @property
    def total_us(self) -> float:
        """Predicted time of all GEMMs and attentions, one after the other."""
        return sum(timing.total_us for timing in self.timings)

    @property
    def gemm_us(self) -> float:
        """Predicted time of all GEMMs, without attention."""
        return sum(timing.total_us for timing in self.timings if timing.kind != operators.ATTENTION_KIND)

    @property
    def error_band(self) -> float | None:
        """Relative error of the total (`choice.selection.summed_band`); None where a part is a lower bound."""
        timings = self.timings
        found = summed_band([(timing.call, timing.total_us) for timing in timings])
        return None if any(timing.bounded for timing in timings) else found

    @property
    def flop(self) -> float:
        return sum(timing.flop for timing in self.timings)

    def table(self, *, depth: int | None = None, merge_numbered: bool = True) -> pd.DataFrame:
        """Count, FLOP, predicted time in us and main limiter by module, pass (forward or backward) and kind.

        `depth` shortens the modules' names; `merge_numbered` adds up layers that differ in a number only.
        """
        names = ["module", "pass", "kind", "count", "flop", "predicted_us", "share", "limiter"]
        rows = self.rows(depth, merge_numbered, apart=False)
        return pd.DataFrame([{**row, "predicted_us": row["total_us"]} for row in rows], columns=names)

    def rows(self, depth: int | None, merged: bool = True, *, apart: bool = True) -> list[dict[str, Any]]:
        """The same, with the problem and kernel of each product (`Call.columns`): different ones `apart`."""
        groups: dict[tuple[str, str, str, Work | None], list[Timing]] = {}
        for timing in self.timings:
            names = timing.module.split(".")
            parts = ["*" if merged and name.isdecimal() else name for name in names]
            way = "backward" if timing.backward else "forward"
            key = ".".join(parts[:depth]), way, timing.kind, timing.work if apart else None
            groups.setdefault(key, []).append(timing)
        total_us, found = self.total_us, []
        for (module, way, kind, _), timings in groups.items():
            time_us, call = sum(timing.total_us for timing in timings), timings[0].call
            row = {"module": module, "pass": way, "kind": kind, "count": _calls(timings), **call.columns}
            row |= {"flop": _flop(timings), "call_us": call.time_us, "total_us": time_us}
            row |= {"share": time_us / total_us if total_us else 0.0, "limiter": _main_limiter(timings)}
            found.append({**row, "disposition": ATTENTION if kind == operators.ATTENTION_KIND else OK})
        return found

    def notes(self) -> list[str]:
        """The totals, GEMMs apart from the rest, and what the table does not hold."""
        timings = self.timings
        gemms = [timing for timing in timings if timing.kind != operators.ATTENTION_KIND]
        attentions = [timing for timing in timings if timing.kind == operators.ATTENTION_KIND]
        names, slower = self.ranker.names, self.ranker.heuristic_choice.share
        where = f"{self.ranker.gpu.name}, {', '.join(names)} kernels"
        where += f", regime {self.regime}" if self.regime else ""
        predicted = f"{_flop(gemms):.4g} FLOP, {self.gemm_us:.1f} us predicted on {where}"
        lines = [f"{_calls(gemms)} GEMMs, {predicted}" if timings else "no GEMM was seen"]
        if gemms and slower > 0.0:
            lines.append(f"{names[0]} picks its kernels by itself: up to {slower:.1%} over its fastest")
        if attentions:
            lines.append(_attention_note(attentions, self.total_us - self.gemm_us))
            if (band := self.error_band) is not None:
                lines.append(
                    f"together {self.total_us:.1f} us, within {band:.1%} for nine in ten such programs"
                )
        if any(timing.kind == operators.GROUPED for timing in timings):
            lines.append("grouped GEMMs: groups of one size, since their sizes depend on data")
        lines += [f"not modelled: {name}, {count} calls" for name, count in self.unmodelled.items()]
        if self.other_operators:
            found = ", ".join(f"{name} {count}" for name, count in self.other_operators.most_common())
            lines.append(f"without a time, {self.other_operators.total()} calls that are no GEMMs: {found}")
        return lines

    def __str__(self) -> str:
        table = self.table()
        shown = table.assign(
            flop=[f"{value:.4g}" for value in table["flop"]],
            predicted_us=[f"{value:.1f}" for value in table["predicted_us"]],
            share=[f"{value:.1%}" for value in table["share"]],
        )
        return "\n".join([*([shown.to_string(index=False)] if len(table) else []), *self.notes()])


def _attention_note(attentions: list[Timing], attention_us: float) -> str:
    """The attentions' time, and how much of it is a lower bound alone."""
    bounded = [each for each in attentions if each.bounded]
    note = f"{_calls(attentions)} attentions, {_flop(attentions):.4g} FLOP, {attention_us:.1f} us predicted"
    if bounded:
        bound_us = sum(each.total_us for each in bounded)
        note += f", of which {bound_us:.1f} us bound the GEMMs of {_calls(bounded)} calls from below"
    return note


def _calls(timings: list[Timing]) -> int:
    return sum(timing.count for timing in timings)


def _flop(timings: list[Timing]) -> float:
    return sum(timing.flop for timing in timings)


def _main_limiter(timings: list[Timing]) -> str:
    by_limiter: Counter[str] = Counter()
    for timing in timings:
        by_limiter[timing.call.limiter] += round(1e3 * timing.total_us)
    return by_limiter.most_common(1)[0][0]


class _Interceptor(TorchDispatchMode):  # type: ignore[misc]
    """Records operators and runs them."""

    def __init__(self, timer: GemmTimer) -> None:
        super().__init__()
        self.timer = timer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        module = self.timer.modules.of_operator()
        name = func._schema.name.split("::")[-1]
        known = operators.is_known(name)
        if not known and func is not torch.ops.prim.device.default:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if known:
            self._record(module, func, name, args, kwargs)
        elif operators.MATMUL_LIKE.search(name):
            self.timer.unmodelled[func._schema.name] += 1
        elif operators.launches_kernels(func._schema):
            self.timer.other_operators[name] += 1
        return out

    def _record(
        self, module: str, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        names = [argument.name for argument in func._schema.arguments]
        bound = dict(zip(names, args, strict=False)) | kwargs
        operator = func._schema.name
        try:
            works = operators.work_of(name, bound)
        except operators.UnmodelledError as reason:
            self.timer.unmodelled[f"{operator} ({reason})"] += 1
            return
        for work in works:
            self.timer.record(module, operator, *work)


class _FusedAttentionOnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Attention on meta tensors as one operator, as a GPU runs it; torch itself takes it apart there."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        bound = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = bound["query"], bound["key"], bound["value"]
        if not (query.is_meta and query.dim() == key.dim() == value.dim() == 4):
            return func(*args, **kwargs)
        # A mask changes values, of which a meta tensor has none. cuDNN's operator takes shared heads.
        causal = bool(bound.get("is_causal", False))
        attention = torch.ops.aten._scaled_dot_product_cudnn_attention
        return attention(query, key, value, None, torch.is_grad_enabled(), 0.0, causal)[0]


def load_model_builder(target: str) -> Callable[[], Any]:
    """The function at 'package.module:function' or 'file.py:function'; raises InputError where it is not."""
    module_name, separator, function = target.rpartition(":")
    if not separator or not module_name or not function:
        raise InputError(f"{target!r}; expected module:function or file.py:function")
    try:
        names = run_path(module_name) if module_name.endswith(".py") else vars(import_module(module_name))
    except (ImportError, OSError, SyntaxError) as error:
        raise InputError(f"{module_name}: cannot be imported ({error})") from None
    except Exception as error:  # whatever the module itself raises
        raise InputError(f"{module_name}: cannot be imported ({_one_line(error)})") from None
    builder = names.get(function)
    if not callable(builder):
        raise InputError(f"{module_name} has no function {function!r}")
    result: Callable[[], Any] = builder
    return result


def run_on_meta(builder: Callable[[], Any], timer: GemmTimer, *, train: bool) -> None:
    """Run what `builder` returns, (model, inputs), on meta tensors under the timer; `train` adds backward."""
    expected = "one that takes nothing and leaves the model and its inputs on the device where they are made"
    with _telling("the model's function", "fails", expected), torch.device("meta"):
        built = builder()
    if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0])):
        raise InputError("the model's function returned something else; expected (model, input or inputs)")
    model, inputs = built
    inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
    expected = "inputs that fit it and shapes that do not depend on data"
    telling = _telling("the model", "does not run", expected)
    with telling, torch.device("meta"), timer, torch.set_grad_enabled(train):
        out = model(*inputs)
        if train:
            _run_backward(out)


@contextmanager
def _telling(what: str, fails: str, expected: str) -> Iterator[None]:
    """Raise what a user's code raises as an InputError, with what is `expected` where it needs data."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{what} {fails} on tensors without data ({_reason(error)}); expected {expected}"
        ) from None
    except GemmModelError:
        raise
    except Exception as error:
        raise InputError(f"{what} fails ({_one_line(error)})") from None


def _reason(error: Exception) -> str:
    """The first sentence of what torch says."""
    return str(error).partition("\n")[0].split(". ")[0].rstrip(".")


def _one_line(error: Exception) -> str:
    """What code of a user's raised, and where."""
    place = extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {_reason(error)}; {place.filename}, line {place.lineno}"


def _run_backward(out: Any) -> None:
    floats = [tensor for tensor in _tensors(out) if tensor.requires_grad]
    if not floats:
        raise InputError("the model's output needs no gradient; expected one to run backward")
    torch.autograd.backward(floats, [torch.empty_like(tensor) for tensor in floats])


def _tensors(value: Any) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
