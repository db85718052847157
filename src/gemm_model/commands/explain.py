"""`gemm-model explain`: why one kernel takes its time, and what would change it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import pandas as pd

from gemm_model.commands import common
from gemm_model.core.errors import InputError
from gemm_model.core.prediction import RESIDUAL_PHASE
from gemm_model.persistent.explanation import Explanation, explain

MODEL = "WarpSpecializedModel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_settings(parser)
    common.add_problem(parser, required=True)
    common.add_config(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    chosen = common.settings(args, model=MODEL)
    if chosen.model != MODEL:
        raise InputError(f"--model is {chosen.model}; expected {MODEL}, the model that explains itself")
    problem, config = common.problem(args), common.config(args)
    found = explain(problem, config, chosen.gpu, chosen.options)
    if args.format == "json":
        told = asdict(found)
        if found.prediction.residual_share is not None:
            told["prediction"]["residual_share"] = found.prediction.residual_share
        print(json.dumps(told, indent=2))
    elif args.format == "csv":
        common.show(pd.DataFrame([asdict(each) for each in found.what_if]), "csv")
    else:
        print(_text(found))
    return 0


def _text(found: Explanation) -> str:
    prediction = found.prediction
    band = "" if prediction.error_band is None else f" +- {prediction.error_band:.1%}"
    lines = [f"predicted {prediction.runtime_us:.4g} us{band}, limited by {prediction.limiter}"]
    if prediction.residual_share is not None:
        added_us = prediction.phases_us[RESIDUAL_PHASE]
        lines.append(f"residual: {added_us:+.4g} us ({prediction.residual_share:+.1%} of the formulas' time)")
    lines.append(f"waves: {found.wave_occupancy:.1%} of their slots have a tile")
    lines.append(f"tile order: {found.tile_order}")
    mechanisms = pd.DataFrame(
        {
            "mechanism": [each.name for each in found.mechanisms],
            "us": [f"{each.time_us:.4g}" for each in found.mechanisms],
            "of runtime": [f"{each.share_of_runtime:.0%}" for each in found.mechanisms],
            "what it is": [each.meaning for each in found.mechanisms],
        }
    )
    lines += ["", "MECHANISMS, each as if it were alone", mechanisms.to_string(index=False)]
    moved = ", ".join(f"{level} {value / 1e6:.4g} MB" for level, value in prediction.bytes_by_level.items())
    lines += ["", f"BYTES: {moved}"]
    worlds = pd.DataFrame(
        {
            "what if": [each.change for each in found.what_if],
            "us": [f"{each.runtime_us:.4g}" for each in found.what_if],
            "change": [f"{each.relative - 1:+.1%}" for each in found.what_if],
        }
    )
    lines += ["", "WHAT IF", worlds.to_string(index=False)]
    lines += [f"caveat: {caveat}" for caveat in prediction.caveats]
    return "\n".join(lines)
