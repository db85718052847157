"""Formulas that are often asked for, each as one straight function of the numbers that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from gemm_model.core.batch import COLUMNS, OF_THE_CALL, GemmBatch, columns_of
from gemm_model.core.compiled import compiled
from gemm_model.core.straight import Extent, straight
from gemm_model.kernels.feasibility import RESOURCES, Resources

OFTEN = 150
"""Rows that are asked for one by one until formulas are traced [1]; chosen: to trace takes as long."""
ROWS_AS_ONE = 256
"""Rows of a table that take as long as one asked for alone, beside what any table takes [1]; chosen."""
SWITCHES = (-1.0, 0.0, 1.0, float("inf"))
"""Numbers that switch formulas off."""
_SIZES = {*OF_THE_CALL, "cta_m", "cta_n", "mma_m", "mma_n", "cluster_m", "cluster_n"}
_SIZES |= {"schedule", "raster", "swizzle"}
"""What kernels of one function differ by, switches or not."""
_TYPES = {"a_bits", "b_bits", "out_bits", "acc_bits", "a_scale_bits", "b_scale_bits", "multiplier_share"}
_resources_of = attrgetter(*RESOURCES)
NUMBER, COLUMN, OF_ORDERS, OF_BOTH = map(Extent, range(4))
"""Inputs: a number, one number for each kernel, for each tile order, and for each kernel in each order."""


@dataclass(slots=True)
class _Function:
    """The formulas with some constants: an Extent for each that is none."""

    constants: tuple[Any, ...]
    made: Callable[..., Any] | None = None
    """Takes the numbers that are no constants; None until they are asked for often."""
    asked: float = 0.0


Inputs: TypeAlias = tuple[_Function, Resources, tuple[Any, ...]]
"""Of some kernels: their function, their resources, and its numbers."""


class Traced:
    """Formulas of kernels and their resources; the kind of problem is that of plain products."""

    def __init__(self, formulas: Callable[[GemmBatch, Resources], Any]) -> None:
        self.formulas = formulas
        self.known: dict[tuple[Any, ...], _Function] = {}

    def inputs(self, batch: GemmBatch, resources: Resources) -> Inputs:
        values = (*columns_of(batch), *_resources_of(resources))
        constants = tuple(map(_constant, (*COLUMNS, *RESOURCES), values))
        numbers = tuple(value for value, kept in zip(values, constants, strict=True) if type(kept) is Extent)
        return self.known.setdefault(constants, _Function(constants)), resources, numbers

    def of(self, batch: GemmBatch, resources: Resources, inputs: Inputs | None = None) -> Any:
        """What the formulas return of these kernels, whose inputs may be known."""
        if not batch.plain:
            return self.formulas(batch, resources)
        function, _, numbers = inputs or self.inputs(batch, resources)
        if function.made is not None:
            return function.made(*numbers)
        function.asked += 8.0 + len(batch) / ROWS_AS_ONE if isinstance(batch.m, np.ndarray) else 1.0
        if function.asked > OFTEN:
            # Other threads do not trace it too.
            function.asked, end = -float("inf"), len(COLUMNS)

            def formulas(*values: Any) -> Any:
                return self.formulas(GemmBatch(*values[:end]), Resources(*values[end:]))

            function.made = compiled(formulas, function.constants) or straight(formulas, function.constants)
        return self.formulas(batch, resources)


def _constant(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return COLUMN if value.ndim == 1 else OF_ORDERS if value.shape[1] == 1 else OF_BOTH
    varies = type(value) is float and not (name in _TYPES or value in SWITCHES)
    return NUMBER if varies or name in _SIZES else value
