"""The page of a shape: its ranking, and the best kernel's roofline, waves, mechanisms and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from gemm_model.attention.explanation import AttentionExplanation
from gemm_model.choice.selection import Ranking
from gemm_model.core.fields import number_text, signed_text
from gemm_model.core.gpu import GpuSpec
from gemm_model.core.prediction import Prediction
from gemm_model.core.problem import GemmProblem
from gemm_model.kernel_model.comparison import Difference
from gemm_model.kernel_model.explanation import Explanation, limits
from gemm_model.report.page import content
from gemm_model.report.page.choice import gemm_title, kernel_name, ranking_page

SHOWN_WAVES = 200
"""Waves drawn one by one [waves]; timelines; chosen: more are drawn as one block."""


def shape_page(ranking: Ranking, explanation: Explanation) -> content.Page:
    """The page of `explore`: a ranking of all kernels, and the explanation of its first."""
    page = ranking_page(ranking, limits(explanation.limiter, explanation.ties))
    return replace(
        page,
        subtitle=f"on {ranking.gpu.name}; explained is the fastest kernel, {kernel_name(ranking.best.candidate)}",
        figures=[*page.figures, *_of_kernel(ranking.problem, explanation, ranking.gpu)],
    )


def kernel_page(problem: GemmProblem, explanation: Explanation, gpu: GpuSpec, name: str) -> content.Page:
    """The page of `explain`: one kernel, called `name`."""
    prediction, achieved = explanation.prediction, explanation.achieved
    return content.Page(
        title=gemm_title(problem),
        subtitle=name,
        facts=[
            content.Fact(
                "Predicted", f"{number_text(prediction.runtime_us)} us", content.band_text(prediction)
            ),
            content.Fact("Limited by", limits(explanation.limiter, explanation.ties)),
            content.Fact("Speed", f"{achieved['tflop_per_s']:.4g}", "TFLOP/s"),
            content.Fact("Of the roofline", f"{achieved['share_of_roofline']:.1%}"),
        ],
        figures=_of_kernel(problem, explanation, gpu),
        notes=prediction.caveats,
    )


def difference_page(title: str, found: Difference, first: str, second: str) -> content.Page:
    """The page of `explain --against`: two kernels, called `first` and `second`, in pictures and a table."""
    parts = {"setting": found.by_setting, "resource": found.by_resource}
    rows = [(by, name, f"{added_us:+.4g}") for by, name, added_us in found.rows]
    return content.Page(
        title=title,
        subtitle=f"where {signed_text(found.us)} us come from, between {first} and {second}",
        facts=[
            content.Fact("First", f"{number_text(found.first_us)} us", first),
            content.Fact("Second", f"{number_text(found.second_us)} us", second),
            content.Fact("Difference", f"{found.us / found.first_us:+.1%}"),
        ],
        figures=[_steps(found, f"By {name}", added) for name, added in parts.items()],
        listings=[content.Listing(**content.SHOWN["listings"]["difference"], rows=rows)],
    )


def _steps(found: Difference, title: str, added: Mapping[str, float]) -> content.Figure:
    """From the first time to the second, what saves before what adds."""
    parts = sorted(added.items(), key=lambda part: part[1])
    ends_us = list(accumulate((added_us for _, added_us in parts), initial=found.first_us))
    shown = [("first kernel", found.first_us), *parts, ("second kernel", found.second_us)]
    texts = [(name, value_us, f"<b>{name}</b>: {number_text(value_us)} us") for name, value_us in shown]
    note = "From the time of the first kernel to that of the second, in us that add up."
    return content.bars(title, note, "us", texts, [0.0, *ends_us[:-1], 0.0])


def _of_kernel(problem: GemmProblem, explanation: Explanation, gpu: GpuSpec) -> list[content.Figure]:
    """What limits one kernel, what parts it from the peak, its roofs, what-ifs and waves."""
    return [
        mechanism_bars(explanation),
        way_to_peak_bars(explanation),
        level_roofline(problem, explanation, gpu),
        what_if_bars(explanation),
        wave_timeline(explanation.prediction),
    ]


def level_roofs(
    problem: GemmProblem, found: Explanation, gpu: GpuSpec
) -> list[tuple[str, float, float, float]]:
    """Levels of memory, each with its bandwidth [bytes/us], FLOP for each of its bytes, and the roof [FLOP/us]."""
    moved, runtime_us = found.prediction.bytes_by_level, found.prediction.runtime_us
    bandwidths = {
        "dram": gpu.dram_bytes_per_us,
        "l2": moved["l2"] / max(found.busy["L2"] * runtime_us, 1e-9),
        "smem": gpu.smem_bytes_per_clk_per_sm * gpu.sm_count * gpu.sm_clk_mhz,
    }
    peak, levels = gpu.flop_per_us(problem.math_kind), []
    for level, bandwidth in bandwidths.items():
        if moved[level]:
            intensity = problem.flop / moved[level]
            levels.append((level, bandwidth, intensity, min(peak, bandwidth * intensity)))
    return levels


def level_roofline(problem: GemmProblem, explanation: Explanation, gpu: GpuSpec) -> content.Figure:
    """A roof for each level of memory, and the kernel under each at its own intensity."""
    peak, levels = gpu.flop_per_us(problem.math_kind), level_roofs(problem, explanation, gpu)
    speed = problem.flop / explanation.prediction.runtime_us
    corners = [x for _, bandwidth, intensity, _ in levels for x in (intensity, peak / bandwidth)]
    low, high = min(corners) / 4, max(corners) * 4
    traces: list[Mapping[str, Any]] = []
    for color, (name, bandwidth, intensity, roof) in zip(content.COLORS, levels, strict=False):
        text = (
            f"<b>{name}</b><br>{intensity:.4g} FLOP/B<br>roof {roof / 1e6:.4g} TFLOP/s<br>"
            f"the kernel: {speed / 1e6:.4g} TFLOP/s, {speed / roof:.0%} of it"
        )
        x, y = [low, peak / bandwidth, high], [bandwidth * low / 1e6, peak / 1e6, peak / 1e6]
        line = {"mode": "lines", "x": x, "y": y, "line": {"color": color, "width": 2}}
        marker = {"color": color, "size": 12, "line": {"color": "@surface", "width": 2}}
        label = f"{name}, {bandwidth / 1e6:.3g} TB/s"
        traces += [
            {"type": "scatter", **line, "hoverinfo": "skip", "showlegend": False},
            content.points(label, [intensity], [speed / 1e6], marker, [text]),
        ]
    return content.figure("roofline", traces, words={"peak": peak / 1e6})


def what_if_bars(explanation: Explanation | AttentionExplanation) -> content.Figure:
    """Bars of the time saved by each what-if, best first."""
    shown = [
        (
            each.change,
            100.0 * (1.0 - each.relative),
            f"<b>{each.change}</b><br>{number_text(each.runtime_us)} us",
        )
        for each in explanation.what_if
    ]
    note = "How much time each change would save, all else as it is."
    return content.bars("What if", note, "time saved (%)", shown)


def mechanism_bars(explanation: Explanation) -> content.Figure:
    """What of 1 % more of each resource reaches the runtime; beside it the resource's time alone."""
    shown = [
        (
            each.name,
            100.0 * each.elasticity,
            f"<b>{each.name}</b>: {each.meaning}<br>{each.elasticity:.1%}; alone {number_text(each.time_us)} us",
        )
        for each in explanation.mechanisms
    ]
    busy = ", ".join(f"{name} {share:.0%}" for name, share in explanation.busy.items())
    note = content.SHOWN["notes"]["mechanisms"].format(busy=busy)
    return content.bars("Limited by", note, "share of the runtime (%)", shown)


