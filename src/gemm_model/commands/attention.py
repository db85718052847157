"""Attention under the same verbs: what each does where --attention is given."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.attention.choice import AttentionChoice, AttentionRanking, emitted, rank_attention, why_not
from gemm_model.attention.explanation import AttentionWorld, attention_difference, explain_attention
from gemm_model.attention.kernels import is_own
from gemm_model.attention.model import AttentionModel, attention_model, elasticities
from gemm_model.commands import common, compare
from gemm_model.core.attention import KERNELS, MASKS, SIZES, AttentionConfig, AttentionProblem
from gemm_model.core.fields import number_text
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.settings import Settings
from gemm_model.errors import InputError
from gemm_model.kernel_model.comparison import Difference
from gemm_model.kernel_model.measured import Measured, measured_beside
from gemm_model.report.console import change_rows, changes, explanation, prediction_fields, prediction_row
from gemm_model.report.document import Document, File, plain, screen_text, text_table
from gemm_model.report.page.attention import attention_page
from gemm_model.timeline.attention import simulate_kernel

if TYPE_CHECKING:
    import pandas as pd


def asked(args: argparse.Namespace) -> bool:
    """Whether the command is about attention."""
    return args.attention is not None


def is_table(path: Path | None) -> bool:
    """Whether a file is a table of attention kernels."""
    if path is None or not path.is_file():
        return False
    from gemm_model.tables.attention import is_attention_table
    from gemm_model.tables.table import read_table

    return is_attention_table(read_table(path))


def benchmark(args: argparse.Namespace) -> Document:
    """Measure the attention kernels of --rows on this machine's GPU."""
    from gemm_model.bench.attention import measure_rows, require_gpu
    from gemm_model.tables.attention import attention_rows, understood_kernels
    from gemm_model.tables.table import read_table

    common.refuse_unused(args, "with a table of attention", ("rows", "output", "format"))
    if args.output is None:
        raise InputError("no --output given; expected the CSV to write")
    frame = understood_kernels(read_table(args.rows))
    rows = [{str(name): str(cell) for name, cell in row.items()} for row in frame.to_dict("records")]
    require_gpu()
    with common.progress("measuring", len(rows)) as advance:
        good = measure_rows(rows, attention_rows(frame), args.output, advance)
    counts = {"ok": good, "failed": len(rows) - good}
    result = {"file": args.output, "done": len(rows), "dispositions": counts}
    text = f"{good} of {len(rows)} rows measured: {args.output}"
    return Document(result=result, text=lambda: text, apart=True)


def _settings(args: argparse.Namespace, *used: str, how: str = "with --attention") -> Settings:
    common.refuse_unused(
        args, how, (*common.GPU, "model", "regime", *common.OUTPUT, "attention", "attention_config", *used)
    )
    return common.settings(args)


def _one(args: argparse.Namespace, *used: str) -> tuple[Settings, AttentionWorld]:
    """Settings and kernel of a verb about one kernel."""
    config, chosen = AttentionConfig.parse(args.attention_config), _settings(args, *used)
    return chosen, AttentionWorld.of(AttentionProblem.parse(args.attention), config, _model(chosen))


def _model(chosen: Settings, gpu: GpuSpec | None = None) -> AttentionModel:
    return attention_model(gpu or chosen.gpu, chosen.model, chosen.options)


def problem_fields(problem: AttentionProblem) -> dict[str, Any]:
    """A problem as results hold it, by the names that columns of tables have."""
    fields = {name: getattr(problem, name) for name in (*SIZES, "window")}
    fields |= {"causal": int(problem.causal), "in_dtype": problem.dtype.name}
    more = {"softcap": problem.softcap, "page_size": problem.page_size, "lengths": problem.lengths_text}
    return fields | {name: value for name, value in more.items() if value}


def answer(args: argparse.Namespace) -> compare.Answer:
    """One attention kernel on the card of --gpu."""
    chosen, world = _one(args, "sweep", "plot")
    choice = AttentionChoice(config=world.config, prediction=world.predicted())
    return _answer(choice, world.problem, chosen)


