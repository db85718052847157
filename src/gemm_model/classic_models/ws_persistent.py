"""The classic warp-specialized persistent GEMM model: phases of overlapping load, math and epilogue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gemm_model.classic_models.throughput import BITS_PER_BYTE, flop_per_clk_per_sm
from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction
from gemm_model.errors import InputError
from gemm_model.kernels.model import Model

LIMITERS = ("LOAD", "MATH", "EPILOGUE")

FIRST_LOAD_BYTES_PER_ROW = 32.0
"""Bytes of K in each row of the first load [B]; classic model; one DRAM sector."""


class WSPersistentGEMMModel(Model):
    """runtime = overhead + first load + max(load, math, epilogue) for each wave + last epilogue.

    A wave is one tile on each SM; the last wave may be partial: then the math time stays, while the load
    and the write of the fewer tiles share the whole DRAM bandwidth. Source: the classic gemm-model,
    'WSPersistentGEMM Model'.

    Options: `fixed_overhead_cycles` and `epilogue_min_latency` in SM clocks, `l2_hit_rate` from 0 to 1 is
    the share of load bytes that does not come from DRAM.
    """

    needs_tile = True

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        fixed_overhead_cycles: float = 8000,
        epilogue_min_latency: float = 1000,
        l2_hit_rate: float = 0.0,
    ) -> None:
        _require_number("fixed_overhead_cycles", fixed_overhead_cycles, 0, math.inf)
        _require_number("epilogue_min_latency", epilogue_min_latency, 0, math.inf)
        _require_number("l2_hit_rate", l2_hit_rate, 0, 1)
        self.gpu = gpu
        self.overhead_us = fixed_overhead_cycles / gpu.sm_clk_mhz
        self.epilogue_latency_us = epilogue_min_latency / gpu.sm_clk_mhz
        self.dram_share = 1.0 - l2_hit_rate

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        cluster_size = batch.cluster_m * batch.cluster_n
        sms = np.floor(self.gpu.sm_count / cluster_size) * cluster_size
        tiles = whole_clusters(batch.m / batch.cta_m, batch.cluster_m)
        tiles *= whole_clusters(batch.n / batch.cta_n, batch.cluster_n) * batch.batch
        full_waves = np.floor(tiles / sms)
        last_sms = tiles - full_waves * sms
        any_full, partial = full_waves > 0, last_sms > 0

        full, last = self._wave(batch, sms), self._wave(batch, last_sms)
        first_load_us = self._first_load_us(batch, np.where(any_full, sms, last_sms))
        overhead_us = np.full(len(batch), self.overhead_us)
        mainloop_us = full_waves * full.longest_us + np.where(partial, last.longest_us, 0.0)
        exposed_epilogue_us = np.where(partial, last.epilogue_us, full.epilogue_us)
        bounds = (
            np.where(any_full, full.load_us, last.load_us),
            full.math_us,
            np.where(any_full, full.epilogue_us, last.epilogue_us),
        )
        load_bytes, store_bytes = load_bytes_of_one_k(batch) * batch.k, _store_bytes(batch)
        return BatchPrediction(
            runtime_us=overhead_us + first_load_us + mainloop_us + exposed_epilogue_us,
            limiter=np.argmax(bounds, axis=0),
            limiter_names=LIMITERS,
            phases_us={
                "overhead": overhead_us,
                "first_load": first_load_us,
                "mainloop": mainloop_us,
                "last_epilogue": exposed_epilogue_us,
            },
            details={
                "full_waves": full_waves,
                "sms_per_wave": sms,
                "load_us": full.load_us,
                "math_us": full.math_us,
                "epilogue_us": full.epilogue_us,
                "last_wave_sms": last_sms,
                "last_load_us": last.load_us,
                "last_math_us": np.where(partial, last.math_us, 0.0),
                "last_epilogue_us": np.where(partial, last.epilogue_us, 0.0),
            },
            bytes_by_level={
                "dram": (load_bytes * self.dram_share + store_bytes) * tiles,
                "l2": (load_bytes + store_bytes) * tiles,
            },
            caveats=self.gpu.caveats,
        )

    def _wave(self, batch: GemmBatch, sms: FloatArray) -> _Wave:
        """A wave of one tile on each of `sms`; loads and stores share the whole DRAM bandwidth."""
        per_us = self.gpu.dram_bytes_per_us
        flop_per_us = flop_per_clk_per_sm(batch, self.gpu) * self.gpu.sm_clk_mhz
        return _Wave(
            load_us=load_bytes_of_one_k(batch) * batch.k * (self.dram_share / per_us) * sms,
            math_us=2.0 * batch.cta_m * batch.cta_n * batch.k / flop_per_us,
            epilogue_us=self.epilogue_latency_us + _store_bytes(batch) / per_us * sms,
        )

    def _first_load_us(self, batch: GemmBatch, sms: FloatArray) -> FloatArray:
        """Time of the load that no math hides [us]."""
        first_k = FIRST_LOAD_BYTES_PER_ROW * BITS_PER_BYTE / np.maximum(batch.a_bits, batch.b_bits)
        return load_bytes_of_one_k(batch) * first_k * (self.dram_share / self.gpu.dram_bytes_per_us) * sms


@dataclass(frozen=True, slots=True)
class _Wave:
    """What overlaps in a wave [us]."""

    load_us: FloatArray
    math_us: FloatArray
    epilogue_us: FloatArray

    @property
    def longest_us(self) -> FloatArray:
        return np.maximum(np.maximum(self.load_us, self.math_us), self.epilogue_us)


def _store_bytes(batch: GemmBatch) -> FloatArray:
    """Bytes of a tile of the output."""
    return batch.cta_m * batch.cta_n * (batch.out_bits / BITS_PER_BYTE)


def load_bytes_of_one_k(batch: GemmBatch) -> FloatArray:
    """Bytes that one SM loads per element of K: multicast shares A along cluster_n and B along cluster_m."""
    a_bytes = batch.cta_m * batch.a_bytes_per_element / batch.cluster_n
    b_bytes = batch.cta_n * batch.b_bytes_per_element / batch.cluster_m
    result: FloatArray = a_bytes + b_bytes
    return result


def whole_clusters(tiles: FloatArray, cluster: FloatArray) -> FloatArray:
    """Tiles along one extent, rounded up to whole tiles and then to whole clusters."""
    result: FloatArray = np.ceil(np.ceil(tiles) / cluster) * cluster
    return result


def _require_number(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} is {value!r}; expected a number from {low} to {high}")
