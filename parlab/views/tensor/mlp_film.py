"""The films of an MLP that tensor parallelism cuts: columns light up, partial sums appear, add, and go back.

An array is whole (grey), a shard (solid, its rank's part of the place) or a partial sum (striped, as large as all).
With sequence parallelism the ranks hold tokens of x, y, dy and dx; an all-gather brings the others, and a
reduce-scatter leaves the sums of a rank's own tokens.
"""

from __future__ import annotations

from itertools import pairwise

from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import SHORTEST, Film, box, chip, letter, outline, word
from parlab.world import Run, Timeline, Transfer
from parlab.world.collectives.common import read_label

STEPS = ("columns", "rows", "rows, back", "columns, back", "gradients")  # the names of the computations, in order
TOLD = {
    "columns": "each rank multiplies all of x with its columns of A, and applies relu: z, a shard, finished",
    "rows": "times C's rows of the same numbers: a partial sum, as large as all of y",
    "rows, back": "backward: dy is whole on all, no message; times the rank's columns of Cᵀ: dz, a shard, finished",
    "columns, back": "times its rows of Aᵀ: a partial sum of dx, because each rank's columns read the same x",
    "gradients": "dA and dC: shards, all of a rank's own columns and rows, no message",
}
PASSING = {  # by the computation that follows, and by the label of the messages
    ("rows, back", "add"): "all-reduce: a piece of each partial sum of y travels and is added to another rank's",
    ("rows, back", "take"): "all-reduce: each rank hands its finished piece on, until y is whole on all",
    ("gradients", "add"): "all-reduce: a piece of each partial sum of dx travels and is added to another rank's",
    ("gradients", "take"): "all-reduce: each rank hands its finished piece on, until dx is whole on all",
}
BY_TOKENS = {
    "rows, back": "dy times its columns of Cᵀ: dz, a shard, finished",
    ("columns", "take"): "all-gather: each rank has normed its own tokens; they travel, until x is whole on all",
    (
        "rows, back",
        "add",
    ): "reduce-scatter: y's partial sums travel in pieces; a rank keeps its tokens for a norm",
    ("rows, back", "take"): "backward, all-gather: each rank's tokens of dy travel, until dy is whole on all",
    ("gradients", "add"): "reduce-scatter: dx's partial sums travel in pieces; a rank keeps its own tokens",
    ("gradients", "take"): "all-gather: x travels again, since a rank kept its own tokens only, and dA needs all",
}
MOST_RANKS = 4
NAMED_RANKS = 3  # with more, a slice of a matrix has no room for its name
TOP, APART = 68, 94  # of the first row, and from row to row
FORWARD, BACKWARD = 0, 1  # the rows of all ranks' forward, then those of their backward
X, A, HIDDEN, C, Y = 120, 220, 320, 420, 520  # the middles of the five arrays; at both sides a message has room
WIDE, HIGH = 72, 56  # of an array
GREY = "#BBBBBB"  # an array, or a piece of one, that is whole on a rank
STRIPES = "3 5"  # of a partial sum: a line, a gap
KEY = 40  # below the last row, for the three states of an array
KEYS, CHIPS = (40, 160, 280), 440  # where these begin, and the numbers on a partial sum
ASIDE = WIDE + 8  # how far from the arrays a message passes those that come towards it


