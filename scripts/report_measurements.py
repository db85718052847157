"""What shipped measurements say about themselves, as Markdown: counts, repeatability, kernels over cuBLAS.

python scripts/report_measurements.py data/measurements/h200
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

SHAPE = ["in_dtype", "out_dtype", "m", "n", "k"]
CONFIG = [
    "kernel",
    "cta_m",
    "cta_n",
    "schedule",
    "cluster_m",
    "cluster_n",
    "swizzle",
    "split_k",
    "fast_accum",
]
LENGTHS = (
    ("up to 10 us", 0, 10),
    ("10 to 30 us", 10, 30),
    ("30 to 100 us", 30, 100),
    ("100 us to 1 ms", 100, 1000),
    ("over 1 ms", 1000, np.inf),
)
FAMILIES = (
    ("m up to 16", 0, 16),
    ("m 17 to 256", 16, 256),
    ("m 257 to 2048", 256, 2048),
    ("m over 2048", 2048, np.inf),
)


def measured(folder: Path, name: str) -> pd.DataFrame:
    """The rows of a table that carry times."""
    table = pd.read_csv(folder / f"{name}.csv.gz", low_memory=False)
    return table[table["disposition"] == "ok"]


def first_run(folder: Path) -> pd.DataFrame:
    """The burst rows of the first run, those of few launches as it had measured them."""
    burst, few = measured(folder, "burst"), measured(folder, "burst_few_launches")
    return pd.concat([burst[burst["gpu_uuid"].isin(few["gpu_uuid"])], few])


def longer_run(folder: Path) -> pd.DataFrame:
    """All rows that were measured again because their shape had rows of few launches."""
    burst, others = measured(folder, "burst"), measured(folder, "repeat_long")
    return pd.concat([burst[burst["gpu_uuid"].isin(others["gpu_uuid"])], others])


def counts(folder: Path) -> list[str]:
    """Every table of timed rows that tells its cards, as the manifest lists them."""
    lines = [
        "| table | role | rows | with times | cards | shapes | bf16 | fp16 | e4m3 | e5m2 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    listed = yaml.safe_load((folder.parent / "manifest.yaml").read_text())[folder.name]
    for file, about in listed.items():
        if about["cards"] == 0 or about["role"] == "micro":
            continue
        table = pd.read_csv(folder / file, low_memory=False)
        good = table[table["disposition"] == "ok"]
        types = [int((good["in_dtype"] == dtype).sum()) for dtype in ("bf16", "fp16", "e4m3", "e5m2")]
        shapes = len(good[["m", "n", "k"]].drop_duplicates())
        cells = [file.split(".")[0], about["role"], len(table), len(good), about["cards"], shapes, *types]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Rows that both runs measured; the second run's columns end in _2."""
    keys = [*SHAPE, *CONFIG]
    # Beside cuBLAS rows, which tell no tile, pandas reads whole numbers as 128.0.
    one, two = (
        table.assign(**{name: table[name].astype(str).str.removesuffix(".0") for name in CONFIG})
        for table in (first, second)
    )
    return one.merge(two, on=keys, suffixes=("", "_2"), validate="one_to_one")


def winners_loss(pairs: pd.DataFrame, column: str) -> pd.Series:
    """Per shape: run 2's time of run 1's best configuration over run 2's best time, less one."""

    def loss(shape: pd.DataFrame) -> float:
        winner = shape[column].idxmin()
        return float(shape.loc[winner, f"{column}_2"] / shape[f"{column}_2"].min() - 1)

    own = pairs[pairs["kernel"] != "cublas"]
    return own.groupby(SHAPE)[[column, f"{column}_2"]].apply(loss)


def repeat_line(label: str, part: pd.DataFrame, column: str = "runtime_us") -> str:
    signed = part[f"{column}_2"] / part[column] - 1
    change, loss = signed.abs(), winners_loss(part, column)
    changes = (change.median(), change.quantile(0.95), change.max())
    cells = [label, str(len(part)), *(f"{value:.2%}" for value in changes), f"{signed.median():+.2%}"]
    return "| " + " | ".join([*cells, f"{loss.mean():.2%}", f"{loss.max():.1%}"]) + " |"


def less_offset(label: str, part: pd.DataFrame) -> str:
    """The change after run 2 is shifted by its median difference in rows of up to 10 us."""
    short = part[part["runtime_us"] <= LENGTHS[0][2]]
    offset_us = (short["runtime_us_2"] - short["runtime_us"]).median()
    change = ((part["runtime_us_2"] - offset_us) / part["runtime_us"] - 1).abs()
    cells = [label, f"{offset_us:+.2f}", f"{change.median():.2%}", f"{change.quantile(0.95):.2%}"]
    return "| " + " | ".join(cells) + " |"


