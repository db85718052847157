"""`gemm-model explain`: why one kernel takes its time, and what would change it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from gemm_model.choice.expected import ExpectedTime, rank_routing
from gemm_model.choice.selection import Ranker, describe, parse_description
from gemm_model.commands import attention, common, compare, kinds
from gemm_model.core.fields import kernel_fields, number_text, problem_fields, signed_text
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import KernelConfig
from gemm_model.core.prediction import RESIDUAL_PHASE, Prediction
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.integrations import profile
from gemm_model.kernel_model.comparison import Difference, difference
from gemm_model.kernel_model.explanation import MODEL, Explanation, explain, limits
from gemm_model.kernel_model.faults import COUNTS
from gemm_model.kernel_model.measured import Measured, beside_measured
from gemm_model.kernel_model.question import World
from gemm_model.kernels.candidates import Candidate
from gemm_model.kernels.registry import families, family_of, sums_stay
from gemm_model.report.console import change_rows, changes, prediction_fields
from gemm_model.report.document import Document, plain, text_table
from gemm_model.report.page.choice import gemm_title
from gemm_model.report.page.kernel import difference_page, kernel_page, level_roofs

MEASURED = re.compile(r"([-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:e[-+]?\d{1,2})?) ?(us|ms)")
"""A time beside which a prediction is laid: a number and its unit."""
IN_RESULT = ("limiter", "ties", "mechanisms", "busy", "achieved", "way_to_peak", "advice", "wave_occupancy")
"""Fields of an explanation in JSON."""
IN_TABLE = ("kernel", "tile", "m", "n", "k", "calls", "measured_us", "predicted_us", "lost_us", "limiter")
"""Columns of a profile's text."""
MOST_US = 1e12
"""A measured time is shorter [us]; `--against`; chosen: twelve days are no kernel's."""
NAME = 40
"""Characters of a kernel's name [1]; tables of a profile; chosen."""
BAR = 40
"""Characters of a whole runtime [1]; texts; chosen."""


def run(args: argparse.Namespace) -> Document:
    common.check_document(args, args.html)
    if compare.cards_asked(args):
        return compare.compare(args, _answer)
    if attention.asked(args):
        return _attention(args)
    chosen = settings_of(args)
    if args.profile is not None:
        return _run_profile(args, chosen)
    if args.ncu is not None:
        return _run_counted(args, chosen)
    world, first, expected = _kernel(args, chosen)
    if args.against is not None:
        return _after(first, _run_against(args, chosen, world))
    problem, config, gpu = world.problem, world.config, chosen.gpu
    found = explain(problem, config, gpu, chosen.options, tuple(args.what_if))
    result = {
        **_asked(problem, config, found.prediction),
        **{name: getattr(found, name) for name in IN_RESULT},
        **({} if expected is None else {"expected": kinds.expected_fields(expected)}),
    }
    rows = change_rows(found.what_if)
    page = common.page(args.html, lambda: kernel_page(problem, found, gpu, _called(config, gpu)))
    document = _document(chosen, result, rows, lambda: _text(world, found))
    return _after(first, replace(document, files=[page]))


def _after(first: str, document: Document) -> Document:
    """A document whose text begins with `first`."""
    text = document.text
    return replace(document, text=lambda: first + (text() if text else ""))


def _attention(args: argparse.Namespace) -> Document:
    if args.against is None:
        return attention.explain(args)
    if (measured_us := _measured_us(args)) is None:
        return _against(args, *attention.compared(args))
    return _beside(*attention.measured(args, measured_us))


def _kernel(args: argparse.Namespace, chosen: Settings) -> tuple[World, str, ExpectedTime | None]:
    """The kernel of the options, lines that say which, and the times of its routings.

    Without --cta it is the fastest. One that computes D^T = B A^T has the problem of that, and one whose tokens
    are routed that of the routing in the middle.
    """
    problem = kinds.problem(args)
    if args.cta is None:
        problem, config, first = _fastest(args, chosen, problem)
    else:
        config, first = common.config(args), ""
    expected = kinds.expected(args, chosen, problem, config)
    if expected is not None:
        problem, first = expected.middle, f"{first}{kinds.expected_text(expected)}\n"
    world = World(problem=problem, config=config, gpu=chosen.gpu, options=chosen.options)
    return world, first, expected


def _fastest(
    args: argparse.Namespace, chosen: Settings, problem: GemmProblem
) -> tuple[GemmProblem, KernelConfig, str]:
    routing = kinds.routing(args)
    common.refuse_given(args, {*common.CONFIG} - {"kernel"}, "without --cta")
    ranker = Ranker(chosen.gpu, family=args.kernel, options=dict(chosen.options))
    if routing is None:
        best = ranker.rank(problem, 1).best.candidate
    else:
        drawn = {"count": args.routings, "seed": args.seed}
        best = rank_routing(ranker, problem, routing, 1, **drawn).choices[0].candidate
    first = f"the fastest of {best.config.kernel}: {describe(best)}\n"
    return swapped(problem) if best.swap_ab else problem, best.config, first


