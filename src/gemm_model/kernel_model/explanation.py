"""Why a kernel takes the time that the model predicts, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from gemm_model.config import mechanisms as mech
from gemm_model.core.batch import batch_of
from gemm_model.core.elementwise import minimum
from gemm_model.core.gpu import GpuSpec, as_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.kind_columns import asked_of
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.core.settings import Settings
from gemm_model.kernel_model.elasticity import LIMITERS, Composed
from gemm_model.kernel_model.kernel import Kernel
from gemm_model.kernel_model.model import SITUATION_OF, KernelModel
from gemm_model.kernel_model.question import UNLIMITED, Change, World, parse_change
from gemm_model.kernel_model.rates import l2_bytes_per_us
from gemm_model.kernel_model.way_to_peak import Step, way_to_peak
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.registry import family_of

MODEL = KernelModel.__name__
"""The model that explains itself."""
TIE = 0.1
"""Difference of two elasticities [1]; up to it two resources limit a kernel alike; chosen: they are ties of a
model whose utilizations are right within 8 points."""
CLOSE = 1.05
"""How many times as fast the limiter is made to find what would limit next [1]; ties; chosen: formulas are 4 to
5 % off, and of a maximum of two times only the longer has an elasticity, however close they are."""
WORTH_TELLING = 0.01
"""Elasticity, and share of the time that a change saves [1]; what is less is left out; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One resource: its own time as if it were alone, which others overlap, and its elasticity."""

    name: str
    time_us: float
    share_of_runtime: float
    elasticity: float
    """The share of a 1 % speed-up of it that reaches the runtime; those of all resources add up to 1."""
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The same problem in a changed world: its time [us], and that over the predicted one [1]."""

    change: str
    runtime_us: float
    relative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A prediction, what limits it, how it falls short of the peak, and what would change it (best first)."""

    prediction: Prediction
    limiter: str
    """The resource of the largest elasticity, as the prediction has it."""
    ties: tuple[str, ...]
    """Resources whose elasticity is within TIE of the largest, or would be with the limiter CLOSE times as fast;
    and the one without which the kernel would be shortest."""
    mechanisms: tuple[Mechanism, ...]
    """By elasticity."""
    busy: Mapping[str, float]
    """Shares of their peaks at which units of the card are busy on average over the kernel, as a profiler
    reads them: TENSOR (of SMs that have a CTA), L2, DRAM."""
    achieved: Mapping[str, float]
    """TFLOP/s, GB/s of operands and outputs once, and the share of the roofline."""
    way_to_peak: tuple[Step, ...]
    """From the roofline to the prediction, in us that add up."""
    wave_occupancy: float
    """Tiles over the resident clusters of all waves, the partial one included."""
    advice: tuple[WhatIf, ...]
    """What a user can change: the best other value of each setting, all else as it is."""
    what_if: tuple[WhatIf, ...]


def explain(
    problem: GemmProblem,
    config: KernelConfig,
    gpu: GpuSpec | str | Path,
    options: Mapping[str, Any] | None = None,
    what_if: tuple[str, ...] = (),
) -> Explanation:
    """Explain one kernel with the kernel model; `options` are `KernelModel`'s, `what_if` questions by name.

    `gpu` is a GpuSpec, a name or a YAML file; times are us, elasticities and shares 1 at most. Raises
    InputError as `predict` does, and for a question on a resource that does not exist.

    >>> from gemm_model import GemmProblem, KernelConfig, explain
    >>> kernel = KernelConfig(cta_m=128, cta_n=256, cluster_m=2)
    >>> why = explain(GemmProblem.of(4096, 4096, 4096, "bf16"), kernel, "h200", what_if=("tensor x2",))
    >>> why.limiter, why.mechanisms[0].name
    ('TENSOR', 'TENSOR')
    >>> round(sum(step.added_us for step in why.way_to_peak) / why.prediction.runtime_us, 6)
    1.0
    >>> why.what_if[0].relative < 0.8
    True
    """
    gpu, chosen = as_gpu(gpu), dict(options or {})
    asked = {text: parse_change(text) for text in what_if}
    world = World(problem=problem, config=config, gpu=gpu, options=chosen)
    prediction, composed = world.predicted(), world.composed()
    composed_us, schedule = float(composed.times.runtime_us), composed.kernel.schedule
    changes = {**asked, **_changes(world, composed)}
    return Explanation(
        prediction=prediction,
        limiter=prediction.limiter,
        ties=tied(world, composed),
        mechanisms=_mechanisms(world, composed, prediction.runtime_us),
        busy=busy(composed, gpu, prediction.runtime_us),
        achieved=_achieved(composed, prediction.runtime_us),
        way_to_peak=way_to_peak(world, composed, prediction.runtime_us - composed_us),
        wave_occupancy=min(float(schedule.tiles / (schedule.waves * schedule.resident)), 1.0),
        advice=_advice(world, prediction.runtime_us),
        what_if=_answers(world, changes, prediction.runtime_us, prediction.runtime_us / composed_us),
    )


def _achieved(composed: Composed, runtime_us: float) -> dict[str, float]:
    times = composed.times
    return {
        "tflop_per_s": float(composed.kernel.flop) / runtime_us / 1e6,
        "gb_per_s": float(times.traffic.operand_bytes + times.traffic.output_bytes) / runtime_us / 1e3,
        "roofline_us": float(times.floor_us),
        "share_of_roofline": float(times.floor_us) / runtime_us,
    }


def busy(composed: Composed, gpu: GpuSpec, runtime_us: float) -> dict[str, float]:
    """MMAs of the SMs that have a CTA, and bytes, over what they could do in a time [us]: shares by unit."""
    kernel, times = composed.kernel, composed.times
    peak_flop = kernel.rate * sms_with_work(kernel, gpu) * times.sm_clk_mhz * runtime_us
    flop, moved = mma_flop(kernel), times.traffic
    return {
        mech.TENSOR: float(flop / peak_flop),
        mech.L2: float(moved.l2_load_bytes / l2_bytes_per_us(gpu, composed.kernel.numbers) / runtime_us),
        mech.DRAM: float(moved.dram_bytes / gpu.dram_bytes_per_us / runtime_us),
    }


def mma_flop(kernel: Kernel) -> float:
    """FLOP of a kernel's MMAs, of what lies outside the matrices too: whole clusters, whole k tiles."""
    batch, schedule = kernel.batch, kernel.schedule
    tile = 2.0 * batch.cta_m * batch.cta_n * kernel.resources.cta_k
    return float(tile * schedule.k_tiles * schedule.tiles * batch.cluster_m * batch.cluster_n)


