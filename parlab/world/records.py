"""What each process knows of a run, brought together: the seats of all ranks, as if they had been in one process."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from parlab.world.errors import RemoteError, WorldError
from parlab.world.log import MEET, POST_RECEIVE, POST_SEND, WAIT
from parlab.world.processes import Passing, ProcessEngine
from parlab.world.program import Outcome
from parlab.world.seats import Meeting, Seat, Signal
from parlab.world.verdict import Report, judged
from parlab.world.wallclock import measured


class Note:
    """A message or a collective call as a log names it elsewhere: by `key`."""

    index = -1
    value: tuple[()] = ()  # left at home


MESSAGE = ("src", "dst", "name", "nbytes", "kept", "posted_at", "done_at")
MEETING = ("key", "members", "names", "details")


class _Pickler(pickle.Pickler):
    """Leaves out of a log what belongs to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Passing):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in MESSAGE}
            return Note, (), {**state, "label": label, "key": (*thing.key, thing.number)}
        if isinstance(thing, Meeting):
            return Note, (), {name: getattr(thing, name) for name in MEETING}
        if isinstance(thing, Signal):
            return Signal, (None,)
        return NotImplemented


def packed(world: ProcessEngine) -> bytes:
    """What this process knows of its rank."""
    program = world.seats[0]
    try:
        result = pickle.dumps(program.result)
    except Exception as error:
        result = pickle.dumps(None)
        program.error = program.error or WorldError(
            f"rank {program.rank} returned {program.result!r:.60}, which cannot leave its process ({error}); return "
            "arrays and numbers"
        )
    lines = [(line.log, line.printed, _error(line)) for line in (program, *program.beside)]
    clock = (world.transport.ahead, world.computed, world.stood)
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((result, lines, clock))
    return file.getvalue()


def _error(line: Seat) -> tuple[bytes, str] | None:
    """The error of a line of work, and its traceback as text."""
    error = line.error
    if error is None:
        return None
    text = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # the error of a class that has other arguments, say
        data = pickle.dumps(RemoteError(f"{type(error).__name__}: {error}"))
    return data, text


def together(blobs: list[bytes], reports: list[Report]) -> Outcome:
    """The run, from what each process has packed, by rank, and the last reports of all."""
    seats, clocks = [], []
    for rank, (result, lines, clock) in enumerate(map(pickle.loads, blobs)):
        program = Seat(rank)
        program.beside = [Seat(rank, program) for _ in lines[1:]]
        for line, (log, printed, error) in zip((program, *program.beside), lines, strict=True):
            line.log, line.printed = log, printed
            if error is not None:
                line.error = pickle.loads(error[0])
                line.error.__cause__ = RemoteError(f"there, it was\n\n{error[1]}")
        program.result = pickle.loads(result)
        seats.append(program)
        clocks.append(clock)
    logs = [line.log for seat in seats for line in (seat, *seat.beside)]
    messages = _joined(logs)
    return Outcome(seats, judged(reports), measured(clocks, messages))


def _joined(logs: list[list[Any]]) -> list[tuple[Note | None, Note | None]]:
    """Let both ends of a message, and all members of a collective, name the same thing; returns the ends."""
    sent = {log[i + 1].key: log[i + 1] for log in logs for i in range(0, len(log), 2) if log[i] == POST_SEND}
    asked = {log[i + 1].key: log[i + 1] for log in logs for i in range(0, len(log), 2) if log[i] == POST_RECEIVE}
    calls: dict[Any, Any] = {}
    for log in logs:
        for i in range(0, len(log), 2):
            code, thing = log[i], log[i + 1]
            if code in (POST_RECEIVE, WAIT):
                log[i + 1] = sent.get(thing.key, thing)
            elif code == MEET:
                log[i + 1] = met = calls.setdefault(thing.key, thing)
                met.names |= thing.names
                met.details |= thing.details
    return [(sent.get(key), asked.get(key)) for key in {**sent, **asked}]
