"""What several verbs share: choosing GPU and model, describing one kernel, and the output format."""

from __future__ import annotations

import argparse
import json
import sys

import pandas as pd

from gemm_model.core.errors import InputError
from gemm_model.core.kernel_config import AUTO_KERNEL, KERNELS, RASTERS, SCHEDULES, KernelConfig, parse_extent
from gemm_model.core.problem import GemmProblem
from gemm_model.core.settings import Settings, load_settings

FORMATS = ("table", "json", "csv")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose GPU and model; `key=value` words change anything else of the configuration."""
    parser.add_argument("--gpu", help="a GPU's name or a YAML file (default: h200)")
    parser.add_argument("--model", help="a model's name (default: the configuration's)")


def settings(args: argparse.Namespace, **defaults: str) -> Settings:
    """The configuration from `--gpu`, `--model` and the `key=value` words, over a verb's own defaults."""
    chosen = {key: value for key in ("gpu", "model") if (value := getattr(args, key, None))}
    return load_settings(args.overrides, {**defaults, **chosen})


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS, default="table", help="format of stdout (default: table)"
    )


def show(frame: pd.DataFrame, output_format: str) -> None:
    """Print a frame on stdout as an aligned table, as JSON records or as CSV."""
    if output_format == "json":
        print(json.dumps(json.loads(frame.to_json(orient="records")), indent=2))
    elif output_format == "csv":
        frame.to_csv(sys.stdout, index=False)
    else:
        print(frame.to_string(index=False, float_format=lambda value: f"{value:.4g}"))


def words(text: str) -> None:
    """Say something to the person at the terminal: stderr, so that stdout holds data alone."""
    print(text, file=sys.stderr)


def add_problem(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Arguments that describe one GEMM."""
    for name in ("m", "n", "k"):
        parser.add_argument(f"--{name}", type=int, required=required, help=f"size {name} of the problem")
    parser.add_argument("--batch", type=int, default=1, help="number of independent GEMMs (default: 1)")
    parser.add_argument(
        "--dtype", default="bf16", help="operand type, such as bf16, fp8, nvfp4 (default: bf16)"
    )
    parser.add_argument("--b-dtype", help="type of operand B (default: that of A)")
    parser.add_argument("--out-dtype", help="output type (default: that of the operands, bf16 below 16 bits)")


def problem(args: argparse.Namespace) -> GemmProblem:
    missing = [name for name in ("m", "n", "k") if getattr(args, name) is None]
    if missing:
        raise InputError(f"--{missing[0]} is missing; expected --m, --n and --k")
    return GemmProblem.of(
        args.m, args.n, args.k, args.dtype, args.out_dtype, b_dtype=args.b_dtype, batch=args.batch
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Arguments that describe one kernel configuration."""
    parser.add_argument("--cta", help="output tile of a CTA, MxN or MxNxK, such as 128x256")
    parser.add_argument("--cluster", default="1x1", help="CTAs of a cluster, MxN (default: 1x1)")
    parser.add_argument("--stages", type=int, default=0, help="pipeline stages (default: as many as fit)")
    parser.add_argument("--schedule", choices=SCHEDULES, default="cooperative")
    parser.add_argument("--raster", choices=RASTERS, default="heuristic")
    parser.add_argument("--swizzle", type=int, default=8, help="largest raster group (default: 8)")
    parser.add_argument("--split-k", type=int, default=1, help="parts that K is split into (default: 1)")
    parser.add_argument(
        "--kernel", default=AUTO_KERNEL, help=f"kernel family: {', '.join(KERNELS)} (default: the GPU's own)"
    )
    parser.add_argument("--fast-accum", action="store_true", help="fp8: keep sums in the tensor cores alone")


def config(args: argparse.Namespace) -> KernelConfig:
    if args.cta is None:
        raise InputError("--cta is missing; expected the output tile of a CTA, such as --cta 128x256")
    tile = parse_extent(args.cta, "--cta", (2, 3))
    cluster_m, cluster_n = parse_extent(args.cluster, "--cluster")
    return KernelConfig(
        cta_m=tile[0],
        cta_n=tile[1],
        cta_k=tile[2] if len(tile) > 2 else 0,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        stages=args.stages,
        schedule=args.schedule,
        raster=args.raster,
        swizzle=args.swizzle,
        split_k=args.split_k,
        kernel=args.kernel,
        fast_accum=args.fast_accum,
    )
