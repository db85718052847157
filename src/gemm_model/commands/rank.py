"""`gemm-model rank`: the configurations of a kernel family, in order of predicted time."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gemm_model.choice.expected import RoutedChoice, RoutedRanking, rank_routing
from gemm_model.choice.selection import Choice, Ranker, Ranking, describe, one_of_twins, without_twins
from gemm_model.commands import attention, common, compare, kinds, served, sweep
from gemm_model.core.fields import counted, kernel_fields, problem_fields
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem, swapped
from gemm_model.core.routing import Routing
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.kernel_model.explanation import limits_of
from gemm_model.kernels.emit import emit
from gemm_model.kernels.registry import families
from gemm_model.report.console import prediction_fields
from gemm_model.report.document import SCREEN_WIDTH, Document, screen_text, text_table
from gemm_model.report.page.choice import ranking_page

if TYPE_CHECKING:
    import pandas as pd

    from gemm_model.choice.table_ranking import Against


def ranker_of(args: argparse.Namespace, family: str | None = None, chosen: Settings | None = None) -> Ranker:
    """The ranker of `family`, or of --family if it is None, under the options or other settings."""
    chosen = chosen or common.settings(args)
    return Ranker(chosen.gpu, model=chosen.model, family=family or args.family, options=dict(chosen.options))


def run(args: argparse.Namespace) -> Document:
    if (answer := served.answer(args)) is not None:
        return answer
    if args.emit is None:
        common.check_document(args, args.html)
    else:
        common.check_outputs(args.output, args.html)
    if sweep.asked(args):
        return sweep.sweep(args, _best)
    if compare.cards_asked(args):
        return compare.compare(args, _best)
    if attention.asked(args):
        return attention.rank(args)
    if attention.is_table(args.input):
        return attention.rank_table(args)
    always = (*common.SETTINGS, *common.OUTPUT, "family")
    if args.emit in families() and "family" not in args.given:
        args.family = args.emit
    if args.input is not None:
        common.refuse_unused(args, "with --input", (*always, "against", "input", "dtype", "emit"))
        return _table(args, common.problem_table(args))
    if args.why_not is not None and args.emit is not None:
        raise InputError("--why-not comes with --emit; expected one of them")
    asked = "why_not" if args.why_not is not None else "emit" if args.emit is not None else "top"
    used = (*always, *common.PROBLEM, *kinds.OPTIONS, asked)
    used = (*used, *(("against", "html") if asked == "top" else ()))
    common.refuse_unused(args, f"with --{asked.replace('_', '-')}", used)
    problem, ranker = kinds.problem(args), ranker_of(args)
    routing = kinds.routing(args)
    if routing is not None:
        common.refuse_given(args, ("against", "html", "why_not", "emit"), "with --experts")
        return _expected_ranking(args, ranker, problem, routing)
    ways = {"why_not": _why_not, "emit": _emit, "top": _ranking}
    return ways[asked](args, ranker, problem)


def _best(args: argparse.Namespace) -> compare.Answer:
    """The best kernel on the card of --gpu."""
    read = (*common.SETTINGS, *common.OUTPUT, *sweep.OPTIONS, "family", *common.PROBLEM, *kinds.KINDS)
    common.refuse_unused(args, "with several answers", (*read, *kinds.ROUTING, "attention"))
    if attention.asked(args):
        return attention.best(args)
    chosen, problem, routing = common.settings(args), kinds.problem(args), kinds.routing(args)
    if routing is None:
        return best_of(ranker_of(args).rank(problem, 1), chosen)
    found = rank_routing(ranker_of(args), problem, routing, 1, count=args.routings, seed=args.seed).choices[0]
    beside = kinds.expected_fields(found.expected)
    return compare.answer_of(found.expected.middle, *_kernel(found, problem, chosen), **beside)


def best_of(ranking: Ranking, chosen: Settings, **beside: Any) -> compare.Answer:
    """The first of a ranking as one card's answer, with further columns beside."""
    return compare.answer_of(ranking.problem, *_kernel(ranking.best, ranking.problem, chosen), **beside)


