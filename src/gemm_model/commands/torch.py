"""`gemm-model torch`: the predicted time of a PyTorch model's GEMMs, module by module, without running it."""

from __future__ import annotations

import argparse

from gemm_model.commands import common
from gemm_model.errors import InputError
from gemm_model.report.document import Document, text_table


def run(args: argparse.Namespace) -> Document:
    from gemm_model.integrations.torch_timer import GemmTimer, load_model_builder, run_on_meta

    common.check_document(args)
    given = {word.partition("=")[0] for word in args.overrides}
    if "model_opts.regime" in given:
        raise InputError(
            "model_opts.regime is given; expected --regime, which says what surrounds each launch"
        )
    builder = load_model_builder(args.builder)
    chosen = common.settings(args)
    # The configuration's regime and state of L2 are those of single launches.
    lonely = {"model_opts.regime", "model_opts.l2"} - given
    timer = GemmTimer(
        chosen.gpu,
        model=chosen.model,
        family=args.family,
        regime=args.regime,
        options={name: value for name, value in chosen.options.items() if f"model_opts.{name}" not in lonely},
        display=False,
    )
    run_on_meta(builder, timer, train=args.train)
    return common.document(
        chosen,
        rows=timer.rows(args.depth),
        notes=timer.notes(),
        text=lambda: text_table(timer.table(depth=args.depth)),
    )
