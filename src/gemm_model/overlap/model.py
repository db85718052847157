"""The time of a chain of (previous kernel, weight-prefetch GEMM) layers under programmatic dependent launch.

A timeline of recurrences from layer to layer, array-safe: one chain or a whole table of them. Times in
microseconds, sizes in bytes. For layer i, with the GEMM of layer i - 1 before it:

    previous kernel   starts `launch` after the last CTA of the GEMM before has let it (or after that GEMM's
                      end), waits for that GEMM's end plus `release`, then reads its rows twice
    GEMM CTAs         start `launch` after the previous kernel has let them, as soon as there is room on an
                      SM: beside the CTAs of the GEMM before, or when those leave
    fill              ring and prefetched tiles stream from DRAM from the start of the CTAs on
    contention        while they do, each dependent read of the previous kernel takes `loaded_read` instead of
                      `read`, and its stores longer too: early starters slow down the kernel they wait for
    wait              ends `release` after the previous kernel; the main loop then finds the ring full, reads
                      prefetched tiles at L2 speed and the rest from DRAM, in this order
    end               the last CTA leaves `tail` after DRAM has delivered everything
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from gemm_model.batch import BoolArray, FloatArray, GemmBatch
from gemm_model.errors import InputError
from gemm_model.gpu import GpuSpec
from gemm_model.overlap.config import (
    TILE_K_BYTES,
    UNIT_M,
    KernelBuild,
    OverlapSetting,
    check_problem,
    plan_build,
)
from gemm_model.prediction import BatchPrediction

PREVIOUS_BATCH = 8192
"""Elements of a row that the previous kernel reads at once: 256 threads, four accesses of eight elements."""
PREVIOUS_STEP = 2048
"""Elements of a row of one access of all threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParameters:
    """Physical constants of a GPU and of the two kernels, fitted to measured chains."""

    dram_bytes_per_us: float
    """Weights streamed from DRAM by all SMs."""
    l2_bytes_per_us: float
    """Prefetched weights read from L2 by all SMs."""
    launch_us: float
    """From the last CTA's trigger (or end) to the first instruction of the dependent kernel."""
    release_us: float
    """From the end of a kernel to the end of the wait in its dependents."""
    serial_launch_us: float
    """From the end of a kernel to the next one's first instruction without dependent launch."""
    previous_us: float
    """The second pass of the previous kernel with its stores, in an idle memory system."""
    read_us: float
    """One dependent read of the previous kernel from an idle memory system."""
    loaded_read_us: float
    """The same while the GEMM behind it fills its rings."""
    prefetch_read_us: float
    """The same while that GEMM brings weights into L2."""
    loaded_store_us: float
    """The second pass with its stores while the GEMM fills its rings."""
    prefetch_store_us: float
    """The same while that GEMM brings weights into L2."""
    build_us: float
    """From the start of the GEMM's CTAs to a memory system so full that others notice."""
    early_us: float
    """Delay of the previous kernel by dependents that start before it has ended."""
    head_us: float
    """From the end of the wait to the first free ring slot: activations, first MMA."""
    step_us: float
    """One K tile through barrier, MMA and release."""
    tail_us: float
    """From the last byte to the end of the grid: latency, MMA, epilogue."""
    unfairness: float
    """How much longer than the mean SM the last one waits for its share of DRAM."""
    exchange_us: float
    """Sum over a cluster, per doubling of its CTAs."""
    imbalance: float
    """Share of the rows' imbalance that shows as a longer tail."""
    refill_us: float
    """From the last byte of one layer to the first request of the next on the same SM."""
    interference: float
    """Slow-down of the running GEMM per byte that the next one fetches beside it, against a DRAM byte."""
    poll_us: float
    """One barrier poll and prefetch in best-effort mode, per CTA."""
    burst_share: float
    """Share of L2 that keeps weights prefetched in one burst (a fixed share of the K tiles) until used."""
    paced_share: float
    """The same for prefetches at the pace of the polls of the best-effort mode."""
    chain_us: float
    """Start of the chain's graph."""


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
    waves: FloatArray
    """Rounds in which the clusters of a layer run: more than one where they do not all fit at once."""
    imbalance: FloatArray
    """Rows of the fullest CTA over the mean, less one."""
    split_k: FloatArray
    reads: FloatArray
    """Dependent reads of one pass of the previous kernel over its row."""
    extra_us: FloatArray
    """Time that the previous kernel spends between its passes."""
    overlap_ratio: FloatArray
    prefetch_ratio: FloatArray
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
    """What the previous kernel takes longer than the norm of this package."""
    serialized: bool = False

    def __post_init__(self) -> None:
        check_problem(self.m, self.n, self.k, self.build)
        if not self.extra_us >= 0:
            raise InputError(f"the previous kernel's extra time must be at least 0 us, not {self.extra_us!r}")


