"""`gemm-model explain`: why one kernel takes its time, and what would change it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gemm_model.commands import attention, common, further
from gemm_model.core.errors import InputError
from gemm_model.core.prediction import RESIDUAL_PHASE
from gemm_model.report.console import kernel_fields, prediction_fields, problem_fields
from gemm_model.report.document import Document, plain, text_table

if TYPE_CHECKING:
    from gemm_model.core.prediction import Prediction
    from gemm_model.kernel_model.explanation import Explanation, WhatIf

MODEL = "KernelModel"
BAR = 40
"""Characters of a whole runtime [1]; texts; chosen."""
EXAMPLES = (
    "--m 4096 --n 4096 --k 4096 --dtype bf16 --cta 128x256 --cluster 2x1",
    "--m 8192 --n 1024 --k 8192 --dtype fp8 --cta 128x128 --gpu h200 --regime sustained --format json",
    "--m 4096 --n 4096 --k 4096 --epilogue gelu,bias --cta 128x256 --cluster 2x1",
    "--attention 'full batch=16 heads=32 kv_heads=8 seq_q=1 seq_kv=8192 head_dim=128'",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_output(parser)
    common.add_settings(parser, model=MODEL)
    common.add_problem(parser, required=False)
    common.add_config(parser)
    further.add_further(parser)
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="such as 'dram x1.5', 'l2_bytes x2', 'sms 66', 'stages 8', 'l2 warm', 'no epilogue'; may be "
        "repeated (default: none)",
    )
    attention.add_attention(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.choice.expected import expected_time
    from gemm_model.kernel_model.explanation import explain

    common.check_document(args)
    if attention.asked(args):
        common.show(args, attention.explain(args))
        return 0
    chosen = common.settings(args)
    if chosen.model != MODEL:
        raise InputError(f"--model is {chosen.model}; expected {MODEL}, the model that explains itself")
    problem, config = further.problem(args), common.config(args)
    routing, expected = further.routing(args), None
    if routing is not None:
        expected = expected_time(
            problem,
            routing,
            config,
            chosen.gpu,
            count=args.routings,
            seed=args.seed,
            options=chosen.options,
        )
        problem = expected.middle
    found = explain(problem, config, chosen.gpu, chosen.options, tuple(args.what_if))
    result = {
        "problem": problem_fields(problem),
        "kernel": kernel_fields(config),
        "prediction": prediction_fields(found.prediction),
        "limiter": found.limiter,
        "ties": found.ties,
        "mechanisms": found.mechanisms,
        "achieved": found.achieved,
        "way_to_peak": found.way_to_peak,
        "advice": found.advice,
        "wave_occupancy": found.wave_occupancy,
        **({} if expected is None else {"expected": further.expected_fields(expected)}),
    }
    what_if = [
        {"change": each.change, "predicted_us": each.runtime_us, "relative": each.relative}
        for each in found.what_if
    ]
    document = Document(
        verb="explain",
        gpu=chosen.gpu.name,
        model=chosen.model,
        result=plain(result),
        rows=what_if,
        text=lambda: ("" if expected is None else f"{further.expected_text(expected)}\n") + _text(found),
    )
    common.show(args, document)
    return 0


def _text(found: Explanation) -> str:
    from gemm_model.kernel_model.explanation import limits

    prediction, achieved = found.prediction, found.achieved
    band = "" if prediction.error_band is None else f" +- {prediction.error_band:.1%}"
    lines = [
        f"predicted {prediction.runtime_us:.4g} us{band}, limited by {limits(found)}",
        f"{achieved['tflop_per_s']:.4g} TFLOP/s, {achieved['gb_per_s']:.4g} GB/s, "
        f"{achieved['share_of_roofline']:.1%} of the roofline",
        *_residual(prediction),
        f"waves: {found.wave_occupancy:.1%} of their resident clusters have a tile",
        f"tile order: {found.tile_order}; tile scheduler: {found.tile_scheduler}",
        "",
        "LIMITED BY: what of 1 % more of each reaches the runtime; 'alone' overlaps and does not add up",
        *_bars([(each.name, each.elasticity, f"{each.time_us:.4g} us alone") for each in found.mechanisms]),
        "",
        "WAY TO THE PEAK, us that add up",
        *_waterfall(found),
    ]
    if found.advice:
        lines += ["", "WHAT WOULD HELP: another value of one setting", _changes(found.advice)]
    moved = ", ".join(f"{level} {value / 1e6:.4g} MB" for level, value in prediction.bytes_by_level.items())
    lines += ["", f"BYTES: {moved}", "", "WHAT IF", _changes(found.what_if)]
    lines += [f"caveat: {caveat}" for caveat in prediction.caveats]
    return "\n".join(lines)


def _residual(prediction: Prediction) -> list[str]:
    if prediction.residual_share is None:
        return []
    added_us = prediction.phases_us[RESIDUAL_PHASE]
    return [f"residual: {added_us:+.4g} us ({prediction.residual_share:+.1%} of the formulas' time)"]


def _bars(rows: list[tuple[str, float, str]]) -> list[str]:
    """A bar for each share, with its name and what is to be said beside."""
    width = max((len(name) for name, _, _ in rows), default=0)
    return [
        f"{name:{width}} {share:6.1%} {'#' * round(BAR * max(share, 0.0)):{BAR}} {beside}".rstrip()
        for name, share, beside in rows
    ]


def _waterfall(found: Explanation) -> list[str]:
    """The steps from the roofline, each bar where the one before ends."""
    runtime_us, end_us, lines = found.prediction.runtime_us, 0.0, []
    width = max(len(step.name) for step in found.way_to_peak)
    for step in found.way_to_peak:
        start_us, end_us = end_us, end_us + step.added_us
        first, last = (round(BAR * each / runtime_us) for each in sorted((start_us, end_us)))
        mark = "#" if step.added_us >= 0 else "-"
        lines.append(f"{step.name:{width}} {step.added_us:+9.4g} us {' ' * first}{mark * (last - first)}")
    return [line.rstrip() for line in lines]


def _changes(changes: tuple[WhatIf, ...]) -> str:
    return text_table(
        [
            {"change": each.change, "us": each.runtime_us, "saves": f"{1 - each.relative:+.1%}"}
            for each in changes
        ]
    )
