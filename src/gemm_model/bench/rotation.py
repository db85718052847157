"""Number of operand copies that a graph of launches rotates through, so that none is still in L2."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_model.core.problem import GemmProblem

COLD_L2_MULTIPLE = 4
"""Bytes of distinct weights [L2 sizes]; graphs of launches; chosen: a buffer that returns after so much other
traffic is cold."""

MOST_COPIES = 256
"""Copies of the weights [launches]; graphs of launches; chosen: bounds the time to capture one; small weights
stay partly warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Copies of weights (B), activations (A) and outputs; launch i takes copy i modulo their number."""

    weights: int
    activations: int
    outputs: int

    def footprint_bytes(self, problem: GemmProblem) -> float:
        """Distinct bytes that one turn touches."""
        operands = self.activations * problem.a_bytes + self.weights * problem.b_bytes
        return operands + self.outputs * problem.output_bytes


def rotation_of(problem: GemmProblem, l2_bytes: float, asked: int = 0) -> Rotation:
    """The rotation with cold operands, or with `asked` copies of the weights unless that is 0."""

    def cold_copies(size_bytes: float) -> int:
        return max(2, -int(-COLD_L2_MULTIPLE * l2_bytes // size_bytes))

    weights = asked or min(MOST_COPIES, cold_copies(problem.b_bytes))
    return Rotation(
        weights=weights,
        activations=min(weights, cold_copies(problem.a_bytes)),
        outputs=min(weights, cold_copies(problem.output_bytes)),
    )
