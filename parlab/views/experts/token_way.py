"""The film of one token: its copies travel over nodes and ranks to the experts, and the answers come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parlab.arguments import checked, one_of, whole
from parlab.experts import copies_to_ranks
from parlab.views.engine import theme
from parlab.views.engine.arguments import numbers, within
from parlab.views.engine.player import WIDTH, Film, box, letter, outline, word

TOP, EDGE, LETTER = 34, 6, 34
COPIES = ("expert", "node")
RULES = {
    "chosen": numbers,
    "nodes": lambda name, value: within(name, value, 8),
    "ranks_per_node": lambda name, value: within(name, value, 8),
    "num_experts": lambda name, value: whole(name, value, 1),
    "copy": lambda name, value: one_of(name, value, COPIES),
}


@checked(RULES)
def token_way(
    chosen: Sequence[int], num_experts: int = 256, nodes: int = 8, ranks_per_node: int = 8, *, copy: str = "node"
) -> Film:
    """The film of a token of rank 0, over a wall of nodes (columns) and ranks (cells).

    Args:
        chosen: its k experts.
        num_experts: N, on nodes · ranks_per_node ranks, the first ones on rank 0.
        nodes, ranks_per_node: at most 8 each.
        copy: `expert`: a copy travels to the rank of each expert. `node`: one to each node, with the gates, to the rank
            at the token's place there, which hands it on inside.

    Raises:
        ValueError: an expert that there is not, or twice; experts that do not divide among the ranks.
    """
    ranks = nodes * ranks_per_node
    if num_experts % ranks:
        raise ValueError(f"num_experts={num_experts}: does not divide among {ranks} ranks")
    if len(set(chosen)) != len(chosen) or not all(0 <= expert < num_experts for expert in chosen):
        raise ValueError(f"chosen={list(chosen)!r:.60}: experts from 0 to {num_experts - 1} are needed, each once")
    places: dict[int, list[int]] = {}  # the experts of the token, by rank
    for expert in sorted(int(expert) for expert in chosen):
        places.setdefault(expert // (num_experts // ranks), []).append(expert)
    wall = _Wall(nodes, ranks_per_node)
    reached = sorted({rank // ranks_per_node for rank in places})
    between = [Way(0, node * ranks_per_node, "t", "Σ") for node in reached if node]
    inside = [Way(rank - rank % ranks_per_node, rank, "t", "y") for rank in places if rank % ranks_per_node]
    k = len(chosen)
    if copy == "node":
        out, mean = len(between), float(copies_to_ranks(num_experts, k, nodes))
        hops = [(between, f"{_copies(out)} between nodes, one a node; the mean of any {k} is {mean:.2f}")]
        hops += [(inside, f"{_copies(len(inside))} inside the nodes, to each rank with an expert of it")]
        said = f"a copy a node: {out} between nodes"
    else:
        direct = [Way(0, rank, f"t{e}", f"y{e}") for rank, experts in places.items() if rank for e in experts]
        out = sum(way.far >= ranks_per_node for way in direct)
        hops = [(direct, f"a copy travels to each expert, {out} of {k} to another node")]
        said = f"a copy an expert: {out} between nodes"
    stops = list(range(2 * len(hops) + 2))
    names = [*(["sent"] if len(hops) == 1 else ["at the nodes", "at the ranks"]), "answered"]
    names = ["routed", *names, *(["back"] if len(hops) == 1 else ["summed", "back"])]
    film = Film(f"{k} experts of {num_experts}, {said}", stops, wall.height, moving=12.0, says=lambda stop: names[stop])
    wall.draw(film)
    _send(film, wall, places, hops)
    return film


class Way(NamedTuple):
    """A copy's way from a rank to another, and its answer's way back."""

    near: int
    far: int
    copy: str
    answer: str


def _send(film: Film, wall: _Wall, places: dict[int, list[int]], hops: list[tuple[list[Way], str]]) -> None:
    """The copies there, the experts' answers, and the sums on their way back."""
    for rank in places:
        film.draw(wall.wanted(rank))
    film.draw(wall.letter(0, "t"), None, 1)
    _count(film, wall, hops[0][0])
    for stop, (ways, line) in enumerate(hops):
        film.tell(stop, line)
        for way, aside, leaves, lands in _in_turn(wall, ways, stop):
            by = wall.by(way.near, way.far)
            film.move(wall.letter(way.near, way.copy), leaves, lands, (by[0] + aside, by[1]))
            film.draw(wall.letter(way.far, way.copy, aside), lands, len(hops))
            film.draw(wall.mark(way.far), stop + 1)
    answered = len(hops)
    for rank, experts in places.items():
        film.draw(wall.experts(rank, experts), answered)
    film.tell(answered, f"{len(places)} ranks apply their experts to the token")
    for number, (ways, _) in enumerate(reversed(hops)):
        stop = answered + 1 + number
        lines = ["each node adds up its ranks' answers, times their gates", "one sum a node travels back, and is added"]
        direct = "answers travel back; rank 0 adds them, times their gates"
        film.tell(stop, lines[number] if len(hops) == 2 else direct)
        for way, aside, leaves, lands in _in_turn(wall, ways, stop):
            by = wall.by(way.far, way.near)
            film.move(wall.answer(way.far, way.answer, aside), leaves, lands, (by[0] - aside, by[1]))
            film.draw(wall.mark(way.near), stop + 1)
    film.draw(wall.letter(0, "y"), film.times[-1])