def repeatability(folder: Path, run: Callable[[Path], pd.DataFrame]) -> list[str]:
    """A run over the first one, by statistic, type, length, rows of A, and pair of cards."""
    pairs = paired(first_run(folder), run(folder))
    other_card = (pairs["gpu_uuid"] != pairs["gpu_uuid_2"]).mean()
    parts = [(str(dtype), part) for dtype, part in pairs.groupby("in_dtype")]
    parts += [
        (label, pairs[pairs["runtime_us"].between(low, high, inclusive="right")])
        for label, low, high in LENGTHS
    ]
    parts += [(label, pairs[(pairs["m"] > low) & (pairs["m"] <= high)]) for label, low, high in FAMILIES]
    cards = pairs["gpu_uuid"].str[4:8] + " then " + pairs["gpu_uuid_2"].str[4:8]
    by_cards = [(f"card {both}", part) for both, part in pairs.groupby(cards)]
    lines = [
        f"{len(pairs)} rows measured twice, {other_card:.0%} of them on another card. The change is the",
        "absolute value of run 2 / run 1 - 1; the loss is what run 1's best QuACK configuration of a shape",
        "costs on run 2 over run 2's best.",
        "",
        "| rows | count | median | p95 | worst | signed median | loss, mean | loss, worst |",
        "|---|---|---|---|---|---|---|---|",
        repeat_line("all, median of launches", pairs),
        repeat_line("all, minimum of launches", pairs, "min_us"),
    ]
    lines += [repeat_line(label, part) for label, part in parts + by_cards if len(part)]
    if not (pairs["runtime_us"] <= LENGTHS[0][2]).any():
        return lines
    lines += ["", "| less the offset of rows up to 10 us | offset, us | median | p95 |", "|---|---|---|---|"]
    return lines + [less_offset(label, part) for label, part in by_cards]


