"""A ring collective by pieces: which ranks' numbers are summed in each piece, step by step, from its messages."""

from __future__ import annotations

import re
from typing import NamedTuple

from matplotlib.axes import Axes

from parlab.views.drawing import marks, theme
from parlab.views.drawing.lanes import lane_height, name_lanes, timeline_of
from parlab.views.drawing.marks import Interval
from parlab.views.drawing.picture import Picture, plot, png, scale
from parlab.views.drawing.png_film import Film, chips, steps_of, wrapped
from parlab.world import Run, Timeline

LABEL = re.compile(r"(add|take) piece (\d+)")
MOST_RANKS = 8
HALF = 0.3  # of a lane: half the height of a piece
COLUMN = 0.9  # of a column: the width of a piece
PLACE = "#EEEEEE"  # the empty part of a piece

Placed = tuple[Interval, float, tuple[int, ...]]  # a place, its lane, and the ranks whose numbers are in it
Sums = list[list[tuple[int, ...]]]  # for each rank and piece, whose numbers are in it, in the order of the sum


class PieceMove(NamedTuple):
    """A message: `src` sends `piece`, the sum over `ranks`, to `dst`, which adds its own piece or keeps it as it is."""

    src: int
    dst: int
    piece: int
    adds: bool
    ranks: tuple[int, ...]


class Pieces(NamedTuple):
    """The moves of each step, and the pieces of every rank before the first step and after each."""

    name: str
    steps: list[list[PieceMove]]
    sums: list[Sums]


def drawable(shown: Timeline) -> bool:
    """Whether the labels of a run's messages name their pieces, and its ranks are not too many."""
    return shown.size <= MOST_RANKS and any(LABEL.fullmatch(str(transfer.label)) for transfer in shown.transfers)


def pieces_of(run: Run | Timeline) -> Pieces:
    """The pieces of one ring collective, by its messages' labels. A ValueError for any other run."""
    shown = timeline_of(run)
    size = shown.size
    rows = [[t for t in shown.transfers if t.src == rank and t.dst != rank] for rank in range(size)]
    found = [[LABEL.fullmatch(str(t.label)) for t in row] for row in rows]
    ring = all(t.dst == (rank + 1) % size for rank, row in enumerate(rows) for t in row)
    adds = sum(match is not None and match[1] == "add" for match in found[0])
    right = {(0, size - 1), (size - 1, 0), (size - 1, size - 1)}
    if not (ring and all(map(all, found)) and (adds, len(found[0]) - adds) in right and 2 <= size <= MOST_RANKS):
        raise ValueError(
            f"run={run!r:.60}: must be the run of one ring all_reduce, reduce_scatter or all_gather, and nothing else, "
            f"on 2 to {MOST_RANKS} ranks"
        )
    held: Sums = [[(rank,) if adds or rank == piece else () for piece in range(size)] for rank in range(size)]
    steps, sums = [], [held]
    for number in range(len(rows[0])):
        moves = []
        for rank in range(size):
            how, piece = found[rank][number].groups()  # type: ignore[union-attr]
            moves.append(PieceMove(rank, rows[rank][number].dst, int(piece), how == "add", held[rank][int(piece)]))
        held = [list(row) for row in held]
        for move in moves:
            held[move.dst][move.piece] = move.ranks + (held[move.dst][move.piece] if move.adds else ())
        steps.append(moves)
        sums.append(held)
    return Pieces(rows[0][0].name.replace("_", "-"), steps, sums)


def all_reduce_steps(run: Run | Timeline) -> Picture:
    """Draw a ring collective, a rank a row and a step a column: the piece that arrived, and its sum afterwards.

    A frame marks a piece that is the sum over all ranks.

    Args:
        run: of one ring `all_reduce`, `reduce_scatter` or `all_gather` on 2 to 8 ranks.

    Raises:
        ValueError: another run.
    """
    done = pieces_of(run)
    size, columns, headline = len(done.sums[0]), len(done.steps), _headline(done)
    came = {(move.dst, step): move.piece for step, moves in enumerate(done.steps) for move in moves}
    spans = {(rank, step): Interval(step, step + COLUMN) for rank in range(size) for step in range(columns)}
    now = {(rank, step): done.sums[step + 1][rank][came[rank, step]] for rank, step in spans}
    said = {place: f"piece {came[place]}: {_sum(ranks)}" for place, ranks in now.items()}
    rows = [f"rank {rank}: " + ", ".join(said[rank, step] for step in range(columns)) for rank in range(size)]
    names = [f"step {step}: {'adds' if moves[0].adds else 'keeps'}" for step, moves in enumerate(done.steps, start=1)]
    if columns > 8:
        names = [str(step) for step in range(1, columns + 1)]
    figure, axes = _plot([headline, *rows], headline, size, names, top=0.7)
    heads = [[said[place], f"piece {came[place]}", str(came[place])] for place in spans]
    lanes = [rank for rank, _ in spans]
    marks.labels(axes, list(spans.values()), lanes, (-0.42, -0.12), heads)
    _draw_sums(axes, "sums", [(span, place[0], now[place]) for place, span in spans.items()], size, (-0.08, 0.36))
    return figure


