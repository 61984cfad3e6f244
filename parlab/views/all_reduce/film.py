"""The film of an all-reduce: pieces of the array travel between ranks, and gather the numbers of all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from parlab.views.drawing.film import WIDTH, Film, chip, outline, word
from parlab.world import Timeline, Transfer

LABEL = re.compile(r"(add|take) pieces? (\d+)(?:-(\d+))?")
MOST_RANKS = 6
COLUMNS, BAR, ROW, HEIGHT = (145, 365), 130, 30, 24  # two columns of ranks; a piece is a bar, in rows
MIDDLE = WIDTH / 2
RANK = 46  # between two ranks of a column, with their names
INWARD = 45  # so far a whole array that goes up bows towards the middle

Held = list[list[frozenset[int]]]  # for each rank and piece, the ranks whose numbers are in it


class Move(NamedTuple):
    """A message: `src` sends `pieces` to `dst`, which adds its own or keeps them as they are."""

    start: int
    end: int
    src: int
    dst: int
    pieces: tuple[int, ...]
    adds: bool


def moves_of(shown: Timeline) -> list[Move]:
    """The messages of one collective whose labels name their pieces; none for the timeline of something else."""
    known = 2 <= shown.size <= MOST_RANKS and len({t.name for t in shown.transfers}) == 1
    moves = [_move(t, shown.size) for t in shown.transfers] if known else []
    return [] if None in moves else [move for move in moves if move is not None]


def _move(t: Transfer, size: int) -> Move | None:
    label = LABEL.fullmatch(str(t.label))
    if label is None:
        return None
    first, last = int(label[2]), int(label[3] or label[2])
    pieces = sorted((first + number) % size for number in range((last - first) % size + 1))
    return Move(t.start, t.end, t.src, t.dst, tuple(pieces), label[1] == "add")


def pieces_film(shown: Timeline) -> Film:
    """The film of one all-reduce, reduce-scatter or all-gather on 2 to 6 ranks whose messages name their pieces.

    Each rank has a row for each piece, and in it a place for each rank: adding fills a gap.
    """
    moves, size = moves_of(shown), shown.size
    adds = any(move.adds for move in moves)
    ring = all(move.dst == (move.src + 1) % size for move in moves)
    held: Held = [[frozenset({r} if adds or r == p else ()) for p in range(size)] for r in range(size)]
    times = sorted({0, *(move.end for move in moves)})
    headline = f"{_name(shown, moves)}, {size} ranks: {shown.format(times[-1])}"
    film = Film(headline, times, 10 + (RANK + ROW * size) * ((size + 1) // 2))
    places = [_place(rank, size, ring) for rank in range(size)]
    for rank, (x, y) in enumerate(places):
        film.draw(word(x + BAR / 2, y - 16, f"rank {rank}", "strong"))
        own = "".join(_bar(x, y, [piece], "empty") for piece in range(size))
        film.draw(own + "".join(_chips(x, y, size, piece, held[rank][piece]) for piece in range(size)))
        if x == COLUMNS[0]:
            film.draw("".join(word(MIDDLE, y + ROW * p + HEIGHT / 2, f"piece {p}") for p in range(size)))
        if ring:
            film.draw(_arrow(places[rank], places[(rank + 1) % size]))
    for at in sorted({move.start for move in moves}):
        now = [move for move in moves if move.start == at]
        sent = {move: [held[move.src][piece] for piece in move.pieces] for move in now}
        for move in now:
            _travels(film, move, sent[move], places, size)
            _arrives(film, move, sent[move], held, places[move.dst])
        if at in times:
            film.tell(at, _line(now[0], sent[now[0]], [held[now[0].dst][piece] for piece in now[0].pieces]))
    return film


def _name(shown: Timeline, moves: list[Move]) -> str:
    """The collective, and how its messages go."""
    size, ways = shown.size, {(move.src, move.dst, move.start) for move in moves}
    if all(dst == (src + 1) % size for src, dst, _ in ways):
        algorithm = "Ring"
    elif any(len(move.pieces) == size for move in moves):
        algorithm = "Recursive doubling"
    else:
        swaps = all((dst, src, start) in ways for src, dst, start in ways)
        algorithm = "Halving and doubling" if swaps else "Circulant"
    return f"{algorithm} {shown.transfers[0].name.replace('_', '-')}"


def _place(rank: int, size: int, ring: bool) -> tuple[float, float]:
    """The corner of a rank's pieces. A ring turns with the clock from the top left; else ranks are read in rows."""
    column, row = rank % 2, rank // 2
    if ring:
        column, row = (1, rank - 1) if 1 <= rank <= size // 2 else (0, (size - rank) % size)
    return COLUMNS[column], 40 + (RANK + ROW * size) * row