def _kernel(
    choice: Choice | RoutedChoice, problem: GemmProblem, chosen: Settings
) -> tuple[Prediction, dict[str, Any], dict[str, Any]]:
    """A choice: its prediction, its kernel as several answers show it, and as columns of a table."""
    row, config = row_of(choice, problem), choice.candidate.config
    kernel = {
        name: row[name] for name in ("kernel", "tile", "cluster", "schedule", "swizzle", "split_k", "swap_ab")
    }
    return choice.prediction, kernel, common.place(chosen, "regime", "l2") | kernel_fields(config)


def _table(args: argparse.Namespace, frame: pd.DataFrame) -> Document:
    import pandas as pd

    from gemm_model.choice.table_ranking import choices_of, rank_table, rank_table_against
    from gemm_model.report.table_job import by_place

    chosen, found = common.settings(args), []
    with common.progress("ranking", len(frame)) as advance:
        for each, places in by_place(frame, chosen, partial(common.of_rows, args)):
            rows, ranker = frame.iloc[places], ranker_of(args, None, each)
            if args.against is None:
                best = rank_table(rows, ranker, advance)
            else:
                best = rank_table_against(rows, ranker, ranker_of(args, args.against, each), advance)
            if args.emit is not None:
                best["emit"] = [emit(args.emit, *choice, ranker.gpu) for choice in choices_of(best)]
            found.append(best.assign(**each.changes))
    result = pd.concat(found).loc[frame.index]
    notes = list(dict.fromkeys(note for best in found for note in best.attrs.get("notes", ())))
    text = partial(_table_text, args, result)
    cards = ", ".join(dict.fromkeys(result["gpu"]))
    return Document(gpu=cards, model=chosen.model, rows=result, notes=notes, text=text)


def _table_text(args: argparse.Namespace, result: pd.DataFrame) -> str:
    if args.emit is None:
        return screen_text(result, ("m", "n", "k", "predicted_us", "limiter"))
    lines = [f"{row.m} x {row.n} x {row.k}: {row.emit}" for row in result.itertuples()]
    return f"[{', '.join(result['emit'])}]" if args.emit == "json" else "\n".join(lines)


def _why_not(args: argparse.Namespace, ranker: Ranker, problem: GemmProblem) -> Document:
    answer = ranker.why_not(problem, args.why_not)
    row = {"config": args.why_not, "answer": answer}
    result = {"problem": problem_fields(problem), "why_not": row}
    return common.document(
        common.settings(args), result=result, rows=[row], text=partial(textwrap.fill, answer, SCREEN_WIDTH)
    )


def _emit(args: argparse.Namespace, ranker: Ranker, problem: GemmProblem) -> Document:
    best, chosen, asked = ranker.rank(problem, 1).best, common.settings(args), problem_fields(problem)
    text = emit(args.emit, problem, best.candidate, ranker.gpu)
    kernel = {**kernel_fields(best.candidate.config), "swap_ab": int(best.candidate.swap_ab)}
    row = {
        **asked,
        **common.place(chosen, "regime", "l2"),
        **kernel,
        "predicted_us": best.prediction.runtime_us,
    }
    result = {"problem": asked, "kernel": kernel, "emit": {"target": args.emit, "text": text}}
    return common.document(chosen, result=result, rows=[{**row, "emit": text}], text=lambda: text)


