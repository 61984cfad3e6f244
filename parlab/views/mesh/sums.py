"""The film of lesson 07: the gradients of three weights find the ranks that must add them."""

from __future__ import annotations

import numpy as np

from parlab.train import Mesh
from parlab.views.drawing.film import Film, chip, outline, word
from parlab.world import Comm, run

AXES = {"dp": 2, "pp": 2, "tp": 2}
RANKS = 8
KINDS = {"cut": "cut", "norm": "norm", "tied": "table"}  # of weights, and their names in the film
STEPS = (
    ("norm", "tp", "Norm: the ranks of tp have it, and saw other tokens (sequence parallelism). They add."),
    ("tied", "pp", "Table: both ends of the pipeline use it, each for something else. They add."),
    ("", "data", "Every weight: the ranks of data saw other tokens. Their mean, last."),
)
BITS = (1, 2, 4)  # of a rank's number, in which the two ranks of tp, pp and data differ
LEFT, TOP, ACROSS, DOWN, WIDTH, HEIGHT = 64, 34, 144, 160, 134, 132  # of the boxes of ranks; their names stand left
SLOT, ROW = 15, 32  # the width of a slot, the height of a row of slots
SLOTS = (SLOT * RANKS, 20)
MARGIN = 4  # of a frame around the slots of a group


def contributions(comm: Comm) -> list[dict[str, list[int]]]:
    """The ranks whose gradients are in this rank's gradient of each weight: at first, and after each of three sums."""
    mesh = Mesh(comm, **AXES)
    own = np.eye(RANKS)[comm.rank]  # a gradient with a mark of the rank that made it
    gradients = dict.fromkeys(KINDS, own)
    found = []
    for kind, group, _ in (("", "", ""), *STEPS):
        for name in KINDS:
            if group and kind in ("", name):
                gradients[name] = getattr(mesh, group).all_reduce(gradients[name])
        found.append({name: np.flatnonzero(x).tolist() for name, x in gradients.items()})
    return found


def film_of_sums() -> Film:
    """Film who sums what on a mesh of dp 2 · pp 2 · tp 2: chips, one a rank, are the gradients in a rank's sum.

    The sums are made by the mesh's groups, on eight ranks.
    """
    found = run(contributions, RANKS).results
    last = {name: len(found[0][-1][name]) for name in KINDS}
    headline = (
        f"Who sums what: a cut weight needs the gradients of {last['cut']} of {RANKS} ranks, a norm of {last['norm']}, "
        f"a tied table of {last['tied']}"
    )
    stops = ["backward done", *(f"over {group if group != 'pp' else 'both ends'}" for _, group, _ in STEPS)]
    film = Film(headline, range(len(stops)), TOP + 2 * DOWN, resting=2.0, moving=6.0, says=lambda step: stops[step])
    for replica in range(2):
        film.draw(word(LEFT + ACROSS * (2 * replica + 1), 14, f"replica {replica}", "strong"))
    for stage in (0, RANKS - 1):  # the names stand once, beside the first box: nothing travels over them
        for row, shown in enumerate(KINDS.values()):
            film.draw(word(6, _slots(stage, row)[1] + 10, shown, "left"))
    for rank in range(RANKS):
        _draw_rank(film, rank, found)
    for step, (kind, _, line) in enumerate(STEPS):
        film.tell(step, line)
        if kind:
            _frame_groups(film, step, [*KINDS].index(kind))
    return film


def _draw_rank(film: Film, rank: int, found: list[list[dict[str, list[int]]]]) -> None:
    """A rank's box, with a row of slots for each weight; a chip comes from the other rank of the group that sums."""
    (x, y), said = _corner(rank), f"rank {rank} (p {rank // 2 % 2}, t {rank % 2})"
    film.draw(outline(x, y, WIDTH, HEIGHT, "empty"))
    film.draw(word(x + WIDTH / 2, y + (16 if rank // 2 % 2 == 0 else HEIGHT - 16), said, "small"))
    for row, name in enumerate(KINDS):
        here = _slots(rank, row)
        film.draw(outline(*here, *SLOTS, "empty"))
        for source in found[rank][0][name]:
            film.draw(_chip(rank, row, source))
        for step in range(1, len(found[rank])):
            peer = rank ^ BITS[step - 1]
            there = _slots(peer, row)
            for source in sorted({*found[rank][step][name]} - {*found[rank][step - 1][name]}):
                way = here[0] - there[0], here[1] - there[1]
                film.move(_chip(peer, row, source), step - 1, step, by=way)
                film.draw(_chip(rank, row, source), step)


def _frame_groups(film: Film, step: int, row: int) -> None:
    """A frame around the slots of the two ranks of each group that sums in this step."""
    for rank in range(RANKS):
        peer = rank ^ BITS[step]
        if rank < peer:
            (x, y), (right, bottom) = _slots(rank, row), _slots(peer, row)
            size = right - x + SLOTS[0] + 2 * MARGIN, bottom - y + SLOTS[1] + 2 * MARGIN
            starts = step + 0.01 if step else 0  # with its line, when the clock goes on from the stop
            film.draw(outline(x - MARGIN, y - MARGIN, *size, "frame"), starts, step + 1)


def _corner(rank: int) -> tuple[float, float]:
    """The upper left corner of a rank's box: replicas and tp side by side, the pipeline from top to bottom."""
    d, p, t = rank // 4, rank // 2 % 2, rank % 2
    return LEFT + ACROSS * (2 * d + t), TOP + DOWN * p


def _slots(rank: int, row: int) -> tuple[float, float]:
    """The upper left corner of a row of slots; the last stage is upside down, so that the tables face each other."""
    x, y = _corner(rank)
    down = 32 + ROW * row
    return x + 7, y + (down if rank // 2 % 2 == 0 else HEIGHT - SLOTS[1] - down)


def _chip(rank: int, row: int, source: int) -> str:
    x, y = _slots(rank, row)
    return chip(x + SLOT * source, y, SLOT - 1, 20, source)
