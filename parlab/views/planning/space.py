"""All layouts at once: memory against time, what fits, and the front."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.ticker import LogLocator

from parlab.plan import Plans
from parlab.views.drawing import theme
from parlab.views.drawing.picture import BAR, BOUND, Picture, line_legend, plot, scale
from parlab.world.units import format_bytes

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
    figure, axes = plot([headline, f"The front, {len(front)} layouts:", *lines], 5.0, headline, top=0.85)
    low, high = plans.bytes[near].min() / 2**30, plans.bytes[near].max() / 2**30
    edges = np.geomspace(low, high, BINS), np.geomspace(plans.seconds.min(), most * best.total_seconds, BINS)
    number, x, y = np.histogram2d(plans.bytes[near] / 2**30, plans.seconds[near], bins=edges)
    ticks: Any = {"log": 10, "ticks": LogLocator(subs=(1, 2, 5)), "says": "{:g}".format}
    scale(axes.xaxis, "GiB of the fullest rank", ends=(low, high), **ticks)
    scale(axes.yaxis, "seconds a step", ends=(0.95 * edges[1][0], edges[1][-1]), **ticks)
    axes.pcolormesh(x, y, np.where(number.T > 0, number.T, np.nan), cmap=MANY, norm=LogNorm(1, number.max()), gid="all")
    axes.axvline(plans.memory / 2**30, gid="device", **BOUND)
    axes.plot([e.total_bytes / 2**30 for e in front], [e.total_seconds for e in front], gid="front", **FRONT)
    axes.plot([best.total_bytes / 2**30], [best.total_seconds], gid="best", **BEST)
    layouts = {"color": "#56B4E9", **BAR}
    line_legend(figure, [("layouts", layouts), ("the front", FRONT), ("the best", BEST), ("a device's memory", BOUND)])
    return figure
