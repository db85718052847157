"""How good are choices across libraries? The first choice of all families against the best measured kernel.

    python benchmarks/choice_across.py --output docs/choosing.md

The space of a shape is all its measured kernels of the four families; shapes that a family was not measured
on are left out. The efficiency of a choice is the best measured time over the time of what was chosen. Slow
and fast fp8 sums are two problems: their results differ. Beside the choice of all families stand that of
each family alone, the kernel that torch's cuBLAS takes, cuBLASLt's first heuristic and, where it is
installed, what nvMatmulHeuristics predicts to be the fastest CUTLASS kernel. Splits of K are judged by the
mean time of all cards that timed a kernel (campaign AGAIN), and on shapes that nothing was fitted to (FRESH).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from measured import rows_of

from gemm_model.core.errors import GemmModelError
from gemm_model.core.files import atomic_write
from gemm_model.core.gpu import GpuSpec, load_gpu
from gemm_model.core.kernel_config import STREAM_K, KernelConfig
from gemm_model.core.problem import GemmProblem
from gemm_model.models import DEFAULT_MODEL, create_model
from gemm_model.tables.accuracy import choice_figures, error_figures
from gemm_model.tables.table import predict_frame, runtimes_us, usable_rows

GPU = "h200"
CAMPAIGNS = ("cublaslt", "cutlass", "triton_persistent", "quack_variants", "splits", "burst")
AGAIN, FRESH = "decode_splits", "decode_splits_fresh"
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


def predicted(frame: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """Times by prediction; infinite for picks and for what is not modelled."""
    times_us = np.full(len(frame), np.inf)
    modelled = ~frame["pick"]
    rows = frame[modelled].drop(columns=["sums", "pick", "table"])
    times_us[modelled] = predict_frame(rows, create_model(DEFAULT_MODEL, gpu, {})).runtime_us
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


def error_lines(frame: pd.DataFrame) -> Iterator[str]:
    yield "| family | type | rows | MAPE | median | p95 |"
    yield "|---|---|---|---|---|---|"
    known = frame[np.isfinite(frame["predicted_us"])]
    for (family, dtype), rows in known.groupby(["kernel", "in_dtype"]):
        error = error_figures(rows["predicted_us"].to_numpy(), rows["runtime_us"].to_numpy())
        yield (
            f"| {family} | {dtype} | {error.rows} | {error.mape:.1%} | {error.median:.1%} | {error.p95:.1%} |"
        )


def choice_lines(frame: pd.DataFrame, gpu: str) -> Iterator[str]:
    yield "| type | choice | shapes | mean | p5 | worst |"
    yield "|---|---|---|---|---|---|"
    found = list(methods(frame, gpu))
    for dtype, sums in sorted(set(zip(frame["in_dtype"], frame["sums"], strict=True))):
        name = f"{dtype}, {sums} sums" if sums else dtype
        for method, by_shape in found:
            of_type = by_shape[
                (by_shape.index.get_level_values("in_dtype") == dtype)
                & (by_shape.index.get_level_values("sums") == sums)
            ]
            if len(of_type):
                f = choice_figures(of_type)
                yield f"| {name} | {method} | {f.shapes} | {f.mean:.1%} | {f.p5:.1%} | {f.minimum:.1%} |"


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


def of_all_cards(frame: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Rows with the geometric mean of their times on their own card and on each further one."""
    key = [*SHAPE, *KERNEL]
    further = again.groupby([*key, "gpu_uuid"], dropna=False)["runtime_us"].median()
    logs = further.map(np.log).groupby(key, dropna=False).agg(log_sum="sum", cards="count").reset_index()
    joined = frame.merge(logs, on=key, how="left").fillna({"log_sum": 0.0, "cards": 0})
    mean = (np.log(joined["runtime_us"]) + joined["log_sum"]) / (1.0 + joined["cards"])
    return joined.assign(runtime_us=np.exp(mean))


