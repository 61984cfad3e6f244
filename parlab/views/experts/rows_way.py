"""The film of a dispatch and a combine: each row travels to its expert's rank, and the answer travels back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.views.drawing import theme
from parlab.views.drawing.film import WIDTH, Film, box, word

LEFT, EDGE, TOP = 64, 4, 8
TALL, PITCH, APART = 36, 50, 6  # of a row, from rank to rank, and between two tokens
DIGIT = 8  # from the middle of a letter in a token's name to the next
MOST_ROWS, MOST_RANKS = 24, 4
STOPS = ["chosen", "sorted", "dispatched", "answered", "back", "at their tokens", "y"]


def rows_way(chosen: Sequence[Any], num_experts: int) -> Film:
    """The film of the rows of 2 to 4 ranks: sorted by expert, sent, answered, sent back, put back, and summed.

    A row has the colour of the rank whose token it is, the number of its expert, and below it the name of its token;
    pale until the expert answers. The pieces between ranks travel as `exchange_rows` sends them: to the next rank
    first, then to the one after it.

    Args:
        chosen: of each rank `[T, k]`, the experts of its tokens.
        num_experts: N, from 1 to 10, a multiple of the ranks.

    Raises:
        ValueError: other ranks, shapes, experts, or more than 24 rows on a rank.

    >>> rows_way([[[0], [1]], [[0], [0]]], 2)
    Rank 0 gets 3 rows, the mean is 2
    chosen: each rank sorts its pairs (token, expert) by expert
    sorted: rows travel, to the next rank first; the ranks get 3, 1
    dispatched: each expert answers its rows, which lie by source
    answered: each answer travels back to the rank from which its row came
    back: each answer goes to its pair, by the order of the sort
    at their tokens: a token's answers times its gates are added: its y
    """
    table = _checked(chosen, num_experts)
    P, T, k = table.shape
    flat = table.reshape(P, T * k)
    m = num_experts // P
    counts = np.stack([np.bincount(of_rank, minlength=num_experts) for of_rank in flat])  # [P, N]
    loads = counts.reshape(P, P, m).sum(axis=(0, 2))
    if max(T * k, loads.max()) > MOST_ROWS:
        raise ValueError(f"chosen: a rank has {max(T * k, loads.max())} rows, and {MOST_ROWS} are the most")
    full = int(loads.argmax())
    film = Film(
        f"Rank {full} gets {loads[full]} rows, the mean is {T * k:g}",
        list(range(len(STOPS))),
        TOP + PITCH * P,
        moving=13.0,
        says=lambda stop: STOPS[stop],
    )
    lanes = _Lanes(T, k, max(int(loads.max()), T * k))
    for rank in range(P):
        film.draw(word(28, TOP + PITCH * rank + TALL / 2, f"rank {rank}"))
    for rank in range(P):
        _to_order(film, lanes, rank, flat[rank], back=False)
        _between(film, lanes, rank, counts, flat[rank])
        _to_order(film, lanes, rank, flat[rank], back=True)
        for token in range(T):
            x, y = lanes.pair(rank, token * k)
            film.draw(box(x, y, k * lanes.wide - 1, TALL, theme.rank_color(rank), f"y{token}", "small"), 6)
    lines = [
        "each rank sorts its pairs (token, expert) by expert",
        f"rows travel, to the next rank first; the ranks get {', '.join(str(rows) for rows in loads)}",
        "each expert answers its rows, which lie by source",
        "each answer travels back to the rank from which its row came",
        "each answer goes to its pair, by the order of the sort",
        "a token's answers times its gates are added: its y",
    ]
    for stop, line in enumerate(lines):
        film.tell(stop, line)
    return film


def _to_order(film: Film, lanes: _Lanes, rank: int, experts: np.ndarray, *, back: bool) -> None:
    """Each pair on its way from its token to its place by expert, or back."""
    start = 4 if back else 0
    pairs = [lanes.pair(rank, pair) for pair in range(len(experts))]
    at_tokens = lanes.rows(pairs, experts, range(len(experts)), rank, answered=back)
    film.draw(at_tokens, *((5, None) if back else (None, 0)))
    for place, pair in enumerate(np.argsort(experts, kind="stable").tolist()):
        one, other = pairs[pair], lanes.place(rank, place)
        if back:
            one, other = other, one
        mark = lanes.rows([one], experts, [pair], rank, answered=back)
        film.move(mark, start, start + 1, (other[0] - one[0], other[1] - one[1]))


def _between(film: Film, lanes: _Lanes, rank: int, counts: np.ndarray, experts: np.ndarray) -> None:
    """The pieces of a rank, one for each expert's rank: there, answered, and back."""
    P, N = counts.shape
    m = N // P
    order = np.argsort(experts, kind="stable")
    for owner in range(P):
        here = int(counts[rank, : owner * m].sum())  # the place of the piece on `rank`, and on `owner`
        there = int(counts[:rank, owner * m : (owner + 1) * m].sum())
        piece = order[here : here + int(counts[rank, owner * m : (owner + 1) * m].sum())]  # its pairs
        if not len(piece):
            continue
        turn = max(1, (owner - rank) % P)  # the round in which it travels; its own piece moves aside in the first
        leaves, comes = ((turn - 1) / (P - 1), turn / (P - 1))
        at, to = (
            [lanes.place(of, first + n) for n in range(len(piece))] for of, first in ((rank, here), (owner, there))
        )
        by = (to[0][0] - at[0][0], to[0][1] - at[0][1])
        pale = lanes.rows(at, experts, piece, rank, answered=False)
        film.draw(pale, 1, 1 + leaves)
        film.move(pale, 1 + leaves, 1 + comes, by)
        film.draw(lanes.rows(to, experts, piece, rank, answered=False), 1 + comes, 3)
        for expert in sorted(set(experts[piece].tolist())):
            its = [place for place, pair in zip(to, piece, strict=True) if experts[pair] == expert]
            answers = lanes.rows(its, experts, piece[experts[piece] == expert], rank, answered=True)
            film.draw(answers, 2 + (expert % m + 0.5) / m, 3 + leaves)
        film.move(lanes.rows(to, experts, piece, rank, answered=True), 3 + leaves, 3 + comes, (-by[0], -by[1]))
        film.draw(lanes.rows(at, experts, piece, rank, answered=True), 3 + comes, 4)


