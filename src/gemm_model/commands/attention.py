"""Attention under the same verbs: what each does where --attention is given."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.attention.model import attention_model
from gemm_model.commands import common, compare
from gemm_model.core.attention import EXAMPLE, AttentionConfig, AttentionProblem
from gemm_model.core.errors import InputError
from gemm_model.core.regimes import SUSTAINED
from gemm_model.models import DEFAULT_MODEL
from gemm_model.report.console import explanation, prediction_fields
from gemm_model.report.document import Document, plain, text_table

if TYPE_CHECKING:
    from gemm_model.attention.choice import AttentionChoice, AttentionRanking
    from gemm_model.core.prediction import Prediction
    from gemm_model.core.settings import Settings

OPTIONS = ("attention", "attention_config")


def add_attention(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """The options by which a verb is asked about attention in place of a GEMM."""
    parser.add_argument(
        "--attention", metavar="WORDS", help=f"an attention, in place of a GEMM: '{EXAMPLE}' (default: none)"
    )
    if config:
        parser.add_argument(
            "--attention-config",
            metavar="WORDS",
            default=AttentionConfig().kernel,
            help="its kernel, such as 'flash_attention tile=128x128 num_splits=4 pack_gqa=0'",
        )


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
    kernels = attention_rows(frame)
    rows = [{str(name): str(cell) for name, cell in row.items()} for row in frame.to_dict("records")]
    output = args.output
    require_gpu()
    with common.progress("measuring", len(rows)) as advance:
        good = measure_rows(rows, kernels, output, advance)
    result = {"file": output, "done": len(rows), "dispositions": {"ok": good, "failed": len(rows) - good}}
    text = f"{good} of {len(rows)} rows measured: {output}"
    return Document(result=result, text=lambda: text, apart=True)


def _settings(args: argparse.Namespace, *used: str) -> Settings:
    common.refuse_unused(
        args, "with --attention", (*common.GPU, "model", "regime", *common.OUTPUT, *OPTIONS, *used)
    )
    chosen = common.settings(args)
    if chosen.model != DEFAULT_MODEL:
        raise InputError(f"{chosen.model} knows no attention; expected {DEFAULT_MODEL}")
    return chosen


def _one(args: argparse.Namespace, *used: str) -> tuple[Settings, AttentionProblem, AttentionConfig]:
    """Settings, problem and configuration of a verb about one kernel."""
    config = AttentionConfig.parse(args.attention_config)
    return _settings(args, *used), AttentionProblem.parse(args.attention), config


def _refuse_settled(chosen: Settings) -> None:
    """Raise InputError where an explanation is asked for at a settled clock, which it does not know."""
    if chosen.options.get("regime") == SUSTAINED:
        raise InputError(f"attention is not explained in the regime {SUSTAINED}; expected burst")


def _place(chosen: Settings) -> dict[str, Any]:
    return common.place(chosen.gpu.name, chosen.options.get("regime"))


def problem_fields(problem: AttentionProblem) -> dict[str, Any]:
    """A problem as results hold it, by the names that columns of tables have."""
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v", "window")
    fields = {name: getattr(problem, name) for name in names}
    fields |= {"causal": int(problem.causal), "in_dtype": problem.dtype.name}
    fields |= {name: getattr(problem, name) for name in ("softcap", "page_size") if getattr(problem, name)}
    lengths = "+".join(f"{seq_q}:{seq_kv}" for seq_q, seq_kv in problem.lengths)
    return fields | ({"lengths": lengths} if lengths else {})


def _row(prediction: Prediction) -> dict[str, Any]:
    phases = {f"phase_{name}_us": value for name, value in prediction.phases_us.items()}
    levels = {f"{level}_bytes": value for level, value in prediction.bytes_by_level.items()}
    times = {"predicted_us": prediction.runtime_us, "limiter": prediction.limiter}
    return {**times, "error_band": prediction.error_band, **phases, **levels, **prediction.details}


def answer(args: argparse.Namespace) -> compare.Answer:
    """One attention kernel on the card of --gpu."""
    from gemm_model.api import predict as predicted
    from gemm_model.attention.choice import AttentionChoice
    from gemm_model.attention.kernels import resolved

    chosen, problem, config = _one(args, "sweep", "plot")
    found = predicted(problem, config, chosen.gpu, options=chosen.options)
    choice = AttentionChoice(config=resolved(problem, config, chosen.gpu), prediction=found)
    return _answer(choice, problem)


def best(args: argparse.Namespace, *used: str) -> compare.Answer:
    """The fastest configuration on the card of --gpu."""
    from gemm_model.attention.choice import rank_attention

    chosen = _settings(args, "family", "sweep", "plot", *used)
    problem = AttentionProblem.parse(args.attention)
    ranking = rank_attention(problem, chosen.gpu, args.family, attention_model(chosen.gpu, chosen.options))
    return _answer(ranking.best, problem)


def explained(args: argparse.Namespace) -> compare.Answer:
    """What limits an attention kernel on the card of --gpu."""
    from gemm_model.attention.explanation import explain_attention

    chosen, problem, config = _one(args)
    _refuse_settled(chosen)
    found = explain_attention(problem, config, chosen.gpu)
    return replace(answer(args), beside=compare.limits({unit.name: unit.elasticity for unit in found.units}))


def explored(args: argparse.Namespace) -> compare.Answer:
    """Write the page of an attention on the card of --gpu; its fastest configuration."""
    found = explore(args)
    return replace(best(args, "html"), beside={"file": str(args.html)}, files=found.files)


def _answer(choice: AttentionChoice, problem: AttentionProblem) -> compare.Answer:
    row = _choice(choice)
    kernel = {name: row[name] for name in ("kernel", "tile", "pack_gqa", "num_splits")}
    return compare.Answer(kernel=kernel, prediction=choice.prediction, flop=problem.flop)


def predict(args: argparse.Namespace) -> Document:
    """The prediction of one attention kernel."""
    from gemm_model.api import predict as predicted
    from gemm_model.attention.kernels import resolved

    chosen, problem, config = _one(args)
    prediction = predicted(problem, config, chosen.gpu, options=chosen.options)
    asked, kernel = problem_fields(problem), dict(resolved(problem, config, chosen.gpu).fields)
    return common.document(
        chosen,
        result={"problem": asked, "kernel": kernel, "prediction": prediction_fields(prediction)},
        rows=[{**asked, **_place(chosen), **kernel, **_row(prediction)}],
        text=lambda: explanation({**asked, **kernel}, prediction),
    )


def rank(args: argparse.Namespace) -> Document:
    """The configurations of one attention by predicted time, why one did not win, or the winner's text."""
    from gemm_model.attention.choice import emit_attention, rank_attention, why_not

    chosen = _settings(args, "family", "top", "emit", "why_not")
    problem = AttentionProblem.parse(args.attention)
    model = attention_model(chosen.gpu, chosen.options)
    ranking = rank_attention(problem, chosen.gpu, args.family, model)
    asked = problem_fields(problem)
    if args.why_not is not None:
        answer = why_not(ranking, AttentionConfig.parse(args.why_not), chosen.gpu, model)
        row = {"config": args.why_not, "answer": answer}
        result = {"problem": asked, "why_not": row}
        return common.document(chosen, result=result, rows=[row], text=lambda: answer)
    if args.emit is not None:
        best = ranking.best.config
        text = emit_attention(args.emit, problem, best, chosen.gpu)
        row = {"target": args.emit, "text": text}
        result = {"problem": asked, "kernel": dict(best.fields), "emit": row}
        return common.document(chosen, result=result, rows=[row], text=lambda: text)
    return _ranking(chosen, ranking, asked, args.top)


