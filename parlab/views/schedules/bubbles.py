"""Bubbles: of schedules, against the number of microbatches; of smaller chunks, against the time of a transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from parlab.arguments import amount, whole
from parlab.pipeline import (
    Costs,
    Schedule,
    ScheduleTimeline,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_rows
from parlab.views.drawing.picture import (
    Picture,
    curve,
    line_legend,
    note,
    panel,
    plot,
    scale,
    sheet,
    write,
)
from parlab.views.widgets.explorer import Explorer, steps

HEIGHT = 4.4  # inches
PER_RANK = (1, 2, 3, 4, 6, 8, 16)  # microbatches a rank
# the curve of each number of chunks: 1F1B and its interleaving have their colours of CURVES
CHUNKS = {1: curve("#0072B2", "solid"), 2: curve("#D55E00", "dashed"), 4: curve("#CC79A7", "dotted")}
TRANSFERS = [step / 32 for step in range(65)]  # up to twice the forward of a rank
LEVELS = (
    60,
    140,
)  # percent of the makespan of 1 chunk: 4 chunks take no less, and how much more than this says nothing


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
        """The style of simulated points."""
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
    for name, form in CURVES.items():
        ran = [simulate(form.make(p, m), Costs(*[1 / form.chunks] * 3)) for m in across]
        idle = [100 * one.bubble_fraction("longest_stage") for one in ran]
        kept = [one.peak_activations[0] / form.chunks for one in ran]
        idle_form, kept_form = [form.idle_percent(p, m) for m in across], [form.kept(p, m) for m in across]
        both = zip(idle, idle_form, strict=True)
        same &= kept == kept_form and all(math.isnan(f) or abs(i - f) < 1e-9 for i, f in both)
        for axes, closed, measured in ((left, idle_form, idle), (right, kept_form, kept)):
            axes.plot(across, closed, color=form.color, linestyle=form.dashes, linewidth=1.8)
            axes.plot(across, measured, markeredgecolor=theme.PAPER, zorder=3, **form.dots)
        cells = "  ".join(f"{x}: {i:.1f}, {k:g}" for x, i, k in zip(across, idle, kept, strict=True))
        lines.append(f"{name:<27}{cells}")
    figure.text_shown = "\n".join([*lines, f"closed form = simulated: {same}"])
    for axes, label in ((left, "% of the time idle (longest stage)"), (right, "activations kept on rank 0, in stages")):
        scale(axes.xaxis, "microbatches m", log=2, ticks=across, says="{:g}".format, grid=True)
        axes.margins(y=0.08)
        axes.set_title(label, size=theme.TEXT, color=theme.INK, loc="left")
    scale(left.yaxis, grid=True)
    scale(right.yaxis, log=2, says="{:g}".format, grid=True)
    line_legend(figure, [(name, form.dots) for name, form in CURVES.items()])
    return figure


def interleaving(p: int = 4, m: int = 8, backward: float = 2) -> Picture:
    """Draw the makespan with several chunks a rank, in percent of that with one, against the transfer time.

    Args:
        p: ranks.
        m: microbatches, a multiple of p.
        backward: B of all layers of a rank, whose forward takes 1.

    Raises:
        ValueError: m is no multiple of p, fewer than 2 ranks, or a negative time.
    """
    if whole("m", m, 1) % whole("p", p, 2):
        raise ValueError(f"m={m}: must be a multiple of p={p}, because chunks take microbatches in groups of p")
    amount("backward", backward)
    took = {chunks: [_makespan(p, m, chunks, backward, c) for c in TRANSFERS] for chunks in CHUNKS}
    best = [min((units[at], v) for v, units in took.items())[1] for at in range(len(TRANSFERS))]
    parts = {v: [100 * own / one for own, one in zip(units, took[1], strict=True)] for v, units in took.items()}
    changes = [(c, one, other) for c, (one, other) in zip(TRANSFERS[1:], pairwise(best), strict=True) if one != other]
    until = [f"v = {one} is best below c = {c:.2g}" for c, one, _ in changes]
    headline = "; ".join([*until, f"v = {best[-1]} " + ("from there on" if changes else "is best for all of these")])
    columns = range(0, len(TRANSFERS), 8)
    rows = ["transfer c" + "".join(f"{TRANSFERS[at]:>7g}" for at in columns)]
    rows += [f"v = {v}: %   " + "".join(f"{percents[at]:7.1f}" for at in columns) for v, percents in parts.items()]
    figure, axes = plot([headline, *rows], 3.9, headline, top=0.85, bottom=0.65)
    for v, percents in parts.items():
        axes.plot(TRANSFERS, percents, gid=f"v = {v}", **CHUNKS[v])
    for c, _, _ in changes:
        axes.axvline(c, color=theme.FAINT, linewidth=0.8)
    scale(axes.xaxis, "c, the time of a transfer; the forward of a rank takes 1", ends=(0, TRANSFERS[-1]))
    scale(axes.yaxis, "makespan, in % of 1 chunk's", ends=LEVELS, grid=True)
    line_legend(figure, [(f"{v} chunk{'s' * (v > 1)} a rank", style) for v, style in CHUNKS.items()])
    note(figure, f"p = {p}, m = {m}, B = {backward:g} F")
    return figure


def _makespan(p: int, m: int, chunks: int, backward: float, transfer: float) -> float:
    made = interleaved_one_f_one_b(p, m, chunks) if chunks > 1 else one_f_one_b(p, m)
    return simulate(made, Costs(1 / chunks, backward / chunks, 0, transfer)).makespan


def explore_interleaving() -> Explorer:
    """Sliders for `interleaving`: ranks, microbatches a rank, and the time of a backward."""
    controls = {
        "p": steps("ranks p", (2, 4, 6, 8), 4),
        "k": steps("microbatches m", (1, 2, 3, 4), 2, "{} p".format),
        "backward": steps("backward B", (1, 1.5, 2, 3), 2, "{:g} F".format),
    }
    return Explorer("explore_interleaving", controls, lambda p, k, backward: interleaving(p, k * p, backward))


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
