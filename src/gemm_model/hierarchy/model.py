"""Throughput matching as a model of the registry: the stage of the memory hierarchy that delivers least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from math import ceil
from typing import Any

import numpy as np

from gemm_model.classic_models.throughput import BITS_PER_BYTE
from gemm_model.config.options import packaged_options
from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.dtypes import MATH_KINDS
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction
from gemm_model.errors import InputError, require_one_of
from gemm_model.hierarchy.blocking import WARP, Blocking, footprint, tensor_core_blocking
from gemm_model.hierarchy.cuda_core_runtime import LIMITERS, Runtime, RuntimeParameters, runtime
from gemm_model.hierarchy.levels import DATAPATHS, FLOP_PER_FMA, Datapath, Machine, datapath_of, machine_of
from gemm_model.hierarchy.matching import OUTPUT_MODES, match, resident_grid, tiling
from gemm_model.kernels.model import Model

MATH = "math"
LIMITER_NAMES = (MATH, *LIMITERS)
LIMITER_OF_STAGE = {
    **dict.fromkeys(("dram -> l2", "dram -> smem"), "dram"),
    **dict.fromkeys(("l2 -> all SMs", "l2 -> one SM"), "l2"),
    **dict.fromkeys(("smem -> mma", "smem -> registers"), "smem"),
    "registers -> datapath": MATH,
}
DEFAULT_STAGES = 2
USUAL_THREAD_EXTENT = 8
"""Outputs of a CUDA-core thread along m and n [1]; the warp's tile is not given (it is then the CTA's);
chosen."""


class MemoryHierarchyModel(Model):
    """runtime = waves of CTA tiles x FMAs of a tile / (peak rate x the fraction that the hierarchy delivers).

    Tensor cores: the fraction is the smallest of delivered / demanded over the stages of
    `hierarchy.matching`: a ceiling without latencies and launch. CUDA cores: `hierarchy.cuda_core_runtime`,
    whose four parameters were fitted to the ladder of kernels on the H200; `mma_m` x `mma_n` of a
    configuration is then the tile of one warp of `lanes_m` x (32 / lanes_m) threads (the CTA's tile stands
    for 8 x 8 outputs a thread), and a kernel without `cta_k` stages nothing.

    Options: `datapath` ('tensor_cores' or 'cuda_cores'), `output` (one of `matching.OUTPUT_MODES`),
    `reuse_in_l2`, and the parameters of `RuntimeParameters`.
    """

    needs_tile = True

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        datapath: str = "tensor_cores",
        output: str = "ignored",
        reuse_in_l2: bool = True,
        lanes_m: int = 4,
        **parameters: Any,
    ) -> None:
        require_one_of(f"datapath is {datapath!r}", datapath, DATAPATHS)
        require_one_of(f"output is {output!r}", output, OUTPUT_MODES)
        if lanes_m not in (1, 2, 4, 8, 16, 32):
            raise InputError(f"lanes_m is {lanes_m!r}; expected a power of two up to {WARP}")
        self.gpu = gpu
        self.datapath = datapath
        self.output = output
        self.reuse_in_l2 = reuse_in_l2
        self.lanes_m = lanes_m
        for name in sorted(parameters):
            require_one_of(f"unknown option {name!r}", name, sorted(RuntimeParameters.__slots__))
        self.parameters = runtime_parameters(parameters)

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        predict_row = self._cuda_core_row if self.datapath == "cuda_cores" else self._tensor_core_row
        known: dict[tuple[float, ...], Runtime] = {}
        keys = list(map(tuple, _distinguishing(batch)))
        for index, key in enumerate(keys):
            if key not in known:
                known[key] = predict_row(batch, index)

        def column(name: str) -> FloatArray:
            return np.array([getattr(known[key], name) for key in keys])

        runtime_us = column("runtime_us")
        return BatchPrediction(
            runtime_us=runtime_us,
            limiter=np.array([LIMITER_NAMES.index(known[key].limiter) for key in keys]),
            limiter_names=LIMITER_NAMES,
            phases_us={"overlapped": runtime_us},
            details={"fraction_of_peak": column("fraction_of_peak")},
            bytes_by_level={"dram": column("dram_bytes"), "l2": column("l2_bytes")},
            caveats=self.gpu.caveats,
        )

    def _machine(self, batch: GemmBatch, index: int) -> Machine:
        a_bytes = float(batch.a_bytes_per_element[index])
        b_bytes = float(batch.b_bytes_per_element[index])
        kind = MATH_KINDS[int(batch.math_kind[index])]
        if self.datapath == "cuda_cores":
            if kind != "fp32":
                raise InputError(f"row {index}: the CUDA cores multiply fp32 here, not {kind}")
            return machine_of(self.gpu, datapath_of(self.gpu, "cuda_cores", "fp32"))
        path = Datapath(
            name="tensor_cores",
            dtype=kind,
            fma_per_clk=self.gpu.flop_per_clk("tf32" if kind == "fp32" else kind) / FLOP_PER_FMA,
            a_bytes=a_bytes,
            b_bytes=b_bytes,
            element_bytes=float(max(batch.a_bits[index], batch.b_bits[index])) / BITS_PER_BYTE,
            acc_bytes=float(batch.acc_bits[index]) / BITS_PER_BYTE,
        )
        return machine_of(self.gpu, path)

    def _tensor_core_row(self, batch: GemmBatch, index: int) -> Runtime:
        machine = self._machine(batch, index)
        cta_m, cta_n = int(batch.cta_m[index]), int(batch.cta_n[index])
        path = machine.datapath
        blocking = tensor_core_blocking(
            self.gpu,
            path,
            cta_m,
            cta_n,
            cta_k=int(batch.cta_k[index]) or path.slice_depth,
            cluster_m=int(batch.cluster_m[index]),
            cluster_n=int(batch.cluster_n[index]),
            stages=int(batch.stages[index]) or DEFAULT_STAGES,
        )
        shape = _shape(batch, index)
        matching = match(
            machine,
            blocking,
            resident_grid(machine, blocking, 1, shape),
            reuse_in_l2=self.reuse_in_l2,
            output=self.output,
            out_bytes=float(batch.out_bits[index]) / BITS_PER_BYTE,
        )
        cluster = blocking.cluster_m * blocking.cluster_n
        at_once = self.gpu.clusters_at_once(cluster) * cluster
        if at_once == 0:
            raise InputError(
                f"cluster of {cluster} CTAs; expected at most {self.gpu.sm_count}, the SMs of {self.gpu.name}"
            )
        m, n, k = shape
        tiles = ceil(m / cta_m) * ceil(n / cta_n) * float(batch.batch[index])
        tile_clk = cta_m * cta_n * k / (path.fma_per_clk * matching.fraction_of_peak)
        runtime_us = ceil(tiles / at_once) * tile_clk / self.gpu.sm_clk_mhz
        limit = matching.limiting
        bytes_taken = tiles * cta_m * cta_n * k * (path.a_bytes + path.b_bytes)
        amplification_by_tile = tiling(cta_m, cta_n, path.a_bytes, path.b_bytes)
        return Runtime(
            runtime_us=runtime_us,
            limiter=LIMITER_OF_STAGE[limit.name] if limit.fraction < 1 else MATH,
            fraction_of_peak=float(batch.flop[index]) / (runtime_us * machine.peak_tflops * 1e6),
            dram_bytes=bytes_taken / matching.stages[0].amplification,
            l2_bytes=bytes_taken / amplification_by_tile,
        )

    def _cuda_core_row(self, batch: GemmBatch, index: int) -> Runtime:
        machine = self._machine(batch, index)
        lanes_n = WARP // self.lanes_m
        warp_m, warp_n = int(batch.mma_m[index]), int(batch.mma_n[index])
        if (warp_m, warp_n) == (batch.cta_m[index], batch.cta_n[index]):
            warp_m, warp_n = USUAL_THREAD_EXTENT * self.lanes_m, USUAL_THREAD_EXTENT * lanes_n
        if warp_m % self.lanes_m or warp_n % lanes_n:
            raise InputError(
                f"row {index}: a warp tile of {warp_m}x{warp_n}; "
                f"expected a multiple of its {self.lanes_m}x{lanes_n} lanes"
            )
        staged = int(batch.cta_k[index]) > 0
        stages = max(1, int(batch.stages[index])) if staged else 0
        blocking = Blocking(
            cta_m=int(batch.cta_m[index]),
            cta_n=int(batch.cta_n[index]),
            cta_k=int(batch.cta_k[index]) or 1,
            warp_m=warp_m,
            warp_n=warp_n,
            thread_m=warp_m // self.lanes_m,
            thread_n=warp_n // lanes_n,
            stages=stages,
            vector=4 if stages > 1 else 1,
        )
        ctas_per_sm = footprint(blocking, self.gpu, machine.datapath).ctas_per_sm
        parts, (m, n, k) = int(batch.split_k[index]), _shape(batch, index)
        products = float(batch.batch[index]) * parts
        return runtime(machine, blocking, (m, n, ceil(k / parts)), ctas_per_sm, self.parameters, products)


def runtime_parameters(options: Mapping[str, Any] | None = None) -> RuntimeParameters:
    """Runtime parameters from `options`; missing ones come from `config/model/MemoryHierarchyModel.yaml`."""
    values = {**packaged_options("MemoryHierarchyModel"), **(options or {})}
    return RuntimeParameters(**{field.name: values[field.name] for field in fields(RuntimeParameters)})


def _shape(batch: GemmBatch, index: int) -> tuple[int, int, int]:
    return int(batch.m[index]), int(batch.n[index]), int(batch.k[index])


def _distinguishing(batch: GemmBatch) -> FloatArray:
    """The values by which this model tells rows apart, one line for each row."""
    names = (
        *("m", "n", "k", "batch", "a_bits", "b_bits", "out_bits", "acc_bits", "a_scale_bits", "b_scale_bits"),
        *("math_kind", "cta_m", "cta_n", "cta_k", "mma_m", "mma_n", "cluster_m", "cluster_n", "stages"),
        "split_k",
    )
    result: FloatArray = np.column_stack(
        [np.asarray(getattr(batch, name), dtype=np.float64) for name in names]
    )
    return result