def chains_of(cases: Sequence[LayerCase], gpu: GpuSpec) -> Chains:
    """The columns of some cases: how the rows are dealt out, what fits on an SM, what the rings hold."""
    columns: dict[str, list[float]] = {spec.name: [] for spec in fields(Chains)}
    for case in cases:
        build = case.build
        units = math.ceil(case.m / UNIT_M)
        own_units = units / build.clusters
        most_units = math.ceil(own_units)
        steps = math.ceil(case.k / build.tile_k) / build.split_k * math.ceil(most_units / 2)
        stage_bytes = min(own_units, 2.0) * UNIT_M * TILE_K_BYTES
        at_once = gpu.clusters_at_once(build.split_k) * build.ctas_per_sm
        weights = float(case.m * case.k * build.operand_bytes)
        row = {
            "weight_bytes": weights,
            "ring_bytes": min(weights, build.ctas * min(build.stages, steps) * stage_bytes),
            "steps": steps,
            "early_share": min(max(at_once / build.clusters - 1, 0.0), 1.0),
            "waves": math.ceil(build.clusters / at_once),
            "imbalance": max(most_units / own_units - 1, 0.0) if own_units >= 1 else 0.0,
            "split_k": build.split_k,
            "reads": pass_reads(case.k),
            "extra_us": case.extra_us,
            "overlap_ratio": case.setting.overlap_ratio,
            "prefetch_ratio": case.setting.prefetch_ratio,
            "serialized": float(case.serialized),
        }
        for name, value in row.items():
            columns[name].append(value)
    return Chains(**{name: np.array(values, dtype=np.float64) for name, values in columns.items()})


