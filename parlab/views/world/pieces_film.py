"""The film of an all-reduce: pieces of the array travel between ranks, and gather the numbers of all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from parlab.views.engine import theme
from parlab.views.engine.player import WIDTH, Film, box, outline, word
from parlab.world import Run, Timeline, Transfer

LABEL = re.compile(r"(add|take) pieces? (\d+)(?:-(\d+))?")
MOST_RANKS = 6
MOST_PANELS = 3  # of a race
NAMES = 92  # for the names of pieces or of panels, left of a line of ranks
SIDE = 34  # the middle of the names beside a ring, where no message passes
BETWEEN = 12  # two ranks of a line
NAMED, SMALL = (20, 13), (8, 5)  # in a line of ranks: the heights of a bar, and of a message above or below it
APART = 3  # from a bar to a message


class Grid(NamedTuple):
    """Columns of ranks. A rank has a row for each piece: a bar, with a place for each rank's numbers."""

    columns: tuple[float, ...]
    top: float
    bar: float  # its width
    row: float  # from one bar to the next
    height: float  # of a bar
    gap: float  # between two ranks of a column, for their names
    named: bool  # chips have the number of their rank
    lane: float = 0  # height of a message that passes above or below the bars; 0: it passes over them


RING = Grid((70, 454), 40, 116, 30, 24, 46, named=True)
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
    moves, g = _labelled(shown), _ranks_a_node(shown)
    return _of_two_levels(shown, moves, g) if g else moves


def _labelled(shown: Timeline) -> list[Move]:
    """The messages with the pieces that their labels say, which are numbered in the group that sends them."""
    known = 2 <= shown.size <= MOST_RANKS and len({t.name for t in shown.transfers}) == 1
    moves = [move_of(t, shown.size) for t in shown.transfers] if known else []
    return [] if None in moves else [move for move in moves if move is not None]


def move_of(t: Transfer, size: int) -> Move | None:
    """The message with the pieces that its label names; None, if it names none."""
    label = LABEL.fullmatch(str(t.label))
    if label is None:
        return None
    first, last = int(label[2]), int(label[3] or label[2])
    pieces = sorted((first + number) % size for number in range((last - first) % size + 1))
    return Move(t.start, t.end, t.src, t.dst, tuple(pieces), label[1] == "add")


def _ranks_a_node(shown: Timeline) -> int:
    """The ranks of a node, if the messages are those of two levels; else 0.

    Then a message that crosses stays at its place in the node, and has one of the k pieces of a message inside.
    """
    moves = _labelled(shown)
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


def pieces_film(shown: Timeline) -> Film:
    """The film of one all-reduce, reduce-scatter or all-gather on 2 to 6 ranks whose messages name their pieces.

    Each rank has a row for each piece, and in it a place for each rank: adding fills a gap. A row is pale from when its
    numbers are sent away, to be added elsewhere, until the sum comes back. A ring turns with the clock. In the other
    algorithms the ranks stand in a line: a piece that goes right travels above its row, one that goes left below it, so
    that no box is covered; two levels show their nodes.
    """
    moves, size, g = moves_of(shown), shown.size, _ranks_a_node(shown)
    times = sorted({0, *(move.end for move in moves)})
    named = f"{_name(shown, moves)}, {size} ranks"
    headline = f"{named}{f' in nodes of {g}' if g else ''}: {shown.format(times[-1])}"
    swapped = any(len(move.pieces) == size for move in moves)
    turns = _ring(moves, size) and not swapped
    grid = RING if turns else _line_of(size, RING.top + 24 * (g > 0), named=True, ranks_a_node=g)
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
    for at, line in _played(film, grid, moves, size):
        if at in times:
            film.tell(at, line)
    return film


def raceable(source: Any) -> bool:
    """Whether this is {name: run}, and each run is one of which `pieces_film` makes a film."""
    if not isinstance(source, Mapping) or not source:
        return False
    shown = [run.timeline if isinstance(run, Run) else run for run in source.values()]
    return all(isinstance(one, Timeline) and moves_of(one) for one in shown)


