"""The classic warp-specialized persistent GEMM model: phases of overlapping load, math and epilogue."""

from __future__ import annotations

import math

import numpy as np

from gemm_model.classic_models.throughput import BITS_PER_BYTE, flop_per_clk_per_sm
from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.errors import InputError
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction, limiting
from gemm_model.kernels.array_model import ArrayModel

LIMITERS = ("LOAD", "MATH", "EPILOGUE")

FIRST_LOAD_BYTES_PER_ROW = 32.0
"""Bytes of K in each row of the first load [B]; classic model; one DRAM sector."""


class WSPersistentGEMMModel(ArrayModel):
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
        gpu = self.gpu
        per_us = gpu.dram_bytes_per_us
        cluster_size = batch.cluster_m * batch.cluster_n
        sms = np.floor(gpu.sm_count / cluster_size) * cluster_size
        tiles = whole_clusters(batch.m / batch.cta_m, batch.cluster_m)
        tiles *= whole_clusters(batch.n / batch.cta_n, batch.cluster_n) * batch.batch
        full_waves = np.floor(tiles / sms)
        last_sms = tiles - full_waves * sms

        load_bytes_per_k = load_bytes_of_one_k(batch)
        load_us_per_sm = load_bytes_per_k * batch.k * (self.dram_share / per_us)
        store_bytes = batch.cta_m * batch.cta_n * (batch.out_bits / BITS_PER_BYTE)
        store_us_per_sm = store_bytes / per_us
        first_k = FIRST_LOAD_BYTES_PER_ROW * BITS_PER_BYTE / np.maximum(batch.a_bits, batch.b_bits)
        first_sms = np.where(full_waves > 0, sms, last_sms)

        overhead_us = np.full(len(batch), self.overhead_us)
        first_load_us = load_bytes_per_k * first_k * (self.dram_share / per_us) * first_sms
        load_us = load_us_per_sm * sms
        math_us = (
            2.0 * batch.cta_m * batch.cta_n * batch.k / (flop_per_clk_per_sm(batch, gpu) * gpu.sm_clk_mhz)
        )
        epilogue_us = self.epilogue_latency_us + store_us_per_sm * sms
        wave_us = np.maximum(np.maximum(load_us, math_us), epilogue_us)

        last_load_us = load_us_per_sm * last_sms
        last_epilogue_us = self.epilogue_latency_us + store_us_per_sm * last_sms
        last_math_us = np.where(last_sms > 0, math_us, 0.0)
        last_wave_us = np.maximum(np.maximum(last_load_us, math_us), last_epilogue_us)
        last_wave_us = np.where(last_sms > 0, last_wave_us, 0.0)
        exposed_epilogue_us = np.where(last_sms > 0, last_epilogue_us, epilogue_us)

        mainloop_us = full_waves * wave_us + last_wave_us
        limiter = limiting(
            LIMITERS,
            (
                np.where(full_waves > 0, load_us, last_load_us),
                math_us,
                np.where(full_waves > 0, epilogue_us, last_epilogue_us),
            ),
        )
        return BatchPrediction(
            runtime_us=overhead_us + first_load_us + mainloop_us + exposed_epilogue_us,
            limiter=limiter,
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
                "load_us": load_us,
                "math_us": math_us,
                "epilogue_us": epilogue_us,
                "last_wave_sms": last_sms,
                "last_load_us": last_load_us,
                "last_math_us": last_math_us,
                "last_epilogue_us": np.where(last_sms > 0, last_epilogue_us, 0.0),
            },
            bytes_by_level={
                "dram": (load_bytes_per_k * batch.k * self.dram_share + store_bytes) * tiles,
                "l2": (load_bytes_per_k * batch.k + store_bytes) * tiles,
            },
            caveats=gpu.caveats,
        )


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
