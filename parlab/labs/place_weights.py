"""The exercise 04b.place_weights: W's go where a rank waits, or has no room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.exercise import Exercise
from parlab.labs.pipeline import check_row
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.pipeline import (
    Action,
    simulate,
    zb_h2,
)
from parlab.pipeline.costs import change_of_kept

SHOWN = 8  # inputs in a message


@dataclass(frozen=True)
class RowCase:
    """The F's and I's of one rank, the arrival of each one's input, and the number of activations it may keep."""

    size: int
    rank: int
    limit: int
    row: tuple[Action, ...]
    arrivals: tuple[int, ...]

    def __str__(self) -> str:
        inputs = [f"{action} from {at}" for action, at in zip(self.row, self.arrivals, strict=True)]
        shown = ", ".join(inputs[:SHOWN] + ["..."] * (len(inputs) > SHOWN))
        room = "1 activation" if self.limit == 1 else f"{self.limit} activations"
        return f"rank {self.rank} of {self.size} ranks, room for {room}, inputs: {shown}"


def row_case(size: int, rank: int, m: int, limit: int, delays: Sequence[int] = ()) -> RowCase:
    """Rank `rank` in the order of ZB-H2, as far as it has room; its inputs arrive as in ZB-H2, or later.

    Args:
        delays: for each action the units by which it arrives later; a delay holds for all later actions, too.
    """
    timeline = simulate(zb_h2(size, m))
    ends = {step.actions[0]: step.end for others in range(size) for step in timeline.steps(others)}
    warmup = min(2 * (size - rank - 1), limit - 1, m)
    row = [Action("F", rank, i) for i in range(warmup)]
    for i in range(m):
        row += [Action("F", rank, warmup + i)] if warmup + i < m else []
        row.append(Action("I", rank, i))
    late = np.cumsum([*delays, *[0] * (len(row) - len(delays))])
    neighbours = {"F": rank - 1, "I": rank + 1}
    sources = (Action(kind, neighbours[kind], i) for kind, _, i in row)
    arrivals = [int(ends.get(source, 0) + by) for source, by in zip(sources, late, strict=True)]
    return RowCase(size, rank, limit, tuple(row), tuple(arrivals))


def _drawn(random: np.random.Generator, size: int) -> RowCase:
    m = int(random.integers(2 * size - 1, 2 * size + 4))
    delays = random.choice([0, 0, 1, 3], size=2 * m).tolist()
    return row_case(size, int(random.integers(size)), m, int(random.integers(1, 2 * size)), delays)


GIVEN = [
    row_case(p, r, 2 * p, limit, delays)
    for p in range(2, 8)
    for r, limit, delays in (
        (0, p, ()),
        (p - 1, p, [0, 1, 0, 2] * p),
        (p - 1, 1, [0, 1, 0, 2] * p),
        (p // 2, max(2, p - 2), [0, 0, 2] * p),
    )
]


def _try_place_weights(trial: Trial, case: RowCase) -> list[str]:
    row = trial.called(list(case.row), list(case.arrivals), case.limit)
    check_row(row, case.row)
    for number, action in enumerate(row):
        if action.kind == "W" and action._replace(kind="I") not in row[:number]:
            raise Wrong(f"{action} stands before {action._replace(kind='I')}, or that was never to be done")
        if row.index(action) != number:
            raise Wrong(f"{action} is done twice")
    missing = next((a for a in case.row if a.kind == "I" and a._replace(kind="W") not in row), None)
    if missing:
        raise Wrong(f"{missing} has no W: the gradient of the weights would miss microbatch {missing.microbatch}")
    starts, before, end, peak = _timed(row, case, True)
    at, least, soonest, _ = _timed(_as_early_as_possible(case), case)
    for action in case.row:
        if starts[action] > at[action]:
            cause = (
                "a W stands before it, though the rank did not wait and had room"
                if before[action] > least[action]
                else "a W that is done now would have fitted into an earlier wait"
            )
            raise Wrong(f"{action} starts at {starts[action]}, could start at {at[action]}", f"likely cause: {cause}")
    if end > soonest:
        raise Wrong(
            f"it ends at {end}, could end at {soonest}", "likely cause: the rank waits, and could do a W in that time"
        )
    return [
        f"activations kept: {peak}; room for {case.limit}",
        f"ends at {end}; no row with these F's and I's ends sooner",
    ]


def _timed(row: Sequence[Action], case: RowCase, limited: bool = False) -> tuple[dict[Action, int], Any, int, int]:
    """For each F and I its start and the number of W's before it; the row's end; the most activations that it keeps."""
    arrivals = dict(zip(case.row, case.arrivals, strict=True))
    starts: dict[Action, int] = {}
    before: dict[Action, int] = {}
    time = kept = peak = weights = 0
    for action in row:
        start = max(time, arrivals.get(action, 0))
        time = start + 1
        kept += int(change_of_kept(action.kind))
        if action.kind == "W":
            weights += 1
            continue
        starts[action], before[action] = start, weights
        peak = max(peak, kept)
        if limited and kept > case.limit:
            raise Wrong(
                f"from {action} on it keeps {kept} activations, and has room for {case.limit}",
                "likely cause: an activation is kept until its W, and no W comes before this F",
            )
    return starts, before, time, peak


def _as_early_as_possible(case: RowCase) -> list[Action]:
    """The row with a W wherever the rank waits or has no room for an F."""
    row: list[Action] = []
    put_off: list[Action] = []
    time = kept = 0
    for action, arrival in zip(case.row, case.arrivals, strict=True):
        while put_off and (time < arrival or (action.kind == "F" and kept == case.limit)):
            row.append(put_off.pop(0))
            time, kept = time + 1, kept + int(change_of_kept("W"))
        row.append(action)
        time = max(time, arrival) + 1
        kept += int(change_of_kept(action.kind))
        put_off += [action._replace(kind="W")] * (action.kind == "I")
    return row + put_off


PLACE_WEIGHTS = Exercise("04b.place_weights", "place_weights(row, arrivals, limit)", GIVEN, _try_place_weights, _drawn)

EXERCISES = (PLACE_WEIGHTS,)
