"""Packed documents: who sees whose keys, how far each K/V travels, and the work of each rank before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb

from parlab.sequence import positions
from parlab.sequence.layouts import journeys
from parlab.views.attention.masks import MOST_RANKS, MOST_TOKENS, checked_number
from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import name_lanes
from parlab.views.drawing.picture import Picture, panel, scale, sheet, write

SIDE, LINE, LANE = 4.6, 0.45, 0.24  # inches of the square, and of work: its name and a rank


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
    figure = sheet([headline, *rows], SIDE + 1.25, headline)
    axes = panel(figure, 0.9, 0.6, SIDE, SIDE)
    image = np.ones((S, S, 3))
    colors = np.array([to_rgb(theme.rank_color(rank)) for rank in range(size)]).repeat(S // size, axis=0)  # [S, 3]
    image[seen] = np.broadcast_to(colors, image.shape)[seen]
    axes.imshow(image, extent=(-0.5, size - 0.5, size - 0.5, -0.5), aspect="auto", interpolation="none")
    for edge in range(1, size):
        axes.axhline(edge - 0.5, color=theme.GRID, linewidth=1.2)
        axes.axvline(edge - 0.5, color=theme.GRID, linewidth=1.2)
    name_lanes(axes, list(range(size)))
    scale(axes.xaxis, "keys of rank", ticks=range(size), says=list(map(str, range(size))), dashes=False)
    for rank, row in enumerate(rows):
        top = 0.6 + SIDE * (rank + 0.5) / size
        write(figure, 0.9 + SIDE + 0.3, top, row.partition(": ")[2], theme.TEXT, va="baseline")
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
    ratios = {name: max(load) * size / sum(load) for name, load in loads.items()}
    said = {name: f"{name}: the slowest rank has {ratio:.3g} × the mean" for name, ratio in ratios.items()}
    text = [f"{said[name]}: {', '.join(f'{x:g}' for x in load)}" for name, load in loads.items()]
    (worst, high), (best, low) = (pick(ratios.items(), key=lambda item: item[1]) for pick in (max, min))
    headline = f"The slowest rank: {worst} {high:.3g} × the mean, {best} {low:.3g} ×"
    figure, top = sheet(text, 0.7 + len(loads) * (LINE + LANE * size), headline), 0.45
    for name, load in loads.items():
        write(figure, 0.15, top + LINE - 0.1, said[name], theme.TEXT, va="baseline")
        axes = panel(figure, 0.9, top + LINE, theme.WIDTH - 1.25, LANE * size)
        scale(axes.xaxis, ends=(0, 1.02 * most), ticks=())
        name_lanes(axes, list(range(size)))
        marks.bars(axes, "work", 0, load, theme.KINDS["compute"].color)
        axes.axvline(sum(load) / size, color=theme.INK, linewidth=1.2, linestyle=(0, (4, 3)), gid="mean")
        top += LINE + LANE * size
    return figure
