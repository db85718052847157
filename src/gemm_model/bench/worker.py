"""The process that touches the GPU. It reads requests and writes replies, one JSON object a line.

It is apart from the runner so that a kernel that crashes or hangs takes no measurement with it. In the graph regime
a kernel is timed in a chain of launches, each with weights of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gemm_model.bench import provider as providers
from gemm_model.bench.device import PairedTiming, Timing, TimingSettings
from gemm_model.bench.problem_kinds import extras
from gemm_model.bench.rows import NORM, Row, row_from_columns
from gemm_model.errors import GemmModelError

if TYPE_CHECKING:
    from gemm_model.bench.torch_device import TorchDevice


def time_chain(
    row: Row, device: TorchDevice, provider: providers.Provider, settings: TimingSettings
) -> dict[str, Any]:
    """Columns of a row: the time of a link, and of the partner alone if there is one.

    Raises KernelError if a kernel fails, the rotation does not fit or the graph cannot be captured.
    """
    rotation = providers.rotation_of(row.problem, device.l2_bytes, row.chain.rotation)
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
    row: Row, device: TorchDevice, provider: providers.Provider, operands: Sequence[providers.Operands]
) -> tuple[list[providers.Launch], float]:
    """The partner's launches, on the row's outputs if they fit, and the bytes that one rotation touches."""
    problem = row.chain.partner_problem(row.problem)
    rotation = providers.rotation_of(problem, device.l2_bytes, len(operands))
    own = device.rotating_operands(problem, rotation, (1, 2))
    needs = (problem.m, problem.k, problem.a_dtype)
    if needs == (row.problem.m, row.problem.n, row.problem.out_dtype):
        own = [replace(each, a=before.out) for each, before in zip(own, operands, strict=True)]
    launches = [provider.prepare(problem, row.config, each) for each in own]
    return launches, rotation.footprint_bytes(problem)


def _alone(
    partners: Sequence[providers.Launch], row: Row, device: TorchDevice, settings: TimingSettings
) -> dict[str, float]:
    timing = device.time_graph(partners, settings, settled=row.chain.settled)
    return {"partner_us": timing.columns()["runtime_us"]}


def _in_turn(first: Sequence[providers.Launch], second: Sequence[providers.Launch]) -> list[providers.Launch]:
    return [partial(_both, *pair) for pair in zip(first, second, strict=True)]


def _both(first: providers.Launch, second: providers.Launch) -> None:
    first()
    second()


class Worker:
    """Answers requests with the device and the providers it has loaded."""

    def __init__(self, device_target: str) -> None:
        self._device_target = device_target
        self._device: TorchDevice | None = None
        self._providers: dict[str, providers.Provider] = {}

    @property
    def device(self) -> TorchDevice:
        if self._device is None:
            module_name, _, class_name = self._device_target.partition(":")
            self._device = getattr(import_module(module_name), class_name)()
        return self._device

    def lost(self) -> bool:
        """Whether the device that it uses, if any, cannot go on."""
        return self._device is not None and not self._device.healthy()

    def provider(self, name: str) -> providers.Provider:
        if name not in self._providers:
            self._providers[name] = providers.load_provider(name)
        return self._providers[name]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request; a kernel's failure is a reply, not an exception."""
        operation = request["operation"]
        if operation == "load":
            for name in request["kernels"]:
                self.provider(name)
            return {"disposition": "ok", "values": {"device": bool(request["device"] and self.device)}}
        if operation == "describe":
            return {"disposition": "ok", "values": self.device.describe()}
        row = row_from_columns(request["row"])
        try:
            if operation == "compile":
                self._compile(row, request["compute_capability"])
                return {"disposition": "ok"}
            values = self._measure(operation, row, request)
        except providers.KernelError as error:
            return {"disposition": error.disposition, "detail": str(error)}
        return {"disposition": "ok", "values": values}

    def _compile(self, row: Row, compute_capability: Sequence[int]) -> None:
        provider, capability = self.provider(row.kernel), (compute_capability[0], compute_capability[1])
        refused = provider.unsupported(row.problem, capability) if extras(row.problem) else ""
        if refused:
            raise providers.UnsupportedError(refused)
        for config in row.configs:
            provider.compile(row.problem, config, capability)

    def _measure(self, operation: str, row: Row, request: dict[str, Any]) -> dict[str, Any]:
        if operation == "check":
            operands = self.device.operands(row.problem, 0)
            launches = [
                self.provider(row.kernel).prepare(row.problem, each, operands) for each in row.configs
            ]
            error = max(self.device.check(row.problem, operands, launch) for launch in launches)
            return {"relative_error": f"{error:.2e}", **self._description(row, operands)}
        if operation == "profile":
            return dict(self.device.profile(self._prepared(row, 0), request["label"]))
        settings = TimingSettings(**request["settings"])
        if row.regime == "graph":
            return time_chain(row, self.device, self.provider(row.kernel), settings)
        # Block-scaled operands are made anew for each placement, which takes too long to do it often.
        placements = settings.placements if row.problem.a_scale is None else 1
        launches = [self._prepared(row, placement) for placement in range(placements)]
        if row.regime == "sustained":
            return self.device.time_sustained(launches, settings).columns()
        return self.device.time_burst(launches, settings, cold_l2=row.l2 == "cold").columns()

    def _description(self, row: Row, operands: providers.Operands) -> dict[str, Any]:
        provider = self.provider(row.kernel)
        if not isinstance(provider, providers.DescribingProvider):
            return {}
        return dict(provider.describe(row.problem, row.config, operands))

    def _prepared(self, row: Row, placement: int) -> providers.Launch:
        operands = self.device.operands(row.problem, placement)
        return self.provider(row.kernel).prepare(row.problem, row.config, operands)


def time_request(row: Row, settings: TimingSettings) -> dict[str, Any]:
    return {"operation": "time", "row": row.columns(), "settings": dataclasses.asdict(settings)}


def check_request(row: Row) -> dict[str, Any]:
    return {"operation": "check", "row": row.columns()}


def serve(worker: Worker, requests: IO[str], replies: IO[str]) -> int:
    """Answer until the requests end; stop early where the device cannot go on."""
    for line in requests:
        try:
            reply = worker.answer(json.loads(line))
        except GemmModelError as error:
            reply = {"error": str(error), "exit_code": error.exit_code}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if reply.get("disposition") in ("launch_failed", "out_of_memory") and worker.lost():
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, help="module:class of the device")
    parser.add_argument("--requests", type=Path, help="file to read them from, under the profiler")
    parser.add_argument("--replies", type=Path, help="file to write them into")
    arguments = parser.parse_args()
    worker = Worker(arguments.device)
    if arguments.requests is not None:
        with arguments.requests.open() as requests, arguments.replies.open("w") as replies:
            return serve(worker, requests, replies)
    # Libraries print to stdout; replies keep the original one to themselves.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return serve(worker, sys.stdin, replies)


if __name__ == "__main__":
    sys.exit(main())
