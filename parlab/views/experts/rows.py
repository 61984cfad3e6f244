"""The rows that travel between ranks in a dispatch, as matrices side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from parlab.arguments import checked
from parlab.views.arguments import mapping
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, panel, sheet, write

Table = Sequence[Sequence[int]]
MOST_RANKS, MOST_TABLES = 16, 4
ROWS = "#0072B2"
NUMBERED = 4  # ranks, up to which each bar has room for its number
WORDS = 24  # rows of a rank, up to which each has the number of its expert


@checked({"tables": mapping})
def rows_between(tables: Mapping[str, Table], *, headline: str | None = None) -> Picture:
    """Draw rows from each rank to each rank, one matrix a table, and below it the rows that each rank receives.

    Beside a single table stand the rows of each rank as they lie after the exchange: by source, and then by expert.

    Args:
        tables: by name `counts [P][N]`, rows that each of P ranks sends for each of N experts: `Plan.counts`.
        headline: above the figure. None: the largest load over the mean, of the first and of the last table.

    Raises:
        ValueError: more than 4 tables, more than 16 ranks, experts that do not divide among them, or no rows.

    >>> rows_between({"even": [[1, 1], [1, 1]], "uneven": [[2, 0], [2, 0]]})
    The fullest rank has 1.00 times the mean in even, 2.00 times in uneven
    even: rank 0 gets 2, rank 1 gets 2
    uneven: rank 0 gets 4, rank 1 gets 0
    """
    matrices = {name: _by_rank(name, table) for name, table in tables.items()}
    if len(matrices) > MOST_TABLES:
        raise ValueError(f"tables: has {len(matrices)}, and {MOST_TABLES} are the most")
    loads = {name: matrix.sum(axis=0) for name, matrix in matrices.items()}
    fullest = {name: load.max() / load.mean() for name, load in loads.items()}
    (first, one), (last, other) = (tuple(fullest.items())[place] for place in (0, -1))
    then = f", {other:.2f} times in {last}" if len(fullest) > 1 else ""
    verdict = f"The fullest rank has {one:.2f} times the mean in {first}{then}"
    lines = [verdict]
    lines += [
        f"{name}: " + ", ".join(f"rank {rank} gets {rows}" for rank, rows in enumerate(load))
        for name, load in loads.items()
    ]
    height, room = 4.3, (theme.WIDTH - 0.9) / len(matrices)
    if len(matrices) == 1:
        room = 3.2
    figure = sheet(lines, height, headline or verdict)
    most, highest = max(matrix.max() for matrix in matrices.values()), max(load.max() for load in loads.values())
    for number, (name, matrix) in enumerate(matrices.items()):
        P = len(matrix)
        side = min(room - 0.3, 2.35)
        left = 0.75 + number * room
        axes = panel(figure, left, 0.95, side, side)
        axes.set_xlim(0, P)
        axes.set_ylim(P, 0)
        source, rank = np.divmod(np.arange(P * P), P)
        shares = matrix.reshape(-1) / max(most, 1)
        colors = [theme.paler(ROWS, 1 - share) for share in shares]
        marks.rectangles(axes, f"rows {name}", rank, rank + 1, source, source + 1, colors)
        for s, r, rows, color in zip(source, rank, matrix.reshape(-1), colors, strict=True):
            look: Any = {"ha": "center", "va": "center", "color": theme.text_color(color)}
            marks.word(axes, r + 0.5, s + 0.5, str(rows), **look)
        for r in range(P):
            marks.word(axes, r + 0.5, -0.08, f"{r}", ha="center", va="bottom")
            if number == 0:
                marks.word(axes, -0.1, r + 0.5, f"from {r}", ha="right", va="center")
        marks.word(axes, P / 2, -0.5 * P / 4, f"{name}: rows to rank", ha="center", va="bottom")
        _loads(panel(figure, left, 0.95 + side + 0.08, side, 0.75), name, loads[name], highest)
    write(
        figure,
        left + side + 0.06,
        0.95 + side + 0.08 + 0.75 * loads[name].mean() / (1.4 * highest),
        "mean",
        va="center",
    )
    if len(tables) == 1:
        _received(figure, np.asarray(next(iter(tables.values()))), 0.75 + room)
    return figure


def _loads(axes: Axes, name: str, load: np.ndarray, highest: int) -> None:
    """Bars that hang down: the rows that come to each rank; a dashed line is their mean."""
    P = len(load)
    axes.set_xlim(0, P)
    axes.set_ylim(1.4 * highest, 0)
    ranks = np.arange(P)
    marks.rectangles(axes, f"load {name}", ranks + 0.1, ranks + 0.9, 0, load, [theme.PATTERN] * P)
    axes.axhline(load.mean(), color=theme.INK, linestyle="dashed", linewidth=1.4)
    if P <= NUMBERED:
        for rank, rows in enumerate(load):
            marks.word(axes, rank + 0.5, 1.35 * highest, str(rows), ha="center", va="bottom")


def _received(figure: Picture, counts: np.ndarray, left: float) -> None:
    """The rows of each rank after the exchange, `counts` [P, N], a lane a rank: colour of the source, number of the
    expert."""
    P, N = counts.shape
    m = N // P
    write(
        figure,
        left,
        0.55,
        "after the exchange: a row has the colour of its source and the number of its expert",
        va="baseline",
    )
    axes = panel(figure, left + 0.65, 0.95, theme.WIDTH - left - 1.0, 2.35)
    most = counts.reshape(P, P, m).sum(axis=(0, 2)).max()
    axes.set_xlim(0, most)
    axes.set_ylim(P, 0)
    for rank in range(P):
        marks.word(axes, -0.1, rank + 0.5, f"rank {rank}", ha="right", va="center")
        of_rank = counts[:, rank * m : (rank + 1) * m]  # [P, m]
        source, expert = (np.repeat(index.reshape(-1), of_rank.reshape(-1)) for index in np.indices(of_rank.shape))
        start = np.arange(len(source))
        colors = [theme.rank_color(int(s)) for s in source]
        marks.rectangles(axes, f"received {rank}", start, start + 1, rank + 0.15, rank + 0.85, colors)
        if most <= WORDS:
            for x, number, color in zip(start, expert, colors, strict=True):
                look: Any = {"ha": "center", "va": "center", "color": theme.text_color(color)}
                marks.word(axes, x + 0.5, rank + 0.5, str(rank * m + number), **look)


def _by_rank(name: str, table: Table) -> np.ndarray:
    """`[P, N]` -> `[P, P]`."""
    counts = np.asarray(table)
    if counts.ndim != 2 or not len(counts) or counts.shape[1] % len(counts) or len(counts) > MOST_RANKS:
        raise ValueError(
            f"tables[{name!r}] has shape {counts.shape}: [P][N] is needed, N a multiple of P, P at most {MOST_RANKS}"
        )
    if not counts.sum():
        raise ValueError(f"tables[{name!r}]: no rank sends a row")
    return counts.reshape(len(counts), len(counts), -1).sum(axis=2)
