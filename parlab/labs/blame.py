"""The exercise 00.to_blame: from a log of waits, the rank that made another wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parlab.labs.difference import brief, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import NotWritten, Wrong

Waited = tuple[int, int, int, int]  # rank, the peer that had not come, from when, until it came
SHOWN = 6  # waits of a case that are printed


def to_blame(waits: Sequence[Waited], rank: int) -> int:
    """The rank that made `rank` wait last: the way back through the waits, to a rank that had waited for nobody.

    A peer that came late may have waited itself. Of its waits the last one counts that had ended before it came. This
    is the rank that stalled if one did: the log has no works, so the way goes past a second stall.

    Args:
        waits: each (rank, peer, start, came): `rank` waited for `peer` from `start` until it came.
        rank: whose last wait; a rank that never waits is the answer itself.

    >>> to_blame([(6, 5, 18, 24), (7, 6, 28, 34), (5, 6, 54, 60)], 7)
    5
    """
    way = _way_back(waits, rank)
    return way[-1][1] if way else rank


def _way_back(waits: Sequence[Waited], rank: int) -> list[Waited]:
    """The last wait of `rank`, the last one of its peer that had ended before, and so on."""
    way: list[Waited] = []
    while earlier := [one for one in waits if one[0] == rank and (not way or one[3] < way[-1][3])]:
        way.append(max(earlier, key=lambda one: one[3]))
        rank = way[-1][1]
    return way


@dataclass(frozen=True)
class LogCase:
    """The waits of a run of `size` ranks, and the rank whose last wait is asked about."""

    size: int
    rank: int
    waits: tuple[Waited, ...]

    def __str__(self) -> str:
        if len(self.waits) <= SHOWN:
            return f"waits={list(self.waits)}, rank={self.rank}"
        return f"{len(self.waits)} waits of {self.size} ranks, rank={self.rank}"


CASES = [
    LogCase(2, 0, ((0, 1, 8, 14),)),
    LogCase(2, 1, ((0, 1, 8, 14),)),
    LogCase(2, 0, ((0, 1, 8, 14), (1, 0, 30, 35))),
    LogCase(2, 0, ((0, 1, 28, 34), (0, 1, 8, 14), (1, 0, 50, 55))),
    LogCase(3, 0, ((0, 1, 8, 20), (0, 2, 38, 44))),
    LogCase(3, 2, ((1, 0, 10, 15), (2, 1, 18, 25))),
    LogCase(3, 2, ((2, 1, 18, 25), (0, 1, 38, 44), (1, 0, 10, 15), (1, 2, 48, 53))),
    LogCase(3, 0, ((0, 1, 0, 10), (1, 2, 5, 8))),
    LogCase(4, 0, ((0, 1, 1, 3), (1, 2, 0, 2), (2, 3, 0, 1))),
    LogCase(5, 4, ((0, 1, 8, 19), (2, 1, 8, 19), (4, 3, 48, 50))),
    LogCase(
        8, 1, ((0, 7, 38, 44), (1, 0, 48, 54), (2, 3, 40, 44), (3, 4, 30, 34), (4, 5, 20, 24), (6, 5, 18, 24),
               (7, 6, 28, 34))
    ),
]  # fmt: skip


def _draw(random: np.random.Generator, size: int) -> LogCase:
    """A ring that exchanges in turn, as the patient of lesson 00; each work has its own length, and some stall."""
    size = max(size, 3)
    ready, waits = np.zeros(size, dtype=int), []
    for _ in range(6):
        stalls = random.choice([0, 0, 0, 40], size) * (1 + random.permutation(size))
        come = ready + 20 + random.permutation(size) + stalls
        left, right = np.roll(come, 1), np.roll(come, -1)
        for rank in range(size):
            late = (rank - 1) % size if left[rank] > right[rank] else (rank + 1) % size
            if come[late] > come[rank]:
                waits.append((rank, late, int(come[rank]), int(come[late])))
        ready = np.maximum(come, np.maximum(left, right)) + 2
    waits = [waits[place] for place in random.permutation(len(waits))]
    return LogCase(size, int(random.integers(size)), tuple(waits))


def _try(trial: Trial, case: LogCase) -> list[str]:
    try:
        found = trial.called(list(case.waits), case.rank)
    except NotWritten:
        raise
    except Wrong as wrong:
        raise _never_ends(wrong, case) or wrong from None
    way = _way_back(case.waits, case.rank)
    right = way[-1][1] if way else case.rank
    said = ", ".join(f"{rank} waits for {peer} until {came}" for rank, peer, _, came in way)
    if isinstance(found, bool) or not isinstance(found, int | np.integer):
        raise Wrong(f"returned {brief(found)}, expected the number of a rank: {right}")
    if found != right:
        raise Wrong(f"returned {found}, expected {right}", *_cause(case, way, int(found)))
    return [f"the way back: {said or f'rank {right} never waits'}; to blame: {right}"]


def _never_ends(wrong: Wrong, case: LogCase) -> Wrong | None:
    """`wrong` with its cause, if it never ended, and the last wait of each rank leads in circles; else None."""
    last = {rank: (peer, came) for rank, peer, _, came in sorted(case.waits, key=lambda one: one[3])}
    rank, before, late = case.rank, math.inf, ""
    for _ in range(case.size):
        if rank not in last or not wrong.args[0].startswith("still running"):
            return None
        peer, came = last[rank]
        if came > before and not late:
            late = f"rank {rank} came at {before}, so its wait until {came} did not make it late; it leads in circles"
        rank, before = peer, came
    return Wrong(*wrong.args, f"likely cause: {late}") if late else None


def _cause(case: LogCase, way: list[Waited], found: int) -> list[str]:
    """The way back, and where the answer seems to have left it."""
    if not way:
        return [f"rank {case.rank} never waits: nobody else made it wait"]
    told = [f"the way back: {', '.join(f'{rank} waits for {peer} until {came}' for rank, peer, _, came in way)}"]
    named = possible((cause, found == rank) for cause, rank in _mistakes(case, way))
    return told + (named or [f"rank {found} is not where it ends"])


def _mistakes(case: LogCase, way: list[Waited]) -> Iterator[tuple[str, int]]:
    """Usual mistakes, each with the rank that it finds."""
    for rank, peer, _, came in way:
        yield f"rank {rank} had waited itself, for rank {peer} until {came}; the way goes on", rank
    for cause, counts, best in OTHER_WAYS:
        yield cause, _end_of_a_way(case, counts, best)
    last = {rank: peer for rank, peer, _, _ in case.waits}  # of each rank the last wait in the list
    rank, seen = case.rank, set()
    while rank in last and rank not in seen:
        seen.add(rank)
        rank = last[rank]
    yield LATER, rank


def _end_of_a_way(
    case: LogCase, counts: Callable[[Waited, Waited], bool], best: Callable[[Waited], tuple[int, ...]]
) -> int:
    """Where the way back ends if a peer's wait counts by another rule, or another one of them is the best."""
    rank, before, passed = case.rank, None, set()
    while own := [one for one in case.waits if one[0] == rank and (before is None or counts(one, before))]:
        before = max(own, key=best)
        if before in passed:
            break  # in circles
        passed.add(before)
        rank = before[1]
    return rank


LATER = "a wait counts that ended only after its rank had come; of a rank's waits only one that ended before counts"
OTHER_WAYS: list[tuple[str, Callable[[Waited, Waited], bool], Callable[[Waited], tuple[int, ...]]]] = [
    (LATER, lambda one, last: True, lambda one: (one[3],)),
    (
        "a peer's wait counts if it had ended before the peer came, also if it began after the other's wait",
        lambda one, last: one[2] <= last[2] and one[3] < last[3],
        lambda one: (one[3],),
    ),
    (
        "a peer's wait counts if it had ended before the peer came, not only before the other began to wait",
        lambda one, last: one[3] < last[2],
        lambda one: (one[3],),
    ),
    (
        "of a rank's waits the last one counts, not the first",
        lambda one, last: one[3] < last[3],
        lambda one: (-one[3],),
    ),
    (
        "of a rank's waits the last one counts, not the longest",
        lambda one, last: one[3] < last[3],
        lambda one: (one[3] - one[2], one[3]),
    ),
]
TO_BLAME = Exercise("00.to_blame", "to_blame(waits, rank)", CASES, _try, _draw, solved_by=("parlab.labs.to_blame",))
