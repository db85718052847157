"""How good are choices across libraries? The first choice of all families against the best measured kernel.

    python benchmarks/choice_across.py --output docs/evidence/libraries.md

The space of a shape is all its measured kernels of the four families; shapes that a family was not measured
on are left out. The efficiency of a choice is the best measured time over the time of what was chosen. Slow
and fast fp8 sums are two problems: their results differ. Beside the choice of all families stand that of
each family alone, the kernel that torch's cuBLAS takes, cuBLASLt's first heuristic and, where it is
installed, what nvMatmulHeuristics predicts to be the fastest CUTLASS kernel. Splits of K are judged on shapes
that nothing was fitted to (campaign FRESH), by the mean time of three cards.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from measured import rows_of

from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import STREAM_K, KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.errors import GemmModelError
from gemm_model.models import DEFAULT_MODEL, create_model
from gemm_model.tables.accuracy import choice_figures
from gemm_model.tables.table import predict_frame, runtimes_us, usable_rows

GPU = "h200"
CAMPAIGNS = ("cublaslt", "cutlass", "triton_persistent", "quack_variants", "splits", "burst")
FRESH = "decode_splits_fresh"
SHAPE = ["in_dtype", "sums", "m", "n", "k"]
SIZES = ["m", "n", "k"]
NUMBERS = [
    "cta_m",
    "cta_n",
    "cta_k",
    "cluster_m",
    "cluster_n",
    "stages",
    "swizzle",
    "split_k",
    "heuristic_rank",
]
KERNEL = ["kernel", "schedule", "raster", "scheduler", *NUMBERS]
"""What tells a row of a shape from the others."""
FAMILIES = ("quack", "cublas", "cutlass", "triton")
DECODE_M = 64
NEAR = 0.03
"""A split this much slower than the best one is as good."""


def load(campaigns: Sequence[str]) -> pd.DataFrame:
    """Rows of all campaigns in the burst regime with numbers as numbers, and their predictions."""
    frames = []
    for name in campaigns:
        rows, notes = usable_rows(rows_of(name), needs_tile=True)
        frames.append(rows.assign(runtime_us=runtimes_us(rows), table=name))
        for note in notes:
            print(f"{name}: {note}")
    frame = pd.concat(frames, ignore_index=True)
    frame = frame[frame.get("regime", "burst").fillna("burst") == "burst"]
    for name in (*SIZES, *NUMBERS):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    fast = pd.to_numeric(frame["fast_accum"], errors="coerce").fillna(0) > 0
    frame["sums"] = np.where(frame["in_dtype"] != "e4m3", "", np.where(fast, "fast", "slow"))
    frame["split_k"] = frame["split_k"].fillna(1)
    # cuBLASLt's algorithms stand in the list of its heuristic, torch's heuristic choice does not.
    frame["kernel"] = frame["kernel"].replace("cublaslt", "cublas")
    frame["pick"] = (frame["kernel"] == "cublas") & frame["heuristic_rank"].isna()
    return frame.reset_index(drop=True)


def in_all_families(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of problems (whatever the sums) that every family was measured on."""
    own = frame[~frame["pick"]]
    families = own.groupby(["in_dtype", *SIZES])["kernel"].nunique()
    kept = families[families == len(FAMILIES)].index
    return frame[pd.MultiIndex.from_frame(frame[["in_dtype", *SIZES]]).isin(kept)].reset_index(drop=True)


def predicted(frame: pd.DataFrame, gpu: GpuSpec, **options: str) -> np.ndarray:
    """Times by prediction; infinite for picks and for what is not modelled."""
    times_us = np.full(len(frame), np.inf)
    modelled = ~frame["pick"]
    rows = frame[modelled].drop(columns=["sums", "pick", "table"])
    times_us[modelled] = predict_frame(rows, create_model(DEFAULT_MODEL, gpu, options)).runtime_us
    return times_us


def nvidia(frame: pd.DataFrame, gpu: str) -> np.ndarray:
    """What nvMatmulHeuristics predicts of the CUTLASS kernels; infinite elsewhere."""
    from gemm_model.integrations.nvmatmul import NvMatmulHeuristics

    library = NvMatmulHeuristics(gpu)
    times_us = np.full(len(frame), np.inf)
    rows = frame[(frame["kernel"] == "cutlass") & (frame["scheduler"] == "static")]
    names = ("cta_m", "cta_n", "cluster_m", "cluster_n", "swizzle")
    for _, shape in rows.groupby(SHAPE):
        first = shape.iloc[0]
        problem = GemmProblem.of(*(int(first[name]) for name in SIZES), first["in_dtype"], first["out_dtype"])
        configs = [
            KernelConfig(**{name: int(float(value)) for name, value in zip(names, values, strict=True)})
            for values in shape[list(names)].itertuples(index=False)
        ]
        times_us[shape.index] = library.predict_us(problem, configs)
    return times_us


