"""`gemm-model explain`: why one kernel takes its time, and what would change it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gemm_model.commands import common, further
from gemm_model.core.errors import InputError
from gemm_model.core.prediction import RESIDUAL_PHASE
from gemm_model.report.console import kernel_fields, prediction_fields, problem_fields
from gemm_model.report.document import Document, plain, text_table

if TYPE_CHECKING:
    from gemm_model.kernel_model.explanation import Explanation

MODEL = "KernelModel"
EXAMPLES = (
    "--m 4096 --n 4096 --k 4096 --dtype bf16 --cta 128x256 --cluster 2x1",
    "--m 8192 --n 1024 --k 8192 --dtype fp8 --cta 128x128 --gpu h200 --regime sustained --format json",
    "--m 4096 --n 4096 --k 4096 --epilogue gelu,bias --cta 128x256 --cluster 2x1",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_output(parser)
    common.add_settings(parser, model=MODEL)
    common.add_problem(parser, required=False)
    common.add_config(parser)
    further.add_further(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.choice.expected import expected_time
    from gemm_model.kernel_model.explanation import explain

    common.check_document(args)
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
    found = explain(problem, config, chosen.gpu, chosen.options)
    result = {
        "problem": problem_fields(problem),
        "kernel": kernel_fields(config),
        "prediction": prediction_fields(found.prediction),
        "limiter": found.limiter,
        "mechanisms": found.mechanisms,
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
    prediction = found.prediction
    band = "" if prediction.error_band is None else f" +- {prediction.error_band:.1%}"
    lines = [f"predicted {prediction.runtime_us:.4g} us{band}, limited by {found.limiter}"]
    if prediction.residual_share is not None:
        added_us = prediction.phases_us[RESIDUAL_PHASE]
        lines.append(f"residual: {added_us:+.4g} us ({prediction.residual_share:+.1%} of the formulas' time)")
    lines.append(f"waves: {found.wave_occupancy:.1%} of their resident clusters have a tile")
    lines.append(f"tile order: {found.tile_order}; tile scheduler: {found.tile_scheduler}")
    mechanisms = [
        {
            "mechanism": each.name,
            "us": each.time_us,
            "of runtime": f"{each.share_of_runtime:.0%}",
            "what it is": each.meaning,
        }
        for each in found.mechanisms
    ]
    lines += ["", "MECHANISMS, each as if it were alone", text_table(mechanisms)]
    moved = ", ".join(f"{level} {value / 1e6:.4g} MB" for level, value in prediction.bytes_by_level.items())
    lines += ["", f"BYTES: {moved}"]
    worlds = [
        {"what if": each.change, "us": each.runtime_us, "change": f"{each.relative - 1:+.1%}"}
        for each in found.what_if
    ]
    lines += ["", "WHAT IF", text_table(worlds)]
    lines += [f"caveat: {caveat}" for caveat in prediction.caveats]
    return "\n".join(lines)
