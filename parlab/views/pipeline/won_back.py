"""The work that a pipeline's GPUs do, and the bytes that its first and its last one hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

from parlab.arguments import amount
from parlab.pipeline import ScheduleTimeline
from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import Picture, panel, sheet, write

ROW, NAMES, PLACE = 0.36, 1.75, 0.3  # inches: a row of squares, the names beside it, the place of a square


def won_back(
    ran: Mapping[str, ScheduleTimeline],
    kept: float,
    waiting: float,
    *,
    base: float = 0,
    room: float = math.inf,
    headline: str | None = None,
) -> Picture:
    """Draw how many GPUs' worth of work a pipeline does, as squares, with the bytes on its first and its last GPU.

    Args:
        ran: `{name: what simulate returned}`, all of the same number of ranks; a rank is a GPU.
        kept: bytes that a microbatch keeps in all layers of a rank, from its F to its B or I.
        waiting: bytes that it keeps there from its I to its W.
        base: bytes that a GPU holds besides.
        room: bytes that a GPU has. Where more are needed, the number is red.
        headline: above the figure. None: the most work.

    Raises:
        ValueError: nothing to draw, other numbers of ranks, a negative number, or a headline that is no text.
    """
    sizes = {one.size for one in ran.values()}
    if len(sizes) != 1:
        raise ValueError(f"ran={list(ran)!r:.60}: give at least one timeline, and all with the same number of ranks")
    for name, nbytes in (("kept", kept), ("waiting", waiting), ("base", base)):
        amount(name, nbytes)
    (p,) = sizes
    busy = [p * (1 - one.bubble_fraction()) for one in ran.values()]
    held = [[base + _most_bytes(one, rank, kept, waiting) for rank in (0, p - 1)] for one in ran.values()]
    words = [[f"{nbytes / 1e9:.0f} GB" for nbytes in both] for both in held]
    lines = [f"{'':<16}{'work':>5}{'':10}{'first GPU':>11}{'last GPU':>11}"]
    for name, work, (first, last) in zip(ran, busy, words, strict=True):
        lines.append(f"{name:<16}{work:5.1f} of {p} GPUs{first:>9}{last:>11}")
    over = f"red: more than the {room / 1e9:.0f} GB of a GPU" if room < math.inf else ""
    headline = headline or f"GPUs' worth of work of {p}: {max(busy):.1f} at most"
    figure = sheet([headline, *lines, *filter(None, [over])], 0.95 + ROW * len(ran), headline)
    axes = panel(figure, NAMES, 0.85, PLACE * p, ROW * len(ran))
    axes.set_xlim(0, p)
    name_rows(axes, len(ran), list(ran))
    for row, work in enumerate(busy):
        left = [gpu + 0.08 for gpu in range(p)]
        filled = [gpu + 0.08 + 0.84 * min(max(work - gpu, 0), 1) for gpu in range(p)]
        marks.rectangles(axes, "places", left, [gpu + 0.92 for gpu in range(p)], row - 0.37, row + 0.37, theme.GRID)
        color = theme.INK if work == max(busy) else theme.FAINT
        marks.rectangles(axes, f"work of row {row}", left, filled, row - 0.37, row + 0.37, color)
    columns = [NAMES + PLACE * p + at for at in (0.15, 0.85, 1.75)]
    for x, title in zip(columns, (f"of {p}", "first GPU", "last GPU"), strict=True):
        write(figure, x, 0.6, title, theme.SMALL)
    write(figure, 0.15, 0.6, over, theme.SMALL, color=theme.ALARM)
    for row, (work, both, said) in enumerate(zip(busy, held, words, strict=True)):
        y = 0.85 + ROW * (row + 0.5)
        write(figure, columns[0], y, f"{work:.1f}", theme.TEXT, va="center", weight="bold")
        for x, nbytes, text in zip(columns[1:], both, said, strict=True):
            color, weight = (theme.ALARM, "bold") if nbytes > room else (theme.INK, "normal")
            write(figure, x, y, text, theme.TEXT, va="center", color=color, weight=weight)
    return figure


def _most_bytes(one: ScheduleTimeline, rank: int, kept: float, waiting: float) -> float:
    """The most that a rank keeps, if these are the bytes of all its chunks together."""
    chunks = one.schedule.num_stages / one.size
    return max(nbytes for _, nbytes in one.kept_bytes(rank, round(kept / chunks), round(waiting / chunks)))
