"""Choosing a configuration by prediction: ranking, ties within the error band, and why not another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gemm_model.choice.fastest import SAME_TIME, Contenders, fastest
from gemm_model.choice.heuristic_choices import sort_of, ways_of
from gemm_model.core.batch import BoolArray, IntArray
from gemm_model.core.fields import kernel_fields, problem_fields
from gemm_model.core.gpu import GpuSpec, as_gpu, with_sms
from gemm_model.core.heuristic_choice import HeuristicChoice
from gemm_model.core.kernel_config import AUTO_KERNEL, KERNELS, RASTERS, SCHEDULES, KernelConfig, parse_extent
from gemm_model.core.kind_columns import asked_of
from gemm_model.core.prediction import BatchPrediction, Prediction, predict_in_chunks
from gemm_model.core.problem import GemmProblem
from gemm_model.core.records import ReadOnly, require_kind
from gemm_model.core.sizes import size_of
from gemm_model.errors import InputError, require_one_of
from gemm_model.kernels.candidates import Candidate, CandidateSpace, candidate_spaces, sizes_of, types_of
from gemm_model.kernels.feasibility import check
from gemm_model.kernels.registry import families_of
from gemm_model.models import DEFAULT_MODEL, Model, create_model, lasting, require_known

if TYPE_CHECKING:
    import pandas as pd

CACHED_RANKINGS = 4096
TWIN_TIME = 1e-3
"""Difference of two times [1, of the time]; up to it a kernel and the same with A and B swapped are one
choice; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One candidate with its rank."""

    rank: int
    """From 1, by predicted time."""
    candidate: Candidate
    prediction: Prediction
    tie_group: int
    """Tie group from 1; the candidates of a group differ by less than the error band of its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The fastest kernels of a problem in order, each with its best tile order."""

    problem: GemmProblem
    gpu: GpuSpec
    choices: tuple[Choice, ...]
    candidates: int
    """How many legal candidates there were: kernels with each of their tile orders."""
    kernels: int
    tied_with_best: int
    """Kernels within the error band of the first, including it; kernels that a residual cannot bring among
    the choices count by their physical time."""
    runner_up: Choice | None
    """The fastest kernel that is predicted to be slower than the first."""
    left_out: tuple[str, ...] = ()
    """Families without a kernel for the problem's types, each with the reason."""
    place: Mapping[str, str] = field(default_factory=dict)
    """`Ranker.place`."""

    @property
    def best(self) -> Choice:
        return self.choices[0]

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __len__(self) -> int:
        return len(self.choices)

    def __getitem__(self, place: int) -> Choice:
        return self.choices[place]

    def to_dataframe(self) -> pd.DataFrame:
        """The choices as a table of the schema (`gemm_model.tables.schema`), which every verb reads."""
        import pandas as pd

        return pd.DataFrame(
            [
                {"rank": choice.rank, "ties": choice.tie_group}
                | _columns(self.problem, self.place, choice.candidate, choice.prediction)
                | {"error_band": choice.prediction.error_band, "limiter": choice.prediction.limiter}
                for choice in self.choices
            ]
        )

    @property
    def reason(self) -> str:
        """Why the first beats the runner-up, in one sentence."""
        if self.runner_up is None:
            return "all kernels are predicted to take the same time"
        other = describe(self.runner_up.candidate, beside=self.best.candidate)
        return f"{other} takes {comparison(self.runner_up, self.best)}"


def _columns(
    problem: GemmProblem, place: Mapping[str, str], candidate: Candidate, found: Prediction
) -> dict[str, Any]:
    """A problem, where its kernel runs, the kernel and its time, as columns of a table."""
    kernel = {**kernel_fields(candidate.config), "swap_ab": int(candidate.swap_ab)}
    return {**problem_fields(problem), **place, **kernel, "predicted_us": found.runtime_us}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a program calls for one product or attention, and what that takes."""

    time_us: float
    limiter: str
    error_band: float | None = None
    """Relative error of 90 % of held-out measurements; None where the kernel has none."""
    own_band: float = 0.0
    """What of it no other call has, in squares: of a library its choice of a kernel."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Of a library's call the problem and the kernel that it chooses with that one's time, as columns of a table."""

    @classmethod
    def of(cls, found: Prediction, **parts: Any) -> Call:
        """A call that takes what is predicted."""
        return cls(time_us=found.runtime_us, limiter=found.limiter, error_band=found.error_band, **parts)


