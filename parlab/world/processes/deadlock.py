"""Whether any of the processes can still move, from what they report; exactly, and without time-outs.

A rank reports when it stands in a wait: how much it has posted and entered so far, and what each of its lines of work
waits for. If every rank has reported (or left) and no report covers what another waits for, no rank has moved since its
report. For assume that some have, and take the first: what it waited for was posted by another rank, before that one's
own report, which would then cover it, or after, so that the other one moved first. So reports that are out of date do
not mislead, and ranks need not stand still to be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parlab.world.clock.log import POST_RECEIVE, POST_SEND
from parlab.world.errors import DeadlockError, WaitsFor
from parlab.world.threads.diagnosis import call_of
from parlab.world.threads.tasks import CollectiveCall, Signal, Task

Report = dict[str, Any]  # of one rank, as JSON has it


def report(program: Task, place: str, groups: Mapping[str, Any]) -> Report:
    """What `program`, which stands at `place`, and the lines of work beside it have posted and wait for."""
    lines = [program, *program.background]
    ways = [way for group in groups.values() for way in group.mailboxes.values()]
    return {
        "rank": program.rank,
        "place": place,
        "error": any(line.error is not None for line in lines),
        "posted": [[way.key, way.posted[POST_SEND], way.posted[POST_RECEIVE]] for way in ways],
        "met": {name: group.met for name, group in groups.items()},
        "lines": [[line.call, _waits_for(line, lines)] if line.missing else None for line in lines],
        "open": [[str(request), _needs(request)] for request in program.open],
    }


def _waits_for(line: Task, lines: list[Task]) -> list[Any]:
    if isinstance(line.waits_for, Signal):
        return ["signal", lines.index(line.waits_for.task)]
    if isinstance(line.waits_for, CollectiveCall):
        return ["collective", line.waits_for.key, line.waits_for.members]
    return ["messages", [_message(message) for message in line.waits_for]]


def _message(message: Any) -> list[Any]:
    return [message.key, message.number, message.end]


def _needs(request: Any) -> Any:
    """What meets a request: a message, or nothing but the rank itself, and whether it has."""
    return request.met if isinstance(request.posted, Signal) else _message(request.posted)


class _Reports:
    def __init__(self, reports: Iterable[Report]):
        self.of = {report["rank"]: report for report in reports}
        self.posted = {(*key, report["rank"]): counts for report in reports for key, *counts in report["posted"]}

    def matched(self, key: list[Any], number: int, end: int) -> bool:
        """Whether the other end of a message is posted."""
        sent, asked = self.posted.get((*key, _peer(key, end)), (0, 0))
        return (asked if end == POST_SEND else sent) > number

    def missing(self, waits: Any, lines: list[Any]) -> list[int]:
        """The ranks without which a line of work that waits for this, among the `lines` of its rank, cannot go on."""
        kind, *needs = waits
        if kind == "signal":
            return self.missing(lines[needs[0]][1], lines)
        if kind == "collective":
            (group, number), members = needs
            return [member for member in members if self.of[member]["met"].get(group, 0) <= number]
        return sorted({_peer(key, end) for key, number, end in needs[0] if not self.matched(key, number, end)})


def _peer(key: list[Any], end: int) -> int:
    """The rank at the other end of a message."""
    return key[3] if end == POST_SEND else key[2]


def some_can_move(reports: Mapping[int, Report]) -> bool:
    """Whether some rank goes on, with what all have posted."""
    known = _Reports(reports.values())
    lines = [(line[1], report["lines"]) for report in reports.values() for line in report["lines"] if line]
    return any(waits[0] != "signal" and not known.missing(waits, of_rank) for waits, of_rank in lines)


def failed(reports: list[Report]) -> bool:
    """Whether some rank has raised, or will never move."""
    return any(report["error"] or any(report["lines"]) for report in reports)


def deadlock_in(reports: list[Report]) -> DeadlockError | None:
    """The deadlock that the last reports of all ranks show; None if all have left, or one has raised."""
    if not failed(reports) or any(report["error"] for report in reports):
        return None
    known = _Reports(reports)
    waiting = {report["rank"]: _stands(report, known) for report in reports if report["lines"][0]}
    return DeadlockError(waiting, frozenset(known.of) - waiting.keys())


def _stands(report: Report, known: _Reports) -> WaitsFor:
    """Where a rank is parked, and what for."""
    call, waits = report["lines"][0]
    if waits[0] == "messages":
        call = call_of(call, [(_peer(key, end), end == POST_SEND) for key, _, end in waits[1]])
    unmet = [
        text for text, needs in report["open"] if not (needs if isinstance(needs, bool) else known.matched(*needs))
    ]
    peers = tuple(known.missing(waits, report["lines"]))
    return WaitsFor(report["rank"], call, peers, report["place"], tuple(sorted(unmet)))
