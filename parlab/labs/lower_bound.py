"""The exercise 04b.lower_bound: a time that no schedule is below."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parlab.labs.counts import microbatches_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.pipeline import (
    Costs,
    Schedule,
    best_schedule,
    simulate,
    zb_auto,
)
from parlab.world.units import several

SMALL = 3, 4  # ranks and microbatches up to which all orders can be tried
TRIES = 3000  # of the search that refutes a bound; 1000 leave the last fixed case at 176, and 164 is possible
EVIDENCE_ROWS = 3  # of a schedule in a message


@dataclass(frozen=True)
class BoundCase:
    """A straight pipeline, the activations that a rank may keep, and the costs of F, I, W and of a transfer."""

    size: int
    microbatches: int
    limit: int
    costs: tuple[float, float, float, float]

    def __str__(self) -> str:
        f, i, w, c = self.costs
        room = "1 activation" if self.limit == 1 else f"{self.limit} activations"
        return (
            f"{self.size} ranks, {self.microbatches} microbatches, room for {room}, f={f:g}, i={i:g}, w={w:g}, c={c:g}"
        )


BOUNDS = [
    BoundCase(2, 2, 2, (1, 1, 1, 0)),
    BoundCase(2, 3, 1, (1, 1, 1, 0)),
    BoundCase(2, 3, 2, (1, 1, 1, 6)),  # even one turn and a half are longer than the last rank
    BoundCase(2, 4, 2, (2, 1, 3, 1)),
    BoundCase(3, 4, 3, (1, 2, 1, 0)),
    BoundCase(3, 4, 1, (1, 1, 2, 2)),
    BoundCase(3, 4, 2, (1, 1, 1, 1)),
    BoundCase(3, 8, 4, (1, 3, 1, 1)),  # when the last I ends, 4 of 8 W's may be open
    BoundCase(4, 8, 8, (2, 3, 1, 1)),
    BoundCase(4, 5, 1, (3, 1, 2, 0.5)),
    BoundCase(4, 7, 2, (1, 1, 1, 4)),
    BoundCase(5, 9, 1, (1, 2, 3, 0)),
    BoundCase(6, 12, 12, (1, 1, 1, 0.5)),
    BoundCase(7, 7, 2, (2, 2, 1, 1)),
]


def _draw_bound(random: np.random.Generator, size: int) -> BoundCase:
    size = min(size, 6)  # more ranks take the search long
    m = int(random.integers(2, 2 * size + 2))
    costs = *random.integers(1, 5, 3).tolist(), float(random.choice([0, 0.5, 1, 3]))
    return BoundCase(size, m, int(random.choice([1, 2, size, 2 * size])), costs)


def _try_bound(trial: Trial, case: BoundCase) -> list[str]:
    p, m, limit = case.size, case.microbatches, case.limit
    f, i, w, c = case.costs
    said = trial.called(p, m, limit, *case.costs)
    if isinstance(said, bool) or not isinstance(said, int | float | np.integer | np.floating) or not np.isfinite(said):
        raise Wrong(f"returned {brief(said)}, expected a number of units")
    costs = Costs(*case.costs)
    small = p <= SMALL[0] and m <= SMALL[1]
    schedule = _shortest_known(p, m, costs, limit)
    found = simulate(schedule, costs).makespan
    if said > found + 1e-9:
        rows = str(schedule).splitlines()
        shown = [*rows[:EVIDENCE_ROWS], *["..."] * (len(rows) > EVIDENCE_ROWS)]
        borders = -(-m // limit) * (_of_a_place(p, *case.costs) + 2 * c)
        border = several(p - 1, "border")
        cause = [f"likely cause: {p} stages have {border}"] * (c > 0 and bool(np.isclose(said, borders)))
        raise Wrong(f"it says that no schedule takes less than {said:g}, but this one takes {found:g}:", *shown, *cause)
    least = three_arguments(p, m, limit, *case.costs)
    if said < least - 1e-9:
        raise Wrong(f"{said:g} is true, but no schedule takes less than {least:g}", _too_little(float(said), case))
    best = "the best possible" if small else "found by search"
    return [f"no schedule takes less than {said:g}; {best}: {found:g}"]


def _too_little(said: float, case: BoundCase) -> str:
    """Which of the three arguments proves more than was said, and why, if that can be told."""
    p, m, limit = case.size, case.microbatches, case.limit
    _, _, w, c = case.costs
    turns, stay = -(-m // limit), _of_a_place(p, *case.costs)
    last_rank, places = _last_rank(p, m, *case.costs), turns * stay
    if places < (least := three_arguments(p, m, limit, *case.costs)):
        if last_rank == least:
            return "the last rank alone needs longer: when does its first input come, and what has it to do then?"
        return "the last I proves more: how many W's of its rank may be open when it ends, and what must follow?"
    if said > last_rank and np.isclose(said, turns * (stay - w)):
        return "likely cause: rank 0 keeps a microbatch from its F to the end of its W; here its W is left out"
    if said > last_rank and np.isclose(said, turns * (stay - (p - 1) * c)):
        return "likely cause: the gradient sends messages, too, on its way up; here those down alone are counted"
    if said > last_rank and np.isclose(said, [m / limit * stay, m // limit * stay]).any():
        return f"likely cause: {m} / {limit} is not rounded up: some place serves {microbatches_in_words(turns)}"
    return "rank 0 alone needs longer: how long does it keep one microbatch, and how many must share a place?"


def three_arguments(p: int, m: int, limit: int, f: float, i: float, w: float, c: float) -> float:
    """A time that no schedule on straight stages is below, by the last rank, a place on rank 0, and the last I.

    >>> three_arguments(3, 4, 2, 1, 1, 1, 0)
    15
    """
    return max(_last_rank(p, m, f, i, w, c), on_rank_0(p, m, limit, f, i, w, c))


def on_rank_0(p: int, m: int, limit: int, f: float, i: float, w: float, c: float) -> float:
    """A time that rank 0 needs at least from its first F to its last W, so that it holds for steps in a row, too.

    By its work, a place, and the last I (see `lower_bound`).

    >>> on_rank_0(3, 4, 2, 1, 1, 1, 0)
    15
    """
    last_i = (p - 1) * (f + i + 2 * c) + m * (f + i + w) - (min(limit, m) - 1) * w
    return max(m * (f + i + w), -(-m // limit) * _of_a_place(p, f, i, w, c), last_i)


def _last_rank(p: int, m: int, f: float, i: float, w: float, c: float) -> float:
    return (p - 1) * (f + c) + m * (f + i + w)


def _of_a_place(p: int, f: float, i: float, w: float, c: float) -> float:
    """From the F of a microbatch on rank 0 to the end of its W."""
    return p * (f + i) + 2 * (p - 1) * c + w


@lru_cache(maxsize=256)
def _shortest_known(p: int, m: int, costs: Costs, limit: int) -> Schedule:
    """The best of all, where they can be tried; else the best that a search finds in less than a second."""
    if p <= SMALL[0] and m <= SMALL[1]:
        return best_schedule(p, m, costs, limit)
    return zb_auto(p, m, costs, limit, tries=TRIES, metric="makespan")


LOWER_BOUND = Exercise(
    "04b.lower_bound",
    "none_is_below(p, m, limit, f, i, w, c)",
    BOUNDS,
    _try_bound,
    _draw_bound,
    solved_by=("parlab.pipeline.lower_bound", "parlab.labs.three_arguments"),
)

EXERCISES = (LOWER_BOUND,)
