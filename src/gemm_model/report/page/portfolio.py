"""The page of a portfolio: the shapes that its kernels serve, and the loss of each shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gemm_model.choice.portfolio import Portfolio
from gemm_model.core.fields import counted, number_text
from gemm_model.kernels.candidates import Candidate
from gemm_model.report.page.choice import kernel_name
from gemm_model.report.page.content import COLORS, SHOWN, Fact, Figure, Listing, Page, figure, points


def portfolio_page(found: Portfolio, gpu: str, title: str) -> Page:
    """The page of `portfolio`."""
    quality = "proven the best of its size" if found.proven_best else f"at most {found.gap:.2%} from the best"
    of = f"{counted(len(found.kernels), 'kernel')} for {counted(len(found.problems), 'shape')}"
    return Page(
        title=title,
        subtitle=f"{of} on {gpu}, {quality}",
        facts=[
            Fact("Kernels", f"{len(found.kernels)}"),
            Fact("Shapes", f"{len(found.problems)}"),
            Fact("Mean loss", f"{found.mean_loss:.2%}", "against all kernels"),
            Fact("Worst loss", f"{float(found.loss.max()):.2%}", "of one shape"),
        ],
        figures=[_loss_figure(found), _size_figure(found)],
        listings=[_kernel_list(found)],
    )


def _name(position: int, candidate: Candidate) -> str:
    return f"{position + 1}. {kernel_name(candidate)}"


def _loss_figure(found: Portfolio) -> Figure:
    order = found.loss.argsort()
    places = {int(shape): place for place, shape in enumerate(order)}
    traces = _by_kernel(found, lambda shape: (places[shape], 100.0 * float(found.loss[shape])))
    return figure("loss", traces, height_px=440)


def _size_figure(found: Portfolio) -> Figure:
    problems = found.problems
    return figure("sizes", _by_kernel(found, lambda shape: (problems[shape].m, problems[shape].n)))


def _by_kernel(found: Portfolio, place: Callable[[int], tuple[float, float]]) -> list[Mapping[str, Any]]:
    """One trace for each kernel, with a point for each shape that it serves."""
    traces: list[Mapping[str, Any]] = []
    for position, candidate in enumerate(found.kernels):
        shapes = [int(shape) for shape in (found.served_by == position).nonzero()[0]]
        places = [place(shape) for shape in shapes]
        color, name = COLORS[position % len(COLORS)], _name(position, candidate)
        marker = {"color": color, "size": 8, "symbol": position // len(COLORS)}
        texts = [_description(found, shape, name) for shape in shapes]
        traces.append(points(name, [x for x, _ in places], [y for _, y in places], marker, texts))
    return traces


def _description(found: Portfolio, shape: int, kernel: str) -> str:
    problem = found.problems[shape]
    return (
        f"<b>{problem.m} x {problem.n} x {problem.k}</b><br>{kernel}<br>{number_text(found.time_us[shape])} us, "
        f"best {number_text(found.best_us[shape])} us<br>loss {found.loss[shape]:.2%}"
    )


def _kernel_list(found: Portfolio) -> Listing:
    rows = []
    for position, candidate in enumerate(found.kernels):
        served = found.served_by == position
        losses = found.loss[served]
        figures = (f"{losses.mean():.2%}", f"{losses.max():.2%}") if served.any() else ("-", "-")
        rows.append((_name(position, candidate), f"{int(served.sum())}", *figures))
    return Listing(**SHOWN["listings"]["portfolio"], rows=rows)