def mlp_film(run: Run | Timeline) -> Film:
    """The film of an MLP's step on 2 to 4 ranks, each of which computes, with `comm.compute` around each of the names
    in `STEPS`:

    relu(x A) of its columns, times its rows of C; all-reduce; dy Cᵀ of its rows, times its columns of Aᵀ; all-reduce;
    and the gradients of A and C. With sequence parallelism: x is gathered first, the first all-reduce is a
    reduce-scatter of y and an all-gather of dy, and the second one a reduce-scatter of dx and an all-gather of x.

    Args:
        run: the step; `labs.mlp_run` names its computations so.

    Raises:
        ValueError: another number of ranks, other computations, or a message that names no piece.
    """
    shown = timeline_of(run)
    _check(shown)
    size = shown.size
    ends = [max(span.end for span in shown.computes if span.name == name) for name in STEPS]
    first, middle, last = (
        [t for t in shown.transfers if low <= t.start < high]
        for low, high in ((0, ends[0]), (ends[1], ends[2]), (ends[3], ends[4]))
    )
    film = Film(
        f"An MLP on {size} ranks{', cut by tokens too' if first else ', forward and backward'}: "
        f"{shown.format(shown.makespan)}",
        sorted({0, *ends, *(t.end for t in shown.transfers)}),
        TOP + APART * 2 * size - 20 + KEY,
        moving=8.0,
    )
    for x, name in zip((X, A, HIDDEN, C, Y), ("x, dx", "A, dA", "z, dz", "C, dC", "y, dy"), strict=True):
        film.draw(word(x, 14, name, "strong"))
    film.draw(_key(TOP + APART * 2 * size - 20 + KEY / 2))
    starts = [_last(first), ends[0], _last(middle), ends[2], _last(last)]
    for rank in range(size):
        _draw_rank(film, rank, size, starts, ends)
    if first:
        _draw_by_tokens(film, size, (first, middle, last), starts, ends)
    else:
        for rank in range(size):
            film.draw(box(X - WIDE / 2, _row(rank, FORWARD, size), WIDE, HIGH, GREY, "x"))
            film.draw(box(Y - WIDE / 2, _row(rank, BACKWARD, size), WIDE, HIGH, GREY, "dy"), starts[2])
        _draw_sum(film, middle, size, FORWARD, Y, "y", (ends[0], ends[1]))
        _draw_sum(film, last, size, BACKWARD, X, "dx", (ends[2], ends[3]))
    told = TOLD | PASSING | (BY_TOKENS if first else {})
    for time in film.times[:-1]:
        after = next((name for name, end in zip(STEPS, ends, strict=True) if end > time), STEPS[-1])
        passing = next((str(t.label).partition(" ")[0] for t in shown.transfers if t.start <= time < t.end), None)
        film.tell(time, told[after, passing] if passing else told[after])
    return film.finished()


def _check(shown: Timeline) -> None:
    """Refuse a run of which there is no such film, with what it lacks."""
    if not 2 <= shown.size <= MOST_RANKS:
        raise ValueError(f"run: {shown.size} ranks; a step of 2 to {MOST_RANKS} can be filmed")
    for rank in range(shown.size):
        names = [span.name for span in shown.computes if span.rank == rank]
        if names != list(STEPS):
            raise ValueError(f"run: rank {rank} computes {names!r:.80}; this film needs {list(STEPS)}, in this order")
    for t in shown.transfers:
        if _piece(t, shown.size) is None:
            raise ValueError(
                f"run: the message from rank {t.src} to {t.dst} has the label {t.label!r}, which names no piece; the "
                "collectives of the library name it"
            )


def _piece(t: Transfer, size: int) -> tuple[str, int] | None:
    """How a message is taken, "add" or "take", and its one piece."""
    read = read_label(t.label, size)
    return (read[0], read[1][0]) if read and len(read[1]) == 1 else None


def _last(transfers: list[Transfer]) -> int:
    return max((t.end for t in transfers), default=0)


def _row(rank: int, row: int, size: int) -> float:
    return TOP + APART * (rank + row * size)


def _key(y: float) -> str:
    """The three states of an array, and their names; and what the numbers on a partial sum say."""
    marks = ""
    for x, name in zip(KEYS, ("whole", "shard", "partial sum"), strict=True):
        marks += outline(x, y - 12, 36, 24, "empty") + word(x + 44, y, name, "left")
    whole, shard, partial = KEYS
    return (
        marks
        + box(whole, y - 12, 36, 24, GREY)
        + box(shard, y - 12, 18, 24, theme.rank_color(0))
        + _striped(partial, y - 12, 36, 24, 0)
        + "".join(chip(CHIPS + 30 * rank, y - 10, 26, 20, rank) for rank in (0, 1))
        + word(CHIPS + 64, y, "whose share", "left")
    )


def _striped(left: float, top: float, width: float, height: float, rank: int) -> str:
    """A partial sum that a rank has: one broken line, as wide as the array is high."""
    look = f'stroke="{theme.rank_color(rank)}" stroke-width="{height:g}" stroke-dasharray="{STRIPES}"'
    return f'<path d="M{left:g} {top + height / 2:g}h{width:g}" {look}/>'


def _place(x: float, y: float) -> str:
    return outline(x - WIDE / 2, y, WIDE, HIGH, "empty")


