"""The time of a chain of (previous kernel, weight-prefetch GEMM) layers under programmatic dependent launch.

A timeline of recurrences from layer to layer, array-safe: one chain or a whole table of them. Times in
microseconds, sizes in bytes. For layer i, with the GEMM of layer i - 1 before it:

    previous kernel   starts `launch` after the last CTA of the GEMM before has let it (or after that GEMM's
                      end), waits for that GEMM's end plus `release`, then reads its rows
    GEMM CTAs         start `launch` after the previous kernel has let them, as soon as there is room on an
                      SM: beside the CTAs of the GEMM before, or when those leave, one after another
    fill              the rings fill from DRAM, a window at a time; prefetched tiles follow at the same speed
    contention        meanwhile an access of the previous kernel waits up to `loaded_*` behind the weights
                      already asked for: early starters slow down the kernel they wait for
    room              a previous kernel that starts on empty SMs (no trigger) keeps some CTAs out of theirs;
                      these start with an empty ring, and one SM alone streams at most `sm_bytes_per_us`
    packing           a layer that starts beside the one before gets the room that this one leaves: it is
                      packed on a part of the SMs, which stream at most `packed_sm_bytes_per_us` each
    wait              ends `release` after the previous kernel; the main loop then finds the ring full, reads
                      prefetched tiles at L2 speed and the rest from DRAM, in this order
    end               the last CTA leaves `tail` after DRAM has delivered everything
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gemm_model.config import read_toml
from gemm_model.config.numbers import Numbers, room_numbers
from gemm_model.core.batch import FloatArray, GemmBatch
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import BatchPrediction
from gemm_model.errors import InputError
from gemm_model.kernels.model import Model
from gemm_model.overlap.config import TILE_K_BYTES, UNIT_M, KernelBuild, OverlapSetting, check_problem
from gemm_model.overlap.plan import plan_build

OverlapParameters = Numbers
PARAMETERS: Mapping[str, Any] = read_toml("overlap_parameters")
"""Of each number of `OverlapParameters` its unit, bounds and meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Columns of chains: what the recurrences take. Sizes in elements, bytes or counts."""

    weight_bytes: FloatArray
    ring_bytes: FloatArray
    """Weights that all rings of one layer hold together."""
    steps: FloatArray
    """K tiles of one CTA."""
    early_share: FloatArray
    """Share of a layer's CTAs that fit beside those of the layer before."""
    blocked_share: FloatArray
    """Share of a layer's CTAs without room on the SMs that the previous kernel leaves alone."""
    previous_share: FloatArray
    """Share of the SMs that the previous kernel's CTAs take, one for each token."""
    alone: FloatArray
    """1 where an SM has one CTA of a layer at most."""
    slice_bytes: FloatArray
    """Weights that one SM streams in a layer."""
    sms: FloatArray
    """SMs that hold a layer when all are empty: as many as it can use."""
    packed_sms: FloatArray
    """SMs that hold a layer when it takes all room of each."""
    free_sms: FloatArray
    """SMs that hold a layer when the previous kernel started first, on SMs of its own."""
    waves: FloatArray
    """Rounds in which the clusters of a layer run: more than one where they do not all fit at once."""
    imbalance: FloatArray
    """Rows of the fullest CTA over the mean, less one."""
    split_k: FloatArray
    fill_delay_us: FloatArray
    """Delay before a CTA fills its ring."""
    reads: FloatArray
    """Length of the previous kernel's read of its row (`row_reads`)."""
    activation_bytes: FloatArray
    """Activations that all CTAs of a layer read from L2, after the wait."""
    extra_us: FloatArray
    """Time that the previous kernel spends between its passes."""
    never: FloatArray
    """1 where the next kernel starts at the end of this one."""
    fill_trigger_share: FloatArray
    """Share of its ring that has arrived when a CTA lets the next kernel start while the ring fills."""
    trigger_share: FloatArray
    """Share of the K tiles beyond the ring that a CTA has loaded when it lets the next kernel start."""
    best_effort: FloatArray
    """1 where the prefetch ends with the wait."""
    asked_share: FloatArray
    """Share of the weights that a prefetch asks for, of what the rings leave."""
    serialized: FloatArray
    """1 where nothing overlaps: launched without dependent launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCase:
    """One layer of a chain: the GEMM, how it is built and run, and the length of the kernel before it."""

    m: int
    n: int
    k: int
    build: KernelBuild
    setting: OverlapSetting
    extra_us: float = 0.0
    """Time by which the previous kernel exceeds this package's norm."""
    serialized: bool = False

    def __post_init__(self) -> None:
        check_problem(self.m, self.n, self.k, self.build)
        if not self.extra_us >= 0:
            raise InputError(f"the previous kernel's extra time must be at least 0 us, not {self.extra_us!r}")


