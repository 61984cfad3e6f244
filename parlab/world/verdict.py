"""Whether any of the processes can still move, from what they report; exactly, and without time-outs.

A rank reports when it stands in a wait: how much it has posted and entered so far, and what each of its lines of work
waits for. If every rank has reported (or left) and no report covers what another waits for, no rank has moved since its
report. For assume that some have, and take the first: what it waited for was posted by another rank, before that one's
own report, which would then cover it, or after, so that the other one moved first. So reports that are out of date do
not mislead, and ranks need not stand still to be asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from parlab.world.diagnosis import deadlock_of
from parlab.world.errors import DeadlockError
from parlab.world.log import POST_RECEIVE, POST_SEND
from parlab.world.requests import CollectiveRequest
from parlab.world.seats import Meeting, Message, Seat, Signal

Report = dict[str, Any]  # of one rank, as JSON has it


def report(program: Seat, place: str, ways: Iterable[Any], groups: Mapping[str, Any]) -> Report:
    """What `program`, which stands at `place`, and the lines of work beside it have posted and wait for."""
    lines = [program, *program.beside]
    return {
        "rank": program.rank,
        "place": place,
        "error": any(line.error is not None for line in lines),
        "posted": [[way.key, way.posted[POST_SEND], way.posted[POST_RECEIVE]] for way in ways],
        "met": {name: group.met for name, group in groups.items()},
        "lines": [[line.call, _waits_for(line, lines)] if line.missing else None for line in lines],
        "open": [[str(request), _needs(request)] for request in program.open],
    }


def _waits_for(line: Seat, lines: list[Seat]) -> list[Any]:
    if isinstance(line.waits_for, Signal):
        return ["signal", lines.index(line.waits_for.seat)]
    if isinstance(line.waits_for, Meeting):
        return ["meeting", line.waits_for.key, line.waits_for.members]  # type: ignore[attr-defined]
    return ["messages", [_message(message) for message in line.waits_for]]


def _message(message: Any) -> list[Any]:
    return [message.key, message.number, message.end]


def _needs(request: Any) -> Any:
    """What meets a request: a message, or nothing but the rank itself, and whether it has."""
    return request.met if isinstance(request, CollectiveRequest) else _message(request._message)


class _Open(NamedTuple):
    """A request of another process."""

    text: str
    met: bool

    def __str__(self) -> str:
        return self.text


class _Reports:
    def __init__(self, reports: Iterable[Report]):
        self.of = {report["rank"]: report for report in reports}
        self.posted = {(*key, report["rank"]): counts for report in reports for key, *counts in report["posted"]}

    def matched(self, key: list[Any], number: int, end: int) -> bool:
        """Whether the other end of a message is posted."""
        _, _, src, dst = key
        counts = self.posted.get((*key, dst if end == POST_SEND else src), (0, 0))
        return counts[1 if end == POST_SEND else 0] > number

    def entered(self, key: list[Any], members: list[int]) -> dict[int, str]:
        """The ranks in the group that have entered a collective."""
        group, number = key
        return {rank: "" for rank, member in enumerate(members) if self.of[member]["met"].get(group, 0) > number}

    def can_move(self, waits: Any) -> bool:
        """Whether a line of work that waits for this goes on by itself."""
        kind, *needs = waits
        if kind == "messages":
            return all(self.matched(*message) for message in needs[0])
        return kind == "meeting" and len(self.entered(*needs)) == len(needs[1])


def some_can_move(reports: Mapping[int, Report]) -> bool:
    """Whether some rank goes on, with what all have posted."""
    known = _Reports(reports.values())
    return any(line and known.can_move(line[1]) for report in reports.values() for line in report["lines"])


def failed(reports: list[Report]) -> bool:
    """Whether some rank has raised, or will never move."""
    return any(report["error"] or any(report["lines"]) for report in reports)


def judged(reports: list[Report]) -> DeadlockError | None:
    """The deadlock that the last reports of all ranks show; None if all have left, or one has raised."""
    if not failed(reports) or any(report["error"] for report in reports):
        return None
    known = _Reports(reports)
    seats = [_shadow(report, known) for report in reports]
    return deadlock_of(seats, {report["rank"]: report["place"] for report in reports})


def _shadow(report: Report, known: _Reports) -> Seat:
    """The seat of another process, as far as a diagnosis needs it."""
    program = Seat(report["rank"])
    program.beside = [Seat(program.rank, program) for _ in report["lines"][1:]]
    lines = [program, *program.beside]
    for line, said in zip(lines, report["lines"], strict=True):
        if said is not None:
            line.missing, line.call = 1, said[0]
            line.waits_for = _thing(said[1], lines, known)
    for text, needs in report["open"]:
        program.open.add(_Open(text, needs if isinstance(needs, bool) else known.matched(*needs)))
    return program


def _thing(waits: Any, lines: list[Seat], known: _Reports) -> Any:
    kind, *needs = waits
    if kind == "signal":
        return Signal(lines[needs[0]])
    if kind == "meeting":
        meeting = Meeting(tuple(needs[1]))
        meeting.calls = known.entered(*needs)
        return meeting
    messages = []
    for key, number, end in needs[0]:
        messages.append(Message(key[2], key[3], None, ""))
        messages[-1].matched = known.matched(key, number, end)
    return tuple(messages)
