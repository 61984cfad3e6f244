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


@checked({"tables": mapping})
def rows_between(tables: Mapping[str, Table], *, headline: str | None = None) -> Picture:
    """Draw rows from each rank to each rank, one matrix a table, and below it a bar: the rows that a rank receives.

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
    verdict = headline or f"The fullest rank has {one:.2f} times the mean in {first}{then}"
    lines = [verdict]
    lines += [
        f"{name}: " + ", ".join(f"rank {rank} gets {rows}" for rank, rows in enumerate(load))
        for name, load in loads.items()
    ]
    height, room = 4.3, (theme.WIDTH - 0.9) / len(matrices)
    if len(matrices) == 1:
        room = 3.2
    figure = sheet(lines, height, verdict)
    most, highest = max(matrix.max() for matrix in matrices.values()), max(load.max() for load in loads.values())
    for number, (name, matrix) in enumerate(matrices.items()):
        P = len(matrix)
        side, wide = min(room - 0.3, 2.35), room - 0.4
        left = 0.75 + number * room
        axes = panel(figure, left, 0.95, wide, side)
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
        _loads(panel(figure, left, 0.95 + side + 0.12, wide, 0.62), name, loads[name], highest)
    write(
        figure,
        left + wide + 0.06,
        0.95 + side + 0.12 + 0.62 * (1 - loads[name].mean() / highest),
        "mean",
        va="center",
    )
    return figure


def _loads(axes: Axes, name: str, load: np.ndarray, highest: int) -> None:
    """Bars: the rows that come to each rank, its number below it; a dashed line is their mean."""
    P = len(load)
    axes.set_xlim(0, P)
    axes.set_ylim(0, highest)
    ranks = np.arange(P)
    marks.rectangles(axes, f"load {name}", ranks + 0.1, ranks + 0.9, 0, load, [theme.PATTERN] * P)
    axes.axhline(load.mean(), color=theme.INK, linestyle="dashed", linewidth=1.4)
    if P <= NUMBERED:
        for rank, rows in enumerate(load):
            marks.word(axes, rank + 0.5, -0.08 * highest, str(rows), ha="center", va="top")


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
