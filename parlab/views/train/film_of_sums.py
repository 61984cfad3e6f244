"""The film of lesson 07: the gradients of four weights find the ranks that must add them, by the reader's function."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from math import dist
from typing import Any, NamedTuple

import numpy as np

from parlab.train import Mesh
from parlab.views.engine.player import Film, chip, outline, word
from parlab.world import Comm, run

AXES = {"dp": 2, "pp": 2, "tp": 2}
RANKS = 8
KINDS = ("cut", "norm", "K/V", "tied")  # of weights
SHARE = 1 / AXES["dp"]  # of each gradient in the mean over data
BITS = {"dp": 4, "data": 4, "pp": 2, "ends": 2, "tp": 1, "cp": 0, "model": 3, "comm": 7}  # of a rank's number, by group
COPIES = {
    "cut": "data",
    "norm": "data tp",
    "K/V": "data tp",
    "tied": "data ends",
}  # the same weight
REASONS = {
    ("cut", "data"): "Cut: the ranks of data saw other tokens. They add.",
    ("norm", "tp"): "Norm: the ranks of tp normed other tokens. They add.",
    ("norm", "data"): "Norm: the ranks of data saw other tokens, too. They add.",
    ("K/V", "tp"): "K/V: the ranks of tp have other query heads. They add.",
    ("K/V", "data"): "K/V: the ranks of data saw other tokens, too. They add.",
    ("tied", "ends"): "Tied: each end of the pipeline uses the table otherwise. They add.",
    ("tied", "data"): "Tied: the ranks of data saw other tokens, too. They add.",
}
OF_THE_LIBRARY = "sums of the library: yours are not written yet"
MOST_SUMS = 3  # of a weight, that are shown one by one
FOLLOWED = 16  # chips of a sum that travel: if there are more, they appear
NOBODY, RESULT = "nobody", "the result"
LEFT, TOP, ACROSS, DOWN, WIDTH, HEIGHT = 64, 34, 144, 192, 134, 164  # of the boxes of ranks; their names stand left
SLOT, ROW = 12, 32  # the width of a slot, the height of a row of slots
SLOTS = (SLOT * RANKS, 20)
SIGNS = {0.5: "×½", 0.25: "×¼", 0.125: "×⅛", 1.0: ""}  # the share of each chip of a row, where it is not whole
MARGIN = 4  # of a frame around the slots of a group
Program = Callable[[Any, Any, str, Any], Any]


class Sum(NamedTuple):
    """A step of the film: the weight, the group that adds, and each rank's gradient afterwards, `[ranks, sources]`."""

    kind: str
    group: str
    found: Any


class _Watched:
    """A group, or a mesh of groups, that notes the result of each all-reduce."""

    def __init__(self, of: Any, name: str, calls: list[tuple[str, Any]]):
        self._of, self._name, self._calls = of, name, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return _Watched(found, name, self._calls) if name in BITS else found

    def all_reduce(self, x: Any, *args: Any, **options: Any) -> Any:
        """As the group's own."""
        total = self._of.all_reduce(x, *args, **options)
        if self._of.size > 1:
            self._calls.append((self._name, np.array(total)))
        return total


def right_sums(mesh: Any, ends: Any, kind: str, gradient: Any) -> Any:
    """The gradient of the whole batch, as the exercise 07.who_sums asks for it."""
    if kind in ("norm", "K/V"):
        gradient = mesh.tp.all_reduce(gradient)
    if kind == "tied":
        gradient = ends.all_reduce(gradient)
    return mesh.data.all_reduce(gradient) / mesh.data.size


def sums_of(program: Program) -> list[Sum]:
    """The sums that `program` makes of each kind of weight, on eight ranks; each rank's gradient is marked as its own.

    Raises:
        ValueError: it returns no array of the gradient's shape.
    """

    def noted(comm: Comm, kind: str) -> list[tuple[str, Any]]:
        calls: list[tuple[str, Any]] = []
        mesh = Mesh(comm, **AXES)
        ends = mesh.pp.split(0)
        own = np.eye(RANKS)[comm.rank]
        result = program(_Watched(mesh, "mesh", calls), _Watched(ends, "ends", calls), kind, own)
        if not isinstance(result, np.ndarray) or result.shape != own.shape:
            raise ValueError(f"it returned {result!r:.60} for kind {kind!r}: must be an array of shape {own.shape}")
        return [*calls, (RESULT, np.array(result))]

    found = []
    for kind in KINDS:
        by_rank = run(noted, RANKS, kind).results
        groups = [[name for name, _ in calls] for calls in by_rank]
        together = all(names == groups[0] for names in groups) and len(groups[0]) <= MOST_SUMS + 1
        names = groups[0] if together else [RESULT]
        steps = [
            Sum(kind, name, np.stack([calls[at if together else -1][1] for calls in by_rank]))
            for at, name in enumerate(names)
        ]
        *sums, result = steps
        before = sums[-1].found if sums else np.eye(RANKS)
        if np.array_equal(before != 0, result.found != 0):  # a division changes no chip
            sums = [*sums[:-1], sums[-1]._replace(found=result.found)] if sums else [result._replace(group=NOBODY)]
        else:
            sums = steps
        found += sums
    return found