def chains_of(cases: Sequence[LayerCase], gpu: GpuSpec) -> Chains:
    """The columns of some cases: distribution of rows, residency on SMs, bytes in the rings."""
    rows: list[dict[str, float]] = []
    for case in cases:
        build = case.build
        units = math.ceil(case.m / UNIT_M)
        own_units = units / build.clusters
        most_units = math.ceil(own_units)
        steps = math.ceil(math.ceil(case.k / build.tile_k) / build.split_k) * math.ceil(most_units / 2)
        beyond = max(steps - build.stages, 0)
        # Whole K tiles, as the kernel counts them: those of the ring are loaded without waiting for anything.
        trigger_at = math.floor(max(case.setting.overlap_ratio, 0.0) * steps)
        best_effort = case.setting.prefetch_ratio < 0
        asked = beyond if best_effort else min(math.ceil(case.setting.prefetch_ratio * steps), beyond)
        stage_bytes = min(own_units, 2.0) * UNIT_M * TILE_K_BYTES
        at_once = gpu.clusters_at_once(build.split_k) * build.ctas_per_sm
        weights = float(case.m * case.k * build.operand_bytes)
        blocked = max(1 - max(gpu.sm_count - case.n, 0) * build.ctas_per_sm / build.ctas, 0.0)
        row: dict[str, float] = {
            "weight_bytes": weights,
            "ring_bytes": min(weights, build.ctas * min(build.stages, steps) * stage_bytes),
            "steps": steps,
            "early_share": min(max(at_once / build.clusters - 1, 0.0), 1.0),
            "blocked_share": blocked,
            "previous_share": case.n / gpu.sm_count,
            "alone": float(build.ctas <= gpu.sm_count),
            "slice_bytes": weights / build.ctas * math.ceil(build.ctas / gpu.sm_count),
            "sms": min(build.ctas, gpu.sm_count),
            "packed_sms": min(build.ctas / build.ctas_per_sm, gpu.sm_count),
            "free_sms": min(build.ctas, gpu.sm_count, max(gpu.sm_count - case.n, 0) + blocked * build.ctas),
            "waves": math.ceil(build.clusters / at_once),
            "imbalance": max(most_units / own_units - 1, 0.0) if own_units >= 1 else 0.0,
            "split_k": build.split_k,
            "fill_delay_us": build.fill_delay_clocks / gpu.sm_clk_mhz,
            "reads": row_reads(case.k),
            "activation_bytes": float(build.ctas * build.b_stage_bytes * steps),
            "extra_us": case.extra_us,
            "never": float(case.setting.overlap_ratio < 0),
            "fill_trigger_share": min(max(trigger_at - build.fill_window, 0) / build.stages, 1.0),
            "trigger_share": max(trigger_at - build.stages, 0) / max(beyond, 1),
            "best_effort": float(best_effort),
            "asked_share": asked / max(beyond, 1),
            "serialized": float(case.serialized),
        }
        rows.append(row)
    names = [spec.name for spec in fields(Chains)]
    return Chains(**{name: np.array([row[name] for row in rows], dtype=np.float64) for name in names})


