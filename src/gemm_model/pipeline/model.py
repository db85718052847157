"""The producer/consumer pipeline model: a ring buffer between loads and math, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemm_model.classic_models.throughput import flop_per_clk_per_sm
from gemm_model.config.options import packaged_options
from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.elementwise import Values
from gemm_model.core.gpu import GpuSpec, smem_words
from gemm_model.core.kernel_config import PINGPONG, TWO_CTA
from gemm_model.core.prediction import BatchPrediction
from gemm_model.errors import InputError, require_one_of
from gemm_model.kernels.feasibility import Resources, resources_by_row
from gemm_model.kernels.model import Model
from gemm_model.pipeline import machine as machines
from gemm_model.pipeline.steady_state import load_of_step, time_per_k_tile, timing

FLOP_PER_MAC = 2.0
BYTES_PER_US_OF_GB_PER_S = 1e3
FITTED_ON = "h200"
"""The GPU whose timings the default figures come from."""
LIMITERS = ("LOAD", "MATH", "LATENCY", "EPILOGUE")


def machine_with(rates: Mapping[str, Any], gpu: GpuSpec, dma_warps: int) -> machines.PipelineMachine:
    """The pipeline machine of a GPU; clocks become times at its SM clock."""
    clk = gpu.sm_clk_mhz
    device_bytes_per_us = gpu.l2_read_gb_per_s * BYTES_PER_US_OF_GB_PER_S
    return machines.PipelineMachine(
        name=gpu.name,
        sm_count=gpu.sm_count,
        math_startup_us=rates["math_startup_clk"] / clk,
        load_bytes_per_us=rates["load_bytes_per_clk"] * clk,
        load_startup_us=rates["load_startup_clk"] / clk,
        load_latency_us=rates["load_latency_clk"] / clk,
        device_load_bytes_per_us=device_bytes_per_us * rates["device_load_efficiency"],
        device_fresh_bytes_per_us=gpu.dram_bytes_per_us * rates["dram_efficiency"],
        epilogue_us=rates["epilogue_clk"] / clk,
        epilogue_elements_per_us=rates["epilogue_elements_per_clk"] * clk,
        init_us=rates["launch_us"],
        dma_warps=dma_warps,
        pads_k=True,
    )


class PipelineModel(Model):
    """runtime = T_INIT + the busiest SM's tiles, each a pipeline of loads and math through a ring buffer.

    Source: Liu and Grover, 'A Performance Model for Warp Specialization Kernels'; docs/models/pipeline.md.

    `machine` names a packaged machine or a YAML file; 'auto' makes one from the GPU: its math rate, its L2
    rates, and what was fitted to the H200's bf16 kernels, each an option of its own (`config/model`).
    `consumers` 'auto' follows each kernel's schedule. A GPU with tensor memory keeps two accumulators, so that
    epilogues overlap as with ping-pong.
    """

    needs_tile = True

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        machine: str = "auto",
        dma_warps: int = 1,
        consumers: str = "auto",
        parameters: Mapping[str, Any] | None = None,
        **rates: float,
    ) -> None:
        if consumers not in ("auto", *machines.CONSUMERS):
            raise InputError(f"consumers is {consumers!r}; expected auto or one of {machines.CONSUMERS}")
        self.gpu = gpu
        self.consumers = consumers
        self.parameters = dict(parameters or {})
        known = packaged_options("PipelineModel")
        for name in rates:
            require_one_of(f"unknown option {name!r}", name, known)
        self.rates: dict[str, Any] = {**known, **rates}
        self.machine = machine
        self._base = (
            machine_with(self.rates, gpu, dma_warps) if machine == "auto" else machines.load_machine(machine)
        )

    def machine_of(self, batch: GemmBatch, consumers: str) -> machines.PipelineMachine:
        """The machine that runs the kernels of a batch."""
        changes: dict[str, Any] = {}
        if self.machine == "auto":
            sizes = (batch.cluster_m * batch.cluster_n).astype(int)
            resident = [self.gpu.clusters_at_once(int(size)) * int(size) for size in sizes]
            changes = {
                "sm_count": np.array(resident, dtype=np.float64),
                "mac_per_us": flop_per_clk_per_sm(batch, self.gpu)
                / FLOP_PER_MAC
                * self.gpu.sm_clk_mhz
                * self.rates["math_efficiency"],
                "a_element_bytes": batch.a_bytes_per_element,
                "b_element_bytes": batch.b_bytes_per_element,
            }
        if self.machine == "auto" or self.consumers != "auto":
            changes["consumers"] = consumers
        return machines.with_parameters(self._base, {**changes, **self.parameters})

    def work_of(self, batch: GemmBatch, machine: machines.PipelineMachine) -> machines.Workload:
        """The work of a batch on a machine; the kernel family gives tile K and stages unless the batch
        does.
        """
        found = resources_by_row(batch, self.gpu)
        return machines.workload(
            machine,
            machines.PipelineKernel(
                m=batch.m,
                n=batch.n,
                k=np.ceil(batch.k / batch.split_k),
                tile_m=batch.cta_m,
                tile_n=batch.cta_n,
                tile_k=_column(found.cta_k, batch),
                stages=self._stages(batch, found),
                batch=batch.batch * batch.split_k,
                cluster_m=batch.cluster_m,
                cluster_n=batch.cluster_n,
            ),
        )

    def _stages(self, batch: GemmBatch, resources: Resources) -> FloatArray:
        stages = _column(resources.stages, batch)
        if (stages < 1).any():
            row = int(np.argmin(stages))
            raise InputError(
                f"tile {batch.cta_m[row]:.0f}x{batch.cta_n[row]:.0f} leaves no room for a pipeline stage in "
                f"{smem_words(self.gpu)}"
            )
        return stages

    def consumers_of(self, batch: GemmBatch) -> FloatArray:
        """Position in `CONSUMERS` for each kernel."""
        if self.consumers != "auto":
            return np.full(len(batch), machines.CONSUMERS.index(self.consumers))
        overlapped = (batch.schedule == PINGPONG) | (batch.schedule == TWO_CTA) | (self.gpu.tmem_columns > 0)
        return np.where(
            overlapped, machines.CONSUMERS.index("pingpong"), machines.CONSUMERS.index("cooperative")
        )

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        columns: dict[str, FloatArray] = {}
        kinds = self.consumers_of(batch)
        for kind in np.unique(kinds):
            rows = np.flatnonzero(kinds == kind)
            for name, values in self._predict_alike(batch[rows], machines.CONSUMERS[int(kind)]).items():
                columns.setdefault(name, np.empty(len(batch)))[rows] = values
        rhythm = tuple(columns[f"{name}_us_per_k_tile"] for name in ("load", "math", "latency", "epilogue"))
        l2_bytes = columns.pop("l2_bytes")
        runtime_us = columns.pop("runtime_us")
        phases = {name: columns.pop(name) for name in ("launch", "first_load", "mainloop", "epilogues")}
        return BatchPrediction(
            runtime_us=runtime_us,
            limiter=np.argmax(rhythm, axis=0),
            limiter_names=LIMITERS,
            phases_us=phases,
            details=columns,
            bytes_by_level={"l2": l2_bytes},
            caveats=(*self.gpu.caveats, *self._caveats()),
        )

    def _caveats(self) -> tuple[str, ...]:
        if self.machine != "auto" or self.gpu.name == FITTED_ON:
            return ()
        return (f"PipelineModel: efficiencies and latencies fitted on {FITTED_ON}",)

    def _predict_alike(self, batch: GemmBatch, consumers: str) -> dict[str, FloatArray]:
        machine = self.machine_of(batch, consumers)
        work = self.work_of(batch, machine)
        load, latency, math_ps = (
            _column(value, batch)
            for value in (load_of_step(work.full, machine.dma_warps), work.latency, work.full.math)
        )
        timed = timing(work, machine)
        runtime_us = _column(timed.end, batch) / machines.PS_PER_US
        launch_us = _column(work.init, batch) / machines.PS_PER_US
        first_load_us = (load + latency) / machines.PS_PER_US
        step_us = time_per_k_tile(load, latency, math_ps, work.stages) / machines.PS_PER_US
        mainloop_us = np.minimum(step_us * work.steps * work.waves, runtime_us - launch_us - first_load_us)
        tile_bytes = batch.cta_m * batch.a_bytes_per_element / batch.cluster_n
        tile_bytes += batch.cta_n * batch.b_bytes_per_element / batch.cluster_m
        return {
            "runtime_us": runtime_us,
            "launch": launch_us,
            "first_load": first_load_us,
            "mainloop": mainloop_us,
            "epilogues": runtime_us - launch_us - first_load_us - mainloop_us,
            "waves": _column(work.waves, batch),
            "k_tiles": _column(work.steps, batch),
            "stages": _column(work.stages, batch),
            "load_us_per_k_tile": load / machines.PS_PER_US,
            "math_us_per_k_tile": math_ps / machines.PS_PER_US,
            "latency_us_per_k_tile": (load + latency + math_ps) / work.stages / machines.PS_PER_US,
            "epilogue_us_per_k_tile": _column(work.epilogue, batch) / work.steps / machines.PS_PER_US,
            "consumer_wait_us": _column(timed.consumer_wait, batch) / machines.PS_PER_US,
            "l2_bytes": tile_bytes * batch.k * work.ctas,
        }


def _column(value: Values, batch: GemmBatch) -> FloatArray:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (len(batch),))