def _asked(problem: GemmProblem, config: KernelConfig, prediction: Prediction) -> dict[str, Any]:
    asked = {"problem": problem_fields(problem), "kernel": kernel_fields(config)}
    return {**asked, "prediction": prediction_fields(prediction)}


def _document(
    chosen: Settings, result: Any, rows: Sequence[Any], text: Callable[[], str], *notes: str
) -> Document:
    return common.document(chosen, result=plain(result), rows=list(rows), notes=notes, text=text)


def _answer(args: argparse.Namespace) -> compare.Answer:
    """What limits the kernel of the options on the card of --gpu."""
    if attention.asked(args):
        return attention.explained(args)
    one = (*kinds.ROUTING, "against", "what_if", "ncu", "profile", "html")
    common.refuse_given(args, one, "with several cards")
    chosen = settings_of(args)
    world = _kernel(args, chosen)[0]
    found = explain(world.problem, world.config, chosen.gpu, chosen.options)
    shares = {each.name: each.elasticity for each in found.mechanisms}
    beside = {"share_of_roofline": found.achieved["share_of_roofline"], **compare.limits(shares)}
    columns = common.place(chosen, "regime", "l2") | kernel_fields(world.config)
    kernel = compare.kernel_fields(world.config, chosen.gpu)
    return compare.answer_of(world.problem, found.prediction, kernel, columns, **beside)


def settings_of(args: argparse.Namespace) -> Settings:
    """The options of a verb that explains. Raises InputError for a model that does not."""
    chosen = common.settings(args)
    if chosen.model != MODEL:
        raise InputError(f"--model is {chosen.model}; expected {MODEL}, the model that explains itself")
    return chosen


def _run_against(args: argparse.Namespace, chosen: Settings, first: World) -> Document:
    """The difference of two kernels, or of a measured time, by setting and by resource."""
    common.refuse_given(args, ("ncu", "what_if"), "with --against")
    if measured_us := _measured_us(args):
        found = beside_measured(first, measured_us)
        return _beside(chosen, _asked(first.problem, first.config, found.prediction), found)
    second = _second(args, chosen, first)
    names = [_called(each.config, each.gpu) for each in (first, second)]
    changed = difference(first, second)
    return _against(args, chosen, gemm_title(first.problem), changed, names)


def _measured_us(args: argparse.Namespace) -> float | None:
    """The time of --against [us]; None where that is no time."""
    if not (measured := MEASURED.fullmatch(args.against)):
        return None
    common.refuse_given(args, ("html",), "with a measured time")
    time_us = float(measured[1]) * {"us": 1.0, "ms": 1e3}[measured[2]]
    if not 0.0 < time_us < MOST_US:
        raise InputError(f"--against {args.against}; expected a time above 0 and below {MOST_US:g} us")
    return time_us


def _against(
    args: argparse.Namespace, chosen: Settings, title: str, found: Difference, names: Sequence[str]
) -> Document:
    page = common.page(args.html, lambda: difference_page(title, found, *names))
    rows = [dict(zip(("by", "name", "added_us"), row, strict=True)) for row in found.rows]
    result = {"first": names[0], "second": names[1], "first_us": found.first_us, "second_us": found.second_us}
    result["difference_us"] = found.us
    document = _document(chosen, result, rows, lambda: _difference_text(found, *names))
    return replace(document, files=[page])


def _second(args: argparse.Namespace, chosen: Settings, first: World) -> World:
    """The kernel of --against: a library's fastest, or the first with other settings; and its card."""
    expected = "a library, such as cublas, or a kernel, such as 128x256,cluster=2x1,kernel=cutlass"
    libraries, settings, card = compare.against(args.against, families(), expected)
    if libraries and settings:
        raise InputError(f"--against is {args.against!r}; expected {expected}")
    gpu = card or first.gpu
    problem = kinds.problem(args) if kinds.routing(args) is None else first.problem
    if libraries:
        best = Ranker(gpu, family=libraries[0], options=dict(chosen.options)).rank(problem, 1).best.candidate
        turned = swapped(problem) if best.swap_ab else problem
        return replace(first, problem=turned, config=best.config, gpu=gpu)
    if not settings:
        return replace(first, gpu=gpu)
    own = [] if settings[0][:1].isdigit() else [f"{first.config.cta_m}x{first.config.cta_n}"]
    values = {"mma_m": 0, "mma_n": 0, **parse_description(",".join((*own, *settings)))}
    if values.pop("swap_ab", False):
        problem = swapped(problem)
    if values.get("kernel") in sums_stay() and problem.math_kind == "fp8":
        values["fast_accum"] = True
    return replace(first, problem=problem, config=replace(first.config, **values), gpu=gpu)


