"""A matrix multiplication: sizes, operand types, layouts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from gemm_model.core import dtypes
from gemm_model.core.batch_strides import BatchStrides, MatrixLayout, strided
from gemm_model.core.block_scaling import BlockScaling
from gemm_model.core.conv import ConvProblem
from gemm_model.core.epilogue import QUANTIZED, QUANTIZED_COLUMNS, QUANTIZED_SCALE_BITS, Epilogue
from gemm_model.core.grouped import GroupedGemm
from gemm_model.core.records import require_kind
from gemm_model.core.sizes import require_size
from gemm_model.errors import InputError

_NOTHING = type(None)
_KINDS = {
    **dict.fromkeys(("a_dtype", "b_dtype", "out_dtype", "acc_dtype"), (dtypes.DataType,)),
    **dict.fromkeys(("a_scale", "b_scale"), (dtypes.BlockScale, _NOTHING)),
    "epilogue": (Epilogue, _NOTHING),
    "groups": (GroupedGemm, _NOTHING),
    "block_scaling": (BlockScaling, _NOTHING),
    "conv": (ConvProblem, _NOTHING),
    "batch_strides": (BatchStrides, _NOTHING),
}
"""Types of the fields of a problem that are neither sizes nor words."""
OF_A_KIND = ("epilogue", "groups", "block_scaling", "conv", "batch_strides")
"""Fields that are None in a plain GEMM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProblem:
    """D[m, n] = A[m, k] x B[n, k]^T, `batch` times, with fp32 accumulation unless said otherwise.

    `m`, `n`, `k` are sizes in elements. Types are `DataType`s; `GemmProblem.of` takes their names. `a_major`
    / `b_major` is "k" or the other extent of the operand, `c_major` is "m" or "n": the extent that is
    contiguous in memory.

    Kinds of problem: a fused `epilogue`; `groups` of rows, `m` rows in all, each group with its own B; scale
    factors of the operands' type (`a_scale`, `b_scale`) or applied in software (`block_scaling`); a
    convolution (`conv`), whose implicit GEMM has these sizes; `broadcast` ('a' or 'b'), an operand that a
    batch shares; `batch_strides` in elements. A kind that leaves a plain GEMM (no words, one group, a filter
    of one tap) is stored as None. `a_dtype`, `b_dtype`, `out_dtype` and `acc_dtype` are the types. Raises
    InputError for a size below 1, a type that is not multiplied, and kinds that do not go together.

    >>> from gemm_model import GemmProblem
    >>> problem = GemmProblem.of(4096, 8192, 512, "fp8", "bf16", batch=2)
    >>> problem.a_dtype.name, problem.out_dtype.name
    ('e4m3', 'bf16')
    >>> problem.flop == 2 * 2 * 4096 * 8192 * 512
    True
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_dtype: dtypes.DataType = field(default_factory=lambda: dtypes.element_type("bf16"))
    b_dtype: dtypes.DataType = field(default_factory=lambda: dtypes.element_type("bf16"))
    out_dtype: dtypes.DataType = field(default_factory=lambda: dtypes.element_type("bf16"))
    acc_dtype: dtypes.DataType = field(default_factory=lambda: dtypes.element_type("fp32"))
    a_scale: dtypes.BlockScale | None = None
    b_scale: dtypes.BlockScale | None = None
    a_major: str = "k"
    b_major: str = "k"
    c_major: str = "n"
    epilogue: Epilogue | None = None
    groups: GroupedGemm | None = None
    block_scaling: BlockScaling | None = None
    conv: ConvProblem | None = None
    broadcast: str = ""
    """The operand ('a' or 'b') that all matrices of a batch share; '' if each has its own."""
    batch_strides: BatchStrides | None = None
    """Layout of the matrices of a batch; None puts them one behind the other. A stride of 0 is a
    broadcast."""

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            require_size(self, name)
        for name, kinds in _KINDS.items():
            require_kind(name, getattr(self, name), *kinds)
        dtypes.require_product(self.a_dtype, self.b_dtype)
        dtypes.require_number(self.out_dtype)
        if not self.plain:
            self._check_kinds()
        for name, allowed in (("a_major", ("k", "m")), ("b_major", ("k", "n")), ("c_major", ("n", "m"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")

    def _check_kinds(self) -> None:
        """Check the kinds of problem, and drop those that leave a plain GEMM."""
        if self.broadcast not in ("", "a", "b"):
            raise InputError(f"broadcast is {self.broadcast!r}; expected a or b")
        for name in ("broadcast", "batch_strides"):
            if getattr(self, name) and (self.groups is not None or self.conv is not None):
                raise InputError(f"{name} comes with groups or conv; expected a batch of plain products")
            if getattr(self, name) and self.batch == 1:
                raise InputError(f"{name} comes without a batch; expected two matrices or more")
        if self.epilogue is not None:
            _check_epilogue(self.epilogue, self)
        if self.groups is not None:
            _check_groups(self.groups, self)
        if self.block_scaling is not None:
            _check_block_scaling(self)
        if self.conv is not None and self.conv.sizes != (self.m, self.n, self.k, self.batch):
            found, expected = ("x".join(map(str, sizes)) for sizes in (self.sizes, self.conv.sizes))
            raise InputError(
                f"conv is a product of m x n x k x batch {expected}, not {found}; expected its own"
            )
        for name, is_plain in (
            ("epilogue", self.epilogue is not None and not self.epilogue.words),
            ("groups", self.groups is not None and len(self.groups.rows) == 1),
            ("conv", self.conv is not None and self.conv.pointwise),
        ):
            if is_plain:
                object.__setattr__(self, name, None)
        if self.batch_strides is not None:
            self._check_strides(self.batch_strides)

    def _check_strides(self, strides: BatchStrides) -> None:
        """Check strides. A stride of 0 becomes a broadcast; strides without gaps become None."""
        if strides.out == 0 or (strides.a == 0 and strides.b == 0):
            raise InputError(
                f"batch_strides are {strides.name}; expected 0 for A or B alone: outputs must differ"
            )
        shared = "a" if strides.a == 0 else "b" if strides.b == 0 else ""
        if self.broadcast not in ("", shared):
            raise InputError(
                f"broadcast is {self.broadcast} with batch_strides {strides.name}; expected 0 of that operand"
            )
        object.__setattr__(self, "broadcast", shared)
        found = self.layouts
        object.__setattr__(self, "batch_strides", None)
        if found != self.layouts:
            object.__setattr__(self, "batch_strides", strides)

    @classmethod
    def of(
        cls,
        m: int,
        n: int,
        k: int,
        dtype: dtypes.TypeName = "bf16",
        out_dtype: dtypes.TypeName | None = None,
        *,
        b_dtype: dtypes.TypeName | None = None,
        batch: int = 1,
        epilogue: Epilogue | str | None = None,
        groups: GroupedGemm | str | None = None,
        block_scaling: BlockScaling | str | None = None,
    ) -> GemmProblem:
        """A problem from type names ('bf16', 'FP8', 'nvfp4', ...) or torch's dtypes; B's is A's unless given.

        The output type defaults to the operand type for types of 16 or more bits, else to bf16 (to e4m3
        where the epilogue quantizes). `epilogue`, `groups`, `block_scaling`: also what their `parse` takes.
        """
        epilogue = Epilogue.parse(epilogue) if isinstance(epilogue, str) else epilogue
        require_kind("epilogue", epilogue, Epilogue, _NOTHING)
        groups = GroupedGemm.parse(groups) if isinstance(groups, str) else groups
        if isinstance(block_scaling, str):
            block_scaling = BlockScaling.parse(block_scaling)
        a_type, a_scale = dtypes.operand_type(dtype)
        b_type, b_scale = dtypes.operand_type(dtype if b_dtype is None else b_dtype)
        default_out = a_type if a_type.bits >= 16 else dtypes.element_type("bf16")
        if epilogue is not None and epilogue.quantized:
            default_out = dtypes.element_type("e4m3")
        return cls(
            m=m,
            n=n,
            k=k,
            batch=batch,
            a_dtype=a_type,
            b_dtype=b_type,
            out_dtype=default_out if out_dtype is None else dtypes.element_type(out_dtype),
            a_scale=a_scale,
            b_scale=b_scale,
            epilogue=epilogue,
            groups=groups,
            block_scaling=block_scaling,
        )

    @classmethod
    def of_conv(
        cls,
        conv: ConvProblem | str,
        dtype: dtypes.TypeName = "bf16",
        out_dtype: dtypes.TypeName | None = None,
        *,
        epilogue: Epilogue | str | None = None,
    ) -> GemmProblem:
        """The implicit GEMM of a convolution, or of what `ConvProblem.parse` takes."""
        found = ConvProblem.parse(conv) if isinstance(conv, str) else conv
        require_kind("conv", found, ConvProblem)
        m, n, k, groups = found.sizes
        a_major, b_major = found.majors
        plain = cls.of(m, n, k, dtype, out_dtype, batch=groups, epilogue=epilogue)
        return replace(plain, conv=found, a_major=a_major, b_major=b_major)

    @property
    def plain(self) -> bool:
        """Whether it is a plain GEMM, in any types and layouts."""
        kinds = (self.epilogue, self.groups, self.block_scaling, self.conv)
        return kinds == (None, None, None, None) and not self.broadcast and self.batch_strides is None

    @property
    def plain_twin(self) -> GemmProblem:
        """The plain GEMM of the same sizes; groups become equal groups with a whole number of rows."""
        if self.plain:
            return self
        m, n, k, batch = self.sizes
        no_kind: dict[str, Any] = dict.fromkeys(OF_A_KIND)
        return replace(self, m=ceil(m), n=int(n), k=int(k), batch=int(batch), broadcast="", **no_kind)

    @property
    def layouts(self) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
        """How A, B and the output of a batch of plain GEMMs lie in memory."""
        out_n = self.n // 2 if self.epilogue is not None and self.epilogue.gated else self.n
        sides = (
            ("A", (self.m, self.k), self.a_major == "k", self.broadcast == "a"),
            ("B", (self.n, self.k), self.b_major == "k", self.broadcast == "b"),
            ("the output", (self.m, out_n), self.c_major == "n", False),
        )
        strides = self.batch_strides
        given = (None,) * 3 if strides is None else (strides.a, strides.b, strides.out)
        found = []
        for (name, extents, by_rows, shared), stride in zip(sides, given, strict=True):
            rows, columns = extents if by_rows else extents[::-1]
            step = rows * columns if stride is None else stride
            found.append(strided(name, self.batch, rows, columns, 0 if shared else step))
        return found[0], found[1], found[2]

    @property
    def sizes(self) -> tuple[float, float, float, float]:
        """m, n, k and the number of such GEMMs; for groups, the mean over those that have rows."""
        if self.groups is None:
            return self.m, self.n, self.k, self.batch
        return self.groups.sizes(self.n, self.k)

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiply and an add for each of m n k."""
        m, n, k, batch = self.sizes
        return round(2 * m * n * k * batch)

    @property
    def a_scale_bits(self) -> float:
        """Scale-factor bits that travel with one element of A."""
        return self.block_scaling.a_bits if self.block_scaling else scale_bits(self.a_scale)

    @property
    def b_scale_bits(self) -> float:
        return self.block_scaling.b_bits if self.block_scaling else scale_bits(self.b_scale)

    @property
    def distinct_share(self) -> tuple[float, float]:
        """Elements of A and B in memory over those of the GEMM."""
        if self.conv is not None:
            return self.conv.distinct_share
        share = 1.0 / self.batch
        return (share if self.broadcast == "a" else 1.0), (share if self.broadcast == "b" else 1.0)

    @property
    def a_bytes(self) -> float:
        """Bytes of A with its scale factors."""
        m, _, k, batch = self.sizes
        return batch * m * k * self.distinct_share[0] * (self.a_dtype.bits + self.a_scale_bits) / 8

    @property
    def b_bytes(self) -> float:
        """Bytes of B with its scale factors, of all groups that have rows."""
        _, n, k, batch = self.sizes
        return batch * n * k * self.distinct_share[1] * (self.b_dtype.bits + self.b_scale_bits) / 8

    @property
    def output_bits(self) -> float:
        """Bits written for each accumulator, including scale factors of quantized outputs."""
        bits = float(self.out_dtype.bits)
        if self.epilogue is None:
            return bits
        scales = QUANTIZED_SCALE_BITS / QUANTIZED_COLUMNS if self.epilogue.quantized else 0.0
        return (bits + scales) * self.epilogue.output_share

    @property
    def output_bytes(self) -> float:
        m, n, _, batch = self.sizes
        return batch * m * n * self.output_bits / 8

    @property
    def math_kind(self) -> str:
        scaled = self.a_scale is not None and self.b_scale is not None
        return dtypes.math_kind(self.a_dtype, self.b_dtype, scaled=scaled)

    @property
    def multiplier_share(self) -> float:
        return dtypes.multiplier_share(self.a_dtype, self.b_dtype)


