"""A picture of one attention tile: what its producer, groups, tensor cores and SFU do when."""

from __future__ import annotations

from pathlib import Path

from gemm_model.attention.derive import BlockCosts
from gemm_model.attention.simulator import AttentionSpan, simulate_tile
from gemm_model.core.files import atomic_path

COLORS = {
    "load_k": "#9aa0a6",
    "load_v": "#c4c7cc",
    "qk": "#1f77b4",
    "pv": "#17a2a2",
    "softmax": "#ff9f40",
    "exponentials": "#d9480f",
    "correction": "#9467bd",
    "store": "#555555",
}


def lanes_of(span: AttentionSpan) -> str:
    """The row of the picture that a span stands in."""
    if span.group < 0:
        return "producer"
    unit = {"qk": "tensor cores", "pv": "tensor cores", "exponentials": "SFU"}.get(span.kind)
    return unit or f"group {span.group + 1}"


def draw_tile(costs: BlockCosts, path: Path, *, groups: int, overlap: bool, blocks: int = 4) -> None:
    """Write the picture of a tile of some key blocks; the file's name tells its format."""
    from matplotlib.figure import Figure

    spans = simulate_tile(
        costs.times(0.0), groups=groups, stages=costs.stages, overlap=overlap, blocks=blocks
    )
    lanes = ["producer", "tensor cores", "SFU", *(f"group {group + 1}" for group in range(groups))]
    figure = Figure(figsize=(9.0, 0.55 * len(lanes) + 0.9), layout="constrained")
    axes = figure.subplots()
    for span in spans:
        if span.end > span.start:
            bar = axes.barh(
                lanes.index(lanes_of(span)),
                span.end - span.start,
                left=span.start,
                color=COLORS[span.kind],
                edgecolor="white",
                label=span.kind.replace("_", " "),
            )
            whose = f"{'ABC'[span.group]}{span.block}" if span.group >= 0 else str(span.block)
            axes.bar_label(bar, [whose], label_type="center", fontsize=7)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()
    axes.set_xlabel("clocks")
    handles, labels = axes.get_legend_handles_labels()
    seen = dict(zip(labels, handles, strict=True))
    axes.legend(seen.values(), seen.keys(), ncols=len(seen), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=120)