def _ranking(chosen: Settings, ranking: AttentionRanking, asked: dict[str, Any], top: int) -> Document:
    best_us = ranking.best.prediction.runtime_us
    rows = [
        {"rank": place, **_choice(choice), "over_best": choice.prediction.runtime_us / (best_us or 1.0) - 1.0}
        for place, choice in enumerate(ranking.choices[:top], start=1)
    ]
    band = ranking.best.prediction.error_band or 0.0
    tied = sum(choice.prediction.runtime_us <= best_us * (1.0 + band) for choice in ranking.choices) - 1
    shown = ranking.choices[:top]
    result: dict[str, Any] = {
        "problem": asked,
        "candidates": len(ranking.choices),
        "kernels": len(ranking.choices),
        "tied_with_best": tied,
        "reason": ranking.reason,
        "library_choice": _choice(ranking.own),
        "gain": ranking.gain,
        "choices": [
            {**row, "prediction": prediction_fields(choice.prediction)}
            for row, choice in zip(rows, shown, strict=True)
        ],
    }
    notes = [ranking.reason, f"predicted gain over the library's own choice: {ranking.gain:.1%}"]
    notes += ranking.best.prediction.caveats
    table = [
        {**asked, **_place(chosen), **choice.config.fields, **row}
        for row, choice in zip(rows, shown, strict=True)
    ]
    return common.document(chosen, result=result, rows=table, notes=notes, text=lambda: text_table(rows))


