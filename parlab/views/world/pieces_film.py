"""The film of an all-reduce: pieces of the array travel between ranks, and gather the numbers of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import WIDTH, Film, box, outline, word
from parlab.world import Run, Timeline, Transfer
from parlab.world.collectives.common import label_of, read_label

MOST_RANKS = 6
NAMES = 92  # for the names of pieces or of panels, left of a line of ranks
SIDE = 34  # the middle of the names beside a ring, where no message passes
BETWEEN = 12  # two ranks of a line
BAR, LANE = 20, 13  # in a line of ranks: the heights of a bar, and of a message above or below it
APART = 3  # from a bar to a message


class Grid(NamedTuple):
    """Columns of ranks. A rank has a row for each piece: a bar, with a place for each rank's numbers."""

    columns: tuple[float, ...]
    top: float
    bar: float  # its width
    row: float  # from one bar to the next
    height: float  # of a bar
    gap: float  # between two ranks of a column, for their names
    lane: float = 0  # height of a message that passes above or below the bars; 0: it passes over them


RING = Grid((70, 454), 40, 116, 30, 24, 46)
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
    """The messages of one collective, with the pieces that their labels name.

    Raises:
        ValueError: too few or too many ranks, no messages, those of several collectives, or one that names no pieces.
    """
    if not 2 <= shown.size <= MOST_RANKS:
        raise ValueError(f"run: {shown.size} ranks; the pieces of 2 to {MOST_RANKS} can be filmed")
    names = sorted({t.name for t in shown.transfers})
    if len(names) != 1:
        raise ValueError(f"run: messages of {', '.join(names) or 'nothing'}; those of one collective can be filmed")
    moves = _labelled(shown)
    g = _ranks_a_node(shown, moves)
    return _of_two_levels(shown, moves, g) if g else moves


def _labelled(shown: Timeline) -> list[Move]:
    """The messages with the pieces that their labels say, which are numbered in the group that sends them."""
    moves = []
    for t in shown.transfers:
        move = move_of(t, shown.size)
        if move is None:
            raise ValueError(
                f"run: the message from rank {t.src} to {t.dst} has the label {t.label!r}, which names no pieces; the "
                f"collectives of the library name them, as {label_of('add', 2, 1, 4)!r}"
            )
        moves.append(move)
    return moves


def move_of(t: Transfer, size: int) -> Move | None:
    """The message with the pieces that its label names; None, if it names none."""
    read = read_label(t.label, size)
    if read is None:
        return None
    how, pieces = read
    return Move(t.start, t.end, t.src, t.dst, tuple(pieces), how == "add")


