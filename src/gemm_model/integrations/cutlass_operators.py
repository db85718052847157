"""A heuristic for the CUTLASS operator API: `get_operators(args, heuristic=GemmModelHeuristic(gpu="h200"))`.

Importing this module registers the heuristic as "gemm_model". It ranks dense and block-scaled GEMMs of the
Hopper and Blackwell operators. Needs the package nvidia-cutlass-operators (written for 0.3), and no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemm_model.core.batch import batch_of
from gemm_model.core.dtypes import BlockScale, DataType, element_type, names_in
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import InputError, importing
from gemm_model.integrations import stand_aside
from gemm_model.kernels.feasibility import runnable_mask
from gemm_model.kernels.registry import family_of
from gemm_model.models import DEFAULT_MODEL, create_model

with importing("the CUTLASS heuristic needs its operator API: pip install nvidia-cutlass-operators"):
    from cutlass.operators import GemmArguments, Heuristic, ScaledOperand, register_heuristic

NAME, KNOWN = "gemm_model", "in CUTLASS's own order (we know nvidia-cutlass-operators 0.3)"

TYPES = names_in("operators")
"""CUTLASS's names of types."""


@register_heuristic(NAME)
class GemmModelHeuristic(Heuristic):  # type: ignore[misc]
    """Orders operators by predicted time on a GPU.

    Operators designed for another GPU generation, which the model does not describe, follow in their own
    order; none is dropped.
    """

    def __init__(
        self,
        gpu: GpuSpec | str | Path = "h200",
        *,
        model: str = DEFAULT_MODEL,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.gpu = as_gpu(gpu)
        self.model = create_model(model, self.gpu, options)

    def rank(
        self, args: Any, operators: list[Any], *, target_sm: Any = None, limit: int | None = None
    ) -> list[Any]:
        """The operators by predicted time; raises TypeError for arguments other than a GEMM's."""
        del target_sm, limit
        if not operators:
            return operators
        if not isinstance(args, GemmArguments):
            raise TypeError(f"heuristic {NAME} ranks GemmArguments; got {type(args).__name__}")
        try:
            return self._ordered(args, operators)
        except AttributeError as reason:
            stand_aside(f"{len(operators)} operators {KNOWN}", reason)
            return operators

    def _ordered(self, args: Any, operators: list[Any]) -> list[Any]:
        known = [operator for operator in operators if self._describes(operator)]
        others = [operator for operator in operators if not self._describes(operator)]
        if not known:
            return others
        problem = problem_of(args)
        batch = batch_of([(problem, config_of(operator.metadata.design)) for operator in known])
        times_us = np.full(len(batch), np.inf)
        runnable = runnable_mask(batch, self.gpu, family_of("cutlass", self.gpu))
        if runnable.any():
            times_us[runnable] = self.model.predict_batch(batch[runnable]).runtime_us
        return [known[index] for index in np.argsort(times_us, kind="stable")] + others

    def _describes(self, operator: Any) -> bool:
        designed_for = operator.metadata.operator_class.designed_for_min_cc
        return f"sm{designed_for}" == self.gpu.architecture


def problem_of(args: Any) -> GemmProblem:
    """The GEMM of CUTLASS operator arguments. Raises TypeError for an unknown type."""
    size = args.problem_size
    a_type, a_scale = _operand(args.A)
    b_type, b_scale = _operand(args.B)
    return GemmProblem(
        m=size.M,
        n=size.N,
        k=size.K,
        batch=size.L,
        a_dtype=a_type,
        b_dtype=b_type,
        out_dtype=_element(args.out.dtype),
        acc_dtype=_element(args.accumulator_type),
        a_scale=a_scale,
        b_scale=b_scale,
        a_major="k" if args.A.stride[-1] == 1 else "m",
        b_major="k" if args.B.stride[-2] == 1 else "n",
        c_major="n" if args.out.stride[-1] == 1 else "m",
    )


def _operand(operand: Any) -> tuple[DataType, BlockScale | None]:
    if not isinstance(operand, ScaledOperand):
        return _element(operand.dtype), None
    vec_size = int(np.prod(tuple(getattr(operand.mode, "value", operand.mode))))
    return _element(operand.dtype), BlockScale(dtype=_element(operand.scale.dtype), vec_size=vec_size)


def _element(dtype: Any) -> DataType:
    name = getattr(dtype, "__name__", None) or str(dtype).removeprefix("torch.")
    try:
        return element_type(TYPES.get(name, name))
    except InputError:
        raise TypeError(f"heuristic {NAME} does not know the type {name}") from None


def config_of(design: Any) -> KernelConfig:
    """The kernel that an operator's design metadata describes: its tile is that of the MMA."""
    tile_m, tile_n, tile_k = design.tile_shape
    two_cta = bool(getattr(design, "use_2cta_mma", False))
    return KernelConfig(
        cta_m=tile_m // 2 if two_cta else tile_m,
        cta_n=tile_n,
        cta_k=tile_k,
        mma_m=tile_m,
        cluster_m=design.cluster_shape[0],
        cluster_n=design.cluster_shape[1],
        stages=design.num_smem_stages or 0,
        schedule="2cta" if two_cta else "cooperative",
        raster="along_m",
        swizzle=1,
        kernel="cutlass",
        fast_accum=True,
    )
