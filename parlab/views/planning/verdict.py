"""How sure a plan is: the best layout of Llama 3's step at each usable memory, and at each pace of products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from parlab.arguments import checked, flag, positive
from parlab.plan import H100, LLAMA_405B, Estimate, Layout, Plans, estimate, search
from parlab.plan.arguments import fraction
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import BAR, BOUND, Picture, line_legend, plot, scale
from parlab.views.planning.bills import short_name
from parlab.views.widgets.explorer import Explorer, choice, steps
from parlab.world import DGX_H100

STEP: dict[str, Any] = {"batch": 2048, "sequence": 8192}
RANKS = 16384
META = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
FITS = {"color": theme.RANKS[4], "marker": "o", "markersize": 4, "linestyle": "none", "markeredgewidth": 0}
OUT = {"color": "#BBBBBB", "marker": "o", "markersize": 4, "linestyle": "none", "markeredgewidth": 0}
WINNER = {"color": theme.RANKS[5], "marker": "*", "markersize": 17, "linestyle": "none", "markeredgecolor": theme.INK}
MARK = {"color": theme.INK, "marker": "D", "markersize": 7, "linestyle": "none", "markeredgecolor": theme.PAPER}
GIB = 2**30
NEAR = (44.0, 92.0)  # GiB that are drawn
SLOWEST = 1.45  # of the winner's time that is drawn
LIMITS = (72.0, 73.0, 74.0, 74.5, 75.0, 76.0, 77.0, 78.0, 79.0, 79.6)
PACES = (0.5, 0.54, 0.6, 0.65, 0.7, 0.75, 0.79)


@checked({"usable": positive, "products": fraction, "cut_sequences": flag})
def verdict(usable: float = 74.5, products: float = 0.54, cut_sequences: bool = False) -> Picture:
    """Draw the layouts of Llama 3 405B near the limit, and the best of those that fit. `explore_verdict` shows this.

    Args:
        usable: GiB of a device that tensors may fill.
        products: the part of the peak that products reach.
        cut_sequences: layouts with context parallelism, too.

    Raises:
        ValueError: a number that is not greater than 0, or a part of more than 1.
    """
    plans = _plans(products, cut_sequences)
    first = plans.flips(usable * GIB, usable * GIB)
    if not first:
        raise ValueError(f"usable={usable!r}: nothing fits; the leanest needs {plans.bytes.min() / GIB:.1f} GiB")
    best, meta = first[0], estimate(LLAMA_405B, DGX_H100, META, **STEP, hardware=H100.but(products=products))
    headline = f"{usable:g} GiB usable, products at {products:g}: {short_name(best.layout)}, {best.total_seconds:.2f} s"
    flips = [f"  from {e.total_bytes / GIB:.1f} GiB on {e.total_seconds:.2f} s  {e.layout}" for e in plans.flips()]
    text = [headline, f"Llama 3's layout: {meta.total_seconds:.2f} s", "the best of 72 to 79.6 GiB:", *flips]
    figure, axes = plot(text, 4.6, headline, top=0.85)
    x, y = plans.bytes / GIB, plans.seconds
    least, most = 0.97 * min(y[x <= NEAR[1]].min(), best.total_seconds), SLOWEST * best.total_seconds
    scale(axes.xaxis, "GiB of the fullest rank", ends=NEAR, ticks=range(45, 95, 5))
    scale(axes.yaxis, "seconds a step", ends=(least, most))
    near = (x >= NEAR[0]) & (x <= NEAR[1]) & (y <= most)
    for name, part, look in (("fits", x <= usable, FITS), ("too large", x > usable, OUT)):
        axes.plot(x[near & part], y[near & part], gid=name, **look)
    axes.axvspan(72, 79.6, color=theme.paler("#E69F00", 0.8), zorder=0)
    axes.axvline(usable, gid="device", **BOUND)
    axes.plot([meta.total_bytes / GIB], [meta.total_seconds], gid="Llama 3", zorder=7, **MARK)
    axes.plot([max(best.total_bytes / GIB, NEAR[0])], [best.total_seconds], gid="winner", zorder=6, **WINNER)
    band = {"color": theme.paler("#E69F00", 0.6), **BAR}
    entries = [("fits", FITS), ("does not", OUT), ("the best", WINNER), ("Llama 3's", MARK), ("usable", BOUND)]
    line_legend(figure, [*entries, ("72 to 79.6 GiB", band)])
    return figure


@lru_cache(maxsize=64)
def _plans(products: float, cut_sequences: bool) -> Plans:
    """A search, kept for the next slider: another limit of memory needs no new one."""
    fixed: dict[str, Any] = {"microbatch": 1, "sequence_parallel": True, "recompute": "none"}
    fixed |= {} if cut_sequences else {"cp": 1}
    return search(LLAMA_405B, DGX_H100, RANKS, **STEP, hardware=H100.but(products=products), **fixed)


def explore_verdict() -> Explorer:
    """Sliders for `verdict`: usable memory, the part of the peak that products reach, and whether sequences are cut."""
    controls = {
        "usable": steps("usable GiB", [64, 68, 70, *LIMITS, 82, 86, 90], 74.5),
        "products": steps("products reach", [0.5, 0.54, 0.58, 0.6, 0.65, 0.7, 0.75, 0.79], 0.54),
        "cut_sequences": choice("context parallelism", [("no", False), ("yes", True)], False),
    }
    return Explorer("explore_verdict", controls, verdict)


@checked({"cut_sequences": flag})
def verdict_map(
    limits: Sequence[float] = LIMITS, paces: Sequence[float] = PACES, cut_sequences: bool = False
) -> Picture:
    """Draw which layout is the best at each usable memory and each pace of products, in a colour a layout.

    Args:
        limits: GiB of a device that tensors may fill.
        paces: parts of the peak that products reach.
        cut_sequences: layouts with context parallelism, too.

    Raises:
        ValueError: no limits or no paces, or a bad number among them.
    """
    for name, values, rule in (("limits", limits, positive), ("paces", paces, fraction)):
        if not len(values):
            raise ValueError(f"{name}={values!r}: one number or more is needed")
        for value in values:
            rule(name, value)
    found = [[_plans(pace, cut_sequences).flips(limit * GIB, limit * GIB)[0] for limit in limits] for pace in paces]
    layouts = list(dict.fromkeys(short_name(e.layout) for row in found for e in row))
    colors = {name: theme.paler(theme.rank_color(number), 0.35) for number, name in enumerate(layouts)}
    columns = [{short_name(row[place].layout) for row in found} for place in range(len(limits))]
    said = "The pace of products never changes the best layout, the memory does"
    if any(len(column) > 1 for column in columns):
        said = "The pace of products and the memory both change the best layout"
    lines = [_row(pace, row, layouts) for pace, row in zip(paces, found, strict=True)]
    numbered = [f"{number}: {name}" for number, name in enumerate(layouts)]
    text = [said, "usable GiB " + " ".join(f"{x:g}" for x in limits), *lines, *numbered]
    figure, axes = plot(text, 3.0 + 0.22 * len(layouts), said, top=0.5 + 0.22 * len(layouts))
    ends = (-0.5, len(limits) - 0.5)
    scale(axes.xaxis, "usable GiB", ends=ends, ticks=range(len(limits)), says=[f"{x:g}" for x in limits], dashes=False)
    names = [f"{x:g}" for x in paces]
    ends = (-0.5, len(paces) - 0.5)
    scale(axes.yaxis, "products reach", ends=ends, ticks=range(len(paces)), says=names, dashes=False)
    for (y, x), _ in np.ndenumerate(np.zeros((len(paces), len(limits)))):
        best = found[y][x]
        color = colors[short_name(best.layout)]
        marks.rectangles(axes, f"{y} {x}", [x - 0.48], [x + 0.48], [y - 0.47], [y + 0.47], [color])
        words = f"{best.total_seconds:.2f} s"
        marks.word(axes, x, y, words, ha="center", color=theme.text_color(color))
    for number, (name, color) in enumerate(colors.items()):
        line_legend(figure, [(name, {"color": color, **BAR})], 0.5 + 0.22 * number)
    return figure


def _row(pace: float, row: Sequence[Estimate], layouts: Sequence[str]) -> str:
    cells = [f"{e.total_seconds:.2f} s ({layouts.index(short_name(e.layout))})" for e in row]
    return f"products {pace:g}: " + ", ".join(cells)