def sms_with_work(kernel: Kernel, gpu: GpuSpec) -> float:
    """SMs to which a tile, a split of it or a stream-K share of it comes."""
    batch, schedule = kernel.batch, kernel.schedule
    clusters = minimum(schedule.resident, schedule.tiles * schedule.sharers / batch.split_k)
    return min(float(clusters * batch.cluster_m * batch.cluster_n), float(gpu.sm_count))


def tied(world: World, composed: Composed) -> tuple[str, ...]:
    """Resources that limit a kernel alike: as it is, or once the limiter is CLOSE times as fast; and the one that
    saves most if it takes no time, which a resource that overlaps others may not.
    """
    shares = composed.elasticities()
    first = max(shares, key=shares.__getitem__)
    then = world.but(faster={first: CLOSE}).composed().elasticities()
    felt = {name: parse_change(f"no {name.lower()}") for name in LIMITERS if shares[name] > 0.0}
    saves_most = min(felt, key=lambda name: felt[name](world).composed_us())
    alike = {name for each in (shares, then) for name in LIMITERS if each[name] >= max(each.values()) - TIE}
    return tuple(name for name in LIMITERS if name in alike | {saves_most})


def _mechanisms(world: World, composed: Composed, runtime_us: float) -> tuple[Mechanism, ...]:
    """Each resource that takes time, by elasticity."""
    shares = composed.elasticities()
    found = []
    for name in LIMITERS:
        others = {other: UNLIMITED for other in LIMITERS if other != name}
        time_us = world.but(faster=others).composed_us()
        if time_us > WORTH_TELLING * runtime_us or shares[name] > WORTH_TELLING:
            figures = {"share_of_runtime": time_us / runtime_us, "elasticity": float(shares[name])}
            found.append(
                Mechanism(name=name, time_us=time_us, meaning=mech.RESOURCES[name].meaning, **figures)
            )
    return tuple(sorted(found, key=lambda each: -each.elasticity))