def of_each_row_once(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of several cards, each with the geometric mean of its times and of its predictions."""
    key = [*SHAPE, *KERNEL, "pick"]
    logs = frame.assign(**{name: np.log(frame[name]) for name in ("runtime_us", "predicted_us")})
    means = logs.groupby(key, dropna=False)[["runtime_us", "predicted_us"]].mean()
    return np.exp(means).reset_index()


def split_lines(frame: pd.DataFrame) -> Iterator[str]:
    """Chosen splits on decode shapes: of a family's kernels, the split (or stream-K) of the first choice."""
    types = sorted(frame["in_dtype"].unique())
    head = " | ".join(("family", "shapes", f"split within {NEAR:.0%} of the best", *types))
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

`gemm-model rank --family any` ranks the kernels of all libraries in one list; `--against cublas` adds what
each choice gains over the kernel that cuBLAS would take ([how](how-to/choose.md#which-library)). This page
tells what was measured on the H200: where each library wins, and how good the choice among all of them is.
`benchmarks/choice_across.py` writes it from the tables {tables}
of `data/measurements/h200`. Predictions: the shipped calibrations.

## Where each library wins
Share of problems whose fastest measured kernel is the family's, and by how much the family's best is slower
than the best of all on average. cuBLASLt was measured with up to eight algorithms of a problem, those that
its heuristic names, the others with kernels drawn from their spaces: a family also loses where its best was
not drawn. Kernels of a problem in the median: {drawn}. Slow and fast fp8 sums are two problems,
since their results differ: QuACK and cuBLAS as torch calls it add slowly, Triton fast, CUTLASS both ways.

{winners}

## First choices
{shapes} problems of {sizes} sizes were measured in all four families, with {kernels} kernels of a problem in
the median. An efficiency is the best measured time of all families over that of the choice. "Its best
measured" is no choice: it is what the family can reach. cuBLASLt's first heuristic and torch's pick are
judged by their own measured times. nvMatmulHeuristics chooses among the CUTLASS kernels by its own estimates
of their times.

{choices}

## The split
Problems of at most {decode} rows that were measured with and without a split, by family: how often the best
kernel with the chosen split is within {near:.0%} of the best of all, the efficiency of the choice among the
family's kernels, and that of the best kernel without a split. {cards}

{splits}
{fresh}

## Errors of the times
All rows of these tables that are modelled: {modelled} of {rows}.

{errors}
"""


FRESH_PART = """
On shapes of layers that no calibration has seen, of `{table}`, by the shipped calibrations and the
mean of {cards} cards:

{splits}
"""


def further_cards(every: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows with times of all cards that timed them, and what the page says of that."""
    again = load([AGAIN])
    cards = again["gpu_uuid"].nunique()
    told = f"Kernels near the fastest were timed again on {cards} further cards (`{AGAIN}`): means of all."
    return of_all_cards(every, again), told


def fresh_part(gpu: GpuSpec) -> str:
    """The part of the page on shapes that nothing was fitted to."""
    rows = load([FRESH])
    model = create_model(DEFAULT_MODEL, gpu, {})
    own = rows.drop(columns=["sums", "pick", "table"])
    rows["predicted_us"] = predict_frame(own, model).runtime_us
    return FRESH_PART.format(
        table=FRESH,
        cards=rows["gpu_uuid"].nunique(),
        splits="\n".join(split_lines(of_each_row_once(rows))),
    )


def page_text(every: pd.DataFrame, frame: pd.DataFrame) -> str:
    """The page of evidence; all of its figures are of this run."""
    of_cards, cards = further_cards(every)
    own = frame[~frame["pick"]]
    drawn = own.groupby(["in_dtype", *SIZES, "kernel"]).size().groupby("kernel").median()
    problems = own.groupby(["in_dtype", *SIZES])
    return PAGE.format(
        tables=", ".join(f"`{name}`" for name in CAMPAIGNS),
        modelled=f"{np.isfinite(every['predicted_us']).sum():,}",
        rows=f"{(~every['pick']).sum():,}",
        errors="\n".join(error_lines(every)),
        shapes=problems.ngroups,
        sizes=own.groupby(SIZES).ngroups,
        kernels=int(problems.size().median()),
        choices="\n".join(choice_lines(frame, GPU)),
        winners="\n".join(winner_lines(frame)),
        drawn=", ".join(f"{family} {drawn[family]:.0f}" for family in FAMILIES),
        decode=DECODE_M,
        near=NEAR,
        cards=cards,
        splits="\n".join(split_lines(of_cards)),
        fresh=fresh_part(load_gpu(GPU)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, help="Markdown file for the page of evidence")
    args = parser.parse_args()
    every = load(CAMPAIGNS)
    every["predicted_us"] = predicted(every, load_gpu(GPU))
    frame = in_all_families(every)
    text = page_text(every, frame)
    print(text)
    if args.output:
        atomic_write(args.output, text)


if __name__ == "__main__":
    main()
