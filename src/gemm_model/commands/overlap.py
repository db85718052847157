"""`gemm-model overlap`: a chain of norms and weight-prefetch GEMMs under programmatic dependent launch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemm_model.commands import common
from gemm_model.errors import InputError, MissingExtraError
from gemm_model.models import create_model
from gemm_model.overlap.config import OverlapSetting
from gemm_model.overlap.model import LayerCase, OverlapModel
from gemm_model.overlap.plan import plan_build
from gemm_model.overlap.tuner import Tuning, refine, tune
from gemm_model.report.document import Document, plain, text_table
from gemm_model.timeline.chrome_trace import write_chrome_trace

PLANNED = ("split_k", "stages", "clusters")
RATIOS = ("overlap_ratio", "prefetch_ratio")


def run(args: argparse.Namespace) -> Document:
    common.check_document(args, args.trace, args.plot)
    chosen = common.settings(args)
    if chosen.model != "OverlapModel":
        raise InputError(f"model is {chosen.model}; expected OverlapModel, the one of such chains")
    model = create_model("OverlapModel", chosen.gpu, chosen.options)
    assert isinstance(model, OverlapModel)
    if args.plot is not None and args.input is None:
        raise InputError("--plot is given without --input; expected both or neither")
    if args.campaigns and args.input is None:
        raise InputError("--campaigns is given without --input; expected both or neither")
    if args.input is not None:
        common.refuse_unused(
            args, "with --input", (*common.GPU, *common.OUTPUT, "input", "plot", "campaigns")
        )
        return _surfaces(args, model)
    return _layer(args, model)


def _layer(args: argparse.Namespace, model: OverlapModel) -> Document:
    from gemm_model.overlap.views import crossed, sensitivity, trace_events

    case = _case(args, model)
    tuning = None
    if args.tune:
        tuning = tune(model, case)
        case = replace(case, setting=tuning.setting)
    figures = _figures(case, model)
    if args.measure:
        figures |= _measure(case, tuning, model.gpu.sm_clk_mhz)
    table = sensitivity(model, case)
    result = {**figures, "build": case.build}
    if tuning is not None:
        result["candidates"] = tuning.candidates
    return Document(
        gpu=model.gpu.name,
        model="OverlapModel",
        result=plain(result),
        rows=table,
        text=lambda: (
            f"{_lines(figures)}\n\npredicted us per layer; columns: prefetch ratio\n"
            + text_table(crossed(table))
        ),
        files=[(args.trace, lambda path: write_chrome_trace(path, trace_events(model.timeline([case]))))],
    )


def _lines(figures: dict[str, Any]) -> str:
    return "\n".join(
        f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}"
        for name, value in figures.items()
    )


def _case(args: argparse.Namespace, model: OverlapModel) -> LayerCase:
    for name in ("m", "k"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing; expected --m and --k")
    build = plan_build(args.m, args.n, args.k, args.dtype, args.b_dtype or args.dtype, model.gpu)
    changes = {name: value for name in PLANNED if (value := getattr(args, name)) is not None}
    ratios = {name: value for name in RATIOS if (value := getattr(args, name)) is not None}
    if args.tune and ratios:
        raise InputError(
            "--tune is given with --overlap-ratio or --prefetch-ratio; expected one or the other"
        )
    setting, build = replace(model.setting, **ratios), replace(build, **changes)
    extra = model.previous_extra_us if args.previous_extra_us is None else args.previous_extra_us
    return LayerCase(m=args.m, n=args.n, k=args.k, build=build, setting=setting, extra_us=extra)


def _figures(case: LayerCase, model: OverlapModel) -> dict[str, Any]:
    line = model.timeline([case, replace(case, serialized=True)])
    layer_us, no_overlap_us = (float(value) for value in line.layer_us)
    weights = case.m * case.k * case.build.operand_bytes
    return {
        **{name: getattr(case.setting, name) for name in RATIOS},
        "predicted_us": layer_us,
        "predicted_no_overlap_us": no_overlap_us,
        "weight_gb_per_s": weights / layer_us / 1e3,
        "previous_kernel_us": float(line.previous_end[-1, 0] - line.previous_waited[-1, 0]),
        "gemm_after_wait_us": float(line.gemm_end[-1, 0] - line.gemm_waited[-1, 0]),
        "prefetched_bytes": float(line.prefetched_bytes[-1, 0]),
        "wasted_prefetch_bytes": float(line.wasted_bytes[-1, 0]),
        **{name: getattr(case.build, name) for name in PLANNED},
    }


def _measure(case: LayerCase, tuning: Tuning | None, sm_clk_mhz: float) -> dict[str, Any]:
    """Measured time of the case's setting, or of the refined one."""
    try:
        import cutlass  # noqa: F401 - the DSL is found or missing here
        import torch
    except ImportError as error:
        raise MissingExtraError(f"--measure needs the extra 'bench' ({error})") from None
    if not torch.cuda.is_available():
        raise MissingExtraError("--measure needs an NVIDIA GPU; none was found")
    if torch.cuda.get_device_capability()[0] != 9:
        name = torch.cuda.get_device_name()
        raise InputError(f"--measure needs a Hopper GPU (compute capability 9.0); this one is {name}")
    from gemm_model.overlap.chain import LayerChain, PreviousSpec

    chain = LayerChain((case.m, case.n, case.k), (case.build.a_type, case.build.b_type))
    previous = PreviousSpec(extra_clocks=round(case.extra_us * sm_clk_mhz))

    def measure_us(setting: OverlapSetting) -> float:
        return chain.layer_time_us(case.build, setting, previous)

    def no_overlap_us() -> float:
        apart, never = (
            replace(case.build, dependent_launch=False),
            OverlapSetting(overlap_ratio=-1, prefetch_ratio=0),
        )
        return chain.layer_time_us(apart, never, replace(previous, trigger_early=False))

    if tuning is None:
        return {"runtime_us": measure_us(case.setting), "runtime_no_overlap_us": no_overlap_us()}
    refined = refine(tuning, measure_us, no_overlap_us)
    chosen = {f"measured_{name}": getattr(refined.setting, name) for name in RATIOS}
    return chosen | {"runtime_us": refined.layer_us, "runtime_no_overlap_us": refined.no_overlap_us}


def _surfaces(args: argparse.Namespace, model: OverlapModel) -> Document:
    from gemm_model.overlap.surfaces import accuracy, cases_of, read_surfaces, titles
    from gemm_model.overlap.views import plot_surfaces

    table = read_surfaces(*args.input, campaigns=args.campaigns)
    rows = accuracy(table, model.gpu, model.parameters)
    within = int((rows["regret"] <= 0.03).sum())
    note = (
        f"mean error {rows['mean_error'].mean():.1%}; the tuner's pick is within 3 % of the grid's best in "
        f"{within} of {len(rows)} surfaces, {rows['regret'].mean():.1%} slower than it in the mean, "
        f"{rows['regret'].max():.1%} at most"
    )

    def plot(path: Path) -> None:
        predicted = model.layer_us(cases_of(table, model.gpu))
        shown = table.assign(title=titles(table, model.gpu), predicted=predicted)
        plot_surfaces(shown[shown["serialized"] == 0], path)

    return Document(
        gpu=model.gpu.name,
        model="OverlapModel",
        result={"mean_error": float(rows["mean_error"].mean()), "within_3_percent": within},
        rows=rows,
        notes=[note],
        files=[(args.plot, plot)],
    )