def _answers(
    world: World, changes: Mapping[str, Change], runtime_us: float, corrected: float
) -> tuple[WhatIf, ...]:
    """Each change's time with the residual of the kernel as it is, best first."""
    asked = ((words, change(world).composed_us() * corrected) for words, change in changes.items())
    found = (WhatIf(change=words, runtime_us=us, relative=us / runtime_us) for words, us in asked)
    return tuple(sorted(found, key=lambda each: each.runtime_us))


def _changes(world: World, composed: Composed) -> dict[str, Change]:
    """What architects ask: resources that take no time, and twice of what a card has."""
    limiting = [name for name, share in composed.elasticities().items() if share > WORTH_TELLING]
    words = (*(f"no {name.lower()}" for name in limiting), "l2_bytes x2", "stages x2", "l2 warm")
    asked = {SITUATION_OF.get(word, mech.FUSED_EPILOGUE) for word in asked_of(world.problem)}
    others = {name for kind, names in mech.KIND_STAGES.items() if kind not in asked for name in names}
    off = [each for each in mech.MECHANISMS if each.what_if and each.name not in others]
    named = {each.what_if: tuple(one.name for one in off if one.what_if == each.what_if) for each in off}
    switched = {text: partial(World.but, without=names) for text, names in named.items()}
    return {text: parse_change(text) for text in words} | switched


def _advice(world: World, runtime_us: float) -> tuple[WhatIf, ...]:
    """The best other value of each setting that a user can choose, where it saves something worth telling."""
    problem = world.problem
    good = [each for each in _neighbours(world) if check(problem, each[2], world.gpu) is None]
    if not good:
        return ()
    model, best = KernelModel(world.gpu, **world.options), dict[str, WhatIf]()
    times_us = model.predict_batch(batch_of([(problem, config) for *_, config in good])).runtime_us.tolist()
    for time_us, (name, value, _) in sorted(zip(times_us, good, strict=True), key=lambda each: each[0]):
        times = {"runtime_us": time_us, "relative": time_us / runtime_us}
        best.setdefault(name, WhatIf(change=f"{name} {value}", **times))
    return tuple(each for each in best.values() if each.relative < 1.0 - WORTH_TELLING)


def _neighbours(world: World) -> Iterator[tuple[str, str, KernelConfig]]:
    """Settings, other values of them in words, and the configurations that differ in that one setting."""
    config, space = world.config, family_of(world.config.kernel, world.gpu).space
    anew: dict[str, Any] = {"mma_m": 0, "mma_n": 0}
    for m, n in product(space.cta_m, space.cta_n):
        yield "tile", f"{m}x{n}", replace(config, cta_m=m, cta_n=n, **anew)
    for m, n in space.clusters:
        yield "cluster", f"{m}x{n}", replace(config, cluster_m=m, cluster_n=n)
    for word in space.schedules:
        yield "schedule", word, replace(config, schedule=word, **anew)
    offered: dict[str, Any] = {"swizzle": space.swizzles, "split_k": space.split_k, "stages": space.stages}
    for name, values in offered.items():
        for value in values:
            yield name, str(value or "as many as fit"), replace(config, **{name: value})
    if world.problem.math_kind == "fp8" and not config.fast_accum:
        yield "fast_accum", "1", replace(config, fast_accum=True)


def limits(limiter: str, ties: Sequence[str]) -> str:
    """What limits a kernel, in words: ties are named as ties."""
    return " and ".join(dict.fromkeys((limiter, *ties)))


def limits_of(limiter: str, problem: GemmProblem, config: KernelConfig, asked: Settings) -> str:
    """The same of a kernel that is predicted to be limited by `limiter`, which other models than MODEL tell alone."""
    world = World(problem=problem, config=config, gpu=asked.gpu, options=asked.options)
    return limits(limiter, tied(world, world.composed())) if asked.model == MODEL else limiter
