"""Deadlocks among processes, from reports of the ranks: exact, and without time-outs.

A rank that waits sends a report: how many messages and collectives it has posted, and what each of its tasks waits for.
Suppose that every rank has reported, and that no report covers what another rank waits for. Then no rank has moved
since its report, and none ever will.

Proof by contradiction. Suppose some rank moved after its report, and take the first one that did. Another rank posted
what it waited for. If that rank posted before its own report, the report covers it. If after, that rank moved earlier.
Both contradict the assumption. So old reports do no harm, and no rank has to stop for a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parlab.world.engines.diagnosis import call_of
from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import CollectiveCall, Signal, Task
from parlab.world.errors import DeadlockError, WaitsFor

Report = dict[str, Any]  # of one rank, in lists and dicts, as JSON has them: see `report`


def report(main: Task, place: str, groups: Mapping[str, Any]) -> Report:
    """The report of a rank: the posts of its main task and its background tasks, and what each of them waits for.

    Of each mailbox, `posts` has the key, the sends and the receives. Of each task, `tasks` has None or [call, wait]. A
    wait is ["messages", messages], ["collective", key, members], or ["signal", i], which task i of this rank raises. A
    message is [key of its mailbox, number, end].
    """
    tasks = [main, *main.background]
    boxes = [box for group in groups.values() for box in group.mailboxes.values()]
    return {
        "rank": main.rank,
        "place": place,
        "error": any(task.error is not None for task in tasks),
        "posts": [[box.key, box.posts[POST_SEND], box.posts[POST_RECEIVE]] for box in boxes],
        "collectives": {name: group.next_collective for name, group in groups.items()},
        "tasks": [[task.call, _waits_for(task, tasks)] if task.missing else None for task in tasks],
        "open": [[str(request), _needs(request)] for request in main.open],
    }


def _waits_for(task: Task, tasks: list[Task]) -> list[Any]:
    if isinstance(task.waits_for, Signal):
        return ["signal", tasks.index(task.waits_for.task)]
    if isinstance(task.waits_for, CollectiveCall):
        return ["collective", task.waits_for.key, task.waits_for.members]
    return ["messages", [_message(message) for message in task.waits_for]]


def _message(message: Any) -> list[Any]:
    return [message.box_key, message.number, message.end]


def _needs(request: Any) -> Any:
    """The message that a request waits for; of a background collective, whether it is over."""
    return request.met if isinstance(request.awaited, Signal) else _message(request.awaited)


class _Reports:
    """The reports of all ranks, asked what is posted and what is missing."""

    def __init__(self, reports: Iterable[Report]):
        self.by_rank = {report["rank"]: report for report in reports}
        self.posts = {(*key, report["rank"]): counts for report in reports for key, *counts in report["posts"]}

    def matched(self, key: list[Any], number: int, end: int) -> bool:
        """Whether the other end of a message is posted."""
        sent, asked = self.posts.get((*key, _peer(key, end)), (0, 0))
        return (asked if end == POST_SEND else sent) > number

    def missing(self, waits: Any, tasks: list[Any]) -> list[int]:
        """The ranks for which a task must wait; `tasks` are those of its rank."""
        kind, *needs = waits
        if kind == "signal":
            [place] = needs
            _, waits_of_raiser = tasks[place]
            return self.missing(waits_of_raiser, tasks)
        if kind == "collective":
            (group, number), members = needs
            return [member for member in members if self.by_rank[member]["collectives"].get(group, 0) <= number]
        [messages] = needs
        return sorted({_peer(key, end) for key, number, end in messages if not self.matched(key, number, end)})


def _peer(key: list[Any], end: int) -> int:
    """The rank at the other end of a message."""
    _, _, src, dst = key
    return dst if end == POST_SEND else src


def some_can_move(reports: Mapping[int, Report]) -> bool:
    """Whether some task has all that it waits for. One that waits for a signal moves after the one that raises it."""
    known = _Reports(reports.values())
    waiting = [(waits, report["tasks"]) for report in reports.values() for _, waits in filter(None, report["tasks"])]
    return any(waits[0] != "signal" and not known.missing(waits, of_rank) for waits, of_rank in waiting)


def failed(reports: list[Report]) -> bool:
    """Whether some rank has raised, or will never move."""
    return any(report["error"] or any(report["tasks"]) for report in reports)


def deadlock_in(reports: list[Report]) -> DeadlockError | None:
    """The deadlock that the last reports of all ranks show; None if all have left, or one has raised."""
    if not failed(reports) or any(report["error"] for report in reports):
        return None
    known = _Reports(reports)
    waiting = {report["rank"]: _parked(report, known) for report in reports if report["tasks"][0]}
    return DeadlockError(waiting, frozenset(known.by_rank) - waiting.keys())


def _parked(report: Report, known: _Reports) -> WaitsFor:
    """The call in which a rank is parked, and its peers."""
    call, waits = report["tasks"][0]
    if waits[0] == "messages":
        call = call_of(call, [(_peer(key, end), end == POST_SEND) for key, _, end in waits[1]])
    unmet = [
        text for text, needs in report["open"] if not (needs if isinstance(needs, bool) else known.matched(*needs))
    ]
    peers = tuple(known.missing(waits, report["tasks"]))
    return WaitsFor(report["rank"], call, peers, report["place"], tuple(sorted(unmet)))