def _in_turn(wall: _Wall, ways: list[Way], stop: int) -> Iterator[tuple[Way, float, float, float]]:
    """Each way, how far aside it ends (those to one rank lie side by side), when it starts and when it ends: of a
    rank's, each leaves when the one before it has come, so no two lie on each other.
    """
    of_far, of_near = (Counter(way[end] for way in ways) for end in (1, 0))
    nth: Counter[tuple[str, int]] = Counter()
    flight = 1 / max(2, *of_near.values(), 0)  # of a step
    for way in ways:
        aside = wall.aside(nth["far", way.far], of_far[way.far])
        leaves = stop + flight * nth["near", way.near]
        nth["far", way.far] += 1
        nth["near", way.near] += 1
        yield way, aside, leaves, leaves + flight


def _count(film: Film, wall: _Wall, ways: list[Way]) -> None:
    """The copies that have crossed from node 0 to other nodes, counted below the wall as each arrives."""
    times = [lands for way, _, _, lands in _in_turn(wall, ways, 0) if way.far >= wall.ranks_per_node]
    before = 1e-6  # of a step: at the stop at which the last one arrives, the number before it is gone
    for number, (start, end) in enumerate(zip([None, *times], [*times, None], strict=True)):
        said = f"{_copies(number)} {'has' if number == 1 else 'have'} crossed between nodes"
        film.draw(word(WIDTH / 2, wall.height - 10, said, "strong"), start, None if end is None else end - before)


def _copies(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"


class _Wall:
    """Nodes are columns, and their ranks cells from top to bottom."""

    def __init__(self, nodes: int, ranks_per_node: int) -> None:
        self.nodes, self.ranks_per_node = nodes, ranks_per_node
        self.column = (WIDTH - 2 * EDGE) / nodes
        self.row = 27 if ranks_per_node > 4 else 44
        self.height = TOP + self.row * ranks_per_node + 26

    def corner(self, rank: int) -> tuple[float, float]:
        """The top left of a rank's cell."""
        node, place = divmod(rank, self.ranks_per_node)
        return round(EDGE + self.column * node + 4, 1), TOP + self.row * place

    def draw(self, film: Film) -> None:
        """The empty wall."""
        for node in range(self.nodes):
            x, _ = self.corner(node * self.ranks_per_node)
            film.draw(word(x + self.column / 2 - 4, 14, f"node {node}", "small"))
        cells = (self.corner(rank) for rank in range(self.nodes * self.ranks_per_node))
        film.draw("".join(outline(x, y, self.column - 8, self.row - 4, "empty") for x, y in cells))
        for rank in range(self.nodes * self.ranks_per_node):
            x, y = self.corner(rank)
            film.draw(word(x + self.column - 22, y + self.row / 2 - 2, rank, "small"))

    def letter(self, rank: int, text: str, aside: float = 0) -> str:
        """A copy of the token, or an answer, in the left of a rank's cell, or `aside` of that."""
        x, y = self.corner(rank)
        return letter(x + 1 + aside, y + 1, LETTER, self.row - 6, text)

    def answer(self, rank: int, text: str, aside: float) -> str:
        """An answer, in the colour of its node, in the left of a rank's cell, or `aside` of that."""
        x, y = self.corner(rank)
        return box(
            x + 1 + aside, y + 1, LETTER, self.row - 6, theme.rank_color(rank // self.ranks_per_node), text, "small"
        )

    def by(self, here: int, there: int) -> tuple[float, float]:
        """How far to the right and down it is from a rank's cell to another's."""
        (x, y), (to_x, to_y) = self.corner(here), self.corner(there)
        return to_x - x, to_y - y

    def aside(self, nth: int, of: int) -> float:
        """How far to the right the nth of some letters lies in a cell."""
        return round(nth * min(LETTER + 1, (self.column - 10 - LETTER) / max(1, of - 1)), 1)

    def wanted(self, rank: int) -> str:
        """The lower edge of a cell, in the colour of its node: this rank has an expert that the token chose."""
        x, y = self.corner(rank)
        edge = box(x, y + self.row - 7, self.column - 8, 3, theme.rank_color(rank // self.ranks_per_node))
        return f'<g stroke="currentColor" stroke-width="0.7">{edge}</g>'  # a dark colour is seen on a dark page too

    def mark(self, rank: int) -> str:
        """A frame: a copy came here."""
        x, y = self.corner(rank)
        return outline(x, y, self.column - 8, self.row - 4, "frame")

    def experts(self, rank: int, experts: Sequence[int]) -> str:
        """The numbers of a rank's experts that the token chose, in its node's colour; the rank's stays beside them."""
        x, y = self.corner(rank)
        room = self.column - 36
        numbers = " ".join(map(str, experts))
        text = numbers if 8.5 * len(numbers) <= room else f"{len(experts)}×"
        return box(x, y, room, self.row - 4, theme.rank_color(rank // self.ranks_per_node), text, "small")
