"""The film of a dispatch and a combine: each row travels to its expert's rank, and the answer travels back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.views.engine import theme
from parlab.views.engine.player import WIDTH, Film, box, outline, word

LEFT, EDGE, TOP = 64, 4, 8
TALL, LANE, PITCH, APART = 36, 40, 90, 6  # of a row, from lane to lane, from rank to rank, between two tokens
DIGIT = 8  # from the middle of a letter in a token's name to the next
MOST_ROWS, MOST_RANKS = 24, 4
STOPS = {0: "chosen", 3: "sorted", 10: "dispatched", 16: "answered", 23: "back", 26: "at their tokens", 29: "y"}
CLOCK = 24  # of the box that is as long as a rank works
CHOSEN, SORTED, DISPATCHED, ANSWERED, BACK, AT_TOKENS, SUMMED = STOPS


def rows_way(chosen: Sequence[Any], num_experts: int) -> Film:
    """The film of the rows of 2 to 4 ranks: sorted by expert, sent, answered, sent back, put back, and summed.

    A row has the colour of the rank whose token it is, the number of its expert, and below it the name of its token;
    pale until the expert answers. A rank has two lanes, and each step takes a row to the other one, so that no row
    comes to lie on another. The pieces between ranks travel in the order in which `exchange_rows` posts them: to the
    next rank first, then to the one after it. They are shown one by one. While experts work, which takes one unit of
    time a row, the lower lane is a clock: a box for each expert, as long as its rows, and behind them the wait for the
    fullest rank.

    Args:
        chosen: of each rank `[T, k]`, the experts of its tokens.
        num_experts: N, from 1 to 10, a multiple of the ranks.

    Raises:
        ValueError: other ranks, shapes, experts, or more than 24 rows on a rank.

    >>> rows_way([[[0], [1]], [[0], [0]]], 2)
    Rank 0 gets 3 rows, the mean is 2
    chosen: each rank sorts its pairs (token, expert) by expert
    sorted: rows travel, to the next rank first (shown piece by piece); the ranks get 3, 1
    dispatched: each expert answers its rows, wherever they lie, 1 unit a row: the ranks work for 3, 1, and wait until 3
    answered: each answer travels back to the rank from which its row came
    back: each answer goes to its pair, by the order of the sort
    at their tokens: a token's answers times its gates are added: its y
    """
    table = _checked(chosen, num_experts)
    P, T, k = table.shape
    flat = table.reshape(P, T * k)
    m = num_experts // P
    counts = np.stack([np.bincount(of_rank, minlength=num_experts) for of_rank in flat])  # [P, N]
    by_rank = counts.sum(axis=0).reshape(P, m)  # rows of each expert
    loads = by_rank.sum(axis=1)
    if max(T * k, loads.max()) > MOST_ROWS:
        raise ValueError(f"chosen: a rank has {max(T * k, loads.max())} rows, and {MOST_ROWS} are the most")
    full = int(loads.argmax())
    even = loads.min() == loads.max()
    headline = f"Each rank gets {T * k} rows" if even else f"Rank {full} gets {loads[full]} rows, the mean is {T * k:g}"
    film = Film(headline, list(STOPS), TOP + PITCH * P, moving=22.0, says=lambda stop: STOPS[stop])
    lanes = _Lanes(T, k, max(int(loads.max()), T * k))
    for rank in range(P):
        y = TOP + PITCH * rank + TALL / 2
        film.draw(word(28, y, f"rank {rank}") + word(28, y + LANE, _has(rank * m, m), "small"))
    for rank in range(P):
        down, up = (_sorts(film, lanes, rank, flat[rank], m, back=back) for back in (False, True))
        _between(film, lanes, rank, counts, flat[rank], down, up)
        places = [lanes.pair(rank, token * k) for token in range(T)]
        sums = (
            box(x, y, k * lanes.wide - 1, TALL, theme.rank_color(rank), f"y{token}", "small")
            for token, (x, y) in enumerate(places)
        )
        film.draw("".join(sums), SUMMED)
    clock = "".join(_clock(lanes, rank, of_rank, int(loads[full])) for rank, of_rank in enumerate(by_rank))
    film.draw(clock, DISPATCHED, ANSWERED, between=True)
    hands = "".join(outline(LEFT, TOP + PITCH * rank + LANE, 1, CLOCK, "frame") for rank in range(P))
    film.move(hands, DISPATCHED, ANSWERED, (lanes.wide * int(loads[full]), 0))
    get = ", ".join(map(str, loads))
    waits = "and nobody waits" if even else f"and wait until {loads[full]}"
    lines = [
        "each rank sorts its pairs (token, expert) by expert",
        f"rows travel, to the next rank first (shown piece by piece); the ranks get {get}",
        f"each expert answers its rows, wherever they lie, 1 unit a row: the ranks work for {get}, {waits}",
        "each answer travels back to the rank from which its row came",
        "each answer goes to its pair, by the order of the sort",
        "a token's answers times its gates are added: its y",
    ]
    for stop, line in zip(STOPS, lines, strict=False):
        film.tell(stop, line)
    return film


def _has(first: int, own: int) -> str:
    """The experts of a rank, in words."""
    return f"has {', '.join(map(str, range(first, first + own)))}" if own < 3 else f"has {first}–{first + own - 1}"


def _sorts(film: Film, lanes: _Lanes, rank: int, experts: np.ndarray, m: int, *, back: bool) -> dict[int, float]:
    """Each pair on its way from its token to its place by expert, or back: one piece after another.

    The time at which each owner's piece comes to the lower lane, or leaves it.
    """
    start, end = (BACK, AT_TOKENS) if back else (CHOSEN, SORTED)
    order = np.argsort(experts, kind="stable")
    owners = sorted(set((experts // m).tolist()))
    share = (end - start) / (len(owners) + 1)  # two pieces are under way at a time
    times = {}
    for turn, owner in enumerate(owners):
        places = np.flatnonzero(experts[order] // m == owner)
        its = order[places]
        pairs, sorted_ones = (
            [lanes.pair(rank, pair) for pair in its],
            [lanes.place(rank, place) for place in places.tolist()],
        )
        leaves, comes = start + turn * share, start + (turn + 2) * share
        times[owner] = leaves if back else comes
        still = lanes.rows(pairs, experts, its, rank, answered=back)
        film.draw(still, *((comes, None) if back else (None, leaves)))
        for pair, one, other in zip(its, pairs, sorted_ones, strict=True):
            at, to = (other, one) if back else (one, other)
            film.move(lanes.rows([at], experts, [pair], rank, answered=back), leaves, comes, _way(at, to))
    return times


def _clock(lanes: _Lanes, rank: int, loads: np.ndarray, most: int) -> str:
    """How long each expert of a rank works, and how long the rank waits then, in the lower lane."""
    experts = [f"expert {expert}" for expert in range(rank * len(loads), (rank + 1) * len(loads))]
    parts = [*zip(experts, loads.tolist(), strict=True), ("waits", most - int(loads.sum()))]
    drawn, start = "", 0
    for name, rows in parts:
        if rows:
            x, y = lanes.place(rank, start)
            wide = lanes.wide * rows
            said = name if wide > 64 else name.replace("expert ", "e")
            drawn += outline(x, y, wide - 1, CLOCK, "wait" if name == "waits" else "empty")
            drawn += word(x + wide / 2, y + CLOCK / 2, said, "small") if wide > 36 or said != "waits" else ""
        start += rows
    return drawn


def _way(at: tuple[float, float], to: tuple[float, float]) -> tuple[float, float]:
    return to[0] - at[0], to[1] - at[1]


def _between(
    film: Film,
    lanes: _Lanes,
    rank: int,
    counts: np.ndarray,
    experts: np.ndarray,
    down: dict[int, float],
    up: dict[int, float],
) -> None:
    """The pieces of a rank, one for each expert's rank, from when they are sorted: there, answered, and back."""
    P, N = counts.shape
    m = N // P
    order = np.argsort(experts, kind="stable")
    loads = counts.sum(axis=0)  # of each expert
    unit = (ANSWERED - DISPATCHED) / loads.reshape(P, m).sum(axis=1).max()  # of time, for a row
    for owner in range(P):
        here = int(counts[rank, : owner * m].sum())  # the place of the piece on `rank`, and on `owner`
        there = int(counts[:rank, owner * m : (owner + 1) * m].sum())
        piece = order[here : here + int(counts[rank, owner * m : (owner + 1) * m].sum())]  # its pairs
        if not len(piece):
            continue
        away = (owner - rank) % P
        turn = (away - 1) * P + rank + 1 if away else 0  # own pieces first, all at once; then one after another
        leaves, comes = (n * (DISPATCHED - SORTED) / (P * (P - 1) + 1) for n in (turn, turn + 1))
        at = [lanes.place(rank, here + n) for n in range(len(piece))]
        to = [lanes.place(owner, there + n, upper=True) for n in range(len(piece))]
        pale, full = (lanes.rows(at, experts, piece, rank, answered=answered) for answered in (False, True))
        film.draw(pale, down[owner], SORTED + leaves)
        film.move(pale, SORTED + leaves, SORTED + comes, _way(at[0], to[0]))
        film.draw(lanes.rows(to, experts, piece, rank, answered=False), SORTED + comes, ANSWERED)
        for expert in sorted(set(experts[piece].tolist())):
            its = [place for place, pair in zip(to, piece, strict=True) if experts[pair] == expert]
            answers = lanes.rows(its, experts, piece[experts[piece] == expert], rank, answered=True)
            answered = DISPATCHED + unit * int(loads[owner * m : expert + 1].sum())
            film.draw(answers, answered, ANSWERED + leaves)
        back = lanes.rows(to, experts, piece, rank, answered=True)
        film.move(back, ANSWERED + leaves, ANSWERED + comes, _way(to[0], at[0]))
        film.draw(full, ANSWERED + comes, up[owner])


class _Lanes:
    """Two lanes a rank. In the upper one rows lie by token, or as they came; in the lower one as they leave, sorted."""

    def __init__(self, tokens: int, k: int, most: int) -> None:
        self.tokens, self.k = tokens, k
        self.wide = int(min(27, (WIDTH - LEFT - EDGE) // most, (WIDTH - LEFT - EDGE - APART * tokens) // (tokens * k)))

    def place(self, rank: int, place: int, *, upper: bool = False) -> tuple[float, float]:
        """The top left of the row at a place, without gaps."""
        return LEFT + self.wide * place, TOP + PITCH * rank + (0 if upper else LANE)

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
        letters = middles
        if len(names) > 1:  # each letter has its own place, so that one text names all tokens
            letters = [
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