def _ranked(args: argparse.Namespace, *used: str) -> tuple[Settings, AttentionProblem, AttentionRanking]:
    """Settings, problem and ranked configurations of a verb about all kernels."""
    chosen, problem = _settings(args, "family", *used), AttentionProblem.parse(args.attention)
    return chosen, problem, rank_attention(problem, chosen.gpu, args.family, _model(chosen))


def best(args: argparse.Namespace) -> compare.Answer:
    """The fastest configuration on the card of --gpu."""
    chosen, problem, ranking = _ranked(args, "sweep", "plot")
    return _answer(ranking.best, problem, chosen)


def explained(args: argparse.Namespace) -> compare.Answer:
    """What limits an attention kernel on the card of --gpu."""
    found = answer(args)
    return replace(found, beside=compare.limits(elasticities(found.prediction)))


def measured(args: argparse.Namespace, measured_us: float) -> tuple[Settings, dict[str, Any], Measured]:
    """The settings, the kernel of --attention-config, and a measured time beside its prediction."""
    chosen, world = _one(args, "against")
    prediction = world.predicted()
    asked = {"problem": problem_fields(world.problem), "kernel": world.config.fields}
    asked["prediction"] = prediction_fields(prediction)
    return chosen, asked, measured_beside(measured_us, prediction, elasticities(prediction), {})


def compared(args: argparse.Namespace) -> tuple[Settings, str, Difference, list[str]]:
    """The settings, the problem, the difference of the kernels of --attention-config and --against, their names."""
    chosen, first = _one(args, "against", "html")
    if args.against.startswith(MASKS):
        second = replace(first, problem=AttentionProblem.parse(args.against))
    else:
        expected = "a kernel, or changes such as tile=128x64"
        kernels, changes, gpu = compare.against(args.against, KERNELS, expected)
        config = AttentionConfig.parse(kernels[0] if kernels else args.attention_config).having(*changes)
        second = AttentionWorld.of(first.problem, config, _model(chosen, gpu))
    found = attention_difference(first, second)
    names = [f"{each.config.kernel} {each.config.name} on {each.model.gpu.name}" for each in (first, second)]
    return chosen, f"Attention {first.problem.name}", found, names


def explored(args: argparse.Namespace) -> compare.Answer:
    """Write the page of an attention on the card of --gpu; its fastest configuration."""
    chosen, problem, ranking, page = _explored(args)
    return replace(_answer(ranking.best, problem, chosen), beside={"file": str(args.html)}, files=[page])


def _answer(choice: AttentionChoice, problem: AttentionProblem, chosen: Settings) -> compare.Answer:
    row, columns = _choice(choice), {**problem_fields(problem), **common.place(chosen, "regime")}
    kernel = {name: row[name] for name in ("kernel", "tile", "pack_gqa", "num_splits")}
    columns |= choice.config.fields
    return compare.Answer(kernel=kernel, columns=columns, prediction=choice.prediction, flop=problem.flop)


def predict(args: argparse.Namespace) -> Document:
    """The prediction of one attention kernel."""
    chosen, world = _one(args)
    prediction, asked, kernel = world.predicted(), problem_fields(world.problem), dict(world.config.fields)
    title = f"ATTENTION {world.problem.name} {world.config.kernel} {world.config.name}"
    result = {"problem": asked, "kernel": kernel, "prediction": prediction_fields(prediction)}
    rows = [{**asked, **common.place(chosen, "regime"), **kernel, **prediction_row(prediction)}]
    text = partial(explanation, {"title": title}, prediction)
    return common.document(chosen, result=result, rows=rows, text=text)


def rank(args: argparse.Namespace) -> Document:
    """The configurations of one attention by predicted time, why one did not win, or the winner's text."""
    chosen, problem, ranking = _ranked(args, "top", "emit", "why_not")
    asked, best = problem_fields(problem), ranking.best.config
    if args.why_not is not None:
        text = why_not(ranking, AttentionConfig.parse(args.why_not), _model(chosen))
        row = {"config": args.why_not, "answer": text}
        result: dict[str, Any] = {"problem": asked, "why_not": row}
    elif args.emit is not None:
        row = {"target": args.emit, "text": (text := emitted(args.emit, problem, best, chosen.gpu))}
        result = {"problem": asked, "kernel": dict(best.fields), "emit": row}
    else:
        return _ranking(chosen, ranking, asked, args.top)
    return common.document(chosen, result=result, rows=[row], text=lambda: text)