def _columns(rank: int, size: int, x: float, y: float, said: str = "") -> str:
    wide, color = WIDE / size, theme.rank_color(rank)
    return box(x - WIDE / 2 + wide * rank, y, wide - 1, HIGH, color, said if size <= NAMED_RANKS else "", "small")


def _rows(rank: int, size: int, x: float, y: float, said: str = "") -> str:
    high, color = HIGH / size, theme.rank_color(rank)
    return box(x - WIDE / 2, y + high * rank, WIDE, high - 1, color, said if size <= NAMED_RANKS else "", "small")


def _chips(x: float, y: float, piece: int, size: int, members: frozenset[int]) -> str:
    """On a piece of a sum, a chip for each rank whose part is in it."""
    wide, high, edge = WIDE / size, HIGH / size, 10 / size
    left, top = x - WIDE / 2 + edge, round(y + high * piece + edge, 1)
    across, down = round(wide - 2 * edge, 1), round(high - 1 - 2 * edge, 1)
    return "".join(chip(round(left + wide * r, 1), top, across, down, r) for r in sorted(members))


def _grow(film: Film, mark: str, start: int, end: int, until: int | None = None) -> None:
    """The array that a product makes from `start` to `end`: laid bare row by row, a row for each token."""
    begins, ready = film.second(start, leaves=True), film.second(end)
    if ready - begins < SHORTEST:
        film.draw(mark, end, until)
        return
    hidden = f"clamp(0%,({ready:g} - var(--t))*{100 / (ready - begins):.4g}%,100%)"
    film.draw(f'<g style="clip-path:inset(0 0 {hidden})">{mark}</g>', end=until)


def _draw_rank(film: Film, rank: int, size: int, starts: list[int], ends: list[int]) -> None:
    """The arrays that do not travel: the matrices while they are read, and the products while they are computed."""
    above, below = _row(rank, FORWARD, size), _row(rank, BACKWARD, size)
    for y, way in ((above, "forward"), (below, "backward")):
        film.draw(word(HIDDEN, y - 16, f"rank {rank}, {way}"))
    for x in (X, A, HIDDEN, C, Y):
        film.draw(_place(x, above) + _place(x, below))
    film.draw(_columns(rank, size, A, above, "A") + _rows(rank, size, C, above, "C"))
    film.draw(_rows(rank, size, C, below, "C"), starts[2], starts[4])  # the backward reads it, until its gradient comes
    film.draw(_columns(rank, size, A, below, "A"), starts[3], starts[4])
    _grow(film, _columns(rank, size, HIDDEN, above, "z"), starts[0], ends[0])
    _grow(film, _columns(rank, size, HIDDEN, below, "dz"), starts[2], ends[2])
    _grow(film, _columns(rank, size, A, below, "dA") + _rows(rank, size, C, below, "dC"), starts[4], ends[4])
    places = " ".join(f"{(left + right) / 2:g}" for left, right in pairwise((X, A, HIDDEN, C, Y)))
    for y, arrow in ((above, "→"), (below, "←")):
        film.draw(f'<text x="{places}" y="{y + HIGH / 2:g}">{4 * arrow}</text>')


def _draw_by_tokens(
    film: Film, size: int, passing: tuple[list[Transfer], ...], starts: list[int], ends: list[int]
) -> None:
    """The tokens of x and dy that sequence parallelism gathers, and the sums that stay where their tokens are.

    Of x a rank keeps its own tokens, from the columns of the forward to the gradient of A.
    """
    first, (middle, last) = passing[0], passing[1:]
    scattered = [_last([t for t in transfers if str(t.label).startswith("add")]) for transfers in (middle, last)]
    _draw_gather(film, first, size, FORWARD, X, "x", None, ends[0])
    _draw_sum(film, middle, size, FORWARD, Y, "y", (starts[1], ends[1]), scattered[0])
    _draw_gather(film, middle, size, BACKWARD, Y, "dy", scattered[0], None)
    _draw_sum(film, last, size, BACKWARD, X, "dx", (starts[3], ends[3]), scattered[1])
    _draw_gather(film, last, size, FORWARD, X, "", None, None)