def _called(config: KernelConfig, gpu: GpuSpec) -> str:
    return f"{family_of(config.kernel, gpu).name} {describe(Candidate(config=config))} on {gpu.name}"


def _beside(chosen: Settings, asked: dict[str, Any], found: Measured) -> Document:
    """A measured time beside the prediction, and the resources that the difference could come from."""
    result = {**asked, "measured_us": found.measured_us, "difference_us": found.us, "in_band": found.in_band}
    return _document(chosen, result, plain(found.causes), lambda: _measured_text(found))


def _measured_text(found: Measured) -> str:
    within = {None: "", True: ", within the band", False: ", beyond the band"}[found.in_band]
    lines = [
        f"measured {number_text(found.measured_us)} us, {_predicted(found.prediction)}: {signed_text(found.us)} us "
        f"({found.us / found.prediction.runtime_us:+.1%}){within}",
        "",
        "COULD COME FROM, each alone: how many times as long it would take; all alike: us that add up",
    ]
    return "\n".join([*lines, text_table(plain(found.causes))])


def _difference_text(found: Difference, first: str, second: str) -> str:
    both = ((found.first_us, first), (found.second_us, second))
    lines = [f"{number_text(time_us):>10} us: {name}" for time_us, name in both]
    lines.append(f"{signed_text(found.us):>10} us")
    titles = {
        "BY SETTING, us that add up: the mean over the orders of changing them": found.by_setting,
        "BY RESOURCE, us that add up: what each kernel waits for": found.by_resource,
        "BY UNIT, us that overlap: what a profiler counts, at its peak": found.by_unit,
    }
    for title, parts in titles.items():
        largest = max(map(abs, parts.values()), default=0.0) or 1.0
        added = sorted(parts.items(), key=lambda part: part[1])
        bars = _bars([(name, 0.0, added_us) for name, added_us in added], largest)
        lines += ["", title, *bars] if added else []
    return "\n".join(lines)


def _bars(parts: Sequence[tuple[str, float, float]], whole_us: float) -> Iterator[str]:
    """A bar for each name, start and what it adds [us]."""
    width = max((len(name) for name, _, _ in parts), default=0)
    for name, start_us, added_us in parts:
        first, last = (round(BAR * each / whole_us) for each in sorted((start_us, start_us + added_us)))
        bar = " " * first + ("#" if added_us >= 0 else "-") * (last - first)
        yield f"{name:{width}} {signed_text(added_us):>9} us {bar}".rstrip()


def _run_counted(args: argparse.Namespace, chosen: Settings) -> Document:
    """The counts of a kernel beside predicted ones, and the fault that explains them best."""
    common.refuse_given(args, ("against", "what_if", "regime", "html", *kinds.ROUTING), "with --ncu")
    if args.cta is None:
        common.refuse_given(args, {*common.CONFIG} - {"kernel"}, "without --cta")
    kernels = profile.read_export(args.ncu)
    config = common.config(args) if args.cta is not None else profile.config_of(kernels[0].name)
    if (library := profile.library_of(kernels[0].name)) and "kernel" not in args.given:
        config = replace(config, kernel=library)
    options = {**chosen.options, "regime": "counters"}
    options.pop("residual", None)
    problem = kinds.problem(args)
    gpu = profile.card_of(kernels[0].name, chosen.gpu, problem)
    named = World(problem=problem, config=config, gpu=gpu, options=options)
    world = profile.with_parts(named, kernels[0])
    found = profile.beside(world, kernels[0])
    notes = [f"{len(kernels) - 1} shorter kernels of {args.ncu} are left out"] if len(kernels) > 1 else []
    notes += [f"K in {world.config.split_k} parts, by its counts"] if world is not named else []
    fault, suspects = found.fault.fault if found.fault else None, plain(found.suspects)
    result: dict[str, Any] = {"kernel_name": found.kernel.name, "fault": fault}
    result |= {"as_meant": found.as_meant, "suspects": suspects}
    return _document(chosen, result, found.rows, lambda: _counted_text(found, suspects), *notes)


