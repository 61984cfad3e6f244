"""The film of an MLP that tensor parallelism cuts: columns light up, shares of a sum appear, add, and go back."""

from __future__ import annotations

import re
from itertools import pairwise

from parlab.views.drawing import theme
from parlab.views.drawing.film import SHORTEST, Film, box, chip, letter, outline, word
from parlab.world import Timeline, Transfer

STEPS = ("columns", "rows", "rows, back", "columns, back", "gradients")  # the names of the computations, in order
TOLD = {
    "columns": "each rank multiplies all of x with its columns of A, and applies relu: these are finished",
    "rows": "they meet C's rows of the same numbers: a share of all of y",
    "rows, back": "backward: dy is whole on every rank, no message; dy times its columns of Cᵀ is finished",
    "columns, back": "times its rows of Aᵀ: a share of all of dx, because each rank's columns read the same x",
    "gradients": "dA and dC: all of a rank's own columns and rows, no message",
}
PASSING = {  # by the computation that follows, and by the label of the messages
    ("rows, back", "add"): "reduce: a piece of each share of y travels and is added to another rank's: a sum",
    ("rows, back", "take"): "reduce: each rank hands its sum on, until y is whole on all",
    ("gradients", "add"): "copy, backward: a piece of each share of dx travels and is added to another rank's: a sum",
    ("gradients", "take"): "copy, backward: each rank hands its sum on; dx is whole on all",
}
LABEL = re.compile(r"(add|take) piece (\d+)")
MOST_RANKS = 4
TOP, FORWARD, BACKWARD = 44, 30, 122  # of the first rank; of its two rows, below its name
X, A, HIDDEN, C, Y = 70, 190, 310, 430, 550  # the middles of the five arrays
WIDE, HIGH = 72, 56  # of an array
GREY = "#BBBBBB"  # an array as large as the whole
RANK = BACKWARD + HIGH + 28  # between two ranks


def cut_mlp(shown: Timeline) -> bool:
    """Whether these are 2 to 4 ranks that each compute the `STEPS`, and send only in ring all-reduces."""
    named = all(
        [span.name for span in shown.computes if span.rank == rank] == list(STEPS) for rank in range(shown.size)
    )
    return named and 2 <= shown.size <= MOST_RANKS and all(LABEL.fullmatch(str(t.label)) for t in shown.transfers)


def mlp_film(shown: Timeline) -> Film:
    """The film of a run in which each rank computes, with `comm.compute` around each of the names in `STEPS`:

    relu(x A) of its columns, times its rows of C; all-reduce; dy Cᵀ of its rows, times its columns of Aᵀ; all-reduce;
    and the gradients of A and C.
    """
    size = shown.size
    ends = [max(span.end for span in shown.computes if span.name == name) for name in STEPS]
    hops = sorted({t.end for t in shown.transfers})
    film = Film(
        f"An MLP on {size} ranks, forward and backward: {shown.format(shown.makespan)}",
        sorted({0, *ends, *hops}),
        TOP + RANK * size - 20,
        moving=8.0,
    )
    for x, name in zip((X, A, HIDDEN, C, Y), ("x, dx", "A, dA", "relu(x A)", "C, dC", "y, dy"), strict=True):
        film.draw(word(x, 14, name, "strong"))
    forward = [t for t in shown.transfers if t.start < ends[2]]
    y_whole = max(t.end for t in forward)
    dx_whole = max(t.end for t in shown.transfers)
    for rank in range(size):
        _draw_rank(film, rank, size, ends, y_whole, dx_whole)
    _draw_sum(film, forward, size, FORWARD, Y, (ends[0], ends[1]))
    _draw_sum(film, [t for t in shown.transfers if t.start >= ends[2]], size, BACKWARD, X, (ends[2], ends[3]))
    for time in film.times[:-1]:
        after = next((name for name, end in zip(STEPS, ends, strict=True) if end > time), STEPS[-1])
        passing = next((str(t.label).partition(" ")[0] for t in shown.transfers if t.start <= time < t.end), None)
        film.tell(time, PASSING[after, passing] if passing else TOLD[after])
    return film


def _row(rank: int, row: int) -> float:
    return TOP + RANK * rank + row


def _whole(x: float, y: float, look: str) -> str:
    return outline(x - WIDE / 2, y, WIDE, HIGH, look)


