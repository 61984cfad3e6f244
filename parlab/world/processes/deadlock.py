"""Deadlocks among processes, from reports of the ranks: exact, whatever the time at which a rank reports.

A rank that waits sends a report: how many messages and collectives it has posted, and what each of its tasks waits for.
A report *covers* a post that is among those it counts. Suppose that every rank has reported, and that no report covers
the post for which another rank waits. Then no rank has moved since its report, and none ever will.

Proof by contradiction. Suppose some rank moved after its report, and take the first one that did. Another rank posted
what it waited for. If that rank posted before its own report, the report covers it. If after, that rank moved earlier.
Both contradict the assumption. So old reports do no harm, and no rank has to stop for a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.world.engines.diagnosis import call_as_text
from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import Signal, Task
from parlab.world.errors import DeadlockError, WaitsFor
from parlab.world.processes.coordinator import ProcessCollective
from parlab.world.processes.mailboxes import BoxKey


class ForMessage(NamedTuple):
    """One end of a message waits for the other: message `number` of this mailbox."""

    box: BoxKey
    number: int
    end: int  # the one that waits: POST_SEND or POST_RECEIVE

    @property
    def peer(self) -> int:
        """The rank at the other end."""
        _, _, src, dst = self.box
        return dst if self.end == POST_SEND else src


class ForCollective(NamedTuple):
    """A task waits until all members have entered collective `number` of this group."""

    group: str
    number: int
    members: tuple[int, ...]


class ForSignal(NamedTuple):
    """A task waits for a signal, which another task of its rank raises."""

    raiser: int  # its place in `Report.tasks`


Needs = list[ForMessage] | ForCollective | ForSignal


class Waiting(NamedTuple):
    """A task that waits in `call`."""

    call: str
    needs: Needs


class Report(NamedTuple):
    """A note to rank 0: what a rank has posted, and what its tasks wait for."""

    rank: int
    place: str  # the line of its program, as text
    raised: bool  # whether one of its tasks has raised an error
    sends: dict[BoxKey, int]  # posted by this rank in each mailbox
    receives: dict[BoxKey, int]
    collectives: dict[str, int]  # entered by this rank in each group
    tasks: list[Waiting | None]  # the main task, then those in its background; None: it is over
    open: list[tuple[str, ForMessage | None]]  # its unfinished requests, as text; None: a background collective's


def report_of(main: Task, place: str, groups: Mapping[str, Any]) -> Report:
    """The report of a rank, whose tasks all wait or are over."""
    tasks = [main, *main.background]
    boxes = [box for group in groups.values() for box in group.mailboxes.values()]
    return Report(
        main.rank,
        place,
        raised=any(task.error is not None for task in tasks),
        sends={box.key: box.posts[POST_SEND] for box in boxes},
        receives={box.key: box.posts[POST_RECEIVE] for box in boxes},
        collectives={name: group.next_collective for name, group in groups.items()},
        tasks=[Waiting(task.call, _needs(task, tasks)) if task.missing else None for task in tasks],
        open=[_open(request) for request in main.open if not (isinstance(request.awaited, Signal) and request.met)],
    )


def _open(request: Any) -> tuple[str, ForMessage | None]:
    """An unfinished request, as `Report.open` has it."""
    return str(request), None if isinstance(request.awaited, Signal) else _one_end(request.awaited)


def _one_end(message: Any) -> ForMessage:
    return ForMessage(message.box_key, message.number, message.end)


def _needs(task: Task, tasks: list[Task]) -> Needs:
    awaited: Any = task.waits_for
    if isinstance(awaited, Signal):
        return ForSignal(tasks.index(awaited.task))
    if isinstance(awaited, ProcessCollective):
        group, number = awaited.key
        return ForCollective(group, number, awaited.members)
    return [_one_end(message) for message in awaited]


class Over(NamedTuple):
    """A note of rank 0 to each rank: no rank can move, so the run is over."""

    reports: list[Report]  # the last one of each rank


class Detector:
    """Of deadlocks, on rank 0: it has the last report of each rank."""

    def __init__(self, size: int):
        self.size = size
        self.reports: dict[int, Report] = {}

    def add(self, report: Report) -> Over | None:
        """The note for all ranks, if the reports show that none of them can move; else None."""
        self.reports[report.rank] = report
        if len(self.reports) < self.size or some_can_move(self.reports):
            return None
        return Over([self.reports[rank] for rank in range(self.size)])


def some_can_move(reports: Mapping[int, Report]) -> bool:
    """Whether some task has all that it waits for. One that waits for a signal moves after the one that raises it."""
    waiting = [(task.needs, report) for report in reports.values() for task in report.tasks if task is not None]
    return any(not isinstance(needs, ForSignal) and not _peers(needs, report, reports) for needs, report in waiting)


def _peers(needs: Needs, report: Report, reports: Mapping[int, Report]) -> list[int]:
    """The ranks without which a task of the rank of `report` cannot move."""
    if isinstance(needs, ForSignal):
        raiser: Any = report.tasks[needs.raiser]
        return _peers(raiser.needs, report, reports)
    if isinstance(needs, ForCollective):
        return [member for member in needs.members if reports[member].collectives.get(needs.group, 0) <= needs.number]
    return sorted({message.peer for message in needs if not _other_end_posted(message, reports)})


def _other_end_posted(message: ForMessage, reports: Mapping[int, Report]) -> bool:
    """Whether the other end of a message is posted."""
    there = reports[message.peer]
    posted = there.receives if message.end == POST_SEND else there.sends
    return posted.get(message.box, 0) > message.number


def failed(reports: list[Report]) -> bool:
    """Whether some rank has raised, or will never move."""
    return any(report.raised or any(task is not None for task in report.tasks) for report in reports)


def deadlock_in(reports: list[Report]) -> DeadlockError | None:
    """The deadlock that the last reports of all ranks show; None if all have left, or one has raised."""
    if not failed(reports) or any(report.raised for report in reports):
        return None
    by_rank = {report.rank: report for report in reports}
    waiting = {
        report.rank: _waits_for(main, report, by_rank) for report in reports if (main := report.tasks[0]) is not None
    }
    return DeadlockError(waiting, frozenset(by_rank) - waiting.keys())


def _waits_for(main: Waiting, report: Report, reports: Mapping[int, Report]) -> WaitsFor:
    """The call in which the program of a rank is blocked, and its peers."""
    call = main.call
    if isinstance(main.needs, list):
        call = call_as_text(call, [(message.peer, message.end == POST_SEND) for message in main.needs])
    unmet = [text for text, message in report.open if message is None or not _other_end_posted(message, reports)]
    peers = tuple(_peers(main.needs, report, reports))
    return WaitsFor(report.rank, call, peers, report.place, tuple(sorted(unmet)))
