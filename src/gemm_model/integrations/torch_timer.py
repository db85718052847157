"""`with GemmTimer(gpu="h200"): model(x)`: the predicted time of a PyTorch model's GEMMs, module by module.

In the manner of `torch.utils.flop_counter.FlopCounterMode`: operators are intercepted as they are dispatched,
so that meta and fake tensors do as well as real ones, and backward passes are seen like forward ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pandas as pd

from gemm_model.choice.selection import Ranker
from gemm_model.core.dtypes import operand_type
from gemm_model.core.errors import InputError, MissingExtraError
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.kernel_config import AUTO_KERNEL
from gemm_model.core.problem import GemmProblem
from gemm_model.models import DEFAULT_MODEL

try:
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.module_tracker import ModuleTracker
except ImportError as error:
    raise MissingExtraError("GemmTimer needs the package torch: pip install torch") from error

if TYPE_CHECKING:
    from torch import Tensor

ROOT = "Global"
"""ModuleTracker's name for what runs outside of all modules."""

DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "int8",
    "int32": "int32",
}
"""torch's names of the types that a GEMM can have here."""

IN_A_STREAM: Mapping[str, Mapping[str, Any]] = {"WarpSpecializedModel": {"regime": "counters"}}
"""Options with which a model predicts a kernel's own duration: kernels of a model follow each other on a
stream, so that what a pair of events reads beside a lonely launch is not part of their time."""

MATMUL_LIKE = re.compile(
    r"(^|_)(b|badd|add|int|scaled|grouped|scaled_grouped|sparse)?_?(mm|mv|matmul|gemm|linear|conv\w*|attention\w*"
    r"|lstm|gru|rnn|bilinear|einsum)(_|$)"
)
"""Operators that multiply matrices, by their names: what is not modelled is counted, never dropped."""

ATTENTION = re.compile(r"_(flash|efficient|cudnn|fused)_attention")
FORWARD_GEMMS, BACKWARD_GEMMS = 2, 5
"""Q K^T and P V; backward computes Q K^T again, then dV, dP, dQ and dK."""