def _draw_gather(
    film: Film,
    transfers: list[Transfer],
    size: int,
    row: int,
    x: float,
    name: str,
    since: int | None,
    until: int | None,
) -> None:
    """Each rank's own tokens, under their `name`, from `since`; those of the others from their arrival to `until`."""
    high = HIGH / size

    def tokens(rank: int, piece: int, said: str) -> str:
        y = _row(rank, row, size) + high * piece
        return box(x - WIDE / 2, y, WIDE, high - 1, theme.rank_color(piece), said)

    for rank in range(size):
        if name:
            film.draw(tokens(rank, rank, name), since)
    for t in transfers:
        how, piece = _piece(t, size) or ("", 0)
        if how == "take":
            to_y = _row(t.dst, row, size) - _row(t.src, row, size)
            frame = letter(x - WIDE / 2 - 3, _row(t.src, row, size) + high * piece - 3, WIDE + 6, high + 5)
            _travel(film, t, frame + tokens(t.src, piece, ""), x, to_y)
            film.draw(tokens(t.dst, piece, ""), t.end, until)
    for rank in range(size):
        all_here = max(t.end for t in transfers if t.dst == rank)
        film.draw(box(x - WIDE / 2, _row(rank, row, size), WIDE, HIGH, GREY, name or "x"), all_here, until)


def _travel(film: Film, t: Transfer, mark: str, x: float, by: float) -> None:
    """Down to the next rank on the straight way; up at the side, where there is no array."""
    aside = (-ASIDE if x == X else ASIDE) if t.src > t.dst else 0
    film.move(mark, t.start, t.end, (0, by), (aside, 0))


def _draw_sum(
    film: Film,
    transfers: list[Transfer],
    size: int,
    row: int,
    x: float,
    name: str,
    product: tuple[int, int],
    scattered: int | None = None,
) -> None:
    """The partial sums of `name` that all ranks compute from a `product`'s start to its end, and their all-reduce.

    With `scattered`, the end of a reduce-scatter: their reduce-scatter, after which a rank has its own piece only.
    """
    held = [[frozenset({rank}) for _ in range(size)] for rank in range(size)]
    high = HIGH / size

    def until(rank: int, piece: int) -> int | None:
        return None if scattered is None or rank == piece else scattered

    def finished(rank: int, piece: int) -> str:
        color, said = (GREY, "") if scattered is None else (theme.rank_color(piece), name)
        return box(x - WIDE / 2, _row(rank, row, size) + high * piece, WIDE, high - 1, color, said)

    for rank in range(size):
        y = _row(rank, row, size)
        chips = [_chips(x, y, piece, size, held[rank][piece]) for piece in range(size)]
        if scattered is None:
            _grow(film, _striped(x - WIDE / 2, y, WIDE, HIGH, rank) + "".join(chips), *product)
            continue
        parts = [_striped(x - WIDE / 2, y + high * n, WIDE, high - 1, rank) + chips[n] for n in range(size)]
        _grow(film, parts.pop(rank), *product)
        _grow(film, "".join(parts), *product, scattered)
    for t in transfers:
        how, piece = _piece(t, size) or ("", 0)
        if how == "take" and scattered is not None:
            continue
        sent, had = held[t.src][piece], held[t.dst][piece]
        now = held[t.dst][piece] = sent | had if how == "add" else sent
        y, to_y = _row(t.src, row, size), _row(t.dst, row, size)
        inside = _striped(x - WIDE / 2, y + high * piece, WIDE, high - 1, t.src) + _chips(x, y, piece, size, sent)
        if len(sent) == size:
            inside = finished(t.src, piece)
        frame = letter(x - WIDE / 2 - 3, y + high * piece - 3, WIDE + 6, high + 5)
        _travel(film, t, frame + inside, x, to_y - y)
        if len(now) == size:
            frame = outline(x - WIDE / 2 - 1, to_y + high * piece - 1, WIDE + 1, high, "frame")
            film.draw(finished(t.dst, piece) + frame, t.end)
        else:
            film.draw(_chips(x, to_y, piece, size, now - had), t.end, until(t.dst, piece))
    for rank in range(size) if scattered is None else ():
        y, whole = _row(rank, row, size), max(t.end for t in transfers if t.dst == rank)
        film.draw(
            box(x - WIDE / 2, y, WIDE, HIGH, GREY, name)
            + outline(x - WIDE / 2 - 1, y - 1, WIDE + 2, HIGH + 2, "frame"),
            whole,
        )
