"""The happens-before relation, on which every other file of this package relies: which action needs which others.

F of a stage        needs F of the stage before it
I or B of a stage   needs F of this stage, kept on this rank, and the gradient: I or B of the stage after it
W of a stage        needs I of this stage, kept on this rank
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain

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
class ActionTable:
    """All actions of a complete schedule: one line an action, the ranks one after another, and what each line needs.

    Its columns are lists of integers, because a simulation goes through very many lines.

    Attributes:
        actions: the action of each line.
        rank_of_line: the rank of each line.
        first: rank r owns the lines from first[r] up to first[r + 1].
        source: the line, of the neighbouring stage, whose result a line needs; -1 for none.
    """

    schedule: Schedule
    actions: list[Action]
    rank_of_line: list[int]
    first: list[int]
    source: list[int]


def action_table(schedule: Schedule) -> ActionTable:
    """The table of a schedule that is complete. Ranks may still wait for each other: see `start_and_end`.

    Raises:
        ValueError: it is incomplete, does something twice, or uses what its rank does not have yet.
    """
    actions = list(chain.from_iterable(schedule.actions))
    rank_of_line = [rank for rank, of_rank in enumerate(schedule.actions) for _ in of_rank]
    first = list(accumulate(map(len, schedule.actions), initial=0))
    visits = schedule.num_stages * schedule.num_microbatches
    if 2 * visits > len(actions):  # before any list is made: the numbers in a file may be anything
        raise ValueError(_what_is_missing(schedule))
    lines = _lines_by_kind(actions, visits, schedule.num_microbatches)
    if not _is_complete(lines, rank_of_line):
        raise ValueError(_what_is_missing(schedule))
    return ActionTable(schedule, actions, rank_of_line, first, _sources(lines, len(actions), schedule.num_microbatches))


def _lines_by_kind(actions: list[Action], visits: int, microbatches: int) -> dict[str, list[int]]:
    """For each kind, the line of every visit of a microbatch to a stage, stage by stage; -1: there is none."""
    lines = {kind: [-1] * visits for kind in "FBIW"}
    for line, (kind, stage, microbatch) in enumerate(actions):
        lines[kind][stage * microbatches + microbatch] = line
    return lines


def _is_complete(lines: dict[str, list[int]], rank_of_line: list[int]) -> bool:
    """Whether each stage does each microbatch once, and nothing stands on two lines."""
    found = sum(len(of_kind) - of_kind.count(-1) for of_kind in lines.values())
    once = map(partial(_is_done_once, rank_of_line), lines["F"], lines["B"], lines["I"], lines["W"])  # of each visit
    return found == len(rank_of_line) and all(once)


def _is_done_once(rank_of_line: list[int], forward: int, full: int, half: int, weight: int) -> bool:
    """Whether one stage does a microbatch by F and B, or by F, I and W: one after the other, on one rank."""
    if forward < 0:
        return False
    rank = rank_of_line[forward]
    if full >= 0:
        no_halves = half < 0 and weight < 0
        return no_halves and forward < full and rank_of_line[full] == rank
    return forward < half < weight and rank_of_line[half] == rank_of_line[weight] == rank


def _sources(lines: dict[str, list[int]], number: int, microbatches: int) -> list[int]:
    """The source of each line: an F needs the F of the stage before, an I or B the I or B of the stage after."""
    source = [-1] * number
    forward, gradient = lines["F"], list(map(max, lines["B"], lines["I"]))
    for line, before in zip(forward[microbatches:], forward, strict=False):
        source[line] = before
    for line, after in zip(gradient, gradient[microbatches:], strict=False):
        source[line] = after
    return source


def pair_lines(table: ActionTable) -> frozenset[int]:
    """The lines of the forwards that overlap with the line after them."""
    lines, line = [], 0
    for slot in chain.from_iterable(table.schedule.ranks):
        if isinstance(slot, Pair):
            lines.append(line)
        line += 0 if slot is None else 2 if isinstance(slot, Pair) else 1
    return frozenset(lines)


def _what_is_missing(schedule: Schedule) -> str:
    return next(_complaints(schedule))


def _complaints(schedule: Schedule) -> Iterator[str]:
    """The reasons why a schedule is not complete, the first unmet dependency first."""
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
        full = Action("B", action.stage, action.microbatch)
        if action.kind in "IW" and full in place:
            yield f"{here} and {full} ({_at(place[full])}): a full backward contains both halves"
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
            forward, half, full, weight = (Action(kind, stage, microbatch) for kind in "FIBW")
            if forward not in place:
                yield f"{forward} is missing: every stage does each microbatch once"
            if half not in place and full not in place:
                yield f"{forward} has no backward: {full}, or {half} and {weight}, is missing"
            if half in place and weight not in place:
                yield f"{half} has no {weight}: the gradient of the weights would miss microbatch {microbatch}"


def _at(place: tuple[int, int]) -> str:
    rank, position = place
    return f"rank {rank}, action {position}"
