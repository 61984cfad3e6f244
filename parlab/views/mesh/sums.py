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
LEFT, TOP, ACROSS, DOWN, WIDTH, HEIGHT = 14, 34, 154, 152, 146, 132  # of the boxes of ranks
SLOT, ROW = 11, 32  # the width of a slot, the height of a row of slots
SLOTS = (SLOT * RANKS, 20, "empty")


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
    for rank in range(RANKS):
        _draw_rank(film, rank, found)
    for step, (_, _, line) in enumerate(STEPS):
        film.tell(step, line)
    return film


def _draw_rank(film: Film, rank: int, found: list[list[dict[str, list[int]]]]) -> None:
    """A rank's box, with a row of slots for each weight; a chip comes from the other rank of the group that sums."""
    (x, y), said = _corner(rank), f"rank {rank} (p {rank // 2 % 2}, t {rank % 2})"
    film.draw(outline(x, y, WIDTH, HEIGHT, "empty") + word(x + WIDTH / 2, y + 16, said, "small"))
    for row, (name, shown) in enumerate(KINDS.items()):
        film.draw(word(x + 6, y + 42 + ROW * row, shown, "small left") + outline(x + 50, y + 32 + ROW * row, *SLOTS))
        for source in found[rank][0][name]:
            film.draw(_chip(rank, row, source))
        for step in range(1, len(found[rank])):
            peer = rank ^ BITS[step - 1]
            for source in sorted({*found[rank][step][name]} - {*found[rank][step - 1][name]}):
                from_x, from_y = _corner(peer)
                film.move(_chip(peer, row, source), step - 1, step, by=(x - from_x, y - from_y))
                film.draw(_chip(rank, row, source), step)


def _corner(rank: int) -> tuple[float, float]:
    """The upper left corner of a rank's box: replicas and tp side by side, the pipeline from top to bottom."""
    d, p, t = rank // 4, rank // 2 % 2, rank % 2
    return LEFT + ACROSS * (2 * d + t), TOP + DOWN * p


def _chip(rank: int, row: int, source: int) -> str:
    x, y = _corner(rank)
    return chip(x + 50 + SLOT * source, y + 32 + ROW * row, SLOT - 1, 20, source)
