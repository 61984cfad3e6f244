"""The film of a step of data parallelism: four GPUs sum their gradients, and then all do and keep the same."""

from __future__ import annotations

from itertools import product

from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.zero.model_state import COLORS

RANKS = 4
STOPS = ("gradients", "G", "G again", "Adam", "done")
TOLD = (
    "backward: each GPU finds a gradient of all weights, from its own samples",
    "pieces of the gradients travel, and are added",
    "the sums travel to all: all GPUs have the same gradient",
    "all make the same update of the same weights, with the same moments",
)
FIRST, APART, WIDE = 52, 146, 104  # the left side of the first tower, from one to the next, and the width of one
BYTE = 10  # of height for a byte of each weight: 2 of the weight, 4 of its gradient, 12 of Adam's state
TOP = 34
LEVELS = {"optimizer": (0, 12), "gradients": (12, 16), "weights": (16, 18)}  # bytes from the top of a tower
OWN = theme.paler(COLORS["gradients"], 0.6)  # of a gradient that is not summed yet
NAMES = {"optimizer": "Adam", "gradients": "", "weights": "W"}


def film_of_copies() -> Film:
    """Film a step of data parallelism on four ranks, each a tower of the 18 bytes that it keeps of a weight.

    A quarter of a tower's width is a quarter of the weights. A gradient has its rank's number until it is summed.
    """
    film = Film(
        "Four GPUs, one step: each ends with what the others have",
        range(len(STOPS)),
        TOP + 18 * BYTE + 34,
        moving=7.0,
        resting=1.2,
        says=lambda stop: STOPS[stop],
    )
    for rank in range(RANKS):
        left = FIRST + APART * rank
        film.draw(word(left + WIDE / 2, TOP - 16, f"GPU {rank}", "strong"))
        for part, (high, low) in LEVELS.items():
            color = COLORS[part] if NAMES[part] else "none"
            film.draw(box(left, TOP + BYTE * high, WIDE, BYTE * (low - high), color, NAMES[part]))
        for quarter in range(RANKS):
            film.draw(_piece(rank, quarter, OWN, rank), 0.5, 2 if rank == quarter else 1)
            film.draw(_piece(rank, quarter, COLORS["gradients"], "Σ"), 2 if rank == quarter else 3)
        work = outline(left - 3, TOP - 3, WIDE + 6, BYTE * 12 + 6, "frame")
        changed = outline(left - 3, TOP + BYTE * 16 - 3, WIDE + 6, BYTE * 2 + 6, "frame")
        film.draw(work + changed, 3, 4, between=True)
        film.draw(box(left, TOP + BYTE * 16, WIDE, BYTE * 2, COLORS["weights"], "new W"), 4)
        film.draw(word(left + WIDE / 2, TOP + 18 * BYTE + 18, "the same"), 4)
    for one, other in product(range(RANKS), repeat=2):
        if one != other:
            way = APART * (other - one), 0
            film.move(_piece(one, other, OWN, one), 1, 2, way)
            film.move(_piece(one, one, COLORS["gradients"], "Σ"), 2, 3, way)
    for stop, line in enumerate(TOLD):
        film.tell(stop, line)
    return film


def _piece(rank: int, quarter: int, color: str, said: object) -> str:
    """A quarter of a rank's gradient, at its place in the tower."""
    high, low = LEVELS["gradients"]
    wide = WIDE / RANKS
    return box(FIRST + APART * rank + wide * quarter, TOP + BYTE * high, wide - 1, BYTE * (low - high), color, said)