def efficiency(frame: pd.DataFrame, times_us: np.ndarray | pd.Series) -> pd.Series:
    """By shape the best measured time over that of the row with the smallest of `times_us`, where one is."""
    ours = ~frame["pick"]
    best_us = frame[ours].groupby(SHAPE)["runtime_us"].min()
    known = frame.assign(of_choice=times_us)[np.isfinite(times_us)]
    chosen = known.loc[known.groupby(SHAPE)["of_choice"].idxmin()].set_index(SHAPE)["runtime_us"]
    result: pd.Series = (best_us / chosen).dropna()
    return result


def methods(frame: pd.DataFrame, gpu: str) -> Iterator[tuple[str, pd.Series]]:
    """Ways to choose, each with its efficiency by shape."""

    def only(rows: pd.Series, times_us: pd.Series) -> pd.Series:
        return efficiency(frame, times_us.where(rows, np.inf))

    times_us, measured_us = frame["predicted_us"], frame["runtime_us"]
    yield "all families", only(~frame["pick"], times_us)
    for family in FAMILIES:
        yield f"{family} alone", only((frame["kernel"] == family) & ~frame["pick"], times_us)
    for family in FAMILIES:
        yield f"{family}, its best measured", only((frame["kernel"] == family) & ~frame["pick"], measured_us)
    yield "torch's cuBLAS, its heuristic choice", only(frame["pick"], measured_us)
    yield "cuBLASLt's first heuristic", only(frame["heuristic_rank"] == 0, measured_us)
    try:
        yield "nvMatmulHeuristics among CUTLASS", efficiency(frame, nvidia(frame, gpu))
    except GemmModelError as error:
        print(f"nvMatmulHeuristics: {error}")


def choice_lines(frame: pd.DataFrame, gpu: str) -> Iterator[str]:
    """The mean efficiency of each way to choose and its 5th percentile, by type."""
    kinds = sorted(set(zip(frame["in_dtype"], frame["sums"], strict=True)))
    yield f"| choice | {' | '.join(f'{dtype}, {sums} sums' if sums else dtype for dtype, sums in kinds)} |"
    yield f"|---|{'---|' * len(kinds)}"
    for method, by_shape in methods(frame, gpu):
        cells = []
        for kind in kinds:
            of_type = by_shape[by_shape.index.droplevel(SIZES).isin([kind])]
            found = choice_figures(of_type) if len(of_type) else None
            cells.append("" if found is None else f"{found.mean:.1%} ({found.p5:.1%})")
        yield f"| {method} | {' | '.join(cells)} |"


def winner_lines(frame: pd.DataFrame) -> Iterator[str]:
    """Where each family has the fastest measured kernel, and by how much the others are slower."""
    best_us = frame[~frame["pick"]].groupby([*SHAPE, "kernel"])["runtime_us"].min().unstack("kernel")
    size = pd.cut(
        best_us.index.get_level_values("m"),
        [0, 16, 64, 512, 2048, np.inf],
        labels=["1 to 16", "17 to 64", "65 to 512", "513 to 2048", "above 2048"],
    )
    kind = [
        f"{dtype}, {sums} sums" if sums else "bf16, fp16" if dtype in ("bf16", "fp16") else dtype
        for dtype, sums in zip(
            best_us.index.get_level_values("in_dtype"), best_us.index.get_level_values("sums"), strict=True
        )
    ]
    yield f"| type | m | shapes | {' | '.join(FAMILIES)} |"
    yield f"|---|---|---|{'---|' * len(FAMILIES)}"
    for (of_kind, of_size), rows in best_us.groupby([kind, size], observed=True):
        least_us = rows.min(axis=1)
        cells = []
        for family in FAMILIES:
            known = rows[family].dropna()
            share = (known == least_us[known.index]).sum() / len(rows)
            slower = (known / least_us[known.index] - 1.0).mean()
            cells.append(f"{share:.0%}, {slower:+.0%}" if len(known) else "")
        yield f"| {of_kind} | {of_size} | {len(rows)} | {' | '.join(cells)} |"