Key = tuple[str, str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A fused attention: products of (queries x keys x dim) for each head, never written to memory."""

    heads: int
    """Of all batch entries together."""
    queries: int
    keys: int
    qk_dim: int
    v_dim: int
    causal: bool
    backward: bool
    dtype: str

    @property
    def flop(self) -> float:
        """Half of the products' FLOP with a causal mask, whose upper triangle is skipped."""
        products = BACKWARD_GEMMS if self.backward else FORWARD_GEMMS
        of_qk = 3 if self.backward else 1
        dims = of_qk * self.qk_dim + (products - of_qk) * self.v_dim
        share = 0.5 * (1.0 + 1.0 / self.queries) if self.causal else 1.0
        return 2.0 * self.heads * self.queries * self.keys * dims * share

    @property
    def dram_bytes(self) -> float:
        """Q, K, V and O once; backward also reads dO and writes dQ, dK and dV."""
        width = operand_type(self.dtype)[0].bytes_per_element
        tensors = self.queries * (self.qk_dim + self.v_dim) + self.keys * (self.qk_dim + self.v_dim)
        return self.heads * tensors * width * (2.0 if self.backward else 1.0)

    def bound_us(self, gpu: GpuSpec) -> tuple[float, str]:
        """The time that no kernel can beat, and what sets it: peak math, or DRAM once; without softmax."""
        math_us = self.flop / gpu.flop_per_us(operand_type(self.dtype)[0].math_kind)
        dram_us = self.dram_bytes / gpu.dram_bytes_per_us
        return (math_us, "MATH BOUND") if math_us >= dram_us else (dram_us, "DRAM BOUND")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One operator with given sizes in one module."""

    module: str
    operator: str
    work: GemmProblem | Attention
    count: int
    backward: bool
    time_us: float
    """Of one call."""
    limiter: str

    @property
    def total_us(self) -> float:
        return self.count * self.time_us

    @property
    def flop(self) -> float:
        return float(self.count * self.work.flop)


class GemmTimer:
    """Predicts every GEMM that runs inside the `with` block, as the best kernel of a family would run it.

    mm, addmm, bmm, baddbmm, mv, linear and scaled_mm are ranked like any problem; fused attention counts with
    a lower bound of its GEMMs' time. Other operators that multiply matrices are counted by name in
    `unmodelled`. Without `options` a model predicts a kernel's own duration where it can (IN_A_STREAM). With
    `display` the table is printed when the block ends.

    Raises InputError for symbolic sizes and for an unknown GPU, model or family.
    """

    def __init__(
        self,
        gpu: GpuSpec | str = "h200",
        *,
        model: str = DEFAULT_MODEL,
        family: str = AUTO_KERNEL,
        sms: int | None = None,
        options: Mapping[str, Any] | None = None,
        display: bool = True,
    ) -> None:
        chosen = IN_A_STREAM.get(model, {}) if options is None else options
        self.ranker = Ranker(gpu, model=model, family=family, sms=sms, options=chosen)
        self.display = display
        self.unmodelled: Counter[str] = Counter()
        """Calls by name (and reason) of operators that have no prediction."""
        self._calls: Counter[tuple[str, str, bool, GemmProblem | Attention]] = Counter()
        self._modes: list[Any] = []
        self._tracker = ModuleTracker()

    def __enter__(self) -> GemmTimer:
        self._tracker.__enter__()
        self._modes = [_FusedAttentionOnMeta(), _Interceptor(self)]
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)
        self._tracker.__exit__(kind, error, trace)
        if self.display and error is None:
            print(self)

    def record(self, operator: str, work: GemmProblem | Attention) -> None:
        """Count one call of an operator in the module that runs now."""
        module = max(self._tracker.parents - {ROOT}, key=len, default=ROOT)
        self._calls[module, operator, self._tracker.is_bw, work] += 1

    @property
    def timings(self) -> tuple[Timing, ...]:
        """All operators seen, in the order of their first call."""
        found = []
        for (module, operator, backward, work), count in self._calls.items():
            time_us, limiter = self._predicted(work)
            found.append(
                Timing(
                    module=module,
                    operator=operator,
                    work=work,
                    count=count,
                    backward=backward,
                    time_us=time_us,
                    limiter=limiter,
                )
            )
        return tuple(found)

    def _predicted(self, work: GemmProblem | Attention) -> tuple[float, str]:
        if isinstance(work, Attention):
            return work.bound_us(self.ranker.gpu)
        best = self.ranker.rank(work, 1).best.prediction
        return best.runtime_us, best.limiter

    @property
    def total_us(self) -> float:
        """Predicted time of all GEMMs, one after the other."""
        return sum(timing.total_us for timing in self.timings)

    @property
    def flop(self) -> float:
        return sum(timing.flop for timing in self.timings)

    def table(self, *, depth: int | None = None, merge_numbered: bool = True) -> pd.DataFrame:
        """Count, FLOP, predicted time in us and main limiter by module, forward and backward apart.

        `depth` shortens the modules' names; `merge_numbered` adds up layers that differ in a number only.
        """
        rows: dict[tuple[str, str], list[Timing]] = {}
        for timing in self.timings:
            parts = timing.module.split(".")
            if merge_numbered:
                parts = ["*" if part.isdecimal() else part for part in parts]
            way = "backward" if timing.backward else "forward"
            rows.setdefault((".".join(parts[:depth]), way), []).append(timing)
        total_us = self.total_us
        return pd.DataFrame(
            [
                {
                    "module": module,
                    "pass": way,
                    "count": sum(timing.count for timing in timings),
                    "flop": sum(timing.flop for timing in timings),
                    "predicted_us": (time_us := sum(timing.total_us for timing in timings)),
                    "share": time_us / total_us if total_us else 0.0,
                    "limiter": _main_limiter(timings),
                }
                for (module, way), timings in rows.items()
            ],
            columns=["module", "pass", "count", "flop", "predicted_us", "share", "limiter"],
        )

    def notes(self) -> list[str]:
        """The totals, and what the table does not hold."""
        timings = self.timings
        calls = sum(timing.count for timing in timings)
        gpu = self.ranker.gpu.name
        lines = [f"{calls} GEMMs, {self.flop:.4g} FLOP, {self.total_us:.1f} us predicted on {gpu}"]
        if any(isinstance(timing.work, Attention) for timing in timings):
            lines.append("attention: a lower bound of its GEMMs; softmax is not modelled")
        return lines + [f"not modelled: {name}, {count} calls" for name, count in self.unmodelled.items()]

    def __str__(self) -> str:
        table = self.table()
        shown = table.assign(
            flop=[f"{value:.4g}" for value in table["flop"]],
            predicted_us=[f"{value:.1f}" for value in table["predicted_us"]],
            share=[f"{value:.1%}" for value in table["share"]],
        )
        text = shown.to_string(index=False) if len(table) else "no GEMM was seen"
        return "\n".join([text, *self.notes()])


def _main_limiter(timings: list[Timing]) -> str:
    by_limiter: Counter[str] = Counter()
    for timing in timings:
        by_limiter[timing.limiter] += round(1e3 * timing.total_us)
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
        name = func._schema.name.split("::")[-1]
        known = name in GEMM_READERS or ATTENTION.search(name) is not None
        if not known and func is not torch.ops.prim.device.default:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if known:
            self._record(func, name, args, kwargs)
        elif MATMUL_LIKE.search(name):
            self.timer.unmodelled[func._schema.name] += 1
        return out

    def _record(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in func._schema.arguments]
        bound = dict(zip(names, args, strict=False)) | kwargs
        operator = func._schema.name
        try:
            work = _attention(bound, name) if ATTENTION.search(name) else _gemm(bound, name)
        except _UnmodelledError as reason:
            self.timer.unmodelled[f"{operator} ({reason})"] += 1
            return
        if work is not None:
            self.timer.record(operator, work)


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
        key, value = (
            part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)
            if bound.get("enable_gqa") and part.shape[1] != query.shape[1]
            else part
            for part in (key, value)
        )
        # A mask changes values, of which a meta tensor has none.
        causal = bool(bound.get("is_causal", False))
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        return attention(query, key, value, None, True, 0.0, causal)[0]


class _UnmodelledError(Exception):
    """An operator that is known but cannot be predicted as it is called."""


def _gemm(bound: Mapping[str, Any], name: str) -> GemmProblem | None:
    """The problem of a GEMM operator's arguments, or None where it is empty and costs nothing."""
    first, second = GEMM_READERS[name]
    a, b = bound[first], bound[second]
    if b.dim() == a.dim() - 1:
        b = b.unsqueeze(-1)
    m, k = (_size(value, name) for value in a.shape[-2:])
    n = _size(b.shape[-1], name)
    batch = _size(a.shape[0], name) if a.dim() == 3 else 1
    if 0 in (m, n, k, batch):
        return None
    a_type, b_type = (_dtype(tensor, bound.get(f"scale_{which}")) for tensor, which in ((a, "a"), (b, "b")))
    a_element, a_scale = operand_type(a_type)
    b_element, b_scale = operand_type(b_type)
    packed = 2 if a_element.bits == 4 else 1
    out = bound.get("out_dtype")
    out_type = DTYPES.get(str(out or a.dtype).removeprefix("torch."), "bf16")
    return GemmProblem(
        m=m,
        n=n,
        k=k * packed,
        batch=batch,
        a_dtype=a_element,
        b_dtype=b_element,
        out_dtype=operand_type(out_type)[0],
        a_scale=a_scale,
        b_scale=b_scale,
        a_major="k" if a.stride(-1) == 1 or m == 1 else "m",
        b_major="k" if b.stride(-2) == 1 or n == 1 else "n",
    )


GEMM_READERS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "_scaled_mm": ("self", "mat2"),
    "_int_mm": ("self", "mat2"),
}
"""Operator -> the names of its operands of shapes (batch, m, k) and (batch, k, n)."""