def _run_profile(args: argparse.Namespace, chosen: Settings) -> Document:
    """The GEMM kernels of a program, measured beside predicted."""
    from gemm_model.tables.schema import card_named

    common.refuse_given(
        args, (*common.PROBLEM, *common.CONFIG, "against", "what_if", "ncu", "html"), "with --profile"
    )
    launches, card = profile.read_profile(args.profile)
    gpu = chosen.gpu if common.gpu_given(args) or not card else load_gpu(card_named(card))
    options = chosen.options if "regime" in args.given else {**chosen.options, "regime": "kernel-only"}
    rows = profile.lay_beside(launches, gpu, options)
    others = [each for each in launches if not profile.library_of(each.name)]
    total_us, other_us = (sum(each.total_us for each in some) for some in (launches, others))
    notes = []
    if others:
        notes.append(
            f"{sum(each.calls for each in others)} launches of {len(others)} other kernels, "
            f"{number_text(other_us)} us of {number_text(total_us)} us: their names tell no GEMM"
        )
    if unknown := sum(row["predicted_us"] is None for row in rows):
        notes.append(
            f"{unknown} GEMMs have no prediction: the profile lacks their sizes, or {gpu.name} cannot run the kernel"
        )
    shown = [{**{name: row[name] for name in IN_TABLE}, "name": row["kernel_name"][:NAME]} for row in rows]
    result = {"total_us": total_us, "untold_us": other_us}
    return _document(replace(chosen, gpu=gpu), result, rows, lambda: text_table(shown), *notes)


def _counted_text(found: profile.Beside, suspects: list[dict[str, Any]]) -> str:
    most = max(found.rows, key=lambda row: row["spreads"] or 0.0)["what"]
    lines = [found.kernel.name, "", "COUNTED BESIDE PREDICTED", text_table(found.rows), ""]
    lines += [f"differs most: {most}; usual causes: {COUNTS[most]['usually']}", ""]
    if found.fault is None:
        as_meant = f"as it was meant: counts are {found.as_meant:.2g} spreads off"
        return "\n".join([*lines, f"{as_meant}, and no fault explains them"])
    lines += [f"{found.fault.fault}: {found.fault.cause}", ""]
    lines.append(f"SUSPECTS, by the distance of their counts; as it was meant: {found.as_meant:.3g}")
    return "\n".join([*lines, text_table(suspects[:3])])


def _roofs(world: World, found: Explanation) -> list[str]:
    """A bar for each level of memory, up to its roof."""
    lines, speed = [], world.problem.flop / found.prediction.runtime_us
    for level, _, _, roof in level_roofs(world.problem, found, world.gpu):
        moved = f"{number_text(found.prediction.bytes_by_level[level] / 1e6)} MB"
        bar = "#" * round(BAR * speed / roof)
        lines.append(f"{level:4} {speed / roof:6.1%} {bar:{BAR}} of {roof / 1e6:.4g} TFLOP/s; {moved}")
    return lines


def _text(world: World, found: Explanation) -> str:
    prediction, achieved, share = found.prediction, found.achieved, found.prediction.residual_share
    width = max((len(each.name) for each in found.mechanisms), default=0)
    busy = ", ".join(f"{name} {share:.0%}" for name, share in found.busy.items())
    lines = [
        f"{_predicted(prediction)}, limited by {limits(found.limiter, found.ties)}",
        f"{achieved['tflop_per_s']:.4g} TFLOP/s, {achieved['gb_per_s']:.4g} GB/s, "
        f"{achieved['share_of_roofline']:.1%} of the roofline",
        f"busy on average, as a profiler reads it: {busy}",
    ]
    if share:
        added_us = prediction.phases_us[RESIDUAL_PHASE]
        lines.append(f"residual: {signed_text(added_us)} us ({share:+.1%} of the formulas' time)")
    lines.append(f"waves: {found.wave_occupancy:.1%} of their resident clusters have a tile")
    limited = [
        f"{each.name:{width}} {each.elasticity:6.1%} {'#' * round(BAR * max(each.elasticity, 0.0)):{BAR}} "
        f"{number_text(each.time_us)} us alone"
        for each in found.mechanisms
    ]
    way = found.way_to_peak
    starts_us = accumulate((step.added_us for step in way), initial=0.0)
    steps = [(step.name, start_us, step.added_us) for step, start_us in zip(way, starts_us, strict=False)]
    parts = {
        "LIMITED BY: what of 1 % more of each reaches the runtime; 'alone' overlaps and does not add up": limited,
        "WAY TO THE PEAK, us that add up": _bars(steps, prediction.runtime_us),
        "WHAT WOULD HELP: another value of one setting": found.advice and [changes(found.advice)],
        "ROOFLINE BY LEVEL: how much of the speed that its bytes allow": _roofs(world, found),
        "WHAT IF": [changes(found.what_if)],
    }
    for title, lines_of in parts.items():
        lines += ["", title, *lines_of] if lines_of else []
    return "\n".join([*lines, *(f"caveat: {caveat}" for caveat in prediction.caveats)])


def _predicted(prediction: Prediction) -> str:
    band = "" if prediction.error_band is None else f" +- {prediction.error_band:.1%}"
    return f"predicted {number_text(prediction.runtime_us)} us{band}"