def race_film(runs: Mapping[str, Run | Timeline]) -> Film:
    """The films of up to three all-reduces below each other, on one clock.

    It stops where one of them ends, and after each step of the one with the fewest. Beside each stands how many steps
    it has made, and at its end its time.

    Args:
        runs: {name: run}, each as for `pieces_film`, all with the same number of ranks.

    Raises:
        ValueError: too many runs, or of several numbers of ranks.
    """
    shown = {name: run.timeline if isinstance(run, Run) else run for name, run in runs.items()}
    sizes = {one.size for one in shown.values()}
    if len(shown) > MOST_PANELS or len(sizes) > 1:
        raise ValueError(
            f"source: {len(shown)} runs of {sorted(sizes)} ranks; at most {MOST_PANELS}, of one number of ranks"
        )
    (size,) = sizes
    ends = {name: sorted({move.end for move in moves_of(one)}) for name, one in shown.items()}
    times = sorted({0, *min(ends.values(), key=len), *(found[-1] for found in ends.values())})
    says = next(iter(shown.values())).format
    headline = "; ".join(f"{name} {says(found[-1])}" for name, found in ends.items())
    panel = round(_row(*SMALL)) * size + 34
    film = Film(headline, times, panel * len(shown))
    for number, (name, one) in enumerate(shown.items()):
        grid, steps = _line_of(size, panel * number + 24, named=False), ends[name]
        film.draw(word(NAMES / 2, grid.top + 18, name, "strong"))
        for done, (since, until) in enumerate(pairwise([0, *steps])):
            count = word(NAMES / 2, grid.top + 40, f"{done} of {len(steps)} steps", "small")
            film.draw(count, since or None, until - 1)  # while the clock stands at a stop, the next count is seen
        film.draw(word(NAMES / 2, grid.top + 40, says(steps[-1]), "small"), steps[-1])
        for _ in _played(film, grid, moves_of(one), size):
            pass
    film.tell(0, f"steps: {', '.join(f'{name} {len(found)}' for name, found in ends.items())}")
    fewest = min(ends, key=lambda name: len(ends[name]))
    for at in times[1:-1]:
        done_now = [f"{name} is done" for name, found in ends.items() if found[-1] == at]
        left = sum(end > at for end in ends[fewest])
        made = f"{fewest} has {left} more step{'s' * (left != 1)} to go"
        last = [name for name, found in ends.items() if found[-1] == times[-1]] if at == times[-2] else []
        until_end = [f"{', '.join(last)} at {says(times[-1])}"] if last else []
        film.tell(at, "; ".join([", ".join(done_now) or made, *until_end]))
    return film


def _played(film: Film, grid: Grid, moves: list[Move], size: int) -> Iterator[tuple[int, str]]:
    """Draw the ranks and their messages; yields each time at which messages leave, and a line on the first of them."""
    adds = any(move.adds for move in moves)
    held: Held = [[frozenset({r} if adds or r == p else ()) for p in range(size)] for r in range(size)]
    places = _places(grid, size)
    for rank, (x, y) in enumerate(places):
        middle = _beside(grid, x) if grid is RING else x + grid.bar / 2
        film.draw(word(middle, y - 0.35 * grid.gap - _aside(grid), f"rank {rank}", "strong" if grid.named else "small"))
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


def _name(shown: Timeline, moves: list[Move]) -> str:
    """The collective, and how its messages go."""
    size, ways = shown.size, {(move.src, move.dst, move.start) for move in moves}
    if all(dst == (src + 1) % size for src, dst, _ in ways):
        algorithm = "Ring"
    elif _ranks_a_node(shown):
        algorithm = "Two-level"
    elif any(len(move.pieces) == size for move in moves):
        algorithm = "Recursive doubling"
    else:
        swaps = all((dst, src, start) in ways for src, dst, start in ways)
        algorithm = "Halving and doubling" if swaps else "Circulant"
    return f"{algorithm} {shown.transfers[0].name.replace('_', '-')}"


def _line_of(size: int, top: float, *, named: bool, ranks_a_node: int = 0) -> Grid:
    """All ranks beside each other, with more room between nodes; messages pass above and below each row."""
    height, lane = NAMED if named else SMALL
    gaps = [BETWEEN * (1 + bool(ranks_a_node and rank % ranks_a_node == 0 and rank)) for rank in range(size)]
    bar = (WIDTH - NAMES - sum(gaps)) / size
    columns = tuple(NAMES + bar * rank + sum(gaps[1 : rank + 1]) for rank in range(size))
    grid = Grid(columns, top, bar, _row(height, lane), height, 46, named, lane)
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
        box(x + cell * who, top, cell - 2, grid.height, theme.rank_color(who), who if grid.named else "", look)
        for who in sorted(members)
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