def _ranking(chosen: Settings, ranking: AttentionRanking, asked: dict[str, Any], top: int) -> Document:
    best_us = ranking.best.prediction.runtime_us
    rows = [
        {
            "rank": place,
            **_choice(choice),
            "over_best": choice.prediction.runtime_us / best_us - 1.0 if best_us else 0.0,
        }
        for place, choice in enumerate(ranking.choices[:top], start=1)
    ]
    band = ranking.best.prediction.error_band or 0.0
    tied = sum(choice.prediction.runtime_us <= best_us * (1.0 + band) for choice in ranking.choices) - 1
    shown = list(zip(rows, ranking.choices, strict=False))
    count = len(ranking.choices)
    result = {"problem": asked, "candidates": count, "kernels": count, "tied_with_best": tied}
    result |= {"reason": ranking.reason, "library_choice": _choice(ranking.own), "gain": ranking.gain}
    result["choices"] = [{**row, "prediction": prediction_fields(each.prediction)} for row, each in shown]
    notes = [ranking.reason, f"predicted gain over the library's own choice: {ranking.gain:.1%}"]
    notes += ranking.best.prediction.caveats
    table = [{**asked, **common.place(chosen, "regime"), **each.config.fields, **row} for row, each in shown]
    return common.document(chosen, result=result, rows=table, notes=notes, text=partial(text_table, rows))


def _choice(choice: AttentionChoice) -> dict[str, Any]:
    config = choice.config
    row: dict[str, Any] = {"kernel": config.kernel, "tile": f"{config.tile_m}x{config.tile_n}"}
    row |= {"pack_gqa": int(bool(config.pack_gqa)), "num_splits": config.num_splits}
    return row | {"predicted_us": choice.prediction.runtime_us, "limiter": choice.prediction.limiter}


def explore(args: argparse.Namespace) -> Document:
    """Write the page of one attention; the fastest configuration is the answer."""
    chosen, problem, ranking, page = _explored(args)
    result = {"file": args.html, "problem": problem_fields(problem), "kernels": len(ranking.choices)}
    return common.document(chosen, result=result, rows=[_choice(ranking.best)], files=[page])


def _explored(args: argparse.Namespace) -> tuple[Settings, AttentionProblem, AttentionRanking, File]:
    chosen, problem, ranking = _ranked(args, "html")
    found = explain_attention(AttentionWorld(problem, ranking.best.config, _model(chosen)))
    page = common.page(args.html, lambda: attention_page(ranking, found, chosen.gpu.name))
    return chosen, problem, ranking, page


