"""The pieces that rank 0 sends in an all-reduce, step by step: few steps beside few bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.views.engine import marks, theme
from parlab.views.engine.lanes import timelines_of
from parlab.views.engine.picture import Picture, panel, sheet
from parlab.views.world.pieces_film import Move, move_of
from parlab.world import Run, Timeline

STEP = 0.5  # from one step to the next, in boxes
ROW = 0.7  # inches
NAMES, COUNTS = 1.9, 1.9  # inches, left and right of the boxes


def pieces_sent(runs: Mapping[str, Run | Timeline], *, headline: str | None = None) -> Picture:
    """Draw each message of rank 0 as a row of boxes: one for each piece of the array, in the colour of its rank.

    A gap is a new step. Beside the boxes stand how many steps and pieces they are.

    Args:
        runs: {name: run}, each of an all-reduce whose messages name their pieces, with the same number of ranks.
        headline: of the picture; None: one that says what is drawn.

    Raises:
        ValueError: no runs, runs of several numbers of ranks, or one whose messages name no pieces.

    >>> import numpy as np
    >>> from parlab import run
    >>> pieces_sent({"ring": run(lambda comm, x: comm.all_reduce(x), 4, np.ones(8))})
    Rank 0 sends, of 4 pieces:
    ring: 3 | 2 | 1 | 0 | 3 | 2; 6 steps, 6 pieces
    """
    shown = timelines_of(runs)
    sizes = {one.size for one in shown.values()}
    if len(sizes) > 1:
        raise ValueError(f"runs={sorted(sizes)}: numbers of ranks; all runs need the same")
    (size,) = sizes
    sent = {name: _sent(name, one) for name, one in shown.items()}
    lines = [f"Rank 0 sends, of {size} pieces:"]
    for name, steps in sent.items():
        lines.append(f"{name}: {' | '.join(' '.join(map(str, pieces)) for pieces in steps)}; {_counts(steps)}")
    picture = sheet(lines, 0.65 + ROW * len(sent), headline or lines[0])
    axes = panel(picture, NAMES, 0.5, theme.WIDTH - NAMES - COUNTS, ROW * len(sent))
    longest = max(_end(steps) for steps in sent.values())
    axes.set(xlim=(0, longest), ylim=(len(sent) - 0.5, -0.5))
    for row, (name, steps) in enumerate(sent.items()):
        _boxes(axes, row, steps)
        marks.word(axes, -0.4, row, name, theme.TEXT, ha="right")
        marks.word(axes, longest + 0.5, row, _counts(steps), theme.TEXT, ha="left")
    return picture


def _sent(name: str, shown: Timeline) -> list[tuple[int, ...]]:
    """The pieces of each message of rank 0, in its order."""
    moves = [move_of(t, shown.size) for t in sorted(shown.transfers, key=lambda t: t.start) if t.src == 0]
    named = [move for move in moves if isinstance(move, Move)]
    if len(named) < len(moves) or not moves:
        raise ValueError(f"runs[{name!r}]: its messages name no pieces; run one all-reduce of the library")
    return [move.pieces for move in named]


def _end(steps: list[tuple[int, ...]]) -> float:
    return sum(map(len, steps)) + STEP * (len(steps) - 1)


def _boxes(axes: Any, row: int, steps: list[tuple[int, ...]]) -> None:
    left = 0.0
    for pieces in steps:
        starts = [left + number for number in range(len(pieces))]
        colors = [theme.rank_color(piece) for piece in pieces]
        marks.rectangles(axes, "piece", starts, [start + 0.94 for start in starts], row - 0.3, row + 0.3, colors)
        for start, piece, color in zip(starts, pieces, colors, strict=True):
            marks.word(axes, start + 0.47, row, str(piece), ha="center", color=theme.text_color(color))
        left += len(pieces) + STEP


def _counts(steps: list[tuple[int, ...]]) -> str:
    return f"{len(steps)} steps, {sum(map(len, steps))} pieces"
