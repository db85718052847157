"""`gemm-model hierarchy`: throughput matching, its inverse, rooflines and the ladder of CUDA-core kernels."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from gemm_model.commands import common
from gemm_model.config import read_toml
from gemm_model.core.kernel_config import parse_extent
from gemm_model.core.sizes import MAX_SIZE
from gemm_model.errors import InputError
from gemm_model.hierarchy.blocking import Blocking, blocking_of, footprint, parse_tiles
from gemm_model.hierarchy.levels import Machine, datapath_of, machine_of
from gemm_model.hierarchy.matching import OUTPUT_MODES, match, resident_grid
from gemm_model.hierarchy.model import runtime_parameters
from gemm_model.hierarchy.plots import plot_frontier, plot_ladder, plot_roofline
from gemm_model.hierarchy.roofline import byte_intensity, elements_intensity, ridge_fma_per_byte
from gemm_model.hierarchy.solve import Candidate, solve
from gemm_model.hierarchy.variants import variant
from gemm_model.report.document import Document, plain, text_table

Shape = tuple[int, int, int]


WAYS = {
    "solve": ("datapath", "dtype", "shape", "stages", "output_mode", "no_l2", "target", "what_if", "plot"),
    "ladder": ("datapath", "dtype", "shape", "input", "plot"),
    "text": ("datapath", "dtype"),
}
"""What each way of using the verb reads, beside GPU and output."""
OF_A_STAGE: Mapping[str, str] = read_toml("columns")["stages"]
"""Column of the table of stages -> what it holds of a `Stage`."""
PICTURE = ("datapath", "dtype", "shape", "tile", "stages", "output_mode", "no_l2", "what_if", "plot")


def run(args: argparse.Namespace) -> Document:
    asked = [name for name in WAYS if getattr(args, name)]
    if len(asked) > 1:
        raise InputError("more than one of --solve, --ladder and --text is given; expected one")
    way = asked[0] if asked else None
    if way is None:
        common.refuse_unused(args, "without --solve or --ladder", (*common.GPU, *common.OUTPUT, *PICTURE))
    else:
        common.refuse_unused(args, f"with --{way}", (*common.GPU, *common.OUTPUT, way, *WAYS[way]))
    common.check_document(args, args.plot)
    if args.text:
        args.gpu = args.gpu or "v100_sxm2"
    chosen = common.settings(args)
    if chosen.model != "MemoryHierarchyModel":
        raise InputError(f"model is {chosen.model}; expected MemoryHierarchyModel, the one of this verb")
    machine = machine_of(chosen.gpu, datapath_of(chosen.gpu, args.datapath, args.dtype))
    for change in args.what_if:
        machine = variant(machine, change)
    shape = parse_extent(args.shape, "--shape", (3,))
    if max(shape) > MAX_SIZE:
        raise InputError(f"--shape is {args.shape}; expected sizes of at most 2^40")
    m, n, k = shape
    if way in ("ladder", "text") and machine.datapath.name != "cuda_cores":
        raise InputError(f"--{way} is for CUDA cores; expected --datapath cuda_cores, not {args.datapath}")
    if args.ladder:
        return _ladder(args, machine, (m, n, k), chosen.options)
    if args.text:
        from gemm_model.hierarchy.ladder_report import text_predictions

        return _document(machine, rows=text_predictions(machine, runtime_parameters(chosen.options)))
    return (_solve if args.solve else _picture)(args, machine, (m, n, k))


def _document(machine: Machine, **parts: Any) -> Document:
    return Document(gpu=machine.gpu.name, model="MemoryHierarchyModel", **parts)


def _picture(args: argparse.Namespace, machine: Machine, shape: Shape) -> Document:
    blocking = blocking_of(parse_tiles(args.tile), machine.gpu, machine.datapath, args.stages)
    taken = footprint(blocking, machine.gpu, machine.datapath)
    grid = resident_grid(machine, blocking, taken.ctas_per_sm, shape)
    reuse = not args.no_l2
    chosen = match(machine, blocking, grid, reuse_in_l2=reuse, output=args.output_mode)
    others = {
        mode: match(machine, blocking, grid, reuse_in_l2=reuse, output=mode).fraction_of_peak
        for mode in OUTPUT_MODES
    }
    levels = pd.DataFrame(map(asdict, machine.levels)).rename(columns={"name": "level"})
    stages = _table(chosen.stages, OF_A_STAGE)
    figures = _figures(machine, blocking, shape) | {
        "registers_per_thread": taken.registers_per_thread,
        "smem_bytes": taken.smem_bytes,
        "ctas_per_sm": taken.ctas_per_sm,
        "limiting_stage": chosen.limiting.name,
        "fraction_of_peak": chosen.fraction_of_peak,
        "bound_tflops": chosen.fraction_of_peak * machine.peak_tflops,
    }
    return _document(
        machine,
        result=plain({"levels": levels, "figures": figures, "fraction_of_peak_by_output_mode": others}),
        rows=stages,
        notes=[*chosen.caveats, *machine.gpu.caveats],
        text=lambda: _picture_text(machine, levels, stages, figures, others),
        files=[(args.plot, lambda path: plot_roofline(machine, chosen, path))],
    )


def _picture_text(
    machine: Machine, levels: Any, stages: Any, figures: Mapping[str, Any], others: Mapping[str, float]
) -> str:
    path = machine.datapath
    lines = [
        f"ONE SM OF {machine.gpu.name}: {path.name}, {path.dtype}",
        f"demand {path.demand_bytes_per_clk:g} B/clk, {path.fma_per_clk:g} FMA/clk",
        text_table(levels),
        "",
        "STAGES, outermost first (B/clk of one SM)",
        text_table(stages),
        "",
    ]
    lines += [
        f"{name:28s} {value:.4g}" if isinstance(value, float) else f"{name:28s} {value}"
        for name, value in figures.items()
    ]
    modes = ", ".join(f"{mode} {value:.3f}" for mode, value in others.items())
    return "\n".join([*lines, "fraction of peak, output ".ljust(28) + f" {modes}"])


def _table(rows: Iterable[object], columns: Mapping[str, str]) -> pd.DataFrame:
    """A row for each of some records, whose attributes have other names than the columns."""
    return pd.DataFrame([{name: getattr(row, of) for name, of in columns.items()} for row in rows])


def _figures(machine: Machine, blocking: Blocking, shape: Shape) -> dict[str, Any]:
    path = machine.datapath
    out_bytes = max(path.a_bytes, 2.0)
    return {
        "intensity_fma_per_element": elements_intensity(*shape),
        "intensity_fma_per_byte": byte_intensity(*shape, path.a_bytes, path.b_bytes, out_bytes),
        "ridge_fma_per_byte": ridge_fma_per_byte(machine),
        "peak_tflops": machine.peak_tflops,
        "cta_tile": f"{blocking.cta_m}x{blocking.cta_n}x{blocking.cta_k}",
    }


def _of_candidate(candidate: Candidate) -> dict[str, Any]:
    tile, taken = candidate.blocking, candidate.footprint
    inner = (tile.thread_m, tile.thread_n) if tile.thread_m else (tile.mma_m, tile.mma_n)
    return {
        "cta": f"{tile.cta_m}x{tile.cta_n}x{tile.cta_k}",
        "cluster": f"{tile.cluster_m}x{tile.cluster_n}",
        "warp": f"{tile.warp_m}x{tile.warp_n}",
        "thread" if tile.thread_m else "mma": f"{inner[0]}x{inner[1]}",
        "registers_per_thread": taken.registers_per_thread,
        "smem_bytes": taken.smem_bytes,
        "ctas_per_sm": taken.ctas_per_sm,
        "fraction_of_peak": candidate.fraction_of_peak,
        "limiting_stage": candidate.matching.limiting.name,
    }


def _solve(args: argparse.Namespace, machine: Machine, shape: Shape) -> Document:
    found = solve(
        machine,
        shape,
        stages=args.stages,
        target=args.target,
        reuse_in_l2=not args.no_l2,
        output=args.output_mode,
    )

    frontier = pd.DataFrame(map(_of_candidate, found.frontier))
    smallest_stages = (
        stage
        for name, candidate in found.smallest_by_stage.items()
        for stage in candidate.matching.stages
        if stage.name == name
    )
    columns = ("stage", "required", "tile", "amplification")
    by_stage = _table(smallest_stages, {name: OF_A_STAGE[name] for name in columns})
    smallest = _of_candidate(found.smallest) if found.smallest else None

    def text() -> str:
        parts = [
            f"SMALLEST TILE OF EACH STAGE that delivers {found.target:.0%} of what {machine.gpu.name} "
            "demands",
            text_table(by_stage),
            f"\nFRONTIER: tiles that no smaller one beats ({found.candidates} candidates fit)",
            text_table(frontier),
        ]
        if smallest is not None:
            parts += [f"\nsmallest tile that reaches {found.target:.0%}:", text_table([smallest])]
        return "\n".join(parts)

    return _document(
        machine,
        result=plain({"target": found.target, "smallest": smallest, "smallest_by_stage": by_stage}),
        rows=frontier,
        notes=found.advice,
        text=text,
        files=[(args.plot, lambda path: plot_frontier(machine, found, path))],
    )


def _ladder(args: argparse.Namespace, machine: Machine, shape: Shape, options: Mapping[str, Any]) -> Document:
    from gemm_model.bench.simt.ladder import LADDER
    from gemm_model.bench.simt.measurements import read_measurements
    from gemm_model.hierarchy.ladder_report import by_rung, compared, predicted

    parameters = runtime_parameters(options)
    kernels = [(kernel.name, kernel.rung, kernel.blocking, kernel.resident_ctas) for kernel in LADDER]
    table = predicted(machine, kernels, shape, parameters)
    if args.input is None:
        if args.plot is not None:
            raise InputError("--plot is given with --ladder without --input; expected measurements to plot")
        return _document(machine, rows=table)
    joined = compared(
        read_measurements(args.input), lambda extent: predicted(machine, kernels, extent, parameters)
    )
    if len(joined) == 0:
        raise InputError(f"{args.input}: no kernel of the ladder; expected some of its measurements")
    at_shape = joined[(joined.m == shape[0]) & (joined.n == shape[1]) & (joined.k == shape[2])]
    if args.plot is not None and len(at_shape) == 0:
        raise InputError(f"{args.input}: no kernel of shape {args.shape}; expected one to plot")
    columns = ["kernel", "m", "n", "k", "runtime_us", "predicted_us", "tflops", "predicted_tflops"]
    rows, rungs = joined[[*columns, "error", "limiter", "counted_limiter"]], by_rung(joined)
    error = float(joined.error.abs().mean())
    return _document(
        machine,
        result=plain({"mean_error": error, "by_rung": rungs}),
        rows=rows,
        text=lambda: (
            f"{text_table(rows)}\n\nBY RUNG\n{text_table(rungs)}\n\n"
            f"mean |error| of {len(joined)} rows: {error:.1%}"
        ),
        files=[(args.plot, lambda path: plot_ladder(at_shape, path))],
    )