def _ranks_a_node(shown: Timeline, moves: list[Move]) -> int:
    """The ranks of a node, if the messages are those of two levels; else 0.

    Then a message that crosses stays at its place in the node, and has one of the k pieces of a message inside.
    """
    for g in range(2, shown.size // 2 + 1):
        k = shown.size // g
        crossing = [t.nbytes for t in shown.transfers if t.src // g != t.dst // g and t.src % g == t.dst % g]
        inside = [t.nbytes for t in shown.transfers if t.src // g == t.dst // g]
        complete = shown.size == g * k and crossing and len(crossing) + len(inside) == len(moves)
        if complete and all(len(move.pieces) == 1 for move in moves) and min(inside) > max(crossing):
            return g
    return 0


def _of_two_levels(shown: Timeline, moves: list[Move], g: int) -> list[Move]:
    """Inside a node, piece q is all pieces of place q; between nodes, piece j is that of node j of the own place."""
    k, whole = shown.size // g, shown.transfers[0].name == "all_reduce"  # it cuts the array by places first

    def pieces(move: Move) -> tuple[int, ...]:
        inside = move.src // g == move.dst // g
        place, nodes = (move.pieces[0], tuple(range(k))) if inside else (move.src % g, move.pieces)
        return tuple(place * k + j if whole else j * g + place for j in nodes)

    return [move._replace(pieces=pieces(move)) for move in moves]


def pieces_film(run: Run | Timeline) -> Film:
    """The film of one all-reduce, reduce-scatter or all-gather on 2 to 6 ranks whose messages name their pieces.

    Each rank has a row for each piece, and in it a place for each rank: adding fills a gap. A row is pale from when its
    numbers are sent away, to be added elsewhere, until the sum comes back. A ring turns with the clock. In the other
    algorithms the ranks stand in a line: a piece that goes right travels above its row, one that goes left below it, so
    that no box is covered; two levels show their nodes.

    Args:
        run: of one collective of the library, by ring, recursive doubling, halving, circulant or in two levels.

    Raises:
        ValueError: another number of ranks, messages of several collectives or of none, or one that names no pieces.

    >>> import numpy as np
    >>> from parlab import run
    >>> pieces_film(run(lambda comm, x: comm.reduce_scatter(x), 2, np.ones(2**20)))
    Ring reduce-scatter, 2 ranks: 420 µs
    0 s: rank 0 sends piece 1 (0) to rank 1, which adds its own: 0+1
    """
    shown = timeline_of(run)
    moves, size = moves_of(shown), shown.size
    g = _ranks_a_node(shown, _labelled(shown))
    times = sorted({0, *(move.start for move in moves), max(move.end for move in moves)})
    named = f"{_name(shown, moves, g)}, {size} ranks"
    headline = f"{named}{f' in nodes of {g}' if g else ''}: {shown.format(times[-1])}"
    swapped = any(len(move.pieces) == size for move in moves)
    turns = _ring(moves, size) and not swapped
    grid = RING if turns else _line_of(size, RING.top + 24 * (g > 0), g)
    film = Film(headline, times, 10 + _height(grid, size))
    places = _places(grid, size)
    for first in range(0, size, g) if g else ():
        left, right = grid.columns[first], grid.columns[first + g - 1] + grid.bar
        film.draw(word((left + right) / 2, 14, f"node {first // g}", "small"))
        film.draw(outline(left - 7, 28, right - left + 12, grid.top + grid.row * size - 24, "trail"))
    for x, y in places if turns else places[:1]:
        middle = _beside(grid, x) if turns else NAMES / 2
        names = [word(middle, y + grid.row * p + grid.height / 2, f"piece {p}") for p in range(size)]
        film.draw("".join(names))
    for rank, place in enumerate(places if turns else ()):
        film.draw(_arrow(grid, place, places[(rank + 1) % size]))
    if all(move.start > 0 for move in moves):
        film.tell(0, "no message has left")
    for at, line in _played(film, grid, moves, size):
        film.tell(at, line)
    return film.finished()


def _played(film: Film, grid: Grid, moves: list[Move], size: int) -> Iterator[tuple[int, str]]:
    """Draw the ranks and their messages; yields each time at which messages leave, and a line on the first of them."""
    adds = any(move.adds for move in moves)
    held: Held = [[frozenset({r} if adds or r == p else ()) for p in range(size)] for r in range(size)]
    places = _places(grid, size)
    for rank, (x, y) in enumerate(places):
        middle = _beside(grid, x) if grid is RING else x + grid.bar / 2
        film.draw(word(middle, y - 0.35 * grid.gap - _aside(grid), f"rank {rank}", "strong"))
        own = "".join(_bar(grid, x, y, [piece], "empty") for piece in range(size))
        film.draw(own + "".join(_chips(grid, x, y, size, piece, held[rank][piece]) for piece in range(size)))
    for at in sorted({move.start for move in moves}):
        now = [move for move in moves if move.start == at]
        sent = {move: [held[move.src][piece] for piece in move.pieces] for move in now}
        for move in now:
            for piece in _given_away(move, now):
                back = [m.end for m in moves if m.start >= move.end and m.dst == move.src and piece in m.pieces]
                film.draw(_pale(grid, *places[move.src], piece), at, min(back, default=None), between=True)
        for move in now:
            _travels(film, grid, move, sent[move], places)
            _arrives(film, grid, move, sent[move], held, places[move.dst])
        yield at, _line(now[0], sent[now[0]], [held[now[0].dst][piece] for piece in now[0].pieces])


def _given_away(move: Move, now: list[Move]) -> list[int]:
    """The pieces whose numbers the sender needs no more: it sends them to be added, and does not get the receiver's."""
    swapped = [m.pieces for m in now if m.adds and (m.src, m.dst) == (move.dst, move.src)]
    return [piece for piece in move.pieces if move.adds and not any(piece in pieces for pieces in swapped)]


def _ring(moves: list[Move], size: int) -> bool:
    return all(move.dst == (move.src + 1) % size for move in moves)


def _name(shown: Timeline, moves: list[Move], ranks_a_node: int) -> str:
    """The collective, and how its messages go."""
    size, ways = shown.size, {(move.src, move.dst, move.start) for move in moves}
    if all(dst == (src + 1) % size for src, dst, _ in ways):
        algorithm = "Ring"
    elif ranks_a_node:
        algorithm = "Two-level"
    elif any(len(move.pieces) == size for move in moves):
        algorithm = "Recursive doubling"
    else:
        swaps = all((dst, src, start) in ways for src, dst, start in ways)
        algorithm = "Halving and doubling" if swaps else "Circulant"
    return f"{algorithm} {shown.transfers[0].name.replace('_', '-')}"


def _line_of(size: int, top: float, ranks_a_node: int) -> Grid:
    """All ranks beside each other, with more room between nodes; messages pass above and below each row."""
    gaps = [BETWEEN * (1 + bool(ranks_a_node and rank % ranks_a_node == 0 and rank)) for rank in range(size)]
    bar = (WIDTH - NAMES - sum(gaps)) / size
    columns = tuple(NAMES + bar * rank + sum(gaps[1 : rank + 1]) for rank in range(size))
    grid = Grid(columns, top, bar, _row(BAR, LANE), BAR, 46, LANE)
    return grid._replace(top=top + _aside(grid))


def _row(height: float, lane: float) -> float:
    """From one bar to the next: a message below the one, a message above the other."""
    return height + 2 * (lane + APART + 1)


def _aside(grid: Grid) -> float:
    """How far above its bar a message begins that goes right."""
    return grid.lane + APART if grid.lane else 0


def _places(grid: Grid, size: int) -> list[tuple[float, float]]:
    """The corner of each rank's pieces. A ring in two columns turns with the clock from the top left."""
    if grid is not RING:
        return [(x, grid.top) for x in grid.columns]
    at = [(1, rank - 1) if 1 <= rank <= size // 2 else (0, (size - rank) % size) for rank in range(size)]
    return [(grid.columns[column], grid.top + (grid.gap + grid.row * size) * row) for column, row in at]


def _beside(grid: Grid, x: float) -> float:
    """The middle of the names beside a column of a ring."""
    return SIDE if x == grid.columns[0] else WIDTH - SIDE


def _height(grid: Grid, size: int) -> float:
    lines = (size + 1) // 2 if grid is RING else 1
    return grid.top - 40 + (grid.gap + grid.row * size) * lines


def _bar(grid: Grid, x: float, y: float, pieces: Iterable[int], look: str, *, thin: bool = False) -> str:
    """A frame around the rows of neighbouring pieces."""
    first, *_, last = [*pieces] * 2
    edge = 1 if thin else 2
    height = grid.row * (last - first) + grid.height + 2 * edge
    return outline(x - edge, y + grid.row * first - edge, grid.bar + 2 * edge - 2, height, look, thin=thin)


def _pale(grid: Grid, x: float, y: float, piece: int) -> str:
    """A veil over a row of pieces."""
    veil = _bar(grid, x, y, [piece], "letter")
    return f'<g fill-opacity=".75" stroke-opacity="0">{veil}</g>'


def _chips(grid: Grid, x: float, y: float, size: int, piece: int, members: frozenset[int]) -> str:
    cell, top = grid.bar / size, y + grid.row * piece
    look = "small" if grid.height < RING.height else ""
    return "".join(
        box(x + cell * who, top, cell - 2, grid.height, theme.rank_color(who), who, look) for who in sorted(members)
    )


def _arrow(grid: Grid, start: tuple[float, float], end: tuple[float, float]) -> str:
    """The way of the ring between two of its ranks."""
    (x, y), (to_x, to_y) = start, end
    way = "→←"[to_x < x] if to_y == y else ("↓↑"[to_y < y] if to_x == x else "↙")
    if to_x != x:
        return word((sum(grid.columns) + grid.bar) / 2, y - 18, way, "arrow")
    return word(x + (10 if x == grid.columns[0] else grid.bar - 10), max(y, to_y) - 22, way, "arrow")


def _travels(film: Film, grid: Grid, move: Move, sums: list[frozenset[int]], places: list[tuple[float, float]]) -> None:
    """Up and down, a message goes around the pieces that lie between. In a line, what goes right passes above its row,
    and what goes left below it.
    """
    (x, y), (to_x, to_y) = places[move.src], places[move.dst]
    breaks = [0, *(n + 1 for n, (a, b) in enumerate(pairwise(move.pieces)) if b > a + 1), len(move.pieces)]
    size = len(places)
    thin = grid.lane > 0
    if thin:
        breaks = list(range(len(move.pieces) + 1))
        y += -_aside(grid) if to_x > x else grid.height + APART
        to_y = y
        grid = grid._replace(height=grid.lane)
    parts = [move.pieces[first:stop] for first, stop in pairwise(breaks)]
    rows = "".join(_bar(grid, x, y, part, "letter", thin=thin) for part in parts)
    chips = "".join(_chips(grid, x, y, size, piece, who) for piece, who in zip(move.pieces, sums, strict=True))
    inward = -1 if x == grid.columns[1] else 1
    bow = (inward * (grid.bar + 12) if to_x == x else 0, 0)
    film.move(rows + chips, move.start, move.end, (to_x - x, to_y - y), bow)


def _arrives(
    film: Film, grid: Grid, move: Move, sums: list[frozenset[int]], held: Held, place: tuple[float, float]
) -> None:
    """The numbers that are new, and a frame around what is complete now."""
    came, size = "", len(held)
    for piece, sent in zip(move.pieces, sums, strict=True):
        had = held[move.dst][piece]
        now = held[move.dst][piece] = sent | had if move.adds else sent
        came += _chips(grid, *place, size, piece, now - had)
        if len(now) == size > len(had):
            came += _bar(grid, *place, [piece], "frame")
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