def row_reads(k: int) -> float:
    """Time to read a row of k elements, in reads of `access_elements`; no row takes less than one."""
    return max(k / room_numbers("overlap").access_elements, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Times of events in microseconds from the start of the chain; arrays of shape (layers, chains)."""

    previous_start: FloatArray
    previous_waited: FloatArray
    previous_end: FloatArray
    gemm_start: FloatArray
    ring_full: FloatArray
    """When the last ring is full, had its fill nothing to wait for (of no meaning for serialized kernels)."""
    gemm_waited: FloatArray
    streamed: FloatArray
    gemm_end: FloatArray
    prefetched_bytes: FloatArray
    """Brought into L2 per layer."""
    wasted_bytes: FloatArray
    """Of these, evicted before use or issued after the wait."""

    @property
    def layer_us(self) -> FloatArray:
        """Mean time per layer of each chain."""
        mean: FloatArray = self.gemm_end[-1] / len(self.gemm_end)
        return mean


def queue_delay_us(
    at: FloatArray, quiet_until: FloatArray, ring_until: FloatArray, most_us: float
) -> FloatArray:
    """Wait of an access issued at `at` behind weights already requested, which DRAM delivers first."""
    felt = np.clip((at - quiet_until) / room_numbers("overlap").build_ramp_us + 0.5, 0.0, 1.0)
    delay: FloatArray = felt * np.clip(ring_until - at, 0.0, most_us)
    return delay


@dataclass(frozen=True, slots=True)
class _Left:
    """What a layer leaves to the next one; times in us."""

    end: FloatArray
    trigger: FloatArray
    """When its last CTA lets the next kernel start."""
    streamed: FloatArray
    main: FloatArray
    """Length of its main loop."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A layer up to the end of its wait; times in us."""

    previous_start: FloatArray
    waited: FloatArray
    previous_end: FloatArray
    start: FloatArray
    fill: FloatArray
    ring_until: FloatArray
    ready: FloatArray
    sms: FloatArray
    """SMs that hold the layer."""
    empty: FloatArray
    """Share of the SMs that stood empty when the previous kernel started."""


def timeline(chains: Chains, p: OverlapParameters, l2_bytes: float, layers: int = 16) -> Timeline:
    """The recurrences of the module's docstring for all chains at once."""
    zero = np.zeros_like(chains.weight_bytes)
    left = _Left(end=zero, trigger=zero, streamed=zero, main=zero)
    rows: list[tuple[FloatArray, ...]] = []
    for layer in range(layers):
        begun = _begin(chains, p, left, first=layer == 0)
        left, issued, kept = _stream(chains, p, begun, l2_bytes)
        rows.append(
            (
                *(begun.previous_start, begun.waited, begun.previous_end, begun.start, begun.ring_until),
                *(begun.ready, left.streamed, left.end, issued, issued - kept),
            )
        )
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Timeline(**dict(zip((spec.name for spec in fields(Timeline)), columns, strict=True)))


def _begin(c: Chains, p: OverlapParameters, before: _Left, *, first: bool) -> _Begun:
    """The previous kernel, and the CTAs of the GEMM until they may load activations."""
    never, serial = c.never > 0, c.serialized > 0
    launch = np.where(serial, p.serial_launch_us, p.launch_us)
    end = before.end
    if first:
        previous_start = waited = np.full_like(end, p.chain_us)
    else:
        # Without a trigger the next kernel starts at the end; a trigger after the end has no effect.
        previous_start = np.where(never | serial, end, np.minimum(before.trigger, end)) + launch
        waited = np.maximum(previous_start, end + np.where(serial, 0.0, p.release_us))
    # CTAs beside those of the layer before start early, the others as these leave, one after another.
    first_exit = before.streamed - p.spread * before.main
    allowed = previous_start + p.launch_us
    late = np.maximum(allowed, first_exit)
    # Layers that start beside each other pack each other: one takes the SMs that the other leaves empty.
    leaving = np.maximum(end - first_exit, 1e-9)
    beside = np.where(serial, 0.0, np.clip((end - allowed) / leaving, 0.0, 1.0))
    # A previous kernel that starts when SMs are empty already keeps them for itself: the others hold all
    # CTAs that fit, the rest wait.
    empty = np.where(serial, 0.0, np.clip((previous_start - first_exit) / leaving, 0.0, 1.0))
    sms = c.sms - beside * (c.sms - c.packed_sms) - empty * (c.sms - c.free_sms)
    start = c.early_share * np.minimum(allowed, late) + (1 - c.early_share) * late
    ring_until = start + c.fill_delay_us + c.ring_bytes / p.dram_bytes_per_us
    quiet_until = np.where(serial, np.inf, start + c.fill_delay_us + p.build_us)
    # The norm reads its row, then stores: each access queues behind the weights requested meanwhile.
    delay = queue_delay_us(waited, quiet_until, ring_until, p.loaded_read_us)
    second = waited + c.reads * p.read_us + delay + c.extra_us
    delay = queue_delay_us(second, quiet_until, ring_until, p.loaded_store_us)
    previous_end = second + p.previous_us + delay
    start = np.where(serial, previous_end + launch, start)
    return _Begun(
        previous_start=previous_start,
        waited=waited,
        previous_end=previous_end,
        start=start,
        fill=start + c.fill_delay_us,
        ring_until=ring_until,
        ready=np.where(serial, start, np.maximum(previous_end + p.release_us, start)),
        sms=sms,
        empty=empty,
    )


def _stream(
    c: Chains, p: OverlapParameters, begun: _Begun, l2_bytes: float
) -> tuple[_Left, FloatArray, FloatArray]:
    """From the end of the wait to the layer's end; bytes prefetched, and those that L2 keeps until used."""
    blocked = c.blocked_share * begun.empty
    filled = np.maximum(begun.ready - begun.fill, 0.0) * p.dram_bytes_per_us
    in_ring = (1 - blocked) * np.minimum(c.ring_bytes, filled)
    # Prefetches follow the ring fill at the speed of DRAM; best effort ends with the wait, a fixed share
    # goes on beside the loads.
    asked = np.where(c.serialized > 0, 0.0, c.asked_share * (c.weight_bytes - c.ring_bytes))
    in_time = np.clip((begun.ready - begun.ring_until) * p.dram_bytes_per_us, 0.0, asked)
    issued = np.where(c.best_effort > 0, in_time, asked)
    kept = np.minimum(in_time, p.kept_share * l2_bytes)
    main = _mainloop_us(c, p, in_ring=in_ring, kept=kept, late=issued - in_time, sms=begun.sms)
    # What starts late gets its share of DRAM meanwhile and streams the rest alone.
    alone = np.maximum(c.slice_bytes - main * p.dram_bytes_per_us / c.sms, 0.0) / p.sm_bytes_per_us
    main = main + np.where(blocked > 0, begun.empty * alone, 0.0)
    main = main + np.where(kept > 0, p.switch_us * c.alone, 0.0)
    streamed = begun.ready + p.head_us + main
    # A trigger may fall into the ring fill or, later, into the main loop.
    filling = begun.fill + c.fill_trigger_share * c.ring_bytes / p.dram_bytes_per_us
    in_main = begun.ready + p.head_us + c.trigger_share * main
    # DRAM serves SMs unevenly; the last CTA waits longest for the bytes that no ring or L2 holds.
    unfair_us = p.unfairness * (c.weight_bytes - in_ring - kept) / p.dram_bytes_per_us
    left = _Left(
        end=streamed + _tail_us(c, p) + unfair_us,
        trigger=np.where(c.trigger_share > 0, in_main, filling),
        streamed=streamed,
        main=main,
    )
    return left, issued, kept


def _tail_us(c: Chains, p: OverlapParameters) -> FloatArray:
    """From the last load's arrival to the end of the last CTA."""
    tail: FloatArray = (
        p.tail_us
        + p.exchange_us * np.log2(c.split_k)
        + p.imbalance * c.imbalance * c.weight_bytes / p.dram_bytes_per_us
        + (c.waves - 1) * (p.launch_us + p.release_us + c.steps * p.step_us)
    )
    return tail


def _mainloop_us(
    c: Chains,
    p: OverlapParameters,
    *,
    in_ring: FloatArray,
    kept: FloatArray,
    late: FloatArray,
    sms: FloatArray,
) -> FloatArray:
    """Time of the main loop for bytes outside the ring: prefetched tiles at L2 speed, then the rest from
    DRAM.

    `in_ring`, `kept` (in L2) and `late` (requested, and loaded twice) are bytes.
    """
    from_dram = c.weight_bytes - in_ring - kept
    streaming = (
        kept / p.l2_bytes_per_us
        + (from_dram + p.late_share * late) / p.dram_bytes_per_us
        + c.activation_bytes / p.activation_bytes_per_us
    )
    by_sm = (from_dram + kept) / (sms * p.packed_sm_bytes_per_us)
    main: FloatArray = np.maximum(np.maximum(streaming, by_sm), c.steps * p.step_us)
    return main


class OverlapModel(Model):
    """Time per layer of a chain in which a norm precedes each GEMM and both overlap their neighbours.

    The weights are the larger of the two operands, the activations the smaller, of at most 128 tokens; the
    kernel is the one that `plan_build` chooses. `parameters` replaces fitted constants of the same name.
    """

    needs_tile = False

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        parameters: Mapping[str, float],
        overlap_ratio: float = 0.25,
        prefetch_ratio: float = -1.0,
        previous_extra_us: float = 0.0,
        layers: int = 16,
    ) -> None:
        if gpu.architecture != "sm90":
            raise InputError(
                f"OverlapModel describes a kernel for Hopper (sm90); GPU {gpu.name} is {gpu.architecture}"
            )
        if layers < 1:
            raise InputError(f"OverlapModel: layers must be at least 1, not {layers}")
        if odd := sorted(set(parameters) ^ set(PARAMETERS)):
            raise InputError(f"OverlapModel: parameters {', '.join(odd)} are missing or unknown")
        self.gpu = gpu
        self.parameters = OverlapParameters(**{name: float(value) for name, value in parameters.items()})
        self.setting = OverlapSetting(overlap_ratio=overlap_ratio, prefetch_ratio=prefetch_ratio)
        self.previous_extra_us = previous_extra_us
        self.layers = layers

    def timeline(self, cases: Sequence[LayerCase]) -> Timeline:
        """The timelines of chains of `layers` equal layers, one per case."""
        return timeline(chains_of(cases, self.gpu), self.parameters, self.gpu.l2_bytes, self.layers)

    def layer_us(self, cases: Sequence[LayerCase]) -> FloatArray:
        """Microseconds per layer of each case."""
        return self.timeline(cases).layer_us

    def predict_batch(self, batch: GemmBatch) -> BatchPrediction:
        cases = [self._case(batch, row) for row in range(len(batch))]
        lines = self.timeline(cases)
        last = {spec.name: getattr(lines, spec.name)[-1] for spec in fields(Timeline)}
        total = lines.layer_us
        gemm = last["gemm_end"] - last["gemm_waited"]
        phases = {"previous_kernel": total - gemm, "gemm": gemm}
        weights = np.array([float(c.m * c.k * c.build.operand_bytes) for c in cases])
        return BatchPrediction(
            runtime_us=total,
            limiter=np.where(gemm > total / 2, 1, 0).astype(np.int64),
            limiter_names=("PREVIOUS_KERNEL", "WEIGHTS"),
            phases_us=phases,
            details={
                "prefetched_bytes": last["prefetched_bytes"],
                "wasted_prefetch_bytes": last["wasted_bytes"],
            },
            bytes_by_level={"dram": weights},
            caveats=(
                "OverlapModel: time per layer of a chain with a norm before each GEMM",
                *self.gpu.caveats,
            ),
        )

    def _case(self, batch: GemmBatch, row: int) -> LayerCase:
        sizes = sorted((int(batch.m[row]), int(batch.n[row])))
        kinds = {8: ("e4m3", "e4m3"), 16: ("bf16", "bf16")}
        a_type, b_type = kinds.get(int(batch.a_bits[row]), ("", ""))
        if not a_type or batch.b_bits[row] != batch.a_bits[row] or batch.batch[row] != 1:
            raise InputError(
                "OverlapModel takes one GEMM of fp8 or of 16-bit operands, both of the same width"
            )
        tokens, features = sizes
        k = int(batch.k[row])
        return LayerCase(
            m=features,
            n=tokens,
            k=k,
            build=plan_build(features, tokens, k, a_type, b_type, self.gpu),
            setting=self.setting,
            extra_us=self.previous_extra_us,
        )