def summed_band(calls: Sequence[tuple[Call, float]]) -> float | None:
    """Relative error that 90 % of sums of such times [us] stay within; None where no call has a band.

    The band that all calls have at least is the card's: the same error in each of them, which adds up
    linearly. What a call's band exceeds that by is the kernel's own (in squares), the same in each layer
    but independent of other calls': it adds up in quadrature. A call without a band has the widest.
    """
    known = [(call.error_band, call.own_band) for call, _ in calls if call.error_band is not None]
    if not known:
        return None
    shared, widest = min(math.sqrt(band**2 - own**2) for band, own in known), max(known)[0]
    own = sum(((call.error_band or widest) ** 2 - shared**2) * total_us**2 for call, total_us in calls)
    return math.sqrt(shared**2 + own / (sum(total_us for _, total_us in calls) or 1.0) ** 2)


_Spaces: TypeAlias = tuple[tuple[CandidateSpace, ...], tuple[str, ...]]
"""The candidates for one set of types, and the reasons why some families have none."""


class Ranker:
    """Ranks the candidates of one family, or of any, on one GPU.

    It caches columns and rankings for the next call. The arguments are those of `rank`, as are its errors.

    >>> from gemm_model import GemmProblem, Ranker
    >>> ranker = Ranker("h200", family="cublas")
    >>> best = [ranker.rank(GemmProblem.of(m, 4096, 4096, "bf16"), 1).best for m in (64, 512, 4096)]
    >>> times_us = [choice.prediction.runtime_us for choice in best]
    >>> times_us == sorted(times_us)
    True
    """

    def __init__(
        self,
        gpu: GpuSpec | str | Path,
        *,
        model: str = DEFAULT_MODEL,
        family: str = AUTO_KERNEL,
        sms: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        spec = as_gpu(gpu)
        self.gpu = spec if sms is None else with_sms(spec, sms)
        self.families = families_of(family, self.gpu)
        self._model_name, self._options = model, options
        self.model: Model = create_model(model, self.gpu, options)
        if not self.model.needs_tile:
            raise InputError(f"{model} predicts the same time for every tile; expected a model that needs it")
        self._spaces: dict[tuple[GemmProblem, tuple[str, ...]], _Spaces] = {}
        self.rank = lru_cache(CACHED_RANKINGS)(self._rank)
        self.picked = lru_cache(CACHED_RANKINGS)(self._picked)

    def of_family(self, family: str) -> Ranker:
        """A ranker of another family's kernels with the same settings."""
        return Ranker(self.gpu, model=self._model_name, family=family, options=self._options)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the families to choose from."""
        return tuple(family.name for family in self.families)

    @property
    def place(self) -> Mapping[str, str]:
        """Where its answers hold, as columns of a table: the card and, of a model that has several, regime and L2."""
        found = {"gpu": self.gpu.name, "regime": self.model.regime, "l2": self.model.l2}
        return ReadOnly({name: value for name, value in found.items() if value is not None})

    def call(self, problem: GemmProblem) -> Call:
        """The call of the family's library: what its heuristic choice takes over the kernel predicted for it."""
        (candidate, found), pick = self.picked(problem), self.heuristic_choice_of(problem)
        return Call(
            time_us=float(pick.time_us(found.runtime_us, found.limiter)),
            limiter=pick.limiter(found.runtime_us, found.limiter),
            error_band=None if found.error_band is None else float(pick.band(found.error_band)),
            own_band=pick.choice_band,
            columns=_columns(problem, self.place, candidate, found),
        )

    @property
    def heuristic_choice(self) -> HeuristicChoice:
        """The heuristic choice of the family's library, relative to the first choice."""
        return self.model.heuristic_choice(self.names[0]) if len(self.names) == 1 else HeuristicChoice()

    def heuristic_choice_of(self, problem: GemmProblem) -> HeuristicChoice:
        """The same for one problem: of convolutions it goes by their channels, by what is copied for them and
        by the trees of the library's picks.
        """
        pick = self.heuristic_choice
        if problem.conv is None or pick == HeuristicChoice():
            return pick
        pick = pick.of(sort_of(problem.conv), ways_of(problem, self.gpu))
        if pick.residual is None:
            return pick
        best = self.rank(problem, 1).best
        return pick.corrected(problem, best.candidate.config, best.prediction)

    def spaces(self, problem: GemmProblem) -> tuple[CandidateSpace, ...]:
        """The candidates for the problem's types and layouts. Raises InputError if there are none."""
        return self._offers(problem)[0]

    def _offers(self, problem: GemmProblem) -> _Spaces:
        key = types_of(problem), asked_of(problem)
        if key not in self._spaces:
            require_known(self.model, beyond_plain=not problem.plain)
            self._spaces[key] = self._look_for_spaces(*key)
        return self._spaces[key]

    def _look_for_spaces(self, types: GemmProblem, asked: tuple[str, ...]) -> _Spaces:
        spaces: list[CandidateSpace] = []
        reasons: list[str] = []
        offered = slice(None if self.model.prices_split_k else 1)
        for family in self.families:
            if not asked and not family.plain_products and len(self.families) > 1:
                continue
            try:
                spaces += candidate_spaces(family, self.gpu, types, asked)[offered]
            except InputError as error:
                reasons.append(str(error))
        if not spaces:
            raise InputError(reasons[0])
        return tuple(spaces), tuple(reasons)

    def predictions(self, problem: GemmProblem) -> Iterator[tuple[CandidateSpace, IntArray, BatchPrediction]]:
        """For each space, the positions of the candidates worth predicting, and their predictions."""
        for space in self.spaces(problem):
            worth = space.worth_a_look(sizes_of(problem), self.gpu)[0]
            candidates: IntArray = np.flatnonzero(np.repeat(worth, space.family.space.orders_per_kernel))
            if len(candidates):
                rows = space.batch(problem)[candidates]
                yield space, candidates, predict_in_chunks(self.model.predict_batch, rows)

    def _contenders(self, problem: GemmProblem, spaces: Sequence[CandidateSpace]) -> list[Contenders]:
        """The kernels of each space worth predicting."""
        sizes, not_plain = sizes_of(problem), () if problem.plain else (problem,)
        found = []
        for space in spaces:
            worth = np.flatnonzero(space.worth_a_look(sizes, self.gpu)[0])
            if len(worth):
                some = None if len(worth) == space.kernels else worth[np.newaxis]
                grid = space.grid_of_shapes(sizes, kernels=some, not_plain=not_plain)
                found.append(Contenders(space, worth, grid, self.model.least_times(grid)))
        return found

    def best(self, problem: GemmProblem) -> tuple[Candidate, Prediction]:
        """The fastest kernel alone, without its ties and runner-up. Raises InputError if there is none."""
        return fastest(self.model, self._contenders(problem, self.spaces(problem)), 1, ties=False).chosen[0]

    def _picked(self, problem: GemmProblem) -> tuple[Candidate, Prediction]:
        """The kernel that the library chooses by itself: the fastest one.

        Where it chooses for another card, the tile that is the fastest there with K whole, then the split here.
        """
        card = as_gpu(self.heuristic_choice.chosen_on.get(self.gpu.architecture, self.gpu))
        if card.name == self.gpu.name or not card.multiplies(problem.a_dtype):
            return self.best(problem)
        there = _kept_ranker(card.name, self._model_name, self.names[0], None, ())
        whole_k = there._contenders(problem, there.spaces(problem)[:1])
        config = fastest(there.model, whole_k, 1, ties=False).chosen[0][0].config
        tile = {name: getattr(config, name) for name in ("cta_m", "cta_n", "cta_k", "stages")}
        return _fastest_such(self.predictions(problem), tile) or self.best(problem)

    def _rank(self, problem: GemmProblem, top_k: int = 8) -> Ranking:
        """The `top_k` fastest kernels, each with its best order. Raises InputError if there is none."""
        require_kind("problem", problem, GemmProblem)
        top_k = size_of("top_k", top_k)
        spaces, left_out = self._offers(problem)
        contenders = self._contenders(problem, spaces)
        found = fastest(self.model, contenders, top_k)
        choices = tuple(
            Choice(rank=place, candidate=candidate, prediction=prediction, tie_group=int(group))
            for place, ((candidate, prediction), group) in enumerate(
                zip(found.chosen, found.ties, strict=False), start=1
            )
        )
        runner_up = None
        if np.isfinite(found.second_us):
            candidate, prediction = found.chosen[-1]
            place = int((found.kernel_us < found.second_us).sum()) + 1
            group = 1 if found.second_us <= found.tied_us else 2
            runner_up = Choice(rank=place, candidate=candidate, prediction=prediction, tie_group=group)
        return Ranking(
            problem=problem,
            gpu=self.gpu,
            choices=choices,
            candidates=sum(
                len(each.kernels) * each.space.family.space.orders_per_kernel for each in contenders
            ),
            kernels=sum(len(each.kernels) for each in contenders),
            tied_with_best=int((found.kernel_us <= found.tied_us).sum()),
            runner_up=runner_up,
            left_out=left_out,
            place=self.place,
        )

    def why_not(self, problem: GemmProblem, description: str) -> str:
        """Why the configuration described did not win: illegal, slower by how much and where, or tied.

        `description` is a tile and, after commas, any of cluster=, schedule=, swizzle=, raster=, split_k=,
        stages=, cta_k=, swap_ab=, fast_accum=, kernel=, such as '128x128,cluster=1x1'. The fastest candidate that
        matches is compared.
        """
        wanted = parse_description(description)
        every = list(self.predictions(problem))
        found = _fastest_such(every, wanted)
        if found is None:
            return f"{description}: {self._why_illegal(problem, wanted)}"
        candidate, prediction = found
        kernels = [
            of_space.runtime_us.reshape(-1, space.family.space.orders_per_kernel).min(axis=1)
            for space, _, of_space in every
        ]
        below_us = prediction.runtime_us * (1.0 - SAME_TIME)
        faster = one_of_twins(self.rank(problem, int((np.concatenate(kernels) < below_us).sum()) + 1))
        best = faster.best
        other = Choice(
            rank=sum(choice.prediction.runtime_us < below_us for choice in faster) + 1,
            candidate=candidate,
            prediction=prediction,
            tie_group=0,
        )
        name = describe(other.candidate, beside=best.candidate)
        if other.prediction.runtime_us <= best.prediction.runtime_us * (1.0 + SAME_TIME):
            return f"{name} is predicted as fast as any: {other.prediction.runtime_us:.2f} us"
        return f"{name} is number {other.rank} of the ranking: {comparison(other, best)}"

    def _why_illegal(self, problem: GemmProblem, wanted: Mapping[str, Any]) -> str:
        families = [family for family in self.families if family.name == wanted.get("kernel", family.name)]
        if not families:
            return f"no {wanted['kernel']} kernels are ranked; expected one of {', '.join(self.names)}"
        family = families[0]
        kernel = {name: value for name, value in wanted.items() if name != "swap_ab"}
        config = KernelConfig(**{"fast_accum": family.space.fast_accum, **kernel, "kernel": family.name})
        reason = check(problem, config, self.gpu)
        if reason is None and config.split_k > 1 and config.split_k in family.space.split_k:
            return f"split_k {config.split_k}: its tiles fill all {self.gpu.sm_count} SMs without a split"
        return reason or f"no {family.name} kernel is offered with these values"


def rank(
    problem: GemmProblem,
    gpu: GpuSpec | str | Path = "h200",
    top_k: int = 8,
    *,
    model: str = DEFAULT_MODEL,
    family: str = AUTO_KERNEL,
    sms: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Ranking:
    """The `top_k` kernels of a family that are predicted to be the fastest, each with its best tile order.

    The `Ranking` is a sequence of choices, the fastest first: each has its `candidate` (`config`, and
    `swap_ab` where D^T = B A^T is computed), its `prediction` (us) and its `tie_group`; `to_dataframe()`
    gives a row each. `tied_with_best` counts kernels that the error band does not tell apart.

    A `family` of 'any' ranks the kernels of all the GPU's families together, each by its own calibration.
    `sms` plans for a kernel that may use only so many SMs. Raises InputError where nothing is legal, with
    the reason. A problem seen before is answered from memory; keep a `Ranker` where `gpu` or an option is a
    file, or an option an object.

    >>> from gemm_model import GemmProblem, rank
    >>> ranking = rank(GemmProblem.of(4096, 4096, 4096, "bf16"), "h200", top_k=4)
    >>> len(ranking), ranking[0] is ranking.best, ranking[0].candidate.config.cta_n
    (4, True, 256)
    >>> [choice.rank for choice in ranking]
    [1, 2, 3, 4]
    >>> table = ranking.to_dataframe()
    >>> bool(table["predicted_us"].is_monotonic_increasing), ranking.tied_with_best > 1
    (True, True)
    """
    require_kind("problem", problem, GemmProblem)
    require_kind("model", model, str)
    require_kind("family", family, str)
    top_k = size_of("top_k", top_k)
    if lasting(gpu, options):
        settings = tuple(sorted((options or {}).items()))
        return _kept_ranker(gpu, model, family, sms, settings).rank(problem, top_k)
    return Ranker(gpu, model=model, family=family, sms=sms, options=options).rank(problem, top_k)


@lru_cache(maxsize=64)
def _kept_ranker(
    gpu: GpuSpec | str, model: str, family: str, sms: int | None, settings: tuple[tuple[str, Any], ...]
) -> Ranker:
    return Ranker(gpu, model=model, family=family, sms=sms, options=dict(settings))


def _fastest_such(
    every: Iterable[tuple[CandidateSpace, IntArray, BatchPrediction]], wanted: Mapping[str, Any]
) -> tuple[Candidate, Prediction] | None:
    """The fastest of some candidates (`Ranker.predictions`) with the wanted fields; None where none has them."""
    found = []
    for space, candidates, prediction in every:
        if len(fits := np.flatnonzero(_matching(space, wanted)[candidates])):
            place = int(fits[prediction.runtime_us[fits].argmin()])
            found.append((space.candidate(int(candidates[place])), prediction.row(place)))
    return min(found, key=lambda each: each[1].runtime_us, default=None)


def without_twins(choices: Sequence[Choice], count: int) -> list[tuple[Choice, bool]]:
    """The first `count` choices, each with whether a twin of it was left out.

    A twin is the same kernel with A and B swapped and the same time: its tile and cluster are equal or,
    because the output is transposed, mirrored. The unswapped kernel of a pair stays.
    """
    kept: list[Choice] = []
    twins: set[int] = set()
    alike: dict[tuple[Any, ...], list[int]] = {}
    for choice in choices:
        candidate, time_us = choice.candidate, choice.prediction.runtime_us
        places = alike.setdefault(_either_way(candidate.config), [])
        for place in places:
            swap_ab, other_us = kept[place].candidate.swap_ab, kept[place].prediction.runtime_us
            if candidate.swap_ab != swap_ab and time_us <= other_us * (1.0 + TWIN_TIME):
                if swap_ab and time_us <= other_us * (1.0 + SAME_TIME):
                    kept[place] = choice
                twins.add(place)
                break
        else:
            places.append(len(kept))
            kept.append(choice)
    return [(choice, place in twins) for place, choice in enumerate(kept[:count])]


def _either_way(config: KernelConfig) -> tuple[Any, ...]:
    """What twins have in common: tile and cluster are equal or mirrored."""
    tile = (config.cta_m, config.cta_n, config.cluster_m, config.cluster_n)
    mirrored = (config.cta_n, config.cta_m, config.cluster_n, config.cluster_m)
    return config.kernel, config.schedule, config.split_k, config.stages, min(tile, mirrored)


def one_of_twins(ranking: Ranking) -> Ranking:
    """The ranking with one choice for a kernel and its swapped twin, numbered anew."""
    kept = without_twins(ranking.choices, len(ranking))
    return replace(ranking, choices=tuple(replace(each, rank=n) for n, (each, _) in enumerate(kept, start=1)))


def describe(candidate: Candidate, *, beside: Candidate | None = None) -> str:
    """A candidate in the words that `why_not` takes; it names the family if `beside` has another."""
    config = candidate.config
    text = f"{config.cta_m}x{config.cta_n},cluster={config.cluster_m}x{config.cluster_n}"
    text += f",schedule={config.schedule},swizzle={config.swizzle}"
    if config.raster != "heuristic":
        text += f",raster={config.raster}"
    if config.cta_k:
        text += f",cta_k={config.cta_k}"
    if config.stages:
        text += f",stages={config.stages}"
    if config.split_k > 1:
        text += f",split_k={config.split_k}"
    if config.fast_accum:
        text += ",fast_accum=1"
    if beside is not None and beside.config.kernel != config.kernel:
        text += f",kernel={config.kernel}"
    return text + (",swap_ab=1" if candidate.swap_ab else "")


def parse_description(text: str) -> dict[str, Any]:
    """Values of a description such as '128x128,cluster=1x1,swizzle=4'; raises InputError for other words."""
    require_kind("configuration", text, str)
    first, *rest = [word.strip() for word in text.split(",")]
    cta_m, cta_n = parse_extent(first, "the tile")
    values: dict[str, Any] = {"cta_m": cta_m, "cta_n": cta_n}
    for word in rest:
        name, separator, value = word.partition("=")
        if name == "cluster":
            values["cluster_m"], values["cluster_n"] = parse_extent(value, "cluster")
        elif separator and name in ("schedule", "raster", "kernel"):
            values[name] = value
        elif name in ("swizzle", "split_k", "stages", "cta_k") and value.isdecimal():
            values[name] = int(value)
        elif name in ("swap_ab", "fast_accum") and value in ("0", "1"):
            values[name] = value == "1"
        else:
            raise InputError(
                f"{word!r} in {text!r}; expected cluster=MxN, schedule=, raster=, swizzle=, split_k=, "
                "stages=, cta_k=, kernel=, fast_accum=0|1 or swap_ab=0|1"
            )
    return values


def _matching(space: CandidateSpace, wanted: Mapping[str, Any]) -> BoolArray:
    fits = np.ones(len(space), dtype=bool)
    codes = {"schedule": SCHEDULES, "raster": RASTERS, "kernel": KERNELS}
    for name, value in wanted.items():
        if name == "swap_ab":
            fits &= space.swapped == value
        elif name in codes:
            require_one_of(f"{name} is {value!r}", value, codes[name])
            fits &= space.kernel[name] == codes[name].index(value)
        else:
            fits &= space.kernel[name] == value
    return fits


def comparison(slower: Choice, faster: Choice) -> str:
    """One sentence on where the slower choice spends the time that the faster one does not."""
    a, b = slower.prediction, faster.prediction
    name = describe(faster.candidate, beside=slower.candidate)
    if abs(a.runtime_us - b.runtime_us) <= SAME_TIME * b.runtime_us:
        return f"{a.runtime_us:.2f} us, the same as {name}"
    percent = 100.0 * (a.runtime_us / b.runtime_us - 1.0)
    text = f"{a.runtime_us:.2f} us, {percent:.1f} % more than {name}"
    if b.error_band is not None and a.runtime_us <= b.runtime_us * (1.0 + b.error_band):
        text += f" and within its error band of {100.0 * b.error_band:.1f} %"
    phase = max(a.phases_us, key=lambda name: a.phases_us[name] - b.phases_us.get(name, 0.0))
    more_us = a.phases_us[phase] - b.phases_us.get(phase, 0.0)
    text += f"; most of it in {phase} (+{more_us:.2f} us)"
    grown = {
        name: b.details.get(name, 0.0)
        for name, time_us in a.details.items()
        if name.endswith("_us") and time_us > b.details.get(name, 0.0) * (1.0 + SAME_TIME)
    }
    if grown:
        most = max(grown, key=lambda name: a.details[name] - grown[name])
        text += f", {most.removesuffix('_us')} {grown[most]:.2f} -> {a.details[most]:.2f} us"
    both = f"both limited by {a.limiter}"
    return (
        f"{text}; {both if a.limiter == b.limiter else f'limited by {a.limiter}, the other by {b.limiter}'}"
    )
