"""Packed documents: who sees whose keys, how far each K/V travels, and the work of each rank before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb

from parlab.sequence import positions
from parlab.sequence.schedule import journeys
from parlab.views.attention.masks import MOST_RANKS, MOST_TOKENS, checked_number
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_lanes
from parlab.views.drawing.picture import Picture, framed, title

SIDE = 4.6  # inches of the square


def packed_ring(documents: Sequence[int], size: int = 4, layout: str = "contiguous") -> Picture:
    """Draw which of a rank's queries (down) see which keys (across), causally and in their own document.

    Seen pairs have the colour of the rank that the keys come from. Beside it: how many hops each rank's K/V make.

    Args:
        documents: starts of the packed documents, and the end: [0, ..., S], S at most 1024.
        size: ranks in the ring, at most 16.
        layout: contiguous, zigzag (inside each document) or striped.

    Raises:
        ValueError: too many, or documents that the layout cannot deal out.

    >>> packed_ring([0, 2, 8, 12], 4)
    K/V make 4 of 12 hops, the slowest rank has 1.41 × the mean work
    rank 0: 4 pairs, its K/V make 2 hops
    rank 1: 9 pairs, its K/V make 1 hop
    rank 2: 12 pairs, its K/V make 1 hop
    rank 3: 9 pairs, its K/V make 0 hops
    """
    checked_number("size", size, MOST_RANKS)
    S = documents[-1] if len(documents) else 0
    checked_number("documents[-1]", S, MOST_TOKENS)
    owned = np.concatenate(positions(S, size, layout, documents))  # [S]: rank by rank
    number = np.searchsorted(documents, owned, side="right")
    seen = (owned[:, None] >= owned[None, :]) & (number[:, None] == number[None, :])  # [S, S]
    pairs = seen.reshape(size, -1).sum(axis=1).tolist()
    travel = journeys(size, S // size, layout, causal=True, documents=tuple(documents))
    headline = f"K/V make {sum(travel)} of {size * (size - 1)} hops, the slowest rank has "
    headline += f"{max(pairs) * size / sum(pairs):.3g} × the mean work"
    rows = [
        f"rank {rank}: {pairs[rank]} pairs, its K/V make {hops} {'hop' if hops == 1 else 'hops'}"
        for rank, hops in enumerate(travel)
    ]
    height = SIDE + 1.25
    figure = Picture("\n".join([headline, *rows]), theme.WIDTH, height)
    axes = framed(figure, (0.9 / theme.WIDTH, 0.65 / height, SIDE / theme.WIDTH, SIDE / height))
    image = np.ones((S, S, 3))
    colors = np.array([to_rgb(theme.rank_color(rank)) for rank in range(size)]).repeat(S // size, axis=0)  # [S, 3]
    image[seen] = np.broadcast_to(colors, image.shape)[seen]
    axes.imshow(image, extent=(-0.5, size - 0.5, size - 0.5, -0.5), aspect="auto", interpolation="none")
    for edge in range(1, size):
        axes.axhline(edge - 0.5, color=theme.GRID, linewidth=1.2)
        axes.axvline(edge - 0.5, color=theme.GRID, linewidth=1.2)
    name_lanes(axes, list(range(size)))
    axes.set_xticks(range(size), [str(rank) for rank in range(size)])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("keys of rank", size=theme.TEXT, color=theme.INK)
    for rank, row in enumerate(rows):
        y = 1 - (0.6 + SIDE * (rank + 0.5) / size) / height
        figure.text((0.9 + SIDE + 0.3) / theme.WIDTH, y, row.partition(": ")[2], size=theme.TEXT, color=theme.INK)
    title(figure, headline)
    return figure


def work_loads(loads: Mapping[str, Sequence[float]]) -> Picture:
    """Draw the work of each rank, one panel for each way to deal it out, on one scale; a dashed line is the mean.

    Args:
        loads: the work of each rank (`loads_of`), by the name of the way.

    Raises:
        ValueError: nothing to draw, or other numbers of ranks.

    >>> work_loads({"equal": [10, 26, 42, 58], "head and tail": [34, 34, 34, 34]})
    equal: the slowest rank has 1.71 × the mean: 10, 26, 42, 58
    head and tail: the slowest rank has 1 × the mean: 34, 34, 34, 34
    """
    sizes = {len(load) for load in loads.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"loads have {sorted(sizes)} ranks: give one way or more, all of the same number of ranks")
    (size,), most = sizes, max(max(load) for load in loads.values())
    rows = {name: f"{name}: the slowest rank has {_ratio(load):.3g} × the mean" for name, load in loads.items()}
    text = "\n".join(f"{row}: {', '.join(f'{x:g}' for x in loads[name])}" for name, row in rows.items())
    panel, lane = 0.45, 0.24
    height = 0.7 + len(loads) * (panel + lane * size)
    figure, top = Picture(text, theme.WIDTH, height), 0.45
    for name, load in loads.items():
        top += panel + lane * size
        box = 0.9 / theme.WIDTH, 1 - top / height, (theme.WIDTH - 1.25) / theme.WIDTH, lane * size / height
        axes = framed(figure, box)
        axes.set_xlim(0, 1.02 * most)
        name_lanes(axes, list(range(size)))
        axes.set_xticks([])
        low, high = [rank - 0.36 for rank in range(size)], [rank + 0.36 for rank in range(size)]
        marks.rectangles(axes, "work", [0] * size, load, low, high, [theme.KINDS["compute"].color] * size)
        axes.axvline(sum(load) / size, color=theme.INK, linewidth=1.2, linestyle=(0, (4, 3)), gid="mean")
        y = 1 - (top - lane * size - 0.1) / height
        figure.text(0.15 / theme.WIDTH, y, rows[name], size=theme.TEXT, color=theme.INK)
    worst = max(loads, key=lambda name: _ratio(loads[name]))
    best = min(loads, key=lambda name: _ratio(loads[name]))
    title(
        figure, f"The slowest rank: {worst} {_ratio(loads[worst]):.3g} × the mean, {best} {_ratio(loads[best]):.3g} ×"
    )
    return figure


def _ratio(load: Sequence[float]) -> float:
    return max(load) * len(load) / sum(load)