def way_to_peak_bars(explanation: Explanation) -> content.Figure:
    """The steps from the roofline to the prediction, each where the one before ends."""
    shown = [
        (step.name, step.added_us, f"<b>{step.name}</b>: {signed_text(step.added_us)} us")
        for step in explanation.way_to_peak
    ]
    starts_us = [0.0, *accumulate(added_us for _, added_us, _ in shown[:-1])]
    note = "From the roofline to the predicted time: what each part adds, in us that add up."
    return content.bars("Way to the peak", note, "us", shown, starts_us)


def wave_timeline(prediction: Prediction) -> content.Figure:
    """The phases one after another; the longest is cut into its waves, as high as they fill the card."""
    longest = max(prediction.phases_us, key=lambda name: prediction.phases_us[name])
    # A negative residual is taken off the longest phase.
    phases_us = {name: duration_us for name, duration_us in prediction.phases_us.items() if duration_us > 0}
    phases_us[longest] -= sum(phases_us.values()) - prediction.runtime_us
    start_us, traces = 0.0, []
    for code, (name, duration_us) in enumerate(phases_us.items()):
        words = name.replace("_", " ")
        fills = _wave_fills(prediction.details) if name == longest else [1.0]
        length_us = duration_us / len(fills)
        starts_us = [start_us + length_us * wave for wave in range(len(fills))]
        labels = [words]
        if name == longest:
            waves = enumerate(fills, start=1)
            labels = [f"wave {wave} of {len(fills)}, {fill:.0%} of the card" for wave, fill in waves]
        start_us += duration_us
        traces.append(
            {
                **content.SHOWN["traces"]["bars"],
                "name": words,
                "x": [begin_us + length_us / 2 for begin_us in starts_us],
                "width": [length_us] * len(fills),
                "y": [100.0 * fill for fill in fills],
                "marker": {
                    "color": content.COLORS[code % len(content.COLORS)],
                    "line": {"color": "@surface", "width": 1},
                },
                "text": [
                    f"<b>{label}</b><br>{number_text(length_us)} us from {number_text(begin_us)} us"
                    for label, begin_us in zip(labels, starts_us, strict=True)
                ],
            }
        )
    return content.figure("waves", traces)


def _wave_fills(details: Mapping[str, float]) -> list[float]:
    """The share of resident clusters that each wave keeps busy; one full wave if unknown."""
    full, last = int(details.get("full_waves", 0)), details.get("last_wave_tiles", 0.0)
    partial = [last / details["tiles_per_wave"]] if last > 0 and "tiles_per_wave" in details else []
    if full + len(partial) > SHOWN_WAVES:
        return [1.0, *partial]
    return [1.0] * full + partial or [1.0]