def _ranking(args: argparse.Namespace, ranker: Ranker, problem: GemmProblem) -> Document:
    from gemm_model.choice.table_ranking import against, best_of_each

    # Each kernel may have a twin, which is not listed.
    ranking = ranker.rank(problem, 2 * args.top)
    chosen = without_twins(ranking.choices, args.top)
    held = None if args.against is None else against(ranking, ranker_of(args, args.against))
    each = best_of_each(ranker, problem) if len(ranker.names) > 1 else ()
    rows = [
        {"rank": place, **row_of(choice, problem)}
        | {"gain": held and held.gain(choice), "swapped_too": swapped_too}
        | {"limiters": _limiters(args, problem, choice)}
        for place, (choice, swapped_too) in enumerate(chosen, start=1)
    ]
    result = {
        "problem": problem_fields(problem),
        **_ranked(ranking, rows, [choice.prediction for choice, _ in chosen]),
        "against": held
        and {
            **row_of(held.reference, problem),
            "heuristic_choice_us": held.heuristic_choice_us,
            "heuristic_choice_gain": held.heuristic_choice_gain,
        },
        "best_of_each": [row_of(choice, problem) for choice in each],
    }
    place = {**problem_fields(problem), **common.place(common.settings(args), "regime", "l2")}
    listed = [
        {**row, **place, **kernel_fields(choice.candidate.config)}
        for row, (choice, _) in zip(rows, chosen, strict=True)
    ]
    shown = [dict(row) for row in rows]
    for row in shown:
        row["swap_ab"] = "either" if row.pop("swapped_too") else row["swap_ab"]
        row["limiter"] = row.pop("limiters")
    notes = [
        *_notes(ranking),
        *_of_each_notes(each),
        *(_against_notes(held) if held else ()),
        *_pick_notes(ranker, ranking),
        *ranking.best.prediction.caveats,
    ]
    page = common.page(args.html, lambda: ranking_page(one_of_twins(ranking)))
    parts = {"result": result, "rows": listed, "notes": notes, "files": [page]}
    return common.document(common.settings(args), text=lambda: text_table(shown), **parts)


def _limiters(args: argparse.Namespace, problem: GemmProblem, choice: Choice) -> str:
    """What limits a choice, in words that tell ties."""
    turned = swapped(problem) if choice.candidate.swap_ab else problem
    return limits_of(choice.prediction.limiter, turned, choice.candidate.config, common.settings(args))


def _ranked(
    ranking: Ranking | RoutedRanking, rows: Sequence[dict[str, Any]], predictions: Sequence[Prediction]
) -> dict[str, Any]:
    """Fields of a result about a ranking: how many kernels it is of, its reason, and its choices."""
    names = ("candidates", "kernels", "tied_with_best", "reason")
    choices = [
        {**row, "prediction": prediction_fields(found)} for row, found in zip(rows, predictions, strict=True)
    ]
    return {**{name: getattr(ranking, name) for name in names}, "choices": choices}


def _expected_ranking(
    args: argparse.Namespace, ranker: Ranker, problem: GemmProblem, routing: Routing
) -> Document:
    """The kernels of least expected time over the routings."""
    ranking = rank_routing(ranker, problem, routing, args.top, count=args.routings, seed=args.seed)
    chosen, rows, listed = common.settings(args), [], []
    for found in ranking.choices:
        middle = found.expected.middle
        row = {**kinds.expected_fields(found.expected), **row_of(found, middle)}
        rows.append({"rank": found.rank, **row})
        listed.append({**rows[-1], **problem_fields(middle), **_kernel(found, middle, chosen)[-1]})
    best = ranking.choices[0].expected
    result = {
        "problem": problem_fields(best.middle),
        **_ranked(ranking, rows, [found.prediction for found in ranking.choices]),
    }
    notes = [
        f"{ranking.candidates} legal candidates on {ranker.gpu.name}, of {ranking.kernels} kernels, over "
        f"{best.routings} routings; predicted_us is of the one in the middle",
        f"why the first: {ranking.reason}",
        *best.prediction.caveats,
    ]
    text = partial(text_table, rows)
    return common.document(chosen, result=result, rows=listed, notes=notes, text=text)


