"""What waits for what: the happens-before relation that every other file of this room relies on.

F of a stage        needs F of the stage before it
I or B of a stage   needs F of this stage, kept on this rank, and the gradient: I or B of the stage after it
W of a stage        needs I of this stage, kept on this rank
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from parlab.pipeline.actions import Action, Pair
from parlab.pipeline.schedule import Schedule


def kept_from(action: Action) -> Action | None:
    """The action on the same rank that kept what this one uses."""
    kind, stage, microbatch = action
    return {"F": None, "W": Action("I", stage, microbatch)}.get(kind, Action("F", stage, microbatch))


def input_from(action: Action, last_stage: int) -> tuple[Action, ...]:
    """The actions of the neighbouring stage, on any rank, of which one must have ended; none for W and at the ends."""
    kind, stage, microbatch = action
    if kind == "F":
        return (Action("F", stage - 1, microbatch),) if stage > 0 else ()
    if kind == "W" or stage == last_stage:
        return ()
    return (Action("I", stage + 1, microbatch), Action("B", stage + 1, microbatch))


@dataclass(frozen=True)
class Program:
    """A complete schedule in columns: one row an action, the ranks one after another.

    Lists of integers, because the simulation is a loop over very many rows and objects would cost more than it does.

    Attributes:
        actions: the action of each row.
        rank: the rank of each row.
        first: rank r owns the rows from first[r] up to first[r + 1].
        forward: the row of F for each cell, where cell = stage · microbatches + microbatch.
        gradient: the row of I or B for each cell.
        source: the row, of the neighbouring stage, whose result a row needs; -1 for none.
    """

    schedule: Schedule
    actions: list[Action]
    rank: list[int]
    first: list[int]
    forward: list[int]
    gradient: list[int]
    source: list[int]


def lower(schedule: Schedule) -> Program:
    """The columns of a schedule.

    Raises:
        ValueError: the schedule is incomplete, does something twice, or uses what its rank does not have yet.
    """
    actions: list[Action] = []
    rank: list[int] = []
    first = [0]
    for number, row_of_rank in enumerate(schedule.actions):
        actions += row_of_rank
        rank += [number] * len(row_of_rank)
        first.append(len(actions))

    microbatches = schedule.num_microbatches
    cells = schedule.num_stages * microbatches
    if 2 * cells > len(actions):  # before any table is made: the numbers in a file may be anything
        raise ValueError(_what_is_missing(schedule))
    forward, gradient, weight = [-1] * cells, [-1] * cells, [-1] * cells
    table = {"F": forward, "I": gradient, "B": gradient, "W": weight}
    for row, (kind, stage, microbatch) in enumerate(actions):
        table[kind][stage * microbatches + microbatch] = row
    if not _is_complete(actions, rank, forward, gradient, weight):
        raise ValueError(_what_is_missing(schedule))

    source = [-1] * len(actions)
    for row, before in zip(forward[microbatches:], forward, strict=False):
        source[row] = before
    for row, after in zip(gradient, gradient[microbatches:], strict=False):
        source[row] = after
    return Program(schedule, actions, rank, first, forward, gradient, source)


def pair_rows(program: Program) -> list[int]:
    """The rows of the forwards that overlap with the row after them."""
    rows, row = [], 0
    for slot in chain.from_iterable(program.schedule.ranks):
        if isinstance(slot, Pair):
            rows.append(row)
        row += 0 if slot is None else 2 if isinstance(slot, Pair) else 1
    return rows


def _is_complete(
    actions: list[Action], rank: list[int], forward: list[int], gradient: list[int], weight: list[int]
) -> bool:
    """Whether each cell has its rows once, in order, on one rank. Quick; `_complaints` finds out what is wrong."""
    half = [row for row in gradient if actions[row].kind == "I"]
    weight_of_half = [w for row, w in zip(gradient, weight, strict=True) if actions[row].kind == "I"]
    return (
        len(actions) == len(forward) + len(gradient) + len(half)
        and min(*forward, *gradient, *weight_of_half) >= 0
        and all(map(operator.lt, forward, gradient))
        and all(map(operator.lt, half, weight_of_half))
        and [rank[row] for row in forward] == [rank[row] for row in gradient]
        and [rank[row] for row in half] == [rank[row] for row in weight_of_half]
    )


def _what_is_missing(schedule: Schedule) -> str:
    return next(_complaints(schedule))


def _complaints(schedule: Schedule) -> Iterator[str]:
    """What keeps a schedule from being complete, the first unmet dependency first."""
    place: dict[Action, tuple[int, int]] = {}
    by_position = sorted(
        (position, rank, action) for rank, row in enumerate(schedule.actions) for position, action in enumerate(row)
    )
    for position, rank, action in by_position:
        if action in place:
            yield f"{action} is done twice: {_at(place[action])} and {_at((rank, position))}"
        place[action] = (rank, position)
    for position, rank, action in by_position:
        here = f"{action} ({_at((rank, position))})"
        whole = Action("B", action.stage, action.microbatch)
        if action.kind in "IW" and whole in place:
            yield f"{here} and {whole} ({_at(place[whole])}): a full backward contains both halves"
        kept = kept_from(action)
        if kept and kept not in place:
            yield f"{here} needs {kept}, which no rank does"
        if kept and place[kept][0] != rank:
            yield f"{here} needs what {kept} kept, but that is on rank {place[kept][0]}"
        if kept and place[kept][1] > position:
            yield f"{here} needs {kept}, which the same rank does only later ({_at(place[kept])})"
        inputs = input_from(action, schedule.num_stages - 1)
        if inputs and not any(needed in place for needed in inputs):
            yield f"{here} needs {' or '.join(map(str, inputs))}, which no rank does"
    yield from _undone(schedule, place)


def _undone(schedule: Schedule, place: dict[Action, tuple[int, int]]) -> Iterator[str]:
    for microbatch in range(schedule.num_microbatches):
        for stage in range(schedule.num_stages):
            forward, backward, whole, weight = (Action(kind, stage, microbatch) for kind in "FIBW")
            if forward not in place:
                yield f"{forward} is missing: every stage does each microbatch once"
            if backward not in place and whole not in place:
                yield f"{forward} has no backward: {whole}, or {backward} and {weight}, is missing"
            if backward in place and weight not in place:
                yield f"{backward} has no {weight}: the gradient of the weights would miss microbatch {microbatch}"


def _at(place: tuple[int, int]) -> str:
    rank, position = place
    return f"rank {rank}, action {position}"
