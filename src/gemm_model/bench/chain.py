"""The graph regime: a kernel's time in a chain of launches, each with weights of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gemm_model.bench.device import PairedTiming, Timing, TimingSettings
from gemm_model.bench.provider import Launch, Operands, Provider
from gemm_model.bench.rotation import rotation_of
from gemm_model.bench.rows import NORM, Row

if TYPE_CHECKING:
    from gemm_model.bench.torch_device import TorchDevice


def time_chain(row: Row, device: TorchDevice, provider: Provider, settings: TimingSettings) -> dict[str, Any]:
    """Columns of a row: the time of a link, and of the partner alone if there is one.

    Raises KernelError if a kernel fails, the rotation does not fit or the graph cannot be captured.
    """
    rotation = rotation_of(row.problem, device.l2_bytes, row.chain.rotation)
    footprint_bytes = rotation.footprint_bytes(row.problem)
    operands = device.rotating_operands(row.problem, rotation, (0, 2 if row.chain.partner else 1))
    links, *others = (
        [provider.prepare(row.problem, config, each) for each in operands] for config in row.configs
    )
    columns: dict[str, Any] = {}
    if row.chain.partner == NORM:
        norms = [device.norm(each) for each in operands]
        columns = _alone(norms, row, device, settings)
        links = _in_turn(norms, links)
    elif row.chain.partner:
        partners, partner_bytes = _partner_gemms(row, device, provider, operands)
        columns = _alone(partners, row, device, settings)
        links = _in_turn(links, partners)
        footprint_bytes += partner_bytes
    timing: Timing | PairedTiming
    if others:
        timing = device.time_graph_pair(links, others[0], settings)
    else:
        timing = device.time_graph(links, settings, settled=row.chain.settled)
    return {
        **timing.columns(),
        **columns,
        "weight_copies": rotation.weights,
        "footprint_bytes": round(footprint_bytes),
        "warm_share": round(min(1.0, device.l2_bytes / footprint_bytes), 4),
    }


def _partner_gemms(
    row: Row, device: TorchDevice, provider: Provider, operands: Sequence[Operands]
) -> tuple[list[Launch], float]:
    """The partner's launches, on the row's outputs if they fit, and the bytes that one rotation touches."""
    problem = row.chain.partner_problem(row.problem)
    rotation = rotation_of(problem, device.l2_bytes, len(operands))
    own = device.rotating_operands(problem, rotation, (1, 2))
    needs = (problem.m, problem.k, problem.a_dtype)
    if needs == (row.problem.m, row.problem.n, row.problem.out_dtype):
        own = [replace(each, a=before.out) for each, before in zip(own, operands, strict=True)]
    launches = [provider.prepare(problem, row.config, each) for each in own]
    return launches, rotation.footprint_bytes(problem)


def _alone(
    partners: Sequence[Launch], row: Row, device: TorchDevice, settings: TimingSettings
) -> dict[str, float]:
    timing = device.time_graph(partners, settings, settled=row.chain.settled)
    return {"partner_us": timing.columns()["runtime_us"]}


def _in_turn(first: Sequence[Launch], second: Sequence[Launch]) -> list[Launch]:
    return [partial(_both, *pair) for pair in zip(first, second, strict=True)]


def _both(first: Launch, second: Launch) -> None:
    first()
    second()
