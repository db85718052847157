"""Matrix work of PyTorch's operators: GEMMs, batched and grouped GEMMs, convolutions, fused attention."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gemm_model.attention.kernels import kernels_on
from gemm_model.attention.model import AttentionModel
from gemm_model.config import read_toml
from gemm_model.core.attention import AttentionConfig, AttentionProblem
from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.conv import DGRAD, FPROP, WGRAD, ConvProblem
from gemm_model.core.dtypes import names_in, operand_type
from gemm_model.core.epilogue import Epilogue
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.routing import Routing
from gemm_model.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {theirs: name for theirs, name in names_in("torch").items() if name not in ("e2m1", "e8m0")}
"""torch's names of the types that a GEMM can have."""

MATMUL_LIKE = re.compile(
    r"(^|_)(b|badd|add|int|scaled|grouped|scaled_grouped|sparse)?_?(mm|mv|matmul|gemm|linear|conv\w*|attention\w*"
    r"|lstm|gru|rnn|bilinear|einsum|cdist|linalg_(?!vector_norm|cross|diagonal|check)\w+)(_|$)"
)
"""Names of operators that multiply matrices; those without a model are counted, never dropped."""

ATTENTION = re.compile(r"_(flash|efficient|cudnn|fused)_attention")
TORCH_KERNELS = ("cudnn_attention", "flash_attention_2")
"""What `scaled_dot_product_attention` runs, where a GPU has it: the first."""
FORWARD_GEMMS, BACKWARD_GEMMS = 2, 5
"""Q K^T and P V; backward computes Q K^T again, then dV, dP, dQ and dK."""

GEMM, GROUPED, CONVOLUTION = "GEMM", "grouped GEMM", "convolution"
ATTENTION_KIND = "attention"
"""Kinds of work. The groups of a grouped GEMM are taken as equal, because their sizes depend on data."""

BLOCKS_OF_128 = {4: "1x128", 5: "128x128"}
"""Scale blocks applied in software, by torch's `ScalingType`."""

NO_KERNEL = re.compile(r"^(new_)?empty(_\w+)?$|^_unsafe_view$|^resize_$|^set_$")
"""Operators that return new tensors and launch nothing; views are known by their schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A fused attention: products of (queries x keys x dim) for each head, never written to memory."""

    heads: int
    kv_heads: int
    """Heads of keys and values in all batch entries; several query heads may share one."""
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    dtype: str
    backward: bool

    @property
    def flop(self) -> float:
        """Half of the products' FLOP with a causal mask, whose upper triangle is skipped."""
        products = BACKWARD_GEMMS if self.backward else FORWARD_GEMMS
        of_qk = 3 if self.backward else 1
        dims = of_qk * self.head_dim + (products - of_qk) * self.head_dim_v
        share = 0.5 * (1.0 + 1.0 / self.seq_q) if self.causal else 1.0
        return 2.0 * self.heads * self.seq_q * self.seq_kv * dims * share

    @property
    def dram_bytes(self) -> float:
        """Q, K, V and O once; backward also reads dO and writes dQ, dK and dV."""
        width = operand_type(self.dtype)[0].bytes_per_element
        rows = self.heads * self.seq_q + self.kv_heads * self.seq_kv
        return rows * (self.head_dim + self.head_dim_v) * width * (2.0 if self.backward else 1.0)

    def bound_us(self, gpu: GpuSpec) -> tuple[float, str]:
        """A lower bound of the time [us] and its limiter: peak math, or each tensor once through DRAM; no
        softmax.
        """
        math_us = self.flop / gpu.flop_per_us(operand_type(self.dtype)[0].math_kind)
        dram_us = self.dram_bytes / gpu.dram_bytes_per_us
        return (math_us, "MATH BOUND") if math_us >= dram_us else (dram_us, "DRAM BOUND")

    def predicted(self, gpu: GpuSpec) -> Prediction | None:
        """The prediction of a forward call; None where no model has such a kernel.

        torch's kernel is cuDNN's on Hopper and newer cards, else FlashAttention 2's. Its causal mask begins
        with the first key, so that only as many queries as keys are modelled.
        """
        if self.backward or (self.causal and self.seq_q != self.seq_kv):
            return None
        kernel = TORCH_KERNELS[TORCH_KERNELS[0] not in kernels_on(gpu)]
        sizes = {name: value for name, value in asdict(self).items() if name != "backward"}
        try:
            problem = AttentionProblem.of(**sizes)
            return AttentionModel(gpu).predict([(problem, AttentionConfig(kernel=kernel))]).row(0)
        except InputError:
            return None


class UnmodelledError(Exception):
    """An operator that is known but cannot be predicted as it is called."""