def film_of_sums(program: Program | None = None) -> Film:
    """Film who sums what on a mesh of dp 2 · pp 2 · tp 2: chips, one a rank, are the gradients in a rank's sum.

    The sums are made by the mesh's groups, on eight ranks. At the end a dashed place lacks a gradient, and a frame is
    around one that should not be there.

    Args:
        program: `sum_gradient(mesh, ends, kind, gradient)`, as the exercise 07.who_sums asks for it, right or wrong;
            it may use any group. One that is not written yet, and None, are the library's.

    Raises:
        ValueError: no function, or it returns no array of the gradient's shape.
    """
    if program is not None and not callable(program):
        raise ValueError(f"program={program!r:.60}: must be a function sum_gradient(mesh, ends, kind, gradient)")
    written, sums = True, []
    try:
        sums = sums_of(program or right_sums)
    except NotImplementedError:
        written, sums = False, sums_of(right_sums)
    last = {done.kind: done.found for done in sums}
    wrong = [kind for kind in KINDS if not np.allclose(last[kind], SHARE * _copies(kind), rtol=0, atol=1e-12)]
    stops = [*(done.kind if done.kind == "cut" else f"{done.kind} {done.group}" for done in sums), "done"]
    headline = _headline(wrong, last)
    if not written:
        headline = "Not written yet, so the library's: " + headline[0].lower() + headline[1:]
    look: Any = {"resting": 1.5, "moving": 8.0, "ends": (20, 620), "says": lambda step: stops[step]}
    film = Film(headline, range(len(stops)), TOP + 2 * DOWN, **look)
    for replica in range(2):
        film.draw(word(LEFT + ACROSS * (2 * replica + 1), 14, f"replica {replica}", "strong"))
    for stage in (0, RANKS - 1):  # the names stand once, beside the first box: nothing travels over them
        for row, shown in enumerate(KINDS):
            film.draw(word(6, _slots(stage, row)[1] + 10, shown, "left"))
    for rank in range(RANKS):
        _draw_rank(film, rank)
    for row, kind in enumerate(KINDS):
        _draw_chips(film, row, [(at, done.found) for at, done in enumerate(sums, 1) if done.kind == kind])
    for step, done in enumerate(sums):
        film.tell(step, _line(done, done.kind in wrong))
        _frame_groups(film, step, KINDS.index(done.kind), done.group)
    below = LEFT + 2 * ACROSS - 5, TOP + 2 * DOWN - 12
    if written:
        film.draw(word(*below, _verdict(wrong, last), "strong"), len(sums))
    else:
        film.draw(word(*below, OF_THE_LIBRARY, "strong"))  # in every frame
    return film


def _copies(kind: str) -> Any:
    """The ranks that hold the same weight as each, and so need its gradient: 1 for each of them, `[ranks, ranks]`."""
    same = RANKS - 1 - sum(BITS[group] for group in COPIES[kind].split())
    return np.array([[float((rank ^ other) & same == 0) for other in range(RANKS)] for rank in range(RANKS)])


def _headline(wrong: Sequence[str], last: dict[str, Any]) -> str:
    if not wrong:
        cut, *others = (int(_copies(kind)[0].sum()) for kind in KINDS)
        return f"Who sums what: a cut weight needs the gradients of {cut} of {RANKS} ranks, each other of {max(others)}"
    kind = wrong[0]
    every = f"{', '.join(wrong[:-1])} and {wrong[-1]} are wrong. " if len(wrong) > 1 else ""
    for rank, own, right in zip(range(RANKS), last[kind], _copies(kind), strict=True):
        has, needs = (", ".join(map(str, np.flatnonzero(x))) or "none" for x in (own, right))
        if has != needs:
            return f"{every}{kind}: rank {rank} has the gradients of {has}, and needs those of {needs}"
    return f"{every}{kind}: {_counts(last[kind])}"


def _counts(found: Any) -> str:
    return f"a gradient counts {float(np.max(found)):.3g}, not {SHARE:g}"


def _verdict(wrong: Sequence[str], last: dict[str, Any]) -> str:
    if not wrong:
        return f"each copy has what it needs, times {SHARE:g}: the mean over data"
    said = {kind: _fault(kind, last) for kind in wrong}
    alike = [kind for kind in wrong if said[kind] == said[wrong[0]]]
    return f"{', '.join(alike)}: {said[wrong[0]]}"


def _fault(kind: str, last: dict[str, Any]) -> str:
    copies = [last[kind][np.flatnonzero(others)] for others in _copies(kind)]
    if not all(np.array_equal(own, of[0]) for of in copies for own in of):
        return "copies are not equal"
    too_many, too_few = (last[kind] != 0) > (_copies(kind) != 0), (last[kind] != 0) < (_copies(kind) != 0)
    but = "a gradient is missing" if too_few.any() else "one is too many" if too_many.any() else _counts(last[kind])
    return f"equal copies, but {but}"