def _dtype(tensor: Tensor, scale: Tensor | None) -> str:
    """The operand type of a tensor; block scales are told by their type."""
    name = str(tensor.dtype).removeprefix("torch.")
    scale_type = "" if scale is None else str(scale.dtype).removeprefix("torch.")
    if name == "float4_e2m1fn_x2":
        return "nvfp4" if scale_type == "float8_e4m3fn" else "mxfp4"
    if name == "float8_e4m3fn" and scale_type == "float8_e8m0fnu":
        return "mxfp8"
    if name not in DTYPES:
        raise _UnmodelledError(f"type {name}")
    return DTYPES[name]


def _attention(bound: Mapping[str, Any], name: str) -> Attention | None:
    query, key, value = bound["query"], bound["key"], bound["value"]
    if query.dim() != 4:
        raise _UnmodelledError(f"{query.dim()} dimensions")
    batch, heads, queries, qk_dim = (_size(size, name) for size in query.shape)
    keys, v_dim = _size(key.shape[-2], name), _size(value.shape[-1], name)
    if 0 in (batch, heads, queries, keys, qk_dim, v_dim):
        return None
    return Attention(
        heads=batch * heads,
        queries=queries,
        keys=keys,
        qk_dim=qk_dim,
        v_dim=v_dim,
        causal=bool(bound.get("is_causal", False)),
        backward=name.endswith("backward"),
        dtype=_dtype(query, None),
    )


