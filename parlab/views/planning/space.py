"""All layouts at once: memory against time, what fits, and the front."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm

from parlab.plan import Plans
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, plot, title
from parlab.world.units import format_bytes

EDGE = {"color": theme.INK, "linestyle": (0, (4, 2)), "linewidth": 1.6}
FRONT = {"color": theme.RANKS[5], "marker": "o", "markersize": 4, "linewidth": 1.6}
BEST = {"color": theme.RANKS[5], "marker": "*", "markersize": 15, "linestyle": "none", "markeredgecolor": theme.INK}
MANY = ListedColormap([theme.paler("#56B4E9", 0.85 * (1 - part)) for part in np.linspace(0, 1, 64)])
BINS = 110


def all_layouts(plans: Plans, most: float = 10) -> Picture:
    """Draw every possible layout by the memory of its fullest rank and its time; darker where there are more.

    Args:
        plans: of a search.
        most: times the fastest that fits; slower ones are left out.

    Raises:
        ValueError: nothing fits, or no plans.
    """
    if not isinstance(plans, Plans):
        raise ValueError(f"plans={plans!r:.60}: must be what search() returned")
    best, front = plans.best, plans.front()
    near = plans.seconds <= most * best.total_seconds
    fitting, faster = len(plans), int((plans.seconds < best.total_seconds).sum())
    headline = f"{len(plans.seconds)} layouts, {fitting} fit; {faster} would be faster, but are too large"
    lines = [f"  {e.total_seconds:8.3f} s {format_bytes(e.total_bytes):>9}  {e.layout}" for e in front]
    figure, axes = plot("\n".join([headline, f"The front, {len(front)} layouts:", *lines]), 5.0, top=0.85)
    low, high = plans.bytes[near].min() / 2**30, plans.bytes[near].max() / 2**30
    edges = np.geomspace(low, high, BINS), np.geomspace(plans.seconds.min(), most * best.total_seconds, BINS)
    number, x, y = np.histogram2d(plans.bytes[near] / 2**30, plans.seconds[near], bins=edges)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.pcolormesh(x, y, np.where(number.T > 0, number.T, np.nan), cmap=MANY, norm=LogNorm(1, number.max()), gid="all")
    axes.axvline(plans.memory / 2**30, gid="device", **EDGE)
    axes.plot([e.total_bytes / 2**30 for e in front], [e.total_seconds for e in front], gid="front", **FRONT)
    axes.plot([best.total_bytes / 2**30], [best.total_seconds], gid="best", **BEST)
    axes.set_xlim(edges[0][0], edges[0][-1])
    axes.set_ylim(0.95 * edges[1][0], edges[1][-1])
    axes.set_xlabel("GiB of the fullest rank", size=theme.TEXT, color=theme.INK)
    axes.set_ylabel("seconds a step", size=theme.TEXT, color=theme.INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.tick_params(which="minor", labelsize=theme.SMALL, labelcolor=theme.INK, color=theme.FAINT)
    patch = {"color": "#56B4E9", "linewidth": 9, "solid_capstyle": "butt"}
    line_legend(figure, [("layouts", patch), ("the front", FRONT), ("the best", BEST), ("a device's memory", EDGE)])
    title(figure, headline)
    return figure