def _columns(rank: int, size: int, x: float, y: float) -> str:
    wide = WIDE / size
    return box(x - WIDE / 2 + wide * rank, y, wide - 1, HIGH, theme.rank_color(rank))


def _rows(rank: int, size: int, x: float, y: float) -> str:
    high = HIGH / size
    return box(x - WIDE / 2, y + high * rank, WIDE, high - 1, theme.rank_color(rank))


def _chips(x: float, y: float, piece: int, size: int, members: frozenset[int]) -> str:
    """On a piece of a sum, a chip for each rank whose share is in it."""
    wide, high, edge = WIDE / size, HIGH / size, 10 / size
    left, top = x - WIDE / 2 + edge, round(y + high * piece + edge, 1)
    across, down = round(wide - 2 * edge, 1), round(high - 1 - 2 * edge, 1)
    return "".join(chip(round(left + wide * r, 1), top, across, down, r) for r in sorted(members))


def _grow(film: Film, mark: str, start: int, end: int) -> None:
    """The array that a product makes from `start` to `end`: laid bare row by row, a row for each token."""
    begins = film.second(start, leaves=True)
    ready = max(film.second(end), begins + SHORTEST)
    hidden = f"clamp(0%,({ready:g} - var(--t))*{100 / (ready - begins):.4g}%,100%)"
    film.draw(f'<g style="clip-path:inset(0 0 {hidden})">{mark}</g>')


def _draw_rank(film: Film, rank: int, size: int, ends: list[int], y_whole: int, dx_whole: int) -> None:
    """The arrays that do not travel: the matrices from the start, and the products while they are computed."""
    above, below = _row(rank, FORWARD), _row(rank, BACKWARD)
    film.draw(word(X - WIDE / 2, _row(rank, 12), f"rank {rank}", "strong left"))
    for x in (X, A, HIDDEN, C, Y):
        film.draw(_whole(x, above, "empty") + _whole(x, below, "empty"))
    film.draw(box(X - WIDE / 2, above, WIDE, HIGH, GREY, "x"))
    film.draw(_columns(rank, size, A, above) + _rows(rank, size, C, above))
    _grow(film, _columns(rank, size, HIDDEN, above), 0, ends[0])
    film.draw(box(Y - WIDE / 2, below, WIDE, HIGH, GREY, "dy"), y_whole)
    _grow(film, _columns(rank, size, HIDDEN, below), y_whole, ends[2])
    _grow(film, _columns(rank, size, A, below) + _rows(rank, size, C, below), dx_whole, ends[4])
    places = " ".join(f"{(left + right) / 2:g}" for left, right in pairwise((X, A, HIDDEN, C, Y)))
    for y, arrow in ((above, "→"), (below, "←")):
        film.draw(f'<text x="{places}" y="{y + HIGH / 2:g}">{4 * arrow}</text>')


def _draw_sum(film: Film, transfers: list[Transfer], size: int, row: int, x: float, product: tuple[int, int]) -> None:
    """The shares that all ranks compute from the start of a `product` to its end, and their all-reduce."""
    held = [[frozenset({rank}) for _ in range(size)] for rank in range(size)]
    for rank in range(size):
        y = _row(rank, row)
        chips = "".join(_chips(x, y, piece, size, held[rank][piece]) for piece in range(size))
        _grow(film, box(x - WIDE / 2, y, WIDE, HIGH, GREY) + chips, *product)
    for t in transfers:
        match = LABEL.fullmatch(str(t.label))
        how, piece = (match[1], int(match[2])) if match else ("", 0)
        sent, had = held[t.src][piece], held[t.dst][piece]
        now = held[t.dst][piece] = sent | had if how == "add" else sent
        y, to_y, high = _row(t.src, row), _row(t.dst, row), HIGH / size
        message = letter(x - WIDE / 2 - 3, y + high * piece - 3, WIDE + 6, high + 5) + _chips(x, y, piece, size, sent)
        apart = WIDE + 14 if t.src > t.dst else 2 * (WIDE + 14)  # two that meet half-way do not touch
        aside = apart if x == X else -apart
        film.move(message, t.start, t.end, (0, to_y - y), (aside, 0))
        film.draw(_chips(x, to_y, piece, size, now - had), t.end)
        if len(now) == size:
            film.draw(outline(x - WIDE / 2 - 1, to_y + high * piece - 1, WIDE + 1, high, "frame"), t.end)
