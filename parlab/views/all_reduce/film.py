"""The film of a ring collective: pieces of the array travel around, and gather the numbers of all ranks."""

from __future__ import annotations

import re
from typing import NamedTuple

from parlab.views.drawing.film import WIDTH, Film, chip, outline, word
from parlab.world import Timeline

LABEL = re.compile(r"(add|take) (?:block|piece) (\d+)")
MOST_RANKS = 6
COLUMNS, BAR, ROW, HEIGHT = (145, 365), 130, 30, 24  # two columns of ranks; a piece is a bar, in rows
MIDDLE = WIDTH / 2
RANK = 46  # between two ranks of a column, with their names

Held = list[list[frozenset[int]]]  # for each rank and piece, the ranks whose numbers are in it


class Move(NamedTuple):
    """A message: `src` sends `piece` to `dst`, which adds its own or keeps it as it is."""

    start: int
    end: int
    src: int
    dst: int
    piece: int
    adds: bool


def moves_of(shown: Timeline) -> list[Move]:
    """The messages of a ring collective, by their labels; none if this is the timeline of something else."""
    moves = []
    for t in shown.transfers:
        label = LABEL.fullmatch(str(t.label))
        if label is None or t.dst != (t.src + 1) % shown.size:
            return []
        moves.append(Move(t.start, t.end, t.src, t.dst, int(label[2]), label[1] == "add"))
    return moves if 2 <= shown.size <= MOST_RANKS else []


def ring_film(shown: Timeline) -> Film:
    """The film of one ring all-reduce, reduce-scatter or all-gather on 2 to 6 ranks.

    Each rank has a row for each piece, and in it a place for each rank: adding fills a gap.
    """
    moves, size = moves_of(shown), shown.size
    adds = any(move.adds for move in moves)
    held: Held = [[frozenset({r} if adds or r == p else ()) for p in range(size)] for r in range(size)]
    times = sorted({0, *(move.end for move in moves)})
    name = shown.transfers[0].name.replace("_", "-")
    tall = RANK + ROW * size
    film = Film(f"Ring {name}, {size} ranks: {shown.format(times[-1])}", times, 10 + tall * ((size + 1) // 2))
    for rank in range(size):
        x, y = _place(rank, 0, size)
        film.draw(word(x + BAR / 2, y - 16, f"rank {rank}", "strong"))
        for piece in range(size):
            film.draw(_bar(rank, piece, size, "empty") + _chips(rank, piece, size, held[rank][piece]))
            if x == COLUMNS[0]:
                film.draw(word(MIDDLE, y + ROW * piece + HEIGHT / 2, f"piece {piece}"))
        to_x, to_y = _place((rank + 1) % size, 0, size)
        way = "→←"[to_x < x] if to_y == y else ("↓↑"[to_y < y] if to_x == x else "↙")
        at = (MIDDLE, y - 18) if to_x != x else (x + (0 if x == COLUMNS[0] else BAR), max(y, to_y) - 22)
        film.draw(word(*at, way, "arrow"))
    for move in moves:
        (x, y), (to_x, to_y) = _place(move.src, move.piece, size), _place(move.dst, move.piece, size)
        sent, had = held[move.src][move.piece], held[move.dst][move.piece]
        now = held[move.dst][move.piece] = sent | had if move.adds else sent
        came = _chips(move.dst, move.piece, size, now - had)
        if len(now) == size > len(had):
            came += _bar(move.dst, move.piece, size, "frame")
        film.draw(came, move.end)
        aside = (BAR + 12 if x == COLUMNS[1] else -BAR - 12) if x == to_x else 0
        message = _bar(move.src, move.piece, size, "letter") + _chips(move.src, move.piece, size, sent)
        film.move(message, move.start, move.end, (to_x - x, to_y - y), (aside, 0))
        if move.src == 0:
            then = f"which adds its own: {_sum(now)}" if move.adds else "which keeps it"
            film.tell(move.start, f"rank 0 sends piece {move.piece} ({_sum(sent)}) to rank {move.dst}, {then}")
    return film


def _place(rank: int, piece: int, size: int) -> tuple[float, float]:
    """The corner of a piece: rank 0 is at the top left, and the ring turns with the clock."""
    column, row = (1, rank - 1) if 1 <= rank <= size // 2 else (0, (size - rank) % size)
    return COLUMNS[column], 40 + (RANK + ROW * size) * row + ROW * piece


def _bar(rank: int, piece: int, size: int, look: str) -> str:
    x, y = _place(rank, piece, size)
    return outline(x - 2, y - 2, BAR + 2, HEIGHT + 4, look)


def _chips(rank: int, piece: int, size: int, members: frozenset[int]) -> str:
    (x, y), cell = _place(rank, piece, size), BAR / size
    return "".join(chip(x + cell * who, y, cell - 2, HEIGHT, who) for who in sorted(members))


def _sum(ranks: frozenset[int]) -> str:
    return "+".join(map(str, sorted(ranks)))
