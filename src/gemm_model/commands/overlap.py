"""`gemm-model overlap`: a chain of norms and weight-prefetch GEMMs under programmatic dependent launch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.commands import common
from gemm_model.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from gemm_model.overlap.config import OverlapSetting
    from gemm_model.overlap.model import LayerCase, OverlapModel
    from gemm_model.overlap.tuner import Tuning

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--m", type=int, help="output features: rows of the weights")
    parser.add_argument("--n", type=int, default=16, help="tokens, 1 to 128 (default: 16)")
    parser.add_argument("--k", type=int, help="input features: columns of the weights")
    parser.add_argument("--a-type", default="e4m3", help="weights: e4m3 (default), e5m2 or bf16")
    parser.add_argument("--b-type", help="activations: e4m3, e5m2 or bf16 (default: that of the weights)")
    parser.add_argument(
        "--overlap-ratio",
        type=float,
        help="share of its K tiles that a CTA has loaded when the next kernel may start; -1: never",
    )
    parser.add_argument(
        "--prefetch-ratio",
        type=float,
        help="share of its K tiles that a CTA brings into L2 while it waits; -1: as many as it can",
    )
    parser.add_argument(
        "--previous-extra-us",
        type=float,
        help="what the kernel before the GEMM takes longer than a plain RMSNorm (default: 0)",
    )
    parser.add_argument("--split-k", type=int, help="CTAs that share a tile (default: planned)")
    parser.add_argument("--stages", type=int, help="K tiles in the shared-memory ring (default: planned)")
    parser.add_argument("--clusters", type=int, help="clusters of the grid (default: planned)")
    parser.add_argument("--tune", action="store_true", help="choose both ratios by the model")
    parser.add_argument(
        "--measure", action="store_true", help="measure the chain on this machine's GPU; with --tune, refine"
    )
    parser.add_argument("--trace", type=Path, help="write the chain's timeline as Chrome trace, for Perfetto")
    parser.add_argument(
        "--surfaces",
        type=Path,
        nargs="+",
        help="tables of measured layers, runs of the same cases: print the accuracy on their mean",
    )
    parser.add_argument("--plot", type=Path, help="--surfaces: predicted against measured (.png, .svg, .pdf)")
    parser.add_argument("--gpu", help="a GPU's name or a YAML file (default: h200)")
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.models import create_model
    from gemm_model.overlap.model import OverlapModel

    chosen = common.settings(args, model="OverlapModel")
    model = create_model("OverlapModel", chosen.gpu, chosen.options)
    assert isinstance(model, OverlapModel)
    if args.plot is not None and args.plot.suffix not in PLOT_SUFFIXES:
        raise InputError(
            f"--plot {args.plot}; expected a name that ends in one of {', '.join(PLOT_SUFFIXES)}"
        )
    if args.plot is not None and args.surfaces is None:
        raise InputError("--plot is given without --surfaces; expected both or neither")
    if args.surfaces is not None:
        return _surfaces(args, model)
    return _layer(args, model)


def _layer(args: argparse.Namespace, model: OverlapModel) -> int:
    from gemm_model.overlap.tuner import tune
    from gemm_model.overlap.views import sensitivity

    case = _case(args, model)
    tuning = None
    if args.tune:
        tuning = tune(model, case)
        case = replace(case, setting=tuning.setting)
    figures = _figures(case, model)
    if args.measure:
        figures |= _measure(case, tuning)
    table = sensitivity(model, case)
    if args.format == "json":
        record = {**figures, "build": asdict(case.build), "grid": json.loads(table.to_json(orient="records"))}
        if tuning is not None:
            record["candidates"] = [asdict(setting) for setting in tuning.candidates]
        print(json.dumps(record, indent=2))
    elif args.format == "csv":
        common.show(table, "csv")
    else:
        for name, value in figures.items():
            print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")
        print("\npredicted us per layer; columns: prefetch ratio")
        common.show(table, "table")
    if args.trace is not None:
        from gemm_model.overlap.views import trace_events
        from gemm_model.timeline.chrome_trace import write_chrome_trace

        write_chrome_trace(args.trace, trace_events(model.timeline([case])))
        common.words(f"wrote {args.trace}")
    return 0


def _case(args: argparse.Namespace, model: OverlapModel) -> LayerCase:
    from gemm_model.overlap.config import OverlapSetting
    from gemm_model.overlap.model import LayerCase
    from gemm_model.overlap.plan import plan_build

    for name in ("m", "k"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing; expected --m and --k")
    build = plan_build(
        args.m, args.n, args.k, args.a_type, args.b_type or args.a_type, sm_count=model.gpu.sm_count
    )
    changes = {
        name: value
        for name in ("split_k", "stages", "clusters")
        if (value := getattr(args, name)) is not None
    }
    given = (args.overlap_ratio, args.prefetch_ratio)
    if args.tune and given != (None, None):
        raise InputError(
            "--tune is given with --overlap-ratio or --prefetch-ratio; expected one or the other"
        )
    setting = OverlapSetting(
        overlap_ratio=model.setting.overlap_ratio if given[0] is None else given[0],
        prefetch_ratio=model.setting.prefetch_ratio if given[1] is None else given[1],
    )
    extra = model.previous_extra_us if args.previous_extra_us is None else args.previous_extra_us
    return LayerCase(
        m=args.m, n=args.n, k=args.k, build=replace(build, **changes), setting=setting, extra_us=extra
    )


def _figures(case: LayerCase, model: OverlapModel) -> dict[str, Any]:
    line = model.timeline([case, replace(case, serialized=True)])
    layer_us, no_overlap_us = (float(value) for value in line.layer_us)
    weights = case.m * case.k * case.build.operand_bytes
    return {
        "overlap_ratio": case.setting.overlap_ratio,
        "prefetch_ratio": case.setting.prefetch_ratio,
        "layer_us": layer_us,
        "no_overlap_us": no_overlap_us,
        "weight_gb_per_s": weights / layer_us / 1e3,
        "previous_kernel_us": float(line.previous_end[-1, 0] - line.previous_waited[-1, 0]),
        "gemm_after_wait_us": float(line.gemm_end[-1, 0] - line.gemm_waited[-1, 0]),
        "prefetched_bytes": float(line.prefetched_bytes[-1, 0]),
        "wasted_prefetch_bytes": float(line.wasted_bytes[-1, 0]),
        "split_k": case.build.split_k,
        "stages": case.build.stages,
        "clusters": case.build.clusters,
    }


def _measure(case: LayerCase, tuning: Tuning | None) -> dict[str, Any]:
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
    from gemm_model.overlap.config import OverlapSetting
    from gemm_model.overlap.model import CLOCK_MHZ
    from gemm_model.overlap.tuner import refine

    chain = LayerChain(case.m, case.n, case.k, case.build.a_type, case.build.b_type)
    previous = PreviousSpec(extra_clocks=round(case.extra_us * CLOCK_MHZ))

    def measure_us(setting: OverlapSetting) -> float:
        return chain.layer_time_us(case.build, setting, previous)

    def no_overlap_us() -> float:
        return chain.layer_time_us(
            replace(case.build, dependent_launch=False),
            OverlapSetting(overlap_ratio=-1, prefetch_ratio=0),
            replace(previous, trigger_early=False),
        )

    if tuning is None:
        return {"measured_layer_us": measure_us(case.setting), "measured_no_overlap_us": no_overlap_us()}
    refined = refine(tuning, measure_us, no_overlap_us)
    return {
        "measured_overlap_ratio": refined.setting.overlap_ratio,
        "measured_prefetch_ratio": refined.setting.prefetch_ratio,
        "measured_layer_us": refined.layer_us,
        "measured_no_overlap_us": refined.no_overlap_us,
    }


def _surfaces(args: argparse.Namespace, model: OverlapModel) -> int:
    from gemm_model.overlap.model import CLOCK_MHZ
    from gemm_model.overlap.surfaces import accuracy, cases_of, read_surfaces
    from gemm_model.overlap.views import plot_surfaces

    table = read_surfaces(*args.surfaces)
    rows = accuracy(table, model.gpu, model.parameters)
    common.show(rows, args.format)
    within = int((rows["regret"] <= 0.03).sum())
    common.words(
        f"mean error {rows['mean_error'].mean():.1%}; the tuner's pick is within 3 % of the grid's best in "
        f"{within} of {len(rows)} surfaces, {rows['regret'].mean():.1%} slower than it in the mean, "
        f"{rows['regret'].max():.1%} at most"
    )
    if args.plot is not None:
        titles = (
            table["m"].astype(str)
            + " x "
            + table["k"].astype(str)
            + ", split "
            + table["split_k"].astype(str)
            + ", "
            + table["clusters"].astype(str)
            + " clusters, "
            + table["stages"].astype(str)
            + " stages"
            + table["extra_clocks"].map(
                lambda clocks: f", norm {clocks / CLOCK_MHZ:.0f} us longer" if clocks else ""
            )
        )
        shown = table.assign(title=titles, predicted=model.layer_us(cases_of(table)))
        plot_surfaces(shown[(shown["serialized"] == 0)], args.plot)
        common.words(f"wrote {args.plot}")
    return 0
