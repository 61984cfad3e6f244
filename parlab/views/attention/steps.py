"""The ring turning: who holds which K/V at each step, and in the backward, whose dK/dV passes by."""

from __future__ import annotations

from typing import NamedTuple

from parlab.sequence import RingSchedule
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import lane_height, name_lanes
from parlab.views.drawing.picture import Picture, plot, title

MOST_RANKS = 16
ROOM = 0.35  # between two columns, where the arrows run


class Cell(NamedTuple):
    """A box in the column from `start` to `end`: what a rank holds there."""

    start: float
    end: float


def ring_steps(size: int, *, backward: bool = False) -> Picture:
    """Draw which K/V every rank holds at each step of ring attention, in the colour of the rank that they come from.

    Args:
        size: ranks in the ring, at most 16.
        backward: the dK/dV instead: how many shares they hold, as they follow their K/V and come home.

    Raises:
        ValueError: no such ring.
    """
    checked_number("size", size, MOST_RANKS)
    held = [[rank, *(step.kv_source for step in RingSchedule(rank, size).steps)] for rank in range(size)]
    what = "dK/dV" if backward else "K/V"
    if backward and size > 1:
        for rank, sources in enumerate(held):
            sources.append(rank)  # the hop that brings them home
    columns = len(held[0])
    headline = _headline(size, backward)
    rows = [f"rank {rank}: {what} of " + ", ".join(map(str, sources)) for rank, sources in enumerate(held)]
    figure, axes = plot("\n".join([headline, *rows]), 1.25 + max(0.4, lane_height(size)) * size, top=0.75)
    axes.set_xlim(-ROOM / 2, columns - ROOM / 2)
    name_lanes(axes, list(range(size)))
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([column + (1 - ROOM) / 2 for column in range(columns)], _column_names(size, columns, backward))
    axes.tick_params(axis="x", length=0)
    cells = [Cell(column, column + 1 - ROOM) for column in range(columns)] * size
    ranks = [rank for rank in range(size) for _ in range(columns)]
    sources = [source for sources in held for source in sources]
    colors = [theme.rank_color(source) for source in sources]
    marks.boxes(axes, what, cells, ranks, (-0.3, 0.3), colors)
    texts = [
        _choices(what, source, int(cell.start) if backward else None, size)
        for source, cell in zip(sources, cells, strict=True)
    ]
    marks.labels(axes, cells, ranks, (-0.3, 0.3), texts, [theme.text_color(color) for color in colors])
    hops = [(rank, column) for rank in range(size) for column in range(columns - 1)] if size > 1 else []
    tails = [(column + 1 - ROOM, rank) for rank, column in hops]
    heads = [(column + 1, (rank + 1) % size) for rank, column in hops]
    marks.arrows(axes, tails, heads, theme.ARROW)
    title(figure, headline)
    return figure


def checked_number(name: str, value: object, most: int) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ValueError: not a whole number from 1 to `most`.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name}={value!r}: must be a whole number from 1 to {most}")


def _headline(size: int, backward: bool) -> str:
    if size == 1:
        return "One rank: nothing travels"
    if backward:
        return f"dK/dV in a ring of {size}: {size} hops, and the last one brings them home with {size}/{size} shares"
    return f"K/V in a ring of {size}: {size - 1} hops, and every rank has seen all"


def _column_names(size: int, columns: int, backward: bool) -> list[str]:
    names = ["its own block", *(f"after hop {hop}" for hop in range(1, columns))]
    if backward and size > 1:
        names[-1] = "home"
    return names if columns <= 10 else ["own", *map(str, range(1, columns))]


def _choices(what: str, source: int, shares: int | None, size: int) -> tuple[str, ...]:
    """What a box may say, the longest first."""
    if shares is None:
        return f"{what} of rank {source}", f"{what} {source}", str(source)
    count = f"{min(shares + 1, size)}/{size}"
    return f"{what} {source}: {count}", f"{source}: {count}", str(source)