def runs(folder: Path) -> list[str]:
    """Every two runs of `repeat_runs`, as measured and less what an empty kernel read in each run."""
    table = measured(folder, "repeat_runs")
    environments = json.loads((folder / "repeat_runs.json").read_text())
    parts = [
        table[table["time"].between(environment["started"][0], environment["finished"])]
        for environment in environments
    ]
    lines = [
        "| runs | empty kernel, us | median | p95 | loss, mean | less empty kernel: median | p95 |",
        "|---|---|---|---|---|---|---|",
    ]
    for one, two in combinations(range(len(parts)), 2):
        cards = [environments[index]["gpu_uuid"][4:8] for index in (one, two)]
        empty = [environments[index]["empty_kernel_us"] for index in (one, two)]
        pairs = paired(parts[one], parts[two])
        plain = (pairs["runtime_us_2"] / pairs["runtime_us"] - 1).abs()
        shift = empty[1] - empty[0]
        less = ((pairs["runtime_us_2"] - shift) / pairs["runtime_us"] - 1).abs()
        cells = [f"{cards[0]}, {cards[1]}", f"{empty[0]:.2f}, {empty[1]:.2f}"]
        cells += [f"{plain.median():.2%}", f"{plain.quantile(0.95):.2%}"]
        cells += [f"{winners_loss(pairs, 'runtime_us').mean():.2%}"]
        cells += [f"{less.median():.2%}", f"{less.quantile(0.95):.2%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def ratio_line(label: str, first: pd.DataFrame, second: pd.DataFrame, keys: list[str]) -> str:
    pairs = first.merge(second, on=keys, suffixes=("", "_2"), validate="one_to_one")
    ratio = pairs["runtime_us_2"] / pairs["runtime_us"]
    cells = [label, str(len(pairs)), *(f"{ratio.quantile(share):.3f}" for share in (0.05, 0.5, 0.95))]
    return "| " + " | ".join([*cells, f"{pairs['relative_error_2'].median():.2%}"]) + " |"


def variants(folder: Path) -> list[str]:
    """What a variant costs on the same card and configuration."""
    own = measured(folder, "variants").query("kernel == 'quack'")
    keys = [name for name in [*SHAPE, *CONFIG] if name not in ("in_dtype", "split_k", "fast_accum")]
    plain = own[(own["split_k"] == 1) & (own["fast_accum"] == 0)]
    e4m3 = plain[plain["in_dtype"] == "e4m3"]
    fast = own[own["fast_accum"] == 1]
    # With 128 accumulators a thread, the second set of slow accumulation takes registers beyond 255.
    pingpong = e4m3["schedule"] == "pingpong"
    warpgroups = np.where(pingpong | (e4m3["cta_m"] == 64), 1, 2)
    large = e4m3["cta_m"] * e4m3["cta_n"] / (128 * warpgroups) >= 128
    lines = [
        "| variant over plain row | rows | p5 | median | p95 | relative error |",
        "|---|---|---|---|---|---|",
        ratio_line("e5m2 over e4m3", e4m3, plain[plain["in_dtype"] == "e5m2"], keys),
        ratio_line("fast over slow accumulation, up to 96 accumulators", e4m3[~large], fast, keys),
        ratio_line("fast over slow accumulation, 128 accumulators", e4m3[large], fast, keys),
    ]
    typed = [*keys, "in_dtype"]
    tiles = np.ceil(plain["m"] / plain["cta_m"]) * np.ceil(plain["n"] / plain["cta_n"])
    for split in (2, 4, 8):
        divided = own[own["split_k"] == split]
        for label, fits in (("up to 33", tiles <= 33), ("34 to 132", (tiles > 33) & (tiles <= 132))):
            lines.append(ratio_line(f"split-K {split}, {label} tiles", plain[fits], divided, typed))
        lines.append(ratio_line(f"split-K {split}, more tiles", plain[tiles > 132], divided, typed))
    rows = measured(folder, "warm").assign(**{name: lambda t, n=name: t[n].astype(str) for name in CONFIG})
    cold, warm = (rows[rows["l2"] == state] for state in ("cold", "warm"))
    for label, low, high in LENGTHS:
        part = cold[cold["runtime_us"].between(low, high, inclusive="right")]
        lines.append(ratio_line(f"warm over cold L2, {label}", part, warm, [*SHAPE, *CONFIG]))
    return lines


def over_burst(folder: Path) -> list[str]:
    """The same kernels in the other two regimes."""
    burst = measured(folder, "burst")
    lines = [
        "| regime | burst time | rows | time over burst: p5, median, p95 | SM clock, median MHz |",
        "|---|---|---|---|---|",
    ]
    for name in ("counters", "sustained"):
        pairs = paired(burst, measured(folder, name))
        for label, low, high in LENGTHS:
            part = pairs[(pairs["runtime_us"] > low) & (pairs["runtime_us"] <= high)]
            ratio = part["runtime_us_2"] / part["runtime_us"]
            spread = ", ".join(f"{ratio.quantile(share):.3f}" for share in (0.05, 0.5, 0.95))
            clock = part["sm_mhz_2"].median()
            lines.append(f"| {name} | {label} | {len(part)} | {spread} | {clock:.0f} |")
    return lines


def over_cublas(folder: Path) -> list[str]:
    table = measured(folder, "burst")
    own = table[table["kernel"] == "quack"].groupby(SHAPE)["runtime_us"].min()
    library = table[table["kernel"] == "cublas"].groupby(SHAPE)["runtime_us"].min()
    both = pd.concat({"own": own, "library": library}, axis=1).dropna().reset_index()
    both["speedup"] = both["library"] / both["own"]
    lines = ["| type | shapes | count | geometric mean | worst | best |", "|---|---|---|---|---|---|"]
    for dtype, part in both.groupby("in_dtype"):
        groups = [("all", part)]
        groups += [(name, part[(part["m"] > low) & (part["m"] <= high)]) for name, low, high in FAMILIES]
        for name, group in groups:
            if len(group):
                mean = np.exp(np.log(group["speedup"]).mean())
                worst = group.loc[group["speedup"].idxmin()]
                where = f"{worst['m']:.0f}x{worst['n']:.0f}x{worst['k']:.0f}"
                lines.append(
                    f"| {dtype} | {name} | {len(group)} | {mean:.3f} | {worst['speedup']:.2f} ({where}) | "
                    f"{group['speedup'].max():.2f} |"
                )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sections = (
        ("What was measured", counts),
        ("Repeatability of the burst regime", partial(repeatability, run=partial(measured, name="repeat"))),
        (
            "Twelve thousand rows on another card",
            partial(repeatability, run=partial(measured, name="repeat_card")),
        ),
        ("Shapes with rows of few launches, on two other cards", partial(repeatability, run=longer_run)),
        ("Five runs of 442 rows on two cards of two hosts", runs),
        ("Best QuACK kernel over cuBLAS (times as fast, burst)", over_cublas),
        ("The other two regimes over burst", over_burst),
        ("Variants", variants),
    )
    for title, section in sections:
        print(f"## {title}\n")
        print("\n".join(section(folder)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
