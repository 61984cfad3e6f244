"""The results of searches: all layouts of one, memory against time; and the best by model and number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm

from parlab.arguments import checked, finite
from parlab.plan import MODELS, Estimate, Plans, search
from parlab.views.arguments import RULES
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import BAR, BOUND, Picture, line_legend, note, plot, scale
from parlab.world import DGX_H100, Cluster
from parlab.world.units import format_bytes

FRONT = {"color": theme.RANKS[5], "marker": "o", "markersize": 4, "linewidth": 1.6}
BEST = {"color": theme.RANKS[5], "marker": "*", "markersize": 15, "linestyle": "none", "markeredgecolor": theme.INK}
MARK = {"color": theme.INK, "marker": "D", "markersize": 8, "linestyle": "none", "markeredgecolor": theme.PAPER}
MANY = ListedColormap([theme.paler("#56B4E9", 0.85 * (1 - part)) for part in np.linspace(0, 1, 64)])
BINS = 110
SHADES = {t: theme.paler("#0072B2", white) for t, white in ((1, 0.95), (2, 0.75), (4, 0.55), (8, 0.3), (16, 0))}
NOTHING = "#EEEEEE"
KNOBS: dict[str, Any] = {"microbatch": [1, 2], "sequence_parallel": True, "zero": [1, 3], "schedule": "1f1b"}


def all_layouts(
    plans: Plans, most: float = 10, marks: Mapping[str, Estimate] | None = None, best: bool = True, headline: str = ""
) -> Picture:
    """Draw every possible layout by the memory of its fullest rank and its time. More layouts make a darker place.

    Args:
        plans: the result of `search`.
        most: slower layouts than `most` times the fastest one that fits are left out.
        marks: estimates that are marked, by name.
        best: draw the front and the best one, too.
        headline: above the figure. Empty: how many fit.

    Raises:
        ValueError: nothing fits, no plans, or a bad number.
    """
    if not isinstance(plans, Plans):
        raise ValueError(f"plans={plans!r:.60}: must be what search() returned")
    finite("most", most)
    if most <= 1:
        raise ValueError(f"most={most!r:.60}: must be greater than 1")
    first, front = plans.best, plans.front() if best else []
    if not plans.seconds.min():
        raise ValueError("plans: a step takes no time on this cluster; search on one that computes at a finite pace")
    near = plans.seconds <= most * first.total_seconds
    fitting, faster = len(plans), int((plans.seconds < first.total_seconds).sum())
    counted = f"{len(plans.seconds)} layouts, {fitting} fit; {faster} would be faster, but are too large"
    said = headline or counted
    named = [f"{name}: {_line(e)}" for name, e in (marks or {}).items()]
    near_front = [f"  {_line(e)}" for e in front if e.total_seconds <= most * first.total_seconds]
    lines = [f"The front, {len(front)} layouts:", *near_front] * best
    slow = f"not drawn: {(~near).sum():,} slower than {most:g} × the best".replace(",", " ")
    figure, axes = plot([said, counted, slow, *named, *lines], 5.0, said, top=0.85)
    low, high = plans.bytes[near].min() / 2**30, plans.bytes[near].max() / 2**30
    if high < 1.01 * low:  # the ends of an axis must differ
        low, high = low / 2, 2 * high
    edges = np.geomspace(low, high, BINS), np.geomspace(plans.seconds.min(), most * first.total_seconds, BINS)
    number, x, y = np.histogram2d(plans.bytes[near] / 2**30, plans.seconds[near], bins=edges)
    round_numbers = [d * 10.0**n for n in range(-9, 7) for d in (1, 2, 4, 6)]  # LogLocator ended at 80 of 2000 GiB
    ticks: Any = {"log": 10, "ticks": round_numbers, "says": "{:g}".format}
    scale(axes.xaxis, "GiB of the fullest rank", ends=(low, high), **ticks)
    scale(axes.yaxis, "seconds a step", ends=(0.95 * edges[1][0], edges[1][-1]), **ticks)
    axes.pcolormesh(x, y, np.where(number.T > 0, number.T, np.nan), cmap=MANY, norm=LogNorm(1, number.max()), gid="all")
    axes.axvline(plans.memory / 2**30, gid="device", **BOUND)
    entries = [("layouts", {"color": "#56B4E9", **BAR})]
    if best:
        axes.plot([e.total_bytes / 2**30 for e in front], [e.total_seconds for e in front], gid="front", **FRONT)
        axes.plot([first.total_bytes / 2**30], [first.total_seconds], gid="best", **BEST)
        entries += [("the front", FRONT), ("the best", BEST)]
    for name, e in (marks or {}).items():
        axes.plot([e.total_bytes / 2**30], [e.total_seconds], gid=name, zorder=6, **MARK)
        entries.append((name, MARK))
    line_legend(figure, [*entries, ("a device's memory", BOUND)])
    if not near.all():
        note(figure, slow)
    return figure


def _line(found: Estimate) -> str:
    return f"{found.total_seconds:8.3f} s {format_bytes(found.total_bytes):>9}  {found.layout}"


@checked(RULES)
def winners(
    models: Sequence[str] = ("llama-8b", "llama-70b", "llama-405b"),
    gpus: Sequence[int] = (64, 256, 1024, 4096, 16384),
    *,
    tokens: int = 2**24,
    sequence: int = 8192,
    cluster: Cluster = DGX_H100,
    headline: str = "",
) -> Picture:
    """Draw a map: the best layout's tensor parallelism as a shade, and all of its mesh in words.

    Args:
        models: names in `MODELS`, the smallest first.
        gpus: numbers of GPUs.
        tokens: of a step, the same for all.
        sequence: tokens of a sequence.
        cluster: the hardware.
        headline: above the figure. Empty: the setting.

    Raises:
        ValueError: an unknown model, or tokens that are not whole sequences.
    """
    if unknown := [name for name in models if name not in MODELS]:
        raise ValueError(f"models: {unknown[0]!r}: choose from {', '.join(MODELS)}")
    if tokens % sequence:
        raise ValueError(f"tokens={tokens}: must be a multiple of sequence {sequence}")
    setting = f"The best layouts of {tokens / 2**20:g} Mi tokens a step, {sequence} in a sequence, on {cluster.name}"
    headline = headline or setting
    figure, axes = plot("", 1.5 + 0.95 * len(models), headline, left=1.15, top=0.85, bottom=0.65)
    says = [str(ranks) for ranks in gpus]
    scale(axes.xaxis, "GPUs", ends=(-0.5, len(gpus) - 0.5), ticks=range(len(gpus)), says=says, dashes=False)
    scale(axes.yaxis, ends=(-0.5, len(models) - 0.5), ticks=range(len(models)), says=list(models), dashes=False)
    lines = [headline]
    for (y, name), (x, ranks) in product(enumerate(models), enumerate(gpus)):
        best = _best(MODELS[name], cluster, ranks, tokens // sequence, sequence)
        if isinstance(best, str):
            took, color = best, NOTHING
        else:
            took = f"{best.total_seconds:8.2f} s  MFU {best.mfu:.1%}  {best.layout}"
            color = SHADES.get(best.layout.tp, SHADES[16])
        lines.append(f"{name:12} {ranks:6} {took}")
        marks.rectangles(axes, f"{name} {ranks}", [x - 0.48], [x + 0.48], [y - 0.47], [y + 0.47], [color])
        marks.word(axes, x, y, _words(best), ha="center", color=theme.text_color(color), linespacing=1.3)
    figure.text_shown = "\n".join(lines)
    line_legend(figure, [(f"tp {t}" + " or more" * (t == 16), {"color": color, **BAR}) for t, color in SHADES.items()])
    return figure


def _best(config: Any, cluster: Cluster, ranks: int, batch: int, sequence: int) -> Estimate | str:
    """The best layout, or why there is none."""
    try:
        plans = search(config, cluster, ranks, batch=batch, sequence=sequence, **KNOBS)
    except ValueError as error:
        if "no layout is possible" not in str(error):
            raise
        return "none is possible"
    return plans.best if len(plans) else "nothing fits"


def _words(best: Estimate | str) -> str:
    if isinstance(best, str):
        return best
    of = best.layout
    again = "" if of.recompute == "none" else f", {of.recompute}"
    sizes = f"tp {of.tp} cp {of.cp} pp {of.pp}\ndp {of.dp} chunks {of.chunks}"
    return f"{sizes}\nZeRO-{of.zero}{again}, MFU {best.mfu:.0%}"