@dataclass(frozen=True, slots=True)
class GemmReader:
    """Finds an operator's operands, of shapes (batch, m, k) and (batch, k, n)."""

    first: str
    second: str
    kind: str


GEMM_READERS = {name: GemmReader(*places) for name, places in read_toml("other_names")["torch"].items()}


ADDING = ("addmm", "baddbmm", "addmv", "_addmm_activation", "_scaled_mm", "_scaled_mm_v2", "_grouped_mm")
"""Operators that add something to their product."""
CONVOLUTIONS = ("convolution", "convolution_backward")
GRADIENTS = (DGRAD, WGRAD)
"""First two entries of `output_mask` in a convolution's backward; the bias's gradient is a sum."""


def is_known(name: str) -> bool:
    """Whether `work_of` reads an operator of this name."""
    return name in GEMM_READERS or name in CONVOLUTIONS or ATTENTION.search(name) is not None


def work_of(name: str, bound: Mapping[str, Any]) -> list[tuple[str, GemmProblem | Attention]]:
    """The work of a known operator, each item with its kind; nothing for an empty operator, which costs
    nothing.

    Raises UnmodelledError, and InputError for symbolic sizes.
    """
    if name in CONVOLUTIONS:
        return [(CONVOLUTION, problem) for problem in _convolutions(bound, name)]
    if name not in GEMM_READERS:
        attention = _attention(bound, name)
        return [] if attention is None else [(ATTENTION_KIND, attention)]
    gemm = _gemm(bound, name)
    return [] if gemm is None else [(GEMM_READERS[name].kind, gemm)]


def launches_kernels(schema: Any) -> bool:
    """Whether an operator of this schema runs on the GPU: it returns something new, or writes."""
    name = schema.name.split("::")[-1]
    aliases = [result.alias_info for result in schema.returns]
    return bool(aliases) and not NO_KERNEL.search(name) and not all(a and not a.is_write for a in aliases)


def _gemm(bound: Mapping[str, Any], name: str) -> GemmProblem | None:
    reader = GEMM_READERS[name]
    a, b = bound[reader.first], bound[reader.second]
    if b.dim() == a.dim() - 1 and reader.kind != GROUPED:
        b = b.unsqueeze(-1)
    offsets = bound.get("offs")
    count = 1 if offsets is None else _size(offsets.shape[0], name)
    batch, m, n, k = _extents(a, b, count, name)
    if 0 in (m, n, k, batch):
        return None
    groups = None
    if offsets is not None and a.dim() == 2 and b.dim() == 3:
        batch, m = 1, _size(a.shape[0], name)
        routing = Routing(experts=count, tokens=m, distribution="balanced")
        groups = routing.groups(1)[0]
    a_scales, b_scales = (_scales(bound, which) for which in "ab")
    a_type, b_type = _dtype(a, a_scales), _dtype(b, b_scales)
    packed = 2 if operand_type(a_type)[0].bits == 4 else 1
    out = bound.get("out_dtype")
    out_type = DTYPES.get(str(out or a.dtype).removeprefix("torch."), "bf16")
    return replace(
        GemmProblem.of(m, n, k * packed, a_type, out_type, b_dtype=b_type, batch=batch),
        a_major="k" if a.stride(-1) == 1 or m == 1 else "m",
        b_major="k" if b.stride(-2) == 1 or n == 1 else "n",
        epilogue=_epilogue(bound, name),
        groups=groups,
        block_scaling=_block_scaling(bound, a_scales, b_scales),
        broadcast=_broadcast(a, b) if groups is None else "",
    )


def _broadcast(a: Tensor, b: Tensor) -> str:
    """The operand that an expanded batch shares, whose matrices have the same address."""
    both = (("a", a), ("b", b))
    return next((name for name, x in both if x.dim() == 3 and x.shape[0] > 1 and x.stride(0) == 0), "")


def _epilogue(bound: Mapping[str, Any], name: str) -> Epilogue | None:
    """The operator's epilogue: a vector over columns or a whole matrix, and an activation."""
    words = []
    added = bound.get("bias") if "scaled" in name or "grouped" in name else bound.get("self")
    if name in ADDING and bound.get("beta", 1) != 0 and added is not None:
        words.append("bias_n" if added.dim() == 1 or added.shape[-2] == 1 else "beta")
    if name == "_addmm_activation":
        words.append("gelu" if bound.get("use_gelu", False) else "relu")
    return Epilogue(tuple(words)) if words else None


def _scales(bound: Mapping[str, Any], which: str) -> Tensor | None:
    """The scale factors of operand A or B, of several kinds the first."""
    found = bound.get(f"scale_{which}")
    return found[0] if isinstance(found, list | tuple) else found