def pass_reads(k: int) -> int:
    """Dependent reads of one pass over a row: whole batches at once, then the rest access by access."""
    batches, rest = divmod(k, PREVIOUS_BATCH)
    return batches + math.ceil(rest / PREVIOUS_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When what happens, microseconds from the start of the chain: arrays (layers, chains)."""

    previous_start: FloatArray
    previous_waited: FloatArray
    previous_end: FloatArray
    gemm_start: FloatArray
    gemm_waited: FloatArray
    streamed: FloatArray
    gemm_end: FloatArray
    prefetched_bytes: FloatArray
    """Brought into L2 per layer."""
    wasted_bytes: FloatArray
    """Of these, evicted before use or asked for when the main loop already read them itself."""

    @property
    def layer_us(self) -> FloatArray:
        """Mean time per layer of each chain."""
        mean: FloatArray = self.gemm_end[-1] / len(self.gemm_end)
        return mean


def prefetch_pays(chains: Chains, p: OverlapParameters) -> BoolArray:
    """Whether the previous kernel alone outlasts the fill of the rings, so that DRAM would rest meanwhile."""
    alone = chains.reads * p.read_us + chains.extra_us + p.previous_us
    pays: BoolArray = alone > chains.ring_bytes / p.dram_bytes_per_us
    return pays


def read_time_us(
    start: FloatArray,
    reads: FloatArray,
    phases: Sequence[tuple[FloatArray, float]],
    quiet_us: float,
) -> FloatArray:
    """Time of `reads` dependent reads that take as long as the phase they fall into says.

    `phases`: pairs (end of the phase, microseconds per read) in order of time; after the last, `quiet_us`.
    """
    now = start
    left = reads
    for until, read_us in phases:
        spent = np.minimum(np.maximum(until - now, 0.0), left * read_us)
        now = now + spent
        left = left - spent / read_us
    elapsed: FloatArray = now + left * quiet_us - start
    return elapsed


def timeline(chains: Chains, p: OverlapParameters, l2_bytes: float, layers: int = 16) -> Timeline:
    """The recurrences of the module's docstring for all chains at once."""
    c = chains
    never = c.overlap_ratio < 0
    best_effort = c.prefetch_ratio < 0
    serial = c.serialized > 0
    launch = np.where(serial, p.serial_launch_us, p.launch_us)
    room = c.weight_bytes - c.ring_bytes
    asked = np.where(best_effort, room, np.minimum(c.prefetch_ratio * c.weight_bytes, room))
    asked = np.where(serial, 0.0, asked)
    # Trigger: K tiles beyond the ring are loaded in the main loop only.
    beyond_ring = np.maximum(c.overlap_ratio * c.weight_bytes - c.ring_bytes, 0.0) / np.maximum(room, 1.0)
    tail = (
        p.tail_us
        + p.exchange_us * np.log2(c.split_k)
        + p.imbalance * c.imbalance * c.weight_bytes / p.dram_bytes_per_us
        + (c.waves - 1) * (p.launch_us + p.release_us + c.steps * p.step_us)
    )

    zero = np.zeros_like(c.weight_bytes)
    end = trigger = streamed = zero
    first = np.full_like(zero, p.chain_us)
    rows: list[tuple[FloatArray, ...]] = []
    for layer in range(layers):
        if layer == 0:
            previous_start = waited = first
        else:
            let_go = np.where(never | serial, end, np.minimum(trigger, end))
            previous_start = let_go + launch
            waited = np.maximum(previous_start, end + np.where(serial, 0.0, p.release_us))
        # CTAs beside those of the layer before start early, the others as these leave.
        allowed = previous_start + p.launch_us
        late = np.maximum(allowed, streamed + p.refill_us)
        start = c.early_share * np.minimum(allowed, late) + (1 - c.early_share) * late
        ring_until = start + c.ring_bytes / p.dram_bytes_per_us
        early = np.where(never | serial | (beyond_ring > 0), 0.0, p.early_us)
        prefetch_until = ring_until + asked / p.dram_bytes_per_us
        quiet_until = np.where(serial, np.inf, start + p.build_us)
        phases = (
            (quiet_until, p.read_us),
            (ring_until, p.loaded_read_us),
            (prefetch_until, p.prefetch_read_us),
        )
        second = waited + read_time_us(waited, c.reads, phases, p.read_us) + c.extra_us + early
        phases = (
            (quiet_until, p.previous_us),
            (ring_until, p.loaded_store_us),
            (prefetch_until, p.prefetch_store_us),
        )
        one = np.ones_like(zero)
        previous_end = second + read_time_us(second, one, phases, p.previous_us)
        start = np.where(serial, previous_end + launch, start)
        released = previous_end + p.release_us
        ready = np.where(serial, start, np.maximum(released, start))

        in_ring = np.minimum(c.ring_bytes, np.maximum(ready - start, 0.0) * p.dram_bytes_per_us)
        polled = np.maximum(ready - start, 0.0) / (p.poll_us * c.steps) * c.weight_bytes
        issued = np.where(best_effort, np.minimum(asked, polled), asked)
        kept = np.minimum(issued, np.where(best_effort, p.paced_share, p.burst_share) * l2_bytes)
        arrived = np.clip((ready - ring_until) * p.dram_bytes_per_us, 0.0, kept)
        # In order: prefetched tiles at the speed of L2 or of their arrival, then the rest from DRAM.
        from_dram = c.weight_bytes - in_ring - kept
        main = np.maximum(
            np.maximum(kept / p.l2_bytes_per_us, (kept - arrived) / p.dram_bytes_per_us)
            + from_dram / p.dram_bytes_per_us,
            c.steps * p.step_us,
        )
        # The next layer's early CTAs fetch beside this one's main loop.
        trigger = np.maximum(ready + p.head_us + beyond_ring * main, start)
        trigger = np.where(beyond_ring > 0, trigger, start)
        overlapped = np.clip(1 - (trigger + 2 * p.launch_us - ready) / np.maximum(main, 1e-9), 0.0, 1.0)
        beside = np.where(never | serial, 0.0, c.early_share * overlapped * (c.ring_bytes + asked))
        main = main + p.interference * np.minimum(beside, from_dram) / p.dram_bytes_per_us
        streamed = ready + p.head_us + main
        end = streamed + tail + p.unfairness * from_dram / p.dram_bytes_per_us
        rows.append(
            (previous_start, waited, previous_end, start, ready, streamed, end, issued, issued - kept)
        )
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Timeline(**dict(zip((spec.name for spec in fields(Timeline)), columns, strict=True)))


class OverlapModel:
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
        overlap_ratio: float = 0.75,
        prefetch_ratio: float = 0.0,
        previous_extra_us: float = 0.0,
        layers: int = 16,
    ) -> None:
        if gpu.architecture != "sm90":
            raise InputError(
                f"OverlapModel describes a kernel for Hopper (sm90); GPU {gpu.name} is {gpu.architecture}"
            )
        if layers < 1:
            raise InputError(f"OverlapModel: layers must be at least 1, not {layers}")
        known = [spec.name for spec in fields(OverlapParameters)]
        if sorted(parameters) != sorted(known):
            odd = sorted(set(parameters) ^ set(known))
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

    def prefetch_pays(self, cases: Sequence[LayerCase]) -> BoolArray:
        """Whether a prefetch beyond the rings can pay in each case."""
        return prefetch_pays(chains_of(cases, self.gpu), self.parameters)

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
            build=plan_build(features, tokens, k, a_type, b_type, sm_count=self.gpu.sm_count),
            setting=self.setting,
            extra_us=self.previous_extra_us,
        )
