"""Attention kernels as columns: one row for each sequence length of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gemm_model.attention.kernels import CTAS_AN_SM, copies_rows, kernel_of, read_by_rules, refusal, resolved
from gemm_model.core.attention import KERNELS, AttentionConfig, AttentionProblem
from gemm_model.core.batch import BoolArray, FloatArray, IntArray
from gemm_model.core.errors import InputError, RefusedKernelError, refuse_all
from gemm_model.core.gpu import GpuSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Resolved kernels as columns; sizes in elements.

    A kernel of one sequence length is one row, whose `sequences` is the batch size. A kernel of variable lengths
    has one row for each sequence. `owner` is the position of the row's kernel.
    """

    owner: IntArray
    sequences: FloatArray
    seq_q: FloatArray
    seq_kv: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    head_dim: FloatArray
    head_dim_v: FloatArray
    element_bytes: FloatArray
    causal: BoolArray
    window: FloatArray
    kernel: IntArray
    """Position in KERNELS."""
    tile_m: FloatArray
    tile_n: FloatArray
    stages: IntArray
    overlap: BoolArray
    from_registers: BoolArray
    pack_gqa: BoolArray
    splits: FloatArray
    longest_first: BoolArray
    group_rows: FloatArray
    turns: BoolArray
    head_dim_step: FloatArray
    readers: FloatArray
    softmax: FloatArray
    persistent: BoolArray
    searches: BoolArray
    """Whether CTAs look up their sequence and its lengths."""
    copied: BoolArray
    """Whether threads copy rows of K and V, since no bulk copy brings a key block of several pages."""
    emulated: FloatArray
    ctas_an_sm: FloatArray
    cluster: FloatArray

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, rows: Any) -> AttentionBatch:
        return AttentionBatch(**{spec.name: getattr(self, spec.name)[rows] for spec in fields(self)})

    @property
    def apart(self) -> BoolArray:
        """Whether the groups of an SM are CTAs with one slot a ring."""
        return np.asarray((self.stages == 1) & ~self.turns)

    @property
    def packed(self) -> FloatArray:
        """Query heads that share the rows of one tile."""
        return np.where(self.pack_gqa, self.heads / self.kv_heads, 1.0)


def batch_of(kernels: Sequence[tuple[AttentionProblem, AttentionConfig]], gpu: GpuSpec) -> AttentionBatch:
    """The columns of kernels; raises RefusedKernelError for those that cannot run."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for owner, kernel in enumerate(kernels):
        kinds.setdefault(read_by_rules(*kernel), []).append(owner)
    columns, refused = [], []
    kind_of = np.empty(len(kernels), dtype=np.int64)
    for kind, owners in enumerate(kinds.values()):
        kind_of[owners] = kind
        try:
            columns.append(_columns_of(*kernels[owners[0]], gpu))
        except InputError as error:
            refused.append(RefusedKernelError(owners, str(error)))
    refuse_all(refused)
    rows = [
        (owner, 1 if problem.lengths else problem.batch, *lengths)
        for owner, (problem, _) in enumerate(kernels)
        for lengths in problem.sequences
    ]
    own = np.array(rows).T
    cells = zip(fields(AttentionBatch), (*own, *np.array(columns)[kind_of[own[0]]].T), strict=True)
    types = {"IntArray": np.int64, "BoolArray": np.bool_, "FloatArray": np.float64}
    return AttentionBatch(**{spec.name: each.astype(types[str(spec.type)]) for spec, each in cells})


def _columns_of(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> tuple[Any, ...]:
    """Values of the columns after `seq_kv`; raises InputError if the kernel cannot run."""
    config = resolved(problem, config, gpu)
    if (reason := refusal(problem, config, gpu)) is not None:
        raise InputError(reason)
    kernel = kernel_of(config, gpu)
    paged = kernel.turns and problem.page_size > 0
    return (
        *(problem.heads, problem.kv_heads, problem.head_dim, problem.head_dim_v, problem.element_bytes),
        *(problem.causal, problem.window),
        *(KERNELS.index(config.kernel), config.tile_m, config.tile_n, config.stages),
        *(config.overlap_in_group, config.pv_from_registers, config.pack_gqa, config.num_splits),
        *(config.scheduler == "longest_first", kernel.group_rows, kernel.turns, kernel.head_dim_step),
        *(kernel.readers, kernel.softmax, kernel.persistent, bool(problem.lengths) or paged),
        *(kernel.turns and copies_rows(problem, config), config.exp_emulated),
        *(kernel.narrow_ctas if problem.head_dim <= 64 else CTAS_AN_SM, config.cluster),
    )
