"""Laws that hold of any kernel, as properties over families, cards, types, regimes and sizes.

Each law counts the random cases that break it by more than its tolerance. `exceptions` of measured_pairs.yaml
names the laws that the model breaks, the share of cases that may do so, and why; no other case may. `LAWS_CASES` in the
environment draws more kernels.
"""

import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from gemm_model import GemmProblem, InputError, Ranker, families, load_gpu
from gemm_model.choice.table_ranking import rank_table
from gemm_model.config import gpu_names
from gemm_model.core.kernel_config import RASTERS, SCHEDULES
from gemm_model.kernels.feasibility import runnable_mask
from gemm_model.models import create_model
from gemm_model.tables.table import batch_from_frame

KERNELS = int(os.environ.get("LAWS_CASES", "600"))
"""Kernels drawn of all pairs of card and family, for each type; a law looks at each in four regimes."""
CARDS = ("h200", "h100_sxm", "a100_sxm_80gb", "b200_sxm", "l40s", "rtx_5090")
"""Cards of which the best kernels are looked at too; of the others, named kernels in one regime each."""
PAIRS = [
    (card, name)
    for card in (*CARDS, *(name for name in gpu_names() if name not in CARDS))
    for name in families(load_gpu(card))
    if name != "cudnn"
]
EACH = max(KERNELS // 20, 1)
BEST = max(EACH // 6, 4)
REGIMES = ("burst", "graph", "sustained", "counters")
NARROWER = {"bf16": "fp8", "fp8": "nvfp4"}
STEP = 32
"""Sizes are multiples of it, so that no operand is misaligned, and grow by it [elements]."""
MORE = {name: {} for name in ("sm_clk_mhz", "l2_read_gb_per_s", "l2_bytes", "smem_bytes_per_clk_per_sm")}
MORE |= {"dram_read_gb_per_s": {"dram_clk_mhz": 1.2}}
"""Numbers of a card that grow by a tenth, and what grows with them."""
TOLERANCE = {"best: m and n swapped": 0.05}
USUAL_TOLERANCE = 0.02
GROWS = ("m grows", "n grows", "k grows")
LINE = 256
"""Elements of K in a line of 128 bytes of the narrowest type."""
BITS, LINE_BITS = {"bf16": 16, "fp8": 8, "nvfp4": 4}, 1024
FILLS = " and fills tiles or lines"
"""The measured exception of the laws of size; a K that grows by a line is never one."""
EDGES = ("edge_tiles", "k_tail", "line_crossing", "coalescing")
"""Mechanisms, each measured, by which a size that fills its tiles or lines is faster than a smaller one."""
SPILLS = "named: as slow at least if narrower sums spill"
"""Slow fp8 sums hold two sets of accumulators: all 2,832 measured pairs that spill are slower, by 10 % or more."""
MEASURED = yaml.safe_load(Path(__file__).with_name("measured_pairs.yaml").read_text())
EXCEPTIONS = MEASURED["exceptions"]
WORST = {law: 0.2 for law in EXCEPTIONS if "slow sums" in law}
WORST[f"best: k grows{FILLS}"] = 0.31
"""By how much an exception may break the law: slow sums did to 12 %, in a graph to 20; 223 to 172 us in `grows`."""


def problems(rng, count, dtype):
    """Problems of all proportions."""
    sizes = np.exp2(rng.uniform(0, 9, (count, 3))).astype(int) * STEP
    return pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(in_dtype=dtype)


def named_kernels(rng, ranker, dtype):
    """Random problems, each with a random kernel that can run it."""
    (space, *_) = ranker.spaces(GemmProblem.of(64, 64, 64, dtype))
    chosen = rng.integers(len(space), size=EACH)
    whole = ("cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "swizzle", "stages", "mma_m")
    columns = {name: space.kernel[name][chosen].astype(int) for name in whole}
    columns |= {"schedule": np.array(SCHEDULES)[space.kernel["schedule"][chosen]]}
    columns |= {"raster": np.array(RASTERS)[space.kernel["raster"][chosen]]}
    columns |= {"fast_accum": int(space.family.space.fast_accum), "kernel": space.family.name}
    return problems(rng, EACH, dtype).assign(**columns, batch=rng.integers(1, 4, size=EACH))


def times_us(frame, gpu, model="KernelModel", **options):
    chosen = create_model(model, gpu, options)
    return chosen.predict_batch(batch_from_frame(frame, needs_tile=True)).runtime_us


def bigger(frame):
    """By law, the problems with an extent doubled, or grown by STEP, or K by a line."""
    larger = {f"{name} doubles": frame.assign(**{name: frame[name] * 2}) for name in "mnk"}
    larger |= {f"{name} grows": frame.assign(**{name: frame[name] + STEP}) for name in "mnk"}
    return larger | {"k grows by a line": frame.assign(k=frame["k"] + LINE)}


def filled_lines(frame, more):
    """Where rows of the larger K start at multiples of more bytes of a line."""
    before, after = (each["k"] * each["in_dtype"].map(BITS) for each in (frame, more))
    return (np.minimum(after & -after, LINE_BITS) > np.minimum(before & -before, LINE_BITS)).to_numpy()


def filled_tiles(side, frame, more, kernels):
    """Where the larger M or N leaves fewer rows or columns of the clusters of its `kernels` empty."""
    other = {"m": "n", "n": "m"}[side]
    own, swapped = (kernels[f"cta_{name}"] * kernels[f"cluster_{name}"] for name in (side, other))
    tile = np.where(kernels["swap_ab"] > 0, swapped, own)
    return -more[side].to_numpy() % tile < -frame[side].to_numpy() % tile


def split(law, longer, shorter, filled):
    """The cases of a law, and those of its measured exception."""
    for words, some in (("", ~filled), (FILLS, filled)):
        if some.any():
            yield law + words, longer[some], shorter[some]


def of_named(frame, gpu, regime):
    """Of each law about named kernels: the times that may be longer, and those that may not."""
    now = times_us(frame, gpu, regime=regime)
    yield "named: batch doubles", times_us(frame.assign(batch=2 * frame["batch"]), gpu, regime=regime), now
    for law, more in bigger(frame).items():
        filled = filled_lines(frame, more) & (law[0] == "k")
        yield from split(f"named: {law}", times_us(more, gpu, regime=regime), now, filled)
    fused = [now]
    for words in ("bias", "bias,gelu"):
        fused.append(times_us(frame.assign(epilogue=words), gpu, regime=regime))
        yield "named: an epilogue grows", fused[-1], fused[-2]
    if regime == "burst":
        plain = {"residual": "off", "without": EDGES}
        filled = times_us(frame, gpu, **plain)
        for law, more in bigger(frame).items():
            yield f"named without edges: {law}", times_us(more, gpu, **plain), filled
    if regime != "sustained":
        yield "a time is at least the roofline's", now, times_us(frame, gpu, "SOLModel")
    physical = times_us(frame, gpu, regime=regime, residual="off")
    for name, others in MORE.items():
        numbers = {name: 1.1, **others}
        faster = replace(gpu, **{key: getattr(gpu, key) * by for key, by in numbers.items()})
        yield f"more {name}", physical, times_us(frame, faster, regime=regime, residual="off")


def of_best(frame, ranker):
    """The same of laws about the best kernel."""
    now = rank_table(frame, ranker)["predicted_us"].to_numpy()
    others = {"m and n swapped": frame.rename(columns={"m": "n", "n": "m"})}
    others |= {"batch doubles": frame.assign(batch=2), "an epilogue grows": frame.assign(epilogue="bias")}
    for law, rows in others.items():
        yield f"best: {law}", rank_table(rows, ranker)["predicted_us"].to_numpy(), now
    larger = bigger(frame)
    for law, more in larger.items():
        found, side = rank_table(more, ranker), law[0]
        filled = filled_lines(frame, more) if side == "k" else filled_tiles(side, frame, more, found)
        yield from split(f"best: {law}", found["predicted_us"].to_numpy(), now, filled)
    plain = Ranker(ranker.gpu, family=ranker.names[0], options={"residual": "off", "without": EDGES})
    filled = rank_table(frame, plain)["predicted_us"].to_numpy()
    for law in GROWS:
        yield f"best without edges: {law}", rank_table(larger[law], plain)["predicted_us"].to_numpy(), filled


def of_narrower(named, free, ranker, narrower):
    """The same of operands of half the width, with outputs of one type, in whole lines."""
    kind = (ranker.names[0], ranker.gpu.architecture, narrower)
    if kind == ("cublas", "sm90", "fp8"):
        short = problems(np.random.default_rng(KERNELS), 8 * BEST, "bf16").assign(k=LINE)
        free = pd.concat([free, short], ignore_index=True)
    named, rows = (each.assign(out_dtype="bf16", k=-(-each["k"] // LINE) * LINE) for each in (named, free))
    best = [rank_table(each, ranker)["predicted_us"] for each in (rows, rows.assign(in_dtype=narrower))]
    wide, narrow = (each.to_numpy() for each in best)
    short = (rows["k"].to_numpy() <= LINE) & (kind == ("cublas", "sm90", "fp8"))
    blocks = np.full(len(rows), kind == ("quack", "sm120", "nvfp4"))
    scales = np.full(len(rows), (kind[0], narrower) == ("cublas", "fp8")) & ~short
    found = {
        f", slow sums on {ranker.gpu.name}": short,
        ", QuACK on sm120": blocks,
        ", scales in memory": scales,
    }
    for words, some in {**found, "": ~short & ~blocks & ~scales}.items():
        if some.any():
            yield f"best: narrower{words}", wide[some], narrow[some]
    kernels = named.assign(cta_k=0, stages=0)
    narrow = batch_from_frame(kernels.assign(in_dtype=narrower), needs_tile=True)
    offered = runnable_mask(narrow, ranker.gpu, ranker.families[0])
    for regime in ("burst", "graph") if offered.any() else ():
        found = create_model("KernelModel", ranker.gpu, {"regime": regime}).predict_batch(narrow[offered])
        spills = found.details["spilled_registers"] > 0
        wide = times_us(kernels[offered], ranker.gpu, regime=regime)
        yield "named: narrower", wide[~spills], found.runtime_us[~spills]
        if ranker.gpu.name == "h200":
            yield SPILLS, found.runtime_us[spills], wide[spills]


def can_multiply(ranker, dtype):
    try:
        return dtype is not None and bool(ranker.spaces(GemmProblem.of(64, 64, 64, dtype)))
    except InputError:
        return False


def ratios():
    """By law, of each case how much longer the time is that may not be longer."""
    found = defaultdict(list)
    for number, (card, family) in enumerate(PAIRS):
        gpu, ranker = load_gpu(card), Ranker(card, family=family)
        for dtype in ("bf16", "fp8", "nvfp4"):
            if not can_multiply(ranker, dtype):
                continue
            rng = np.random.default_rng(number)
            named, free = named_kernels(rng, ranker, dtype), problems(rng, BEST, dtype)
            looked_at = card in CARDS
            regimes = REGIMES if looked_at else (REGIMES[number % len(REGIMES)],)
            cases = [case for regime in regimes for case in of_named(named, gpu, regime)]
            cases += of_best(free, ranker) if looked_at else ()
            if looked_at and can_multiply(ranker, NARROWER.get(dtype)):
                cases += of_narrower(named, free, ranker, NARROWER[dtype])
            for law, longer, shorter in cases:
                found[law].append(shorter / longer - 1.0)
    return {law: np.concatenate(parts) for law, parts in found.items()}


@pytest.mark.slow
def test_laws_hold_but_for_their_named_exceptions_in_twenty_thousand_cases():
    broken, found = {}, ratios()
    for law, longer in found.items():
        share = float((longer > TOLERANCE.get(law, USUAL_TOLERANCE)).mean())
        allowed, why = EXCEPTIONS.get(law, (0.0, ""))
        if share > allowed or longer.max() > WORST.get(law, np.inf):
            broken[law] = f"{share:.2%} of {len(longer)} cases, worst {longer.max():.1%}; allowed: {why}"
    assert (broken, len(found)) == ({}, 50)
    assert sum(map(len, found.values())) >= 20_000


def best_of_both_types(frame, ranker):
    """Times of the best kernels of bf16 and of fp8 operands, with bf16 outputs [us]."""
    rows = [frame.assign(in_dtype=each, out_dtype="bf16") for each in ("bf16", "fp8")]
    return [rank_table(each, ranker)["predicted_us"] for each in rows]


def test_measured_pairs_confirm_that_slow_sums_of_few_k_tiles_are_slower_than_bf16():
    drawn = pd.DataFrame(MEASURED["narrower"]["drawn"], columns=["m", "n", "wide_us", "narrow_us"])
    slower = drawn["narrow_us"] / drawn["wide_us"] - 1.0
    assert (slower > USUAL_TOLERANCE).mean() > EXCEPTIONS["best: narrower, slow sums on h200"][0]
    ranker = Ranker("h200", family="cublas")
    wide, narrow = best_of_both_types(drawn[["m", "n"]].assign(k=LINE), ranker)
    assert np.log(narrow / wide / (slower + 1.0)).abs().mean() < 0.02
    large = pd.DataFrame(MEASURED["narrower"]["reachable"], columns=["m", "n", "wide_us", "narrow_us"])
    best = rank_table(large[["m", "n"]].assign(k=LINE, in_dtype="bf16", out_dtype="bf16"), ranker)
    assert np.log(best["predicted_us"] / large["wide_us"]).abs().max() < 0.05


def test_measured_pairs_confirm_that_the_best_kernel_is_faster_where_k_fills_lines():
    pairs = pd.DataFrame(MEASURED["best_grows"], columns=["in_dtype", *"mnk", "us", "more_us"])
    rows, ranker = pairs[["in_dtype", *"mnk"]].assign(out_dtype="bf16"), Ranker("h200", family="cublas")
    now, more = (rank_table(each, ranker)["predicted_us"] for each in (rows, rows.assign(k=rows["k"] + STEP)))
    measured = pairs["us"] / pairs["more_us"]
    assert (measured > 1.0).mean() > 0.8
    assert 1.015 < measured.mean() < (now / more).mean() < 1.04
    assert np.log(now / more / measured).abs().mean() < 0.03


def test_measured_pairs_confirm_that_sizes_which_fill_tiles_and_lines_are_faster_than_smaller_ones():
    kernel = ["in_dtype", "cta_m", "cta_n", "cluster_m", "cluster_n", "schedule", "swizzle"]
    pairs = pd.DataFrame(
        MEASURED["grows"], columns=[*kernel, *"mnk", "us", "more_m", "more_n", "more_k", "more_us"]
    )
    before = pairs[[*kernel, *"mnk"]].assign(kernel="quack")
    after = before.assign(**{name: pairs[f"more_{name}"] for name in "mnk"})
    gpu = load_gpu("h200")
    predicted, measured = times_us(before, gpu) / times_us(after, gpu), pairs["us"] / pairs["more_us"]
    # All 36 were drawn as faster by more than 2 %; the model and the measurement no longer say so of some near it.
    said, so = predicted > 1.0 + USUAL_TOLERANCE, measured > 1.0 + USUAL_TOLERANCE
    assert np.log(predicted / measured).abs().mean() < 0.03
    assert so[said].mean() > 0.75
    assert so.mean() > 0.75
    assert measured.mean() > predicted.mean()


def test_measured_pairs_confirm_that_swapped_and_larger_products_may_be_faster():
    ran = ["kernel", "in_dtype", *"mnk"]
    swapped = pd.DataFrame(MEASURED["swapped"], columns=[*ran, "us", "swapped_us"])
    apart = swapped["us"] / swapped["swapped_us"] - 1.0
    assert (apart > TOLERANCE["best: m and n swapped"]).mean() > EXCEPTIONS["best: m and n swapped"][0]
    falls = pd.DataFrame(MEASURED["best_falls"], columns=[*ran, "us", "more_m", "more_n", "more_us"])
    faster = falls["us"] / falls["more_us"] - 1.0
    assert (faster > USUAL_TOLERANCE).mean() > max(EXCEPTIONS[f"best: {side} grows"][0] for side in "mn")
    for family, rows in swapped.groupby("kernel"):
        found = rank_table(rows[ran[1:]].reset_index(drop=True), Ranker("h200", family=family))
        assert np.abs(np.log(found["predicted_us"].to_numpy() / rows["us"].to_numpy())).mean() < 0.05


def test_measured_pairs_confirm_that_slow_sums_of_a_split_k_are_slower_than_bf16():
    pairs = pd.DataFrame(MEASURED["split_narrower"], columns=[*"mnk", "wide_us", "narrow_us"])
    slower = pairs["narrow_us"] / pairs["wide_us"]
    assert (slower > 1.0 + USUAL_TOLERANCE).mean() > 0.5
    wide, narrow = best_of_both_types(pairs[list("mnk")], Ranker("h200", family="quack"))
    assert np.log(narrow / wide / slower).abs().mean() < 0.03