def _block_scaling(
    bound: Mapping[str, Any], a_scales: Tensor | None, b_scales: Tensor | None
) -> BlockScaling | None:
    """Scale factors of blocks of 128, known by recipes or else by the shapes of fp32 factors."""
    if "recipe_a" in bound:
        blocks = [BLOCKS_OF_128.get(int(bound[f"recipe_{which}"][0])) for which in "ab"]
        return BlockScaling.parse(",".join(map(str, blocks))) if None not in blocks else None
    if a_scales is None or b_scales is None or str(a_scales.dtype) != "torch.float32":
        return None
    if a_scales.dim() != 2 or b_scales.dim() != 2 or 1 in (a_scales.shape[1], b_scales.shape[0]):
        return None
    a, b = bound["self"], bound["mat2"]
    rows = [1 if a_scales.shape[0] == a.shape[0] else 128, 1 if b_scales.shape[1] == b.shape[1] else 128]
    return BlockScaling(a_rows=rows[0], b_rows=rows[1])


def _convolutions(bound: Mapping[str, Any], name: str) -> list[GemmProblem]:
    """The products of a convolution, or of its gradients: those that are asked for."""
    image, weight = bound["input"], bound["weight"]
    if bound["transposed"]:
        raise UnmodelledError("transposed")
    if 0 in image.shape or 0 in weight.shape:
        return []
    asked = dict(zip(GRADIENTS, bound.get("output_mask", ()), strict=False))
    kinds = [kind for kind, is_asked in asked.items() if is_asked] if asked else [FPROP]
    names = ("stride", "padding", "dilation")
    stride, pad, dilation = ([_size(value, name) for value in bound[each]] for each in names)
    size, taps = [_size(value, name) for value in image.shape[2:]], [_size(v, name) for v in weight.shape[2:]]
    if len(size) == 1:
        # One dimension is two, of which one has a single pixel.
        size, taps, stride, pad, dilation = [1, *size], [1, *taps], [1, *stride], [0, *pad], [1, *dilation]
    dtype = _dtype(image, None)
    epilogue = Epilogue(("bias_n",)) if name == "convolution" and bound.get("bias") is not None else None
    found = [
        ConvProblem(
            kind=kind,
            images=_size(image.shape[0], name),
            channels=_size(image.shape[1], name),
            filters=_size(weight.shape[0], name),
            size=tuple(size),
            filter_size=tuple(taps),
            stride=_each(stride, size),
            pad=_each(pad, size),
            dilation=_each(dilation, size),
            groups=_size(bound["groups"], name),
        )
        for kind in kinds
    ]
    return [GemmProblem.of_conv(conv, dtype, dtype, epilogue=epilogue) for conv in found]


def _each(values: list[int], size: list[int]) -> tuple[int, ...]:
    """A value for each extent, where one may stand for all."""
    return tuple(values * len(size) if len(values) == 1 else values)


def _extents(a: Tensor, b: Tensor, groups: int, name: str) -> tuple[int, int, int, int]:
    """Batch, m, n and k; an extent that offsets cut into groups counts by its mean, rounded up."""
    m, k = (_size(value, name) for value in a.shape[-2:])
    n = _size(b.shape[-1], name)
    if a.dim() == b.dim() == 3:
        return _size(a.shape[0], name), m, n, k
    if a.dim() == 3:
        return groups, m, -(-n // groups), k
    if b.dim() == 3:
        return groups, -(-m // groups), n, k
    return groups, m, n, -(-k // groups)


def _dtype(tensor: Tensor, scale: Tensor | None) -> str:
    """The operand type of a tensor; block scales are known by their type."""
    name = str(tensor.dtype).removeprefix("torch.")
    scale_type = "" if scale is None else str(scale.dtype).removeprefix("torch.")
    if name == "float4_e2m1fn_x2":
        return "nvfp4" if scale_type == "float8_e4m3fn" else "mxfp4"
    if name == "float8_e4m3fn" and scale_type == "float8_e8m0fnu":
        return "mxfp8"
    if name not in DTYPES:
        raise UnmodelledError(f"type {name}")
    return DTYPES[name]


def _attention(bound: Mapping[str, Any], name: str) -> Attention | None:
    query, key, value = bound["query"], bound["key"], bound["value"]
    if query.dim() != 4:
        raise UnmodelledError(f"{query.dim()} dimensions")
    batch, heads, seq_q, head_dim = (_size(size, name) for size in query.shape)
    kv_heads, seq_kv, head_dim_v = (_size(size, name) for size in (*key.shape[1:3], value.shape[-1]))
    if 0 in (batch, heads, kv_heads, seq_q, seq_kv, head_dim, head_dim_v):
        return None
    return Attention(
        heads=batch * heads,
        kv_heads=batch * kv_heads,
        seq_q=seq_q,
        seq_kv=seq_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
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