def row_of(choice: Choice | RoutedChoice, problem: GemmProblem) -> dict[str, Any]:
    """A choice as the row of a table."""
    config, prediction = choice.candidate.config, choice.prediction
    return {
        "ties": choice.tie_group,
        "kernel": config.kernel,
        "tile": f"{config.cta_m}x{config.cta_n}" + (f"x{config.cta_k}" if config.cta_k else ""),
        "cluster": f"{config.cluster_m}x{config.cluster_n}",
        "schedule": config.schedule,
        "swizzle": config.swizzle,
        "raster": config.raster,
        "stages": config.stages or None,
        "split_k": config.split_k,
        "swap_ab": int(choice.candidate.swap_ab),
        "predicted_us": prediction.runtime_us,
        "error_band": prediction.error_band,
        "tflops": problem.flop / prediction.runtime_us / 1e6,
        "limiter": prediction.limiter,
    }


def _notes(ranking: Ranking) -> list[str]:
    best = ranking.best.prediction
    notes = [
        f"{ranking.candidates} legal candidates on {ranking.gpu.name}, of {counted(ranking.kernels, 'kernel')}"
    ]
    if best.error_band is None:
        notes[0] += "; the model has no error band, so that only equal times tie"
    else:
        tied = ranking.tied_with_best
        notes[0] += f"; {counted(tied, 'kernel')} within the best one's error band of {best.error_band:.1%}"
    left_out = [f"left out: {reason}" for reason in ranking.left_out]
    return [*notes, *left_out, f"why the first: {ranking.reason}"]


def _of_each_notes(each: Sequence[Choice]) -> list[str]:
    if not each:
        return []
    times = (f"{choice.candidate.config.kernel} {choice.prediction.runtime_us:.2f} us" for choice in each)
    return [f"the best of each library: {', '.join(times)}"]


def _pick_notes(ranker: Ranker, ranking: Ranking) -> list[str]:
    """Notes on the heuristic choice of a library that nobody can tell which kernel to run, as cuDNN."""
    best = ranking.best.prediction
    heuristic_choice = ranker.heuristic_choice_of(ranking.problem)
    longer = float(heuristic_choice.time_us(best.runtime_us, best.limiter)) / best.runtime_us - 1.0
    name = heuristic_choice.way(best.runtime_us)
    if ranking.problem.conv is None or (longer == 0.0 and not name):
        return []
    copies = heuristic_choice.ways[name].way.copies if name else None
    why = f"; its matrices are {name} in kernels beside" if copies and copies.kernels else ""
    if name and heuristic_choice.ways[name].kernel is not None:
        why += f"; a kernel of an earlier architecture ({heuristic_choice.ways[name].way.kernel}) multiplies"
    band = heuristic_choice.error_band
    why += "" if band is None else f"; that is within {band:.0%} of nine in ten calls"
    return [_of_heuristic_choice(ranker.names[0], longer) + why]


def _of_heuristic_choice(name: str, longer: float) -> str:
    """A note on a library's heuristic choice, relative to its fastest kernel."""
    than = "longer" if longer > 0.0 else "less"
    return f"what {name} picks by itself takes about {abs(longer):.0%} {than}"


def _against_notes(held: Against) -> list[str]:
    reference = held.reference
    config, time_us = reference.candidate.config, reference.prediction.runtime_us
    gain = held.gain(held.ranking.best)
    note = f"{config.kernel} takes {time_us:.2f} us with {describe(reference.candidate)}"
    note += f"; the first gains {gain:.1%}" if gain > 0 else "; nothing is gained"
    note += ", which lies within the error band" if gain > 0 and held.tied else ""
    longer = held.heuristic_choice_us / time_us - 1.0
    if longer != 0.0:
        gain = held.heuristic_choice_gain
        note += f"; {_of_heuristic_choice(config.kernel, longer)}, over which "
        note += f"the first gains {gain:.1%}" if gain > 0.0 else "nothing is gained"
    return [note]