def _choice(choice: AttentionChoice) -> dict[str, Any]:
    config = choice.config
    return {
        "kernel": config.kernel,
        "tile": f"{config.tile_m}x{config.tile_n}",
        "pack_gqa": int(bool(config.pack_gqa)),
        "num_splits": config.num_splits,
        "predicted_us": choice.prediction.runtime_us,
        "limiter": choice.prediction.limiter,
    }


def explore(args: argparse.Namespace) -> Document:
    """Write the page of one attention; the fastest configuration is the answer."""
    from gemm_model.attention.choice import rank_attention
    from gemm_model.attention.explanation import explain_attention
    from gemm_model.report.page.attention import attention_page

    chosen = _settings(args, "family", "html")
    problem = AttentionProblem.parse(args.attention)
    _refuse_settled(chosen)
    ranking = rank_attention(problem, chosen.gpu, args.family)
    explanation = explain_attention(problem, ranking.best.config, chosen.gpu)
    result = {"file": args.html, "problem": problem_fields(problem), "kernels": len(ranking.choices)}
    row = _choice(ranking.best)
    page = common.page(args.html, lambda: attention_page(ranking, explanation, chosen.gpu.name))
    return common.document(chosen, result=result, rows=[row], files=[page])


def explain(args: argparse.Namespace) -> Document:
    """What limits one attention kernel, and what other options would make of it."""
    from gemm_model.attention.explanation import explain_attention

    chosen, problem, config = _one(args)
    _refuse_settled(chosen)
    found = explain_attention(problem, config, chosen.gpu)
    prediction = found.prediction
    what_if = [
        {"change": each.change, "predicted_us": each.runtime_us, "relative": each.relative}
        for each in found.what_if
    ]
    tiles, sms = prediction.details["tiles"], chosen.gpu.sm_count
    mechanisms = [
        {
            "name": unit.name,
            "time_us": unit.elasticity * prediction.runtime_us,
            "share_of_runtime": unit.elasticity,
            "meaning": unit.meaning,
        }
        for unit in found.units
    ]
    result: dict[str, Any] = {
        "problem": problem_fields(problem),
        "kernel": found.config.fields,
        "prediction": prediction_fields(prediction),
        "limiter": found.limiter,
        "mechanisms": mechanisms,
        "wave_occupancy": tiles / (-(-tiles // sms) * sms) if tiles else 0.0,
    }

    def text() -> str:
        shown = [
            {
                "unit": each["name"],
                "elasticity": f"{each['share_of_runtime']:.0%}",
                "what it is": each["meaning"],
            }
            for each in mechanisms
        ]
        worlds = [
            {"what if": each.change, "us": each.runtime_us, "change": f"{each.relative - 1:+.1%}"}
            for each in found.what_if
        ]
        first = f"predicted {prediction.runtime_us:.4g} us, limited by {found.limiter}"
        return "\n".join((first, "", "UNITS", text_table(shown), "", "WHAT IF", text_table(worlds)))

    return common.document(chosen, result=plain(result), rows=what_if, text=text)
