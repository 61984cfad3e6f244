"""Held bytes over time: a lane a rank, stacked by the name under which the bytes are held."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from parlab.views.drawing import theme
from parlab.views.drawing.lanes import check_end, checked_ranks, lanes, legend_of, timeline_of
from parlab.views.drawing.picture import Picture, title
from parlab.world import Run, Timeline
from parlab.world.units import format_bytes

FILLS = ("#8CC4EF", "#E08214", "#1F7A5C", "#F7D488", "#999999", "#000000")
BASE, HEIGHT = 0.45, 0.85  # of a lane: where the areas stand, and how high the highest is
SENT, RECEIVED = "sent", "received"  # the names of what leaves and arrives in messages, which have colours of their own
MESSAGE_FILLS = {SENT: theme.KINDS["send"].color, RECEIVED: theme.KINDS["receive"].color}

MOST_PEAKS = 24  # lanes that name their peak

Steps = list[tuple[int, int]]


def held_bytes(run: Run | Timeline, *, ranks: Any = None, end: float | None = None) -> Picture:
    """Draw how many bytes every rank holds over time, one lane a rank, stacked by name; a dashed line marks
    each peak, and the number at its right says how high it is.

    All lanes have the same scale, and the time axis is the one of `timeline`, so the two can be read together.

    Args:
        run: what `run` returned, or a timeline.
        ranks: which ranks to show; None: all.
        end: where the time axis ends, in the timeline's ticks; None: at the makespan. See `timeline`.

    Raises:
        ValueError: something else, ranks that are not there, or an end that is not positive.
    """
    shown = timeline_of(run)
    chosen = checked_ranks(ranks, shown.size)
    check_end(end)
    peaks = {rank: shown.peak_bytes(rank) for rank in chosen}
    highest = max(peaks.values())
    first = f"Held bytes: {_of_ranks(chosen)}, the most at once {format_bytes(highest)}"
    text = "\n".join([first, *(f"rank {rank}: peak {peak} bytes" for rank, peak in peaks.items())])
    figure, axes = lanes(text, shown, chosen, end=end, right=1.2)
    last = shown.makespan or 1
    fills: dict[str, str] = {}
    for lane, rank in enumerate(chosen):
        _draw_stack(axes, lane, shown.held_by_name(rank), last, highest, fills)
        if peaks[rank] and len(chosen) <= MOST_PEAKS:
            _mark_peak(axes, lane, peaks[rank], last, highest)
    title(figure, f"Bytes held by {_of_ranks(chosen)}: at most {format_bytes(highest)} at once")
    legend_of(figure, [(fill, name, "") for name, fill in fills.items()])
    return figure


def _draw_stack(
    axes: Axes, lane: int, by_name: dict[str, Steps], last: int, highest: int, fills: dict[str, str]
) -> None:
    """One area a name on top of the other; `fills` remembers the names' colours from lane to lane."""
    times, layers = stacked(by_name, last)
    base = [lane + BASE] * len(times)
    axes.plot([0, last], [lane + BASE] * 2, color=theme.GRID, linewidth=0.8)
    for name, layer in zip(by_name, layers, strict=True):
        fills.setdefault(name, MESSAGE_FILLS.get(name) or _next_fill(fills))
        roof = [below - HEIGHT * nbytes / (highest or 1) for below, nbytes in zip(base, layer, strict=True)]
        axes.fill_between(times, base, roof, step="post", color=fills[name], linewidth=0, gid=f"lane {lane}")
        base = roof


def _mark_peak(axes: Axes, lane: int, peak: int, last: int, highest: int) -> None:
    level = lane + BASE - HEIGHT * peak / highest
    axes.plot([0, last], [level, level], color=theme.INK, linewidth=0.9, linestyle=(0, (4, 3)))
    beside = axes.get_yaxis_transform()
    text = f"peak {format_bytes(peak)}"
    axes.text(1.01, lane, text, transform=beside, size=theme.SMALL, color=theme.INK, va="center")


def stacked(by_name: dict[str, Steps], end: int) -> tuple[list[int], list[list[int]]]:
    """The times of all changes, and for each name its bytes from each of these times on."""
    times = sorted({0, end, *(time for steps in by_name.values() for time, _ in steps)})
    layers = []
    for steps in by_name.values():
        last = dict(steps)  # of several changes at one time, the last
        value, layer = 0, []
        for time in times:
            value = last.get(time, value)
            layer.append(value)
        layers.append(layer)
    return times, layers


def _next_fill(fills: dict[str, str]) -> str:
    return FILLS[sum(name not in MESSAGE_FILLS for name in fills) % len(FILLS)]


def _of_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
