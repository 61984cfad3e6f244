"""Bubble and memory of schedules against the number of microbatches: formulas as curves, simulated ones as dots."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from parlab.arguments import whole
from parlab.pipeline import Costs, Schedule, gpipe, interleaved_one_f_one_b, one_f_one_b, simulate, zb_h1, zb_h2
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, panel, scale, sheet

HEIGHT = 4.4  # inches
PER_RANK = (1, 2, 3, 4, 6, 8, 16)  # microbatches a rank


class Curve(NamedTuple):
    """A schedule's closed forms, with F = I = W = 1 for all layers of a rank, and how they are drawn.

    From `holds_from` microbatches on, the ranks are idle for `idle` (by longest stage), and rank 0 keeps at most the
    activations of `kept` whole stages.
    """

    make: Callable[[int, int], Schedule]
    chunks: int
    holds_from: Callable[[int], int]
    idle: Callable[[int], float]
    kept: Callable[[int, int], float]
    color: str
    dashes: str
    marker: str

    def idle_percent(self, p: int, m: int) -> float:
        """The closed form; NaN where it does not hold."""
        return 100 * self.idle(p) / (3 * m + self.idle(p)) if m >= self.holds_from(p) else math.nan

    @property
    def dots(self) -> dict[str, Any]:
        """How what was simulated is drawn."""
        return {"color": self.color, "linestyle": "None", "marker": self.marker, "markersize": 6.5}


CURVES = {
    "GPipe": Curve(gpipe, 1, lambda p: 1, lambda p: 3 * (p - 1), lambda p, m: m, "#E69F00", "solid", "s"),
    "1F1B": Curve(one_f_one_b, 1, lambda p: p, lambda p: 3 * (p - 1), lambda p, m: p, "#0072B2", "dashed", "o"),
    "interleaved 1F1B, 2 chunks": Curve(
        partial(interleaved_one_f_one_b, chunks=2), 2, lambda p: p, lambda p: 3 * (p - 1) / 2,
        lambda p, m: min(2 * m, 3 * p - 1) / 2, "#D55E00", "dashdot", "^",
    ),
    "ZB-H1": Curve(zb_h1, 1, lambda p: p, lambda p: p - 1, lambda p, m: p, "#009E73", "dotted", "D"),
    "ZB-H2": Curve(
        zb_h2, 1, lambda p: 2 * p - 1, lambda p: 0, lambda p, m: min(m, 2 * p - 1), "#000000", "solid", "v"
    ),
}  # fmt: skip


def bubble_and_memory(p: int) -> Picture:
    """Draw the idle fraction and the activations kept on rank 0 against m, for every schedule of `CURVES`.

    Curves are the closed forms, dots are simulated schedules; F = I = W, transfers take no time. The idle fraction is
    taken of the longest stage, as in the Zero Bubble paper; for GPipe and both 1F1B that is the makespan.

    Args:
        p: ranks; m is a multiple of it, up to 16 p.

    Raises:
        ValueError: fewer than 2 ranks.
    """
    across = [whole("p", p, 2) * k for k in PER_RANK]
    lines = [f"{'schedule':<27}p = {p}; m: idle %, kept on rank 0"]
    headline = f"More microbatches, less bubble; only GPipe's memory keeps growing (p = {p}, F = I = W)"
    figure = sheet("", HEIGHT, headline)
    left, right = (panel(figure, x, 0.24 * HEIGHT, 4.1, 0.62 * HEIGHT) for x in (0.75, 5.6))
    same = True
    for name, curve in CURVES.items():
        ran = [simulate(curve.make(p, m), Costs(*[1 / curve.chunks] * 3)) for m in across]
        idle = [100 * one.bubble_fraction("longest_stage") for one in ran]
        kept = [one.peak_activations[0] / curve.chunks for one in ran]
        formula = [curve.idle_percent(p, m) for m in across]
        formula_kept = [curve.kept(p, m) for m in across]
        both = zip(idle, formula, strict=True)
        same &= kept == formula_kept and all(abs(i - f) < 1e-9 for i, f in both if not math.isnan(f))
        for axes, closed, measured in ((left, formula, idle), (right, formula_kept, kept)):
            axes.plot(across, closed, color=curve.color, linestyle=curve.dashes, linewidth=1.8)
            axes.plot(across, measured, markeredgecolor=theme.PAPER, zorder=3, **curve.dots)
        cells = "  ".join(f"{x}: {i:.1f}, {k:g}" for x, i, k in zip(across, idle, kept, strict=True))
        lines.append(f"{name:<27}{cells}")
    figure.text_shown = "\n".join([*lines, f"closed form = simulated: {same}"])
    for axes, label in ((left, "% of the time idle (longest stage)"), (right, "activations kept on rank 0, in stages")):
        scale(axes.xaxis, "microbatches m", log=2, ticks=across, says="{:g}".format, grid=True)
        axes.margins(y=0.08)
        axes.set_title(label, size=theme.TEXT, color=theme.INK, loc="left")
    scale(left.yaxis, grid=True)
    scale(right.yaxis, log=2, says="{:g}".format, grid=True)
    line_legend(figure, [(name, curve.dots) for name, curve in CURVES.items()])
    return figure