class _Lanes:
    """A lane a rank; a row has a place in it, by its token or in the order of the exchange."""

    def __init__(self, tokens: int, k: int, most: int) -> None:
        self.tokens, self.k = tokens, k
        self.wide = int(min(27, (WIDTH - LEFT - EDGE) // most, (WIDTH - LEFT - EDGE - APART * tokens) // (tokens * k)))

    def place(self, rank: int, place: int) -> tuple[float, float]:
        """The top left of the row at a place, without gaps."""
        return LEFT + self.wide * place, TOP + PITCH * rank

    def pair(self, rank: int, pair: int) -> tuple[float, float]:
        """The top left of a pair (token, slot) at its token."""
        return LEFT + self.wide * pair + APART * (pair // self.k), TOP + PITCH * rank

    def rows(
        self, places: Sequence[tuple[float, float]], experts: Any, pairs: Any, rank: int, *, answered: bool
    ) -> str:
        """Rows: colour of their rank, pale before they are answered; the experts' digits, below them the tokens."""
        fill = theme.rank_color(rank) if answered else theme.paler(theme.rank_color(rank), 0.6)
        ink = "dark" if theme.text_color(fill) == theme.INK else "light"
        wide = self.wide - 1
        boxes = "".join(f"M{x:g} {y:g}h{wide}v{TALL}h-{wide}" for x, y in places)
        middles = [x + wide / 2 for x, _ in places]
        names = [f"t{pair // self.k}" for pair in pairs]
        letters = [  # each letter has its own place, so that one text names all tokens
            middle + DIGIT * (n - (len(name) - 1) / 2)
            for middle, name in zip(middles, names, strict=True)
            for n in range(len(name))
        ]
        (_, y), digits = places[0], "".join(str(experts[pair]) for pair in pairs)
        path = f'<path fill="{fill}" d="{boxes}"/>'
        return path + _spread(middles, y + 11, digits, f"{ink} strong") + _spread(letters, y + 27, "".join(names), ink)


def _spread(places: Sequence[float], y: float, letters: str, look: str) -> str:
    """A text whose letters have a place each."""
    return f'<text class="{look}" x="{" ".join(f"{x:g}" for x in places)}" y="{y:g}">{letters}</text>'


def _checked(chosen: Sequence[Any], num_experts: int) -> np.ndarray:
    """`[P, T, k]`."""
    try:
        table = np.asarray(chosen)
    except ValueError:
        raise ValueError("chosen: each rank needs [T, k], as many tokens as the others") from None
    if table.ndim != 3 or table.dtype.kind not in "iu" or not 2 <= len(table) <= MOST_RANKS or not table.size:
        raise ValueError(
            f"chosen has shape {table.shape}: [P][T][k] whole numbers are needed, P from 2 to {MOST_RANKS}"
        )
    if not 1 <= num_experts <= 10 or num_experts % len(table):
        raise ValueError(f"num_experts={num_experts!r:.60}: a multiple of the {len(table)} ranks is needed, at most 10")
    if table.min() < 0 or table.max() >= num_experts:
        raise ValueError(f"chosen: experts from 0 to {num_experts - 1} are needed, and {table.max()} is among them")
    return table