def explain(args: argparse.Namespace) -> Document:
    """What limits one attention kernel, and what other options would make of it."""
    chosen, world = _one(args, "what_if")
    found = explain_attention(world, args.what_if)
    prediction = found.prediction
    tiles, sms = prediction.details["tiles"], chosen.gpu.sm_count
    result: dict[str, Any] = {"problem": problem_fields(world.problem), "kernel": world.config.fields}
    result |= {"prediction": prediction_fields(prediction), "limiter": prediction.limiter}
    result["mechanisms"] = found.units
    result["wave_occupancy"] = tiles / (-(-tiles // sms) * sms) if tiles else 0.0

    def text() -> str:
        cells = [(each.name, f"{each.elasticity:.0%}", each.meaning) for each in found.units]
        units = [dict(zip(("unit", "elasticity", "what it is"), each, strict=True)) for each in cells]
        first = f"predicted {number_text(prediction.runtime_us)} us, limited by {prediction.limiter}"
        return "\n".join((first, "", "UNITS", text_table(units), "", "WHAT IF", changes(found.what_if)))

    return common.document(chosen, result=plain(result), rows=change_rows(found.what_if), text=text)


def simulate(args: argparse.Namespace, drawn: Callable[..., dict[str, Any]]) -> Document:
    """The event simulation of an attention kernel's longest tile on its SM, as `drawn` shows a timeline."""
    chosen, world = _one(args, "trace", "plot", "events", "html")
    timeline, blocks, found = simulate_kernel(world.problem, world.config, world.model)
    result = {"predicted_us": found.runtime_us, "phases_us": dict(found.phases_us), "limiter": found.limiter}
    parts = drawn(args, timeline, world.problem.name)
    time = number_text(found.runtime_us)
    parts["notes"] += [f"a tile of {blocks} key blocks; all take {time} us", *found.caveats]
    return common.document(chosen, result={**result, "k_tiles": blocks, "stages": timeline.stages}, **parts)


def rank_table(args: argparse.Namespace) -> Document:
    """The fastest configuration of each problem of a table, of the measured ones where it has times of several."""
    import pandas as pd

    from gemm_model.report.table_job import PLACE, by_place
    from gemm_model.tables.accuracy import shape_columns
    from gemm_model.tables.attention import CONFIG_COLUMNS, attention_rows, of_row, understood_kernels
    from gemm_model.tables.table import read_table

    frame = understood_kernels(read_table(args.input))
    if "runtime_us" in frame and frame.duplicated(shape_columns(frame)).any():
        common.take_card(args, [frame])
        return _measured_choices(_settings(args, "family", "input", how="with a table of attention"), frame)
    settings = _settings(args, "family", "input", how="with a table of attention")
    places = by_place(frame, settings, partial(common.of_rows, args))
    parts = {row: (each, _model(each), common.place(each, "regime")) for each, rows in places for row in rows}
    found = []
    with common.progress("ranking", len(frame)) as advance:
        for row, (problem, _) in enumerate(attention_rows(frame)):
            chosen, model, place = parts[row]
            try:
                ranking = rank_attention(problem, chosen.gpu, args.family, model)
            except InputError as error:
                raise of_row(frame, row, error) from None
            best = ranking.best.prediction
            times = {"predicted_us": best.runtime_us, "limiter": best.limiter, "error_band": best.error_band}
            found.append({**place, **ranking.best.config.fields, **times, "gain": ranking.gain})
            advance(1)
    left_out = {*PLACE, *CONFIG_COLUMNS, *found[0], "runtime_us"}
    rows = pd.concat(
        [frame.drop(columns=left_out, errors="ignore"), pd.DataFrame(found, index=frame.index)], axis=1
    )
    kept = ("seq_q", "seq_kv", "predicted_us", "limiter")
    notes = list(dict.fromkeys(note for each, _ in places for note in each.gpu.caveats))
    cards = ", ".join(dict.fromkeys(rows["gpu"]))
    return Document(
        gpu=cards, model=settings.model, rows=rows, notes=notes, text=lambda: screen_text(rows, kept)
    )


def _measured_choices(chosen: Settings, frame: pd.DataFrame) -> Document:
    """Of each problem's measured configurations the one predicted fastest, beside the library's own and the best."""
    from gemm_model.api import predict_table
    from gemm_model.tables.accuracy import choice_figures, shape_columns
    from gemm_model.tables.attention import COLUMNS, attention_rows

    found = predict_table(frame, chosen.gpu, options=chosen.options)
    found = found[found["disposition"] == "ok"].reset_index(drop=True)
    found["own"] = [is_own(*kernel, chosen.gpu) for kernel in attention_rows(found)]
    found["library_us"] = found["runtime_us"].where(found["own"])
    kernel = ["kernel"] if "kernel" in found else []
    shapes = found.groupby([*shape_columns(found), *kernel], sort=False, dropna=False)
    found[["best_us", "library_us"]] = shapes[["runtime_us", "library_us"]].transform("min")
    rows = found.loc[shapes["predicted_us"].idxmin()[shapes.size() > 1]].dropna(subset="library_us")
    if rows.empty:
        raise InputError("no problem has times of the library's own kernel and of others; expected both")
    rows["over_library"] = rows["library_us"] / rows["runtime_us"] - 1.0
    rows["of_best"] = rows["best_us"] / rows["runtime_us"]
    reached = (choice_figures(rows["best_us"] / rows[name]) for name in ("runtime_us", "library_us"))
    words = [f"{each.mean:.1%} (p5 {each.p5:.1%})" for each in reached]
    notes = ["of the best measured speed first choices reach {}, the library's own {}".format(*words)]
    kept = ["predicted_us", "runtime_us", "library_us", "over_library", "of_best"]
    rows = rows[[*(name for name in COLUMNS if name in rows), *kept]]
    return common.document(chosen, rows=rows, notes=notes, text=lambda: screen_text(rows, ("seq_q", *kept)))