def scale_bits(scale: dtypes.BlockScale | None) -> float:
    """Scale-factor bits that travel with one element."""
    return scale.dtype.bits / scale.vec_size if scale else 0.0


def _check_epilogue(epilogue: Epilogue, problem: GemmProblem) -> None:
    """Raise InputError for an output type or size that the epilogue cannot produce."""
    if epilogue.gated and problem.n % 2:
        raise InputError(
            f"n is {problem.n} with epilogue {epilogue.name}; expected gate and up columns in turn: even"
        )
    if epilogue.quantized and problem.out_dtype.bits != 8:
        raise InputError(f"out_dtype is {problem.out_dtype.name} with {QUANTIZED}; expected a type of 8 bits")


def _check_groups(groups: GroupedGemm, problem: GemmProblem) -> None:
    """Raise InputError for sizes that are not those of the groups."""
    if problem.batch != 1:
        raise InputError(f"batch is {problem.batch} with groups; expected 1")
    if groups.total_rows != problem.m:
        raise InputError(f"groups have {groups.total_rows} rows in all; expected the {problem.m} of m")
    for name, sizes in (("n", groups.n), ("k", groups.k)):
        if sizes and max(sizes) != getattr(problem, name):
            raise InputError(
                f"{name} is {getattr(problem, name)}; expected the largest of the groups, {max(sizes)}"
            )


def _check_block_scaling(problem: GemmProblem) -> None:
    """Raise InputError for operands that have no such scale factors."""
    if problem.math_kind != "fp8" or problem.a_dtype.bits != problem.b_dtype.bits:
        raise InputError(
            f"block_scaling comes with {problem.a_dtype.name} x {problem.b_dtype.name}; expected fp8 operands"
        )
    if problem.a_scale or problem.b_scale:
        raise InputError("block_scaling comes with types that have scales in hardware; expected one of them")


def swapped(problem: GemmProblem) -> GemmProblem:
    """The same product as D^T = B A^T."""
    return GemmProblem(
        m=problem.n,
        n=problem.m,
        k=problem.k,
        batch=problem.batch,
        a_dtype=problem.b_dtype,
        b_dtype=problem.a_dtype,
        out_dtype=problem.out_dtype,
        acc_dtype=problem.acc_dtype,
        a_scale=problem.b_scale,
        b_scale=problem.a_scale,
        a_major="k" if problem.b_major == "k" else "m",
        b_major="k" if problem.a_major == "k" else "n",
        c_major="m" if problem.c_major == "n" else "n",
    )
