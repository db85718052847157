"""Attention kernels as columns: one row for each sequence length of each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemm_model.attention.kernels import CTAS_AN_SM, copies_rows, kernel_of, refusal, resolved
from gemm_model.core.attention import KERNELS, SCHEDULERS, AttentionConfig, AttentionProblem
from gemm_model.core.gpu import GpuSpec
from gemm_model.errors import InputError, RefusedKernelError, refuse_all

OF_PROBLEM = ("heads", "kv_heads", "head_dim", "head_dim_v", "element_bytes", "causal", "window")
OF_CONFIG = tuple(spec.name for spec in fields(AttentionConfig) if spec.name not in ("kernel", "scheduler"))
OF_KERNEL = ("turns", "head_dim_step", "readers", "softmax", "persistent")


class Columns:
    """Arrays by name, of one length along their last axis."""

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> NDArray[Any]: ...


class AttentionBatch(Columns):
    """Resolved kernels as columns; sizes in elements.

    A kernel of one sequence length is one row, whose `sequences` is the batch size. A kernel of variable lengths
    has one row for each sequence. `owner` is the position of the row's kernel. Further columns are fields of its
    problem, configuration and `AttentionKernel`, and what `_columns_of` adds. Flags are bools, all else is float.
    """

    def __len__(self) -> int:
        return len(self.owner)

    def __getitem__(self, rows: Any) -> AttentionBatch:
        return AttentionBatch(**{name: column[rows] for name, column in vars(self).items()})

    @property
    def apart(self) -> NDArray[Any]:
        """Whether the groups of an SM are CTAs with one slot a ring."""
        return np.asarray((self.stages == 1) & ~self.turns)

    @property
    def packed(self) -> NDArray[Any]:
        """Query heads that share the rows of one tile."""
        return np.where(self.pack_gqa, self.heads / self.kv_heads, 1.0)


def batch_of(kernels: Sequence[tuple[AttentionProblem, AttentionConfig]], gpu: GpuSpec) -> AttentionBatch:
    """The columns of kernels; raises RefusedKernelError for those that cannot run."""
    columns, refused = [], []
    for owner, kernel in enumerate(kernels):
        try:
            columns.append(_columns_of(*kernel, gpu))
        except InputError as error:
            refused.append(RefusedKernelError([owner], str(error)))
    refuse_all(refused)
    rows = [
        (owner, 1 if problem.lengths else problem.batch, *lengths)
        for owner, (problem, _) in enumerate(kernels)
        for lengths in problem.sequences
    ]
    owner_of, *sizes = np.array(rows).T
    found = dict(zip(("sequences", "seq_q", "seq_kv"), sizes, strict=True))
    found |= {name: np.array([each[name] for each in columns])[owner_of] for name in columns[0]}
    floats = {name: each if each.dtype == bool else each.astype(float) for name, each in found.items()}
    return AttentionBatch(owner=owner_of, **floats)


def _columns_of(problem: AttentionProblem, config: AttentionConfig, gpu: GpuSpec) -> dict[str, Any]:
    """Values of the columns after `seq_kv`; raises InputError if the kernel cannot run."""
    config = resolved(problem, config, gpu)
    if (reason := refusal(problem, config, gpu)) is not None:
        raise InputError(reason)
    kernel = kernel_of(config, gpu)
    parts = ((problem, OF_PROBLEM), (config, OF_CONFIG), (kernel, OF_KERNEL))
    return {name: getattr(part, name) for part, names in parts for name in names} | {
        "kernel": KERNELS.index(config.kernel),
        # Groups in step are one group of all rows.
        "consumer_groups": config.consumer_groups if config.overlap_between_groups else 1,
        **{order: config.scheduler == order for order in SCHEDULERS[2:]},
        # CTAs look up their sequence and its lengths.
        "searches": bool(problem.lengths) or (kernel.turns and problem.page_size > 0),
        # Threads copy rows of K and V, since no bulk copy brings a key block of several pages.
        "copied": kernel.turns and copies_rows(problem, config),
        "capped": problem.softcap > 0.0,
        # flash-attn-4 divides each score by the cap; a compiler multiplies where that is a power of two.
        "divides": config.kernel == KERNELS[0] and frexp(problem.softcap)[0] not in (0.0, 0.5),
        "ctas_an_sm": kernel.narrow_ctas if problem.head_dim <= 64 else CTAS_AN_SM,
    }
