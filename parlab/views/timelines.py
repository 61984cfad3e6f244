"""The timeline of a run: a lane a rank, with what it computes, sends, receives, and whom it waits for."""

from __future__ import annotations

import re
from typing import Any

from matplotlib.axes import Axes

from parlab.views import marks, theme
from parlab.views.lanes import checked_ranks, lanes, legend, timeline_of
from parlab.views.picture import Picture, inches, title
from parlab.world import Run, Timeline, Transfer
from parlab.world.units import format_bytes

MOST_ARROWS = 200
MOST_SIZES = 6  # messages whose size is written beside the arrow
PROGRAM, SENDS, RECEIVES, WHOLE = (-0.24, 0.24), (0.28, 0.42), (-0.42, -0.28), (-0.42, 0.42)  # of a lane
ACTION = re.compile(r"\d+([FBIW])(\d+)")
ACTION_KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


def timeline(run: Run | Timeline, *, ranks: Any = None) -> Picture:
    """Draw what every rank did when: rank 0 on top, time to the right.

    In each lane, the bar in the middle is the program (computing, or waiting for the rank that is named), the strip
    above what it receives, the strip below what it sends; arrows are messages.

    Args:
        run: what `run` or `simulate` returned, or a timeline.
        ranks: which ranks to show; None: all.

    Raises:
        ValueError: something else, or ranks that are not there.
    """
    shown = timeline_of(run)
    chosen = checked_ranks(ranks, shown.size)
    figure, axes = lanes(repr(shown), shown, chosen)
    lane_of = {rank: lane for lane, rank in enumerate(chosen)}
    travelling = [t for t in shown.transfers if t.end > t.start]
    program = PROGRAM if travelling else WHOLE
    kinds = _draw_computes(axes, shown, lane_of, program)
    kinds += _draw_waits(axes, shown, lane_of, program)
    kinds += _draw_messages(axes, travelling, lane_of)
    name = "rank" if shown.size == 1 else "ranks"
    on = f" on {shown.cluster}" if shown.cluster else ""
    title(figure, f"{shown.size} {name}{on}: makespan {shown.format(shown.makespan)}")
    legend(figure, list(dict.fromkeys(kinds)))
    return figure


def _draw_computes(axes: Axes, shown: Timeline, lane_of: dict[int, int], where: tuple[float, float]) -> list[str]:
    spans = [span for span in shown.computes if span.rank in lane_of]
    if not spans:
        return []
    kinds, names = zip(*(_kind_and_label(span.name) for span in spans), strict=True)
    colors = [theme.KINDS[kind].color for kind in kinds]
    lane = [lane_of[span.rank] for span in spans]
    left, right = [span.start for span in spans], [span.end for span in spans]
    low, high = ([y + edge for y in lane] for edge in where)
    marks.bars(axes, left, right, low, high, colors)
    _name_bars(axes, left, right, lane, names, [theme.text_color(color) for color in colors])
    return list(kinds)


def _kind_and_label(name: str) -> tuple[str, str]:
    """A pipeline's action is drawn by its letter and labelled with its microbatch; anything else by its name."""
    action = ACTION.fullmatch(name)
    return (ACTION_KINDS[action[1]], action[2]) if action else ("compute", name)


def _draw_waits(axes: Axes, shown: Timeline, lane_of: dict[int, int], where: tuple[float, float]) -> list[str]:
    waits = [wait for wait in shown.waits if wait.rank in lane_of]
    if not waits:
        return []
    kind = theme.KINDS["wait"]
    lane = [lane_of[wait.rank] for wait in waits]
    left, right = [wait.start for wait in waits], [wait.end for wait in waits]
    low, high = ([y + edge for y in lane] for edge in where)
    marks.hatched(axes, left, right, low, high, kind.color, kind.hatch)
    long = [f"waits for rank {wait.peer}" for wait in waits]
    _name_bars(axes, left, right, lane, long, [theme.INK] * len(waits), [f"for {wait.peer}" for wait in waits])
    return ["wait"]


def _name_bars(
    axes: Axes,
    left: list[int],
    right: list[int],
    lane: list[int],
    names: Any,
    colors: list[str],
    short: Any = None,
) -> None:
    """Write into each bar what fits: its name, else its short name, else nothing."""
    width, height = inches(axes)
    points = 72 * width / (axes.get_xlim()[1] - axes.get_xlim()[0])
    lane_points = 72 * height / abs(axes.get_ylim()[1] - axes.get_ylim()[0])
    size = min(theme.SMALL, 0.6 * lane_points)
    if size < 5:
        return
    placed = []
    for number, choices in enumerate(zip(names, short or names, strict=True)):
        room = (right[number] - left[number]) * points - 3
        fitting = [text for text in choices if marks.text_width(text, size) <= room]
        if fitting and fitting[0]:
            placed.append(((left[number] + right[number]) / 2, lane[number], fitting[0], colors[number]))
    if placed:
        x, y, texts, inks = zip(*placed, strict=True)
        marks.words(axes, x, y, texts, inks, size)


def _draw_messages(axes: Axes, transfers: list[Transfer], lane_of: dict[int, int]) -> list[str]:
    kinds = []
    for kind, end, where in (("send", 0, SENDS), ("receive", 1, RECEIVES)):
        own = [t for t in transfers if t[end] in lane_of]
        if own:
            low, high = ([lane_of[t[end]] + edge for t in own] for edge in where)
            marks.bars(axes, [t.start for t in own], [t.end for t in own], low, high, theme.KINDS[kind].color)
            kinds.append(kind)
    between = [t for t in transfers if t.src in lane_of and t.dst in lane_of]
    if 0 < len(between) <= MOST_ARROWS:
        tails = [(t.start, lane_of[t.src] + sum(SENDS) / 2) for t in between]
        heads = [(t.end, lane_of[t.dst] + sum(RECEIVES) / 2) for t in between]
        marks.arrows(axes, tails, heads, theme.INK)
        if len(between) <= MOST_SIZES:
            for t, (x0, y0), (x1, y1) in zip(between, tails, heads, strict=True):
                axes.text((x0 + x1) / 2, (y0 + y1) / 2, f" {format_bytes(t.nbytes)}", size=theme.SMALL, color=theme.INK)
    return kinds