def _plot(
    text: str | list[str], headline: str, size: int, columns: list[str], left: float = 0, **margins: float
) -> tuple[Picture, Axes]:
    """Lanes for all ranks, from `left` on, with the names of the columns below."""
    figure, axes = plot(text, 1.3 + max(0.62, lane_height(size)) * size, headline, **margins)
    middles = [column + COLUMN / 2 for column in range(len(columns))]
    scale(axes.xaxis, ends=(left, left + len(columns)), ticks=middles, says=columns, line=False, dashes=False)
    name_lanes(axes, list(range(size)))
    return figure, axes


def all_reduce_film(run: Run | Timeline) -> Film:
    """For `step_through`: the pieces of all ranks, and the pieces in messages."""
    done = pieces_of(run)
    own = "numbers of its own in all pieces" if all(map(all, done.sums[0])) else "the piece of its own number"
    lines = [f"start: every rank has {own}", *(_line(done, step) for step in range(len(done.steps)))]
    headline = _headline(done)
    return Film(headline, lines, steps_of(len(lines)), lambda place: png(_frame(done, headline, place)))


def _frame(done: Pieces, headline: str, place: float) -> Picture:
    """All pieces after `int(place)` steps, with those of the next step between two ranks."""
    size, step, where = len(done.sums[0]), int(place), (-HALF, HALF)
    names = [f"piece {piece}" for piece in range(size)]
    figure, axes = _plot(headline, headline, size, names, left=-0.05, top=0.75, bottom=0.45)
    spans = [Interval(piece, piece + COLUMN) for piece in range(size)]
    cells: list[Placed] = [(spans[b], r, now) for r, row in enumerate(done.sums[step]) for b, now in enumerate(row)]
    _draw_sums(axes, "pieces", cells, size, where)
    if place > step:
        lanes = wrapped([move.src + place - step for move in done.steps[step]], size)
        moves = zip(done.steps[step], lanes, strict=True)
        moving = [(spans[move.piece], lane, move.ranks) for move, both in moves for lane in both]
        _draw_sums(axes, "travelling", moving, size, where)
        on_their_way = [span for span, *_ in moving], [lane for _, lane, _ in moving]
        marks.frames(axes, "messages", *on_their_way, where, theme.KINDS["send"].color)
    return figure


def _draw_sums(axes: Axes, name: str, cells: list[Placed], size: int, where: marks.Height) -> None:
    """In each place a chip for each rank of the sum, in the order of the ranks. A complete sum has a frame."""
    marks.boxes(axes, f"{name}' places", [span for span, *_ in cells], [lane for _, lane, _ in cells], where, PLACE)
    placed = []
    for span, lane, members in cells:
        width = (span.end - span.start) / size
        placed += [(Interval(span.start + r * width, span.start + (r + 1) * width), lane, r) for r in members]
    chips(axes, name, placed, where)
    whole = [(span, lane) for span, lane, members in cells if len(members) == size]
    marks.frames(axes, f"complete {name}", [span for span, _ in whole], [lane for _, lane in whole], where)


def _headline(done: Pieces) -> str:
    size, steps = len(done.sums[0]), len(done.steps)
    then = {
        "reduce-scatter": f"after {steps} steps every rank has one piece with the numbers of all",
        "all-gather": f"after {steps} steps every rank has all pieces",
    }
    summed = f"after {size - 1} steps each piece is summed on one rank, after {steps} on all"
    return f"Ring {done.name}, {size} ranks: {then.get(done.name, summed)}"


def _line(done: Pieces, step: int) -> str:
    first, *others = done.steps[step]
    now = _sum(done.sums[step + 1][first.dst][first.piece])
    then = f"which adds its own: {now}" if first.adds else f"which keeps it: {now}"
    also = ", ".join(f"{move.src} → {move.dst} piece {move.piece}" for move in others)
    what = f"rank {first.src} sends piece {first.piece} ({_sum(first.ranks)}) to rank {first.dst}, {then}"
    return f"step {step + 1} of {len(done.steps)}: {what}; at the same time {also}"


def _sum(ranks: tuple[int, ...]) -> str:
    return "+".join(map(str, ranks))
