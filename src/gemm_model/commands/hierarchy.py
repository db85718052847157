"""`gemm-model hierarchy`: throughput matching, its inverse, rooflines and the ladder of CUDA-core kernels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemm_model.commands import common
from gemm_model.core.errors import InputError

if TYPE_CHECKING:
    from gemm_model.hierarchy.blocking import Blocking
    from gemm_model.hierarchy.levels import Machine
    from gemm_model.hierarchy.matching import Matching

Shape = tuple[int, int, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", help="a GPU's name or a YAML file (default: h200)")
    parser.add_argument("--datapath", default="cuda_cores", help="cuda_cores (default) or tensor_cores")
    parser.add_argument("--dtype", default="fp32", help="operand type (default: fp32)")
    parser.add_argument(
        "--shape", default="4096x4096x4096", help="MxNxK of the problem (default: 4096 cubed)"
    )
    parser.add_argument(
        "--tile",
        action="append",
        default=[],
        metavar="LEVEL:MxN",
        help="a tile: cluster (in CTAs), cta (MxN or MxNxK), warp, thread or mma; may be repeated",
    )
    parser.add_argument("--stages", type=int, default=2, help="buffers in shared memory (default: 2)")
    parser.add_argument("--output-mode", default="ignored", help="ignored (default), once or each_slice")
    parser.add_argument(
        "--no-l2", action="store_true", help="DRAM feeds shared memory directly, nothing is reused in L2"
    )
    parser.add_argument("--solve", action="store_true", help="search the tiles that match the demand")
    parser.add_argument("--target", type=float, default=0.9, help="--solve: fraction of peak (default: 0.9)")
    parser.add_argument("--ladder", action="store_true", help="predict the ladder of CUDA-core kernels")
    parser.add_argument("--measurements", type=Path, help="--ladder: a table of measurements to compare with")
    parser.add_argument(
        "--text", action="store_true", help="the text's three V100 kernels, and what we predict"
    )
    parser.add_argument("--plot", type=Path, help="write a plot of what was asked (.png, .svg or .pdf)")
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    from gemm_model.core.kernel_config import parse_extent
    from gemm_model.hierarchy.levels import datapath_of, machine_of

    if args.measurements is not None and not args.ladder:
        raise InputError("--measurements is given without --ladder; expected both or neither")
    if args.solve + args.ladder + args.text > 1:
        raise InputError("more than one of --solve, --ladder and --text is given; expected one")
    if args.text:
        args.gpu = args.gpu or "v100_sxm2"
    chosen = common.settings(args, model="MemoryHierarchyModel")
    machine = machine_of(chosen.gpu, datapath_of(chosen.gpu, args.datapath, args.dtype))
    m, n, k = parse_extent(args.shape, "--shape", (3,))
    if args.ladder:
        return _ladder(args, machine, (m, n, k), chosen.options)
    if args.text:
        return _text(args, machine, chosen.options)
    if args.solve:
        return _solve(args, machine, (m, n, k))
    return _picture(args, machine, (m, n, k))


def _picture(args: argparse.Namespace, machine: Machine, shape: Shape) -> int:
    import pandas as pd

    from gemm_model.hierarchy.blocking import blocking_of, footprint, parse_tiles
    from gemm_model.hierarchy.matching import OUTPUT_MODES, match, resident_grid

    blocking = blocking_of(parse_tiles(args.tile), machine.gpu, machine.datapath, args.stages)
    taken = footprint(blocking, machine.gpu, machine.datapath)
    grid = resident_grid(machine, blocking, taken.ctas_per_sm, shape)
    reuse = not args.no_l2
    chosen = match(machine, blocking, grid, reuse_in_l2=reuse, output=args.output_mode)
    others = {
        mode: match(machine, blocking, grid, reuse_in_l2=reuse, output=mode).fraction_of_peak
        for mode in OUTPUT_MODES
    }
    levels = pd.DataFrame(
        [
            {
                "level": level.name,
                "capacity_bytes": level.capacity_bytes,
                "bytes_per_clk": level.bytes_per_clk,
                "port_bytes_per_clk": level.port_bytes_per_clk,
            }
            for level in machine.levels
        ]
    )
    stages = _stage_table(chosen)
    if args.plot is not None:
        from gemm_model.hierarchy.plots import plot_roofline

        plot_roofline(machine, chosen, args.plot)
        common.words(f"wrote {args.plot}")
    figures = _figures(machine, blocking, shape) | {
        "registers_per_thread": taken.registers_per_thread,
        "smem_bytes": taken.smem_bytes,
        "ctas_per_sm": taken.ctas_per_sm,
        "limiting_stage": chosen.limiting.name,
        "fraction_of_peak": chosen.fraction_of_peak,
        "bound_tflops": chosen.fraction_of_peak * machine.peak_tflops,
    }
    if args.format == "csv":
        common.show(stages, "csv")
    elif args.format == "json":
        document = {"levels": levels.to_dict("records"), "stages": stages.to_dict("records")}
        document |= {"figures": figures, "fraction_of_peak_by_output_mode": others}
        print(json.dumps(json.loads(pd.Series(document).to_json()), indent=2))
    else:
        print(f"ONE SM OF {machine.gpu.name}: {machine.datapath.name}, {machine.datapath.dtype}")
        path = machine.datapath
        print(f"demand {path.demand_bytes_per_clk:g} B/clk, {path.fma_per_clk:g} FMA/clk")
        common.show(levels, "table")
        print("\nSTAGES, outermost first (B/clk of one SM)")
        common.show(stages, "table")
        print()
        for name, value in figures.items():
            print(f"{name:28s} {value:.4g}" if isinstance(value, float) else f"{name:28s} {value}")
        print(
            "fraction of peak, output ".ljust(28),
            ", ".join(f"{mode} {value:.3f}" for mode, value in others.items()),
        )
    for caveat in (*chosen.caveats, *machine.gpu.caveats):
        common.words(f"note: {caveat}")
    return 0


def _stage_table(matching: Matching) -> Any:
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "stage": stage.name,
                "bytes_per_clk": stage.bytes_per_clk,
                "tile": f"{stage.tile_m:g}x{stage.tile_n:g}",
                "tiling": stage.tiling,
                "multicast": stage.multicast,
                "amplification": stage.amplification,
                "required": stage.required,
                "delivered": stage.delivered_bytes_per_clk,
                "demanded": stage.demanded_bytes_per_clk,
                "fraction": stage.fraction,
            }
            for stage in matching.stages
        ]
    )


def _figures(machine: Machine, blocking: Blocking, shape: Shape) -> dict[str, Any]:
    from gemm_model.hierarchy.roofline import byte_intensity, elements_intensity, ridge_fma_per_byte

    path = machine.datapath
    out_bytes = max(path.a_bytes, 2.0)
    return {
        "intensity_fma_per_element": elements_intensity(*shape),
        "intensity_fma_per_byte": byte_intensity(*shape, path.a_bytes, path.b_bytes, out_bytes),
        "ridge_fma_per_byte": ridge_fma_per_byte(machine),
        "peak_tflops": machine.peak_tflops,
        "cta_tile": f"{blocking.cta_m}x{blocking.cta_n}x{blocking.cta_k}",
    }


def _solve(args: argparse.Namespace, machine: Machine, shape: Shape) -> int:
    import pandas as pd

    from gemm_model.hierarchy.solve import Candidate, solve

    if args.tile:
        raise InputError("--tile is given with --solve; expected one of them")
    found = solve(
        machine,
        shape,
        stages=args.stages,
        target=args.target,
        reuse_in_l2=not args.no_l2,
        output=args.output_mode,
    )

    def row(candidate: Candidate) -> dict[str, Any]:
        tile = candidate.blocking
        inner = (tile.thread_m, tile.thread_n) if tile.thread_m else (tile.mma_m, tile.mma_n)
        return {
            "cta": f"{tile.cta_m}x{tile.cta_n}x{tile.cta_k}",
            "cluster": f"{tile.cluster_m}x{tile.cluster_n}",
            "warp": f"{tile.warp_m}x{tile.warp_n}",
            "thread" if tile.thread_m else "mma": f"{inner[0]}x{inner[1]}",
            "registers_per_thread": candidate.footprint.registers_per_thread,
            "smem_bytes": candidate.footprint.smem_bytes,
            "ctas_per_sm": candidate.footprint.ctas_per_sm,
            "fraction_of_peak": candidate.fraction_of_peak,
            "limiting_stage": candidate.matching.limiting.name,
        }

    frontier = pd.DataFrame([row(candidate) for candidate in found.frontier])
    by_stage = pd.DataFrame(
        [
            {"stage": name, "required": stage.required, "tile": f"{stage.tile_m:g}x{stage.tile_n:g}"}
            | {"amplification": stage.amplification}
            for name, candidate in found.smallest_by_stage.items()
            for stage in candidate.matching.stages
            if stage.name == name
        ]
    )
    if args.plot is not None:
        from gemm_model.hierarchy.plots import plot_frontier

        plot_frontier(machine, found, args.plot)
        common.words(f"wrote {args.plot}")
    if args.format == "csv":
        common.show(frontier, "csv")
    elif args.format == "json":
        document = {
            "target": found.target,
            "smallest": row(found.smallest) if found.smallest else None,
            "smallest_by_stage": by_stage.to_dict("records"),
            "frontier": frontier.to_dict("records"),
            "advice": found.advice,
        }
        print(json.dumps(document, indent=2))
    else:
        print(
            f"SMALLEST TILE OF EACH STAGE that delivers {found.target:.0%} of what {machine.gpu.name} demands"
        )
        common.show(by_stage, "table")
        print(f"\nFRONTIER: tiles that no smaller one beats ({found.candidates} candidates fit)")
        common.show(frontier, "table")
        if found.smallest:
            print(f"\nsmallest tile that reaches {found.target:.0%}:")
            common.show(pd.DataFrame([row(found.smallest)]), "table")
    for line in found.advice:
        common.words(line)
    return 0


def _ladder(args: argparse.Namespace, machine: Machine, shape: Shape, options: Mapping[str, Any]) -> int:
    from gemm_model.bench.simt.ladder import LADDER
    from gemm_model.hierarchy.ladder_report import by_rung, compared, predicted, read_measurements
    from gemm_model.hierarchy.model import runtime_parameters

    if machine.datapath.name != "cuda_cores":
        raise InputError(f"--ladder is for CUDA cores; expected --datapath cuda_cores, not {args.datapath}")
    parameters = runtime_parameters(options)
    kernels = [(kernel.name, kernel.rung, kernel.blocking, kernel.resident_ctas) for kernel in LADDER]
    table = predicted(machine, kernels, shape, parameters)
    if args.measurements is None:
        common.show(table, args.format)
        return 0
    joined = compared(
        read_measurements(args.measurements), lambda extent: predicted(machine, kernels, extent, parameters)
    )
    if args.plot is not None:
        from gemm_model.hierarchy.plots import plot_ladder

        plot_ladder(
            joined[(joined.m == shape[0]) & (joined.n == shape[1]) & (joined.k == shape[2])], args.plot
        )
        common.words(f"wrote {args.plot}")
    columns = ["kernel", "m", "n", "k", "tflops", "predicted_tflops", "error", "limiter", "counted_limiter"]
    common.show(joined[columns], args.format)
    if args.format == "table":
        print("\nBY RUNG")
        common.show(by_rung(joined), "table")
        print(f"\nmean |error| of {len(joined)} rows: {joined.error.abs().mean():.1%}")
    return 0


def _text(args: argparse.Namespace, machine: Machine, options: Mapping[str, Any]) -> int:
    from dataclasses import asdict

    import pandas as pd

    from gemm_model.hierarchy.model import runtime_parameters
    from gemm_model.hierarchy.text_kernels import text_predictions

    if machine.datapath.name != "cuda_cores":
        raise InputError(f"--text is for CUDA cores; expected --datapath cuda_cores, not {args.datapath}")
    rows = text_predictions(machine, runtime_parameters(options))
    common.show(
        pd.DataFrame([asdict(row) | {"measured_of_cublas": row.measured_of_cublas} for row in rows]),
        args.format,
    )
    return 0