def _bar(x: float, y: float, pieces: Iterable[int], look: str) -> str:
    """A frame around the rows of neighbouring pieces."""
    rows = list(pieces)
    return outline(x - 2, y + ROW * rows[0] - 2, BAR + 2, ROW * (rows[-1] - rows[0]) + HEIGHT + 4, look)


def _chips(x: float, y: float, size: int, piece: int, members: frozenset[int]) -> str:
    cell = BAR / size
    return "".join(chip(x + cell * who, y + ROW * piece, cell - 2, HEIGHT, who) for who in sorted(members))


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """The way of the ring between two of its ranks."""
    (x, y), (to_x, to_y) = start, end
    way = "→←"[to_x < x] if to_y == y else ("↓↑"[to_y < y] if to_x == x else "↙")
    at = (MIDDLE, y - 18) if to_x != x else (x + (0 if x == COLUMNS[0] else BAR), max(y, to_y) - 22)
    return word(*at, way, "arrow")


def _travels(film: Film, move: Move, sums: list[frozenset[int]], places: list[tuple[float, float]], size: int) -> None:
    """Up and down, a message goes around the pieces that lie between. A whole array hides nothing: two swap places."""
    (x, y), (to_x, to_y) = places[move.src], places[move.dst]
    breaks = [0, *(n + 1 for n, (a, b) in enumerate(pairwise(move.pieces)) if b > a + 1), len(move.pieces)]
    whole = len(move.pieces) == size
    look = "letter open" if whole else "letter"
    rows = "".join(_bar(x, y, move.pieces[first:stop], look) for first, stop in pairwise(breaks))
    chips = "".join(_chips(x, y, size, piece, who) for piece, who in zip(move.pieces, sums, strict=True))
    outward = 1 if x == COLUMNS[1] else -1
    aside = -INWARD if whole and to_y < y else BAR + 12
    bow = (outward * aside if to_x == x else 0, 0)
    film.move(rows + chips, move.start, move.end, (to_x - x, to_y - y), bow)


def _arrives(film: Film, move: Move, sums: list[frozenset[int]], held: Held, place: tuple[float, float]) -> None:
    """The numbers that are new, and a frame around what is complete now."""
    came, size = "", len(held)
    for piece, sent in zip(move.pieces, sums, strict=True):
        had = held[move.dst][piece]
        now = held[move.dst][piece] = sent | had if move.adds else sent
        came += _chips(*place, size, piece, now - had)
        if len(now) == size > len(had):
            came += _bar(*place, [piece], "frame")
    film.draw(came, move.end)


def _line(move: Move, sent: list[frozenset[int]], now: list[frozenset[int]]) -> str:
    named = f"piece{'s' * (len(move.pieces) > 1)} {', '.join(map(str, move.pieces))}"
    them = "it" if len(move.pieces) == 1 else "them"
    alike = len(set(sent)) == len(set(now)) == 1
    carried = f" ({_sum(sent[0])})" if alike else ""
    then = f"which adds its own{': ' + _sum(now[0]) if alike else ''}" if move.adds else f"which keeps {them}"
    return f"rank {move.src} sends {named}{carried} to rank {move.dst}, {then}"


def _sum(ranks: frozenset[int]) -> str:
    return "+".join(map(str, sorted(ranks)))