def _size(value: Any, operator: str) -> int:
    """A size as a number; raises InputError for one that tracing left symbolic, or that is negative."""
    if isinstance(value, torch.SymInt):
        raise InputError(f"{operator}: size {value} is symbolic; expected numbers (trace with static shapes)")
    if value < 0:
        raise InputError(f"{operator}: size {value} is negative; expected a whole number from 0 on")
    return int(value)


def load_model_builder(target: str) -> Callable[[], Any]:
    """The function at 'package.module:function' or 'file.py:function'; raises InputError where it is not."""
    import importlib
    import importlib.util

    module_name, separator, function = target.rpartition(":")
    if not separator or not module_name or not function:
        raise InputError(f"{target!r}; expected module:function or file.py:function")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("timed_model", module_name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except (ImportError, OSError) as error:
        raise InputError(f"{module_name}: cannot be imported ({error})") from None
    builder = getattr(module, function, None)
    if not callable(builder):
        raise InputError(f"{module_name} has no function {function!r}")
    result: Callable[[], Any] = builder
    return result


def run_on_meta(builder: Callable[[], Any], timer: GemmTimer, *, train: bool) -> None:
    """Run what `builder` returns, (model, inputs), on meta tensors under the timer; `train` adds backward."""
    with torch.device("meta"):
        built = builder()
    if not (isinstance(built, tuple) and len(built) == 2 and callable(built[0])):
        raise InputError("the model's function returned something else; expected (model, input or inputs)")
    model, inputs = built
    inputs = inputs if isinstance(inputs, tuple | list) else (inputs,)
    with torch.device("meta"), timer, torch.set_grad_enabled(train):
        out = model(*inputs)
        if train:
            floats = [tensor for tensor in _tensors(out) if tensor.requires_grad]
            if not floats:
                raise InputError("the model's output needs no gradient; expected one to run backward")
            torch.stack([tensor.float().sum() for tensor in floats]).sum().backward()


def _tensors(value: Any) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
