"""The film of lesson 07: the gradients of three weights find the ranks that must add them."""

from __future__ import annotations

from functools import partial

import numpy as np

from parlab.arguments import checked, one_of
from parlab.train import Mesh
from parlab.views.drawing.film import Film, chip, outline, word
from parlab.world import Comm, run

AXES = {"dp": 2, "pp": 2, "tp": 2}
RANKS = 8
KINDS = {"cut": "cut", "norm": "norm", "tied": "table"}  # of weights, and their names in the film
STEPS = (
    ("norm", "tp", "Norm: the ranks of tp have it, and saw other tokens (sequence parallelism). They add."),
    ("tied", "pp", "Table: both ends of the pipeline use it, each for something else. They add."),
    ("", "data", "Every weight: the mean over data, whose ranks saw other tokens."),
)
BROKEN = {  # a bug of lesson 07: the step whose sum is left out, the weight's name in the film, and the step's line
    "norms not summed": (0, "norm", "Norm: nobody adds. Each rank of tp keeps the gradient of its own tokens."),
    "K/V heads not summed": (
        0,
        "K/V",
        "Shared K/V head: nobody adds. Each rank of tp keeps its query heads' gradient.",
    ),
    "ends not summed": (1, "table", "Table: nobody adds. Each end of the pipeline keeps its own gradient."),
}
WHOLE = ("none", "extra mean", "mean of means", "copies counted")  # these lose no chip
BITS = (1, 2, 4)  # of a rank's number, in which the two ranks of tp, pp and data differ
LEFT, TOP, ACROSS, DOWN, WIDTH, HEIGHT = 64, 34, 144, 160, 134, 132  # of the boxes of ranks; their names stand left
SLOT, ROW = 15, 32  # the width of a slot, the height of a row of slots
SLOTS = (SLOT * RANKS, 20)
MARGIN = 4  # of a frame around the slots of a group


def contributions(comm: Comm, without: int | None = None) -> list[dict[str, list[int]]]:
    """The ranks whose gradients are in this rank's gradient of each weight: at first, and after each of three sums.

    The sum of the step `without` is not made.
    """
    mesh = Mesh(comm, **AXES)
    own = np.eye(RANKS)[comm.rank]  # a gradient with a mark of the rank that made it
    gradients = dict.fromkeys(KINDS, own)
    found = []
    for step, (kind, group, _) in enumerate((("", "", ""), *STEPS), -1):
        for name in KINDS:
            if group and kind in ("", name) and step != without:
                gradients[name] = getattr(mesh, group).all_reduce(gradients[name])
        found.append({name: np.flatnonzero(x).tolist() for name, x in gradients.items()})
    return found


@checked({"bug": partial(one_of, choices=(*BROKEN, *WHOLE))})
def film_of_sums(bug: str = "none") -> Film:
    """Film who sums what on a mesh of dp 2 · pp 2 · tp 2: chips, one a rank, are the gradients in a rank's sum.

    The sums are made by the mesh's groups, on eight ranks.

    Args:
        bug: one of lesson 07's six, or "none". Where it leaves out a sum, its chips do not travel; at the end the film
            says whether the check of copies sees the bug.

    Raises:
        ValueError: no such bug.
    """
    without, renamed, says = BROKEN.get(bug, (None, "", ""))
    found = run(contributions, RANKS, without).results
    names = KINDS | ({} if without is None else {STEPS[without][0]: renamed})
    stops = ["backward done", *(f"over {group if group != 'pp' else 'both ends'}" for _, group, _ in STEPS)]
    headline = _headline(bug, renamed, [len(found[0][-1][name]) for name in KINDS])
    film = Film(headline, range(len(stops)), TOP + 2 * DOWN, resting=2.0, moving=6.0, says=lambda step: stops[step])
    for replica in range(2):
        film.draw(word(LEFT + ACROSS * (2 * replica + 1), 14, f"replica {replica}", "strong"))
    for stage in (0, RANKS - 1):  # the names stand once, beside the first box: nothing travels over them
        for row, shown in enumerate(names.values()):
            film.draw(word(6, _slots(stage, row)[1] + 10, shown, "left"))
    for rank in range(RANKS):
        _draw_rank(film, rank, found)
    for step, (kind, _, line) in enumerate(STEPS):
        film.tell(step, says if step == without else line)
        if kind:
            _frame_groups(film, step, [*KINDS].index(kind), step == without)
    if bug != "none":
        verdict = 'equal: the check "copies" is blind' if without is None else 'not equal: the check "copies" sees it'
        film.draw(word(LEFT + 2 * ACROSS - 5, TOP + 2 * DOWN - 12, verdict, "strong"), len(STEPS))
    return film


def _headline(bug: str, renamed: str, last: list[int]) -> str:
    if bug in BROKEN:
        return f"{bug}: the copies of a {renamed} end with other sums, and the check of copies sees it"
    if bug != "none":
        return f"{bug}: every sum is made, and the check of copies is blind"
    cut, norm, table = last
    needs = f"a cut weight needs the gradients of {cut} of {RANKS} ranks, a norm of {norm}, a tied table of {table}"
    return f"Who sums what: {needs}"


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


def _frame_groups(film: Film, step: int, row: int, broken: bool) -> None:
    """A frame around the slots of each group that sums in this step; one that should, and does not, stays dashed."""
    starts = step + 0.01 if step else 0  # with its line, when the clock goes on from the stop
    for rank in range(RANKS):
        peer = rank ^ BITS[step]
        if rank < peer:
            (x, y), (right, bottom) = _slots(rank, row), _slots(peer, row)
            size = right - x + SLOTS[0] + 2 * MARGIN, bottom - y + SLOTS[1] + 2 * MARGIN
            frame = outline(x - MARGIN, y - MARGIN, *size, "wait" if broken else "frame")
            film.draw(frame, starts, None if broken else step + 1)


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
