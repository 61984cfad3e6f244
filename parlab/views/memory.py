"""Held bytes over time: a lane a rank, stacked by the name under which the bytes are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.views import theme
from parlab.views.lanes import check_end, checked_ranks, lanes, legend_of, timeline_of
from parlab.views.picture import Picture, title
from parlab.world import Run, Timeline
from parlab.world.units import format_bytes

FILLS = (theme.KINDS["receive"].color, "#8CC4EF", "#E08214", "#1F7A5C", "#F7D488", "#4A2A7F", "#999999")
BASE, HEIGHT = 0.45, 0.85  # of a lane: where the areas stand, and how high the highest is
RECEIVED = "received"  # the name of what arrives in messages; it has the colour of receiving

Steps = Sequence[tuple[int, int]]


def held_bytes(run: Run | Timeline, *, ranks: Any = None, end: float | None = None) -> Picture:
    """Draw how many bytes every rank holds over time, one lane a rank, stacked by name; a line marks each peak.

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
    text = "\n".join(
        [f"Held bytes: {_of_ranks(chosen)}, the most at once {format_bytes(highest)}"]
        + [f"rank {rank}: peak {peak} bytes" for rank, peak in peaks.items()]
    )
    figure, axes = lanes(text, shown, chosen, end=end, right=1.2)
    fills: dict[str, str] = {}
    for lane, rank in enumerate(chosen):
        by_name = shown.held_by_name(rank)
        for name in by_name:
            fills.setdefault(name, FILLS[0] if name == RECEIVED else _next_fill(fills))
        times, layers = stacked(by_name, shown.makespan or 1)
        floor = lane + BASE
        base = [floor] * len(times)
        for name, layer in zip(by_name, layers, strict=True):
            roof = [b - HEIGHT * value / (highest or 1) for b, value in zip(base, layer, strict=True)]
            axes.fill_between(times, base, roof, step="post", color=fills[name], linewidth=0, gid=f"lane {lane}")
            base = roof
        axes.plot([0, shown.makespan], [floor, floor], color=theme.GRID, linewidth=0.8)
        if peaks[rank] and len(chosen) <= 24:
            level = floor - HEIGHT * peaks[rank] / highest
            axes.plot([0, shown.makespan], [level, level], color=theme.INK, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.text(
                1.01,
                lane,
                f"peak\n{format_bytes(peaks[rank])}" if len(chosen) <= 12 else format_bytes(peaks[rank]),
                transform=axes.get_yaxis_transform(),
                size=theme.SMALL,
                color=theme.INK,
                va="center",
            )
    title(figure, f"Bytes held by {_of_ranks(chosen)}: at most {format_bytes(highest)} at once")
    legend_of(figure, [(fill, name, "") for name, fill in fills.items()])
    return figure


def stacked(by_name: dict[str, list[tuple[int, int]]], end: int) -> tuple[list[int], list[list[int]]]:
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
    return FILLS[1 + sum(name != RECEIVED for name in fills) % (len(FILLS) - 1)]


def _of_ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