def _line(done: Sum, wrong: bool) -> str:
    """The sentence about a step; it says why these ranks add only if the gradient is right at the end."""
    name = done.kind if done.kind == "K/V" else done.kind.capitalize()
    said = {
        NOBODY: f"{name}: nobody adds. Each rank keeps its own gradient.",
        RESULT: f"{name}: the function returns this.",
    }
    group = "data" if done.group == "dp" else done.group  # the same ranks here, where cp is 1
    group = "ends" if (done.kind, group) == ("tied", "pp") else group
    reason = None if wrong else REASONS.get((done.kind, group))
    return said.get(done.group) or reason or f"{name}: the function adds over {done.group}."


def _draw_rank(film: Film, rank: int) -> None:
    """A rank's box, with a row of slots for each weight."""
    (x, y), said = _corner(rank), f"rank {rank}: p {rank // 2 % 2}, t {rank % 2}"
    film.draw(outline(x, y, WIDTH, HEIGHT, "empty"))
    film.draw(word(x + WIDTH / 2, y + (16 if rank // 2 % 2 == 0 else HEIGHT - 16), said))
    for row in range(len(KINDS)):
        film.draw(outline(*_slots(rank, row), *SLOTS, "empty"))


def _draw_chips(film: Film, row: int, sums: list[tuple[int, Any]]) -> None:
    """The chips of a weight over its sums: each new one comes from the nearest rank that had it before.

    Beside a row stands by how much each of its chips counts.

    What comes, goes or moves together is one part of the film: parts alone take bytes.
    """
    shown: dict[Any, str] = defaultdict(str)  # by when it comes and goes
    moved: dict[Any, str] = defaultdict(str)  # by when it arrives, and how far it comes
    travels: Counter[int] = Counter()  # by when they arrive, how many chips
    states = [(0, np.eye(RANKS)), *sums]
    for rank, source in product(range(RANKS), repeat=2):
        there = [bool(found[rank, source]) for _, found in states]
        for number, (at, _) in enumerate(states):
            if there[number] and not (number and there[number - 1]):
                left = next((states[later][0] - 1 for later in range(number, len(states)) if not there[later]), None)
                shown[at or None, left] += _chip(rank, row, source)
                if at:
                    had = np.flatnonzero(states[number - 1][1][:, source]).tolist() or [source]
                    peer = min(had, key=lambda other: dist(_corner(rank), _corner(other)))
                    (x, y), (right, down) = _slots(peer, row), _slots(rank, row)
                    moved[at, right - x, down - y] += _chip(peer, row, source)
                    travels[at] += 1
        needed = bool(_copies(KINDS[row])[rank, source])
        if there[-1] != needed:
            x, y = _slots(rank, row)
            look = "letter open" if needed else "frame"
            shown[states[-1][0], None] += outline(x + SLOT * source, y, SLOT - 1, SLOTS[1], look)
    for rank in range(RANKS):
        signs = [_sign(found[rank]) for _, found in states]
        for number, (at, _) in enumerate(states):
            if signs[number] and not (number and signs[number - 1] == signs[number]):
                same = (later for later in range(number, len(states)) if signs[later] != signs[number])
                left = next((states[later][0] - 1 for later in same), None)
                x, y = _slots(rank, row)
                shown[at or None, left] += word(x + SLOTS[0] + 13, y + 10, signs[number], "small")
    for (at, *by), mark in moved.items():
        if travels[at] <= FOLLOWED:
            film.move(mark, at - 1, at, by=(by[0], by[1]))
    for (start, end), mark in shown.items():
        film.draw(mark, start, end)


def _sign(shares: Any) -> str:
    """The sign beside a row of chips: the share of each; none where it is 1, or where there is no chip."""
    values = {round(float(share), 3) for share in shares if share}
    if len(values) > 1:
        return "≠"
    return next((SIGNS.get(value, f"×{value:.3g}") for value in values), "")


def _frame_groups(film: Film, step: int, row: int, group: str) -> None:
    """A frame around the slots of each group that sums in this step, if no other ranks stand between them."""
    starts = step + 0.01 if step else 0  # with its line, when the clock goes on from the stop
    bits = BITS.get(group, 0)
    frames = ""
    for rank in (rank for rank in range(RANKS) if bits not in (0, BITS["data"]) and not rank & bits):
        (x, y), (right, bottom) = _slots(rank, row), _slots(rank | bits, row)
        size = right - x + SLOTS[0] + 2 * MARGIN, bottom - y + SLOTS[1] + 2 * MARGIN
        frames += outline(x - MARGIN, y - MARGIN, *size, "frame")
    if frames:
        film.draw(frames, starts, step + 1)


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
    return chip(x + SLOT * source, y, SLOT - 1, SLOTS[1], source)