def of_each_row_once(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of several cards, each with the geometric mean of its times and of its predictions."""
    key = [*SHAPE, *KERNEL, "pick"]
    logs = frame.assign(**{name: np.log(frame[name]) for name in ("runtime_us", "predicted_us")})
    means = logs.groupby(key, dropna=False)[["runtime_us", "predicted_us"]].mean()
    return np.exp(means).reset_index()


def split_lines(frame: pd.DataFrame) -> Iterator[str]:
    """Chosen splits on decode shapes: of a family's kernels, the split (or stream-K) of the first choice."""
    types = sorted(frame["in_dtype"].unique())
    head = " | ".join(("family", "shapes", "split near the best", *types))
    yield f"| {head} | the choice | never a split |"
    yield f"|---|---|---|{'---|' * len(types)}---|---|"
    every = []
    rows = frame[~frame["pick"] & (frame["m"] <= DECODE_M)]
    rows = rows.assign(split_k=rows["split_k"].where(rows["scheduler"] != STREAM_K, STREAM_K))
    for family in FAMILIES:
        own = rows[rows["kernel"] == family]
        splits = own.groupby(SHAPE)["split_k"]
        whole = own["split_k"].eq(1).groupby([own[name] for name in SHAPE]).transform("any")
        own = own[(splits.transform("nunique") > 1) & whole]
        if own.empty:
            continue
        best_us = own.groupby(SHAPE)["runtime_us"].min()
        chosen = own.loc[own.groupby(SHAPE)["predicted_us"].idxmin()].set_index(SHAPE)
        of_split_us = own.merge(chosen["split_k"].reset_index(), on=[*SHAPE, "split_k"])
        near = of_split_us.groupby(SHAPE)["runtime_us"].min() <= best_us * (1.0 + NEAR)
        whole_us = own[own["split_k"] == 1].groupby(SHAPE)["runtime_us"].min()
        judged = pd.DataFrame(
            {"near": near, "ours": best_us / chosen["runtime_us"], "never": best_us / whole_us}
        )
        every.append(judged)
        yield _split_line(family, judged, types)
    yield _split_line("all", pd.concat(every), types)


def _split_line(name: str, judged: pd.DataFrame, types: Sequence[str]) -> str:
    """How often the chosen split is near the best, of all and of each type, and what choices reach."""
    by_type = judged["near"].groupby("in_dtype").agg(["sum", "count"]).reindex(types, fill_value=0)
    cells = [f"{near:.0f} of {count}" for near, count in by_type.itertuples(index=False)]
    near = f"{judged['near'].mean():.1%}"
    means = [f"{judged[column].mean():.1%}" for column in ("ours", "never")]
    return f"| {' | '.join((name, str(len(judged)), near, *cells, *means))} |"


PAGE = """\
# Choosing across libraries

`gemm-model rank --family any` ranks the kernels of all libraries in one list; `--against cublas` adds the gain over the
kernel that cuBLAS would take ([how](../how-to/choose.md#which-library)). `benchmarks/choice_across.py` writes this page
from rows of an H200 (campaigns {tables}).
Slow and fast fp8 sums are two problems, since their results differ: QuACK and torch's cuBLAS add slowly, Triton fast,
CUTLASS both ways.

## Where each library wins
Share of problems whose fastest measured kernel is the family's, and how much slower the family's best is than the best
of all (mean). Measured kernels of a problem (median): {drawn}. Those of cuBLAS are
the first eight of its heuristic; the others were drawn, so a family can miss its best.

{winners}

## First choices
Efficiency: best measured time of all families over that of the choice; mean (5th percentile) over {shapes} problems
that all families were measured on, {kernels} kernels of a problem in the median. The formulas of the shipped
calibrations predict; they were fitted to rows of these problems. "Its best measured" is the limit of a family.

{choices}

## Splits
Decode layers ({decode} rows or fewer) that nothing was fitted to (`{fresh}`, mean of {cards} cards), by
default. A split is near the best if its best kernel is within {near:.0%} of the best of all; efficiencies of
the choice, and without splits.

{splits}
"""


def page_text(frame: pd.DataFrame, fresh: pd.DataFrame) -> str:
    """The page of evidence; all of its figures are of this run."""
    own = frame[~frame["pick"]]
    drawn = own.groupby(["in_dtype", *SIZES, "kernel"]).size().groupby("kernel").median()
    problems = own.groupby(["in_dtype", *SIZES])
    return PAGE.format(
        tables=", ".join(f"`{name}`" for name in CAMPAIGNS),
        shapes=problems.ngroups,
        kernels=int(problems.size().median()),
        choices="\n".join(choice_lines(frame, GPU)),
        winners="\n".join(winner_lines(frame)),
        drawn=", ".join(f"{family} {drawn[family]:.0f}" for family in FAMILIES),
        decode=DECODE_M,
        near=NEAR,
        fresh=FRESH,
        cards=fresh["gpu_uuid"].nunique(),
        splits="\n".join(split_lines(of_each_row_once(fresh))),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="Markdown file for the page of evidence")
    args = parser.parse_args()
    frame, fresh = in_all_families(load(CAMPAIGNS)), load([FRESH])
    # The trees of the residual have seen the rows of the first.
    frame["predicted_us"] = predicted(frame, load_gpu(GPU), residual="off")
    fresh["predicted_us"] = predicted(fresh, load_gpu(GPU))
    text = page_text(frame, fresh)
    print(text)
    if args.output:
        atomic_write(args.output, text)


if __name__ == "__main__":
    main()
