"""The exercises of notebook 04b: a bound of all schedules, the W's of a rank, and stages of unequal layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np

from parlab.labs.counts import microbatches_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.pipeline import check_row
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.pipeline import (
    Action,
    Costs,
    Schedule,
    ScheduleTimeline,
    balance,
    best_schedule,
    one_f_one_b,
    partition,
    simulate,
    zb_auto,
    zb_h2,
)
from parlab.pipeline.costs import change_of_kept
from parlab.world.units import several

SHOWN = 8  # inputs in a message
SMALL = 3, 4  # ranks and microbatches up to which all orders can be tried
TRIES = 3000  # of the search that refutes a bound; 1000 leave the last fixed case at 176, and 164 is possible
EVIDENCE_ROWS = 3  # of a schedule in a message
FRONTIER_GUESSES = {  # the usual wrong guesses of lesson 04b, and the reasoning that leads there
    "best": (15.0, "where your bound is"),
    "room 16": (1103.0, "with twice the memory the gaps are filled"),
    "V-Half": (2.0, "at best it meets the bound: nothing is below"),
}


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


def by_a_pattern() -> Schedule:
    """Eight ranks, 16 microbatches, and never more than four activations: 79 units, where a search found 95.

    Every 18 units four microbatches start, 0, 2, 6 and 8 units after the first. Their F's and I's never wait. Each W
    takes the first unit that its rank has free.

    >>> timeline = simulate(by_a_pattern())
    >>> timeline.makespan, max(timeline.peak_activations)
    (79, 4)
    """
    p, begin = 8, [18 * group + after for group in range(4) for after in (0, 2, 6, 8)]
    rows = []
    for rank in range(p):
        does = {start + rank: Action("F", rank, i) for i, start in enumerate(begin)}
        does |= {start + 2 * p - 1 - rank: Action("I", rank, i) for i, start in enumerate(begin)}
        for i, start in enumerate(begin):
            after = start + 2 * p - rank
            free = next(unit for unit in count(after) if unit not in does)
            does[free] = Action("W", rank, i)
        rows.append([does[unit] for unit in sorted(does)])
    return Schedule(rows, name="by a pattern, 8 ranks, 16 microbatches")


def units_kept(timeline: ScheduleTimeline) -> list[float]:
    """For each rank, how long it keeps an activation of all its layers, from the end of an F to the end of its B.

    Of one microbatch with full backwards; a chunk counts as its share of the rank's layers.

    >>> units_kept(simulate(one_f_one_b(4, 1), Costs(1, 1, 0)))
    [7.0, 5.0, 3.0, 1.0]
    """
    chunks = timeline.schedule.num_stages / timeline.size
    ends = [{step.actions[0]: step.end for step in timeline.steps(rank)} for rank in range(timeline.size)]
    return [
        sum(end - of_rank[action._replace(kind="F")] for action, end in of_rank.items() if action.kind == "B") / chunks
        for of_rank in ends
    ]


def closer(schedule: Schedule) -> list[Schedule]:
    """The quick schedule of 3 ranks and 4 microbatches with room for 2, and move by move how it becomes the best.

    >>> quick = zb_auto(3, 4, memory_limit=2, tries=0, metric="makespan")
    >>> [simulate(one).makespan for one in closer(quick)]
    [19, 18, 17]
    """
    found = [schedule]
    for place in (1, 7):  # on rank 1 a forward goes before the I that stood before it
        rows = [list(row) for row in found[-1].actions]
        rows[1][place : place + 2] = reversed(rows[1][place : place + 2])
        found.append(Schedule(rows))
    return found


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


@dataclass(frozen=True)
class LayersCase:
    """The time of each layer, for `size` stages."""

    size: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.size} stages, layers that take {list(self.layers)}"


LAYERS = [
    LayersCase(2, (1, 1, 1, 1, 1, 3)),
    LayersCase(2, (5, 1, 1)),
    LayersCase(3, (1,) * 9 + (4,)),
    LayersCase(3, (2, 3, 4)),
    LayersCase(3, (1, 5, 2, 3)),
    LayersCase(4, (3, *(2,) * 14, 9)),
    LayersCase(5, (1, 9, 1, 1, 8, 2, 2, 2, 7)),
    LayersCase(6, (6, 6, 1, 1, 1, 1, 6, 2, 5, 5)),
    LayersCase(7, (1,) * 7),
    LayersCase(8, (4, *(2,) * 23, 11)),
]


def _drawn_layers(random: np.random.Generator, size: int) -> LayersCase:
    number = int(random.integers(size, 4 * size))
    return LayersCase(size, (*random.integers(1, 9, number - 1).tolist(), int(random.integers(1, 30))))


def _try_uneven(trial: Trial, case: LayersCase) -> list[str]:
    found = trial.called(list(case.layers), case.size)
    if not isinstance(found, list | tuple | np.ndarray) or len(found) == 0:
        raise Wrong(f"returned {brief(found)}, expected a list of how many layers each stage has")
    numbers = [len(one) if isinstance(one, range) else one for one in found]
    if not all(isinstance(one, int | np.integer) and one >= 1 for one in numbers):
        raise Wrong(f"returned {brief(found)}, expected whole numbers from 1 on: no stage is without layers")
    if len(numbers) != case.size:
        raise Wrong(f"it makes {len(numbers)} stages, should make {case.size}")
    if sum(numbers) != len(case.layers):
        raise Wrong(f"its stages have {sum(numbers)} layers together, should have {len(case.layers)}")
    stops = np.cumsum(numbers)
    stages = [sum(case.layers[stop - number : stop]) for number, stop in zip(numbers, stops, strict=True)]
    best = [sum(case.layers[i] for i in own) for own in balance(case.layers, case.size)]
    if max(stages) > max(best):
        raise Wrong(
            f"it runs, but its stages take {stages}: the slowest {max(stages)}, and {max(best)} is possible",
            f"where time goes: each of m microbatches waits for stage {stages.index(max(stages))}",
        )
    even = [sum(case.layers[i] for i in own) for own in partition(len(case.layers), case.size)]
    takes = [_one_f_one_b(case.size, each) for each in (stages, even)]
    return [
        f"the slowest stage takes {max(stages)}; least possible: {max(best)}",
        f"1F1B, {2 * case.size} microbatches: {takes[0]}; with as many layers on each stage: {takes[1]}",
    ]


def _one_f_one_b(p: int, stages: Sequence[int]) -> Any:
    """The makespan of 1F1B if a backward takes as long as two forwards."""
    return simulate(one_f_one_b(p, 2 * p), Costs(stages, stages, stages)).makespan


UNEVEN = Exercise(
    "04b.uneven",
    "cut(layers, p)",
    LAYERS,
    _try_uneven,
    _drawn_layers,
    solved_by=("parlab.pipeline.balance", "parlab.pipeline.partition"),
)


EXERCISES = (LOWER_BOUND, PLACE_WEIGHTS, UNEVEN)
