"""What each process knows of a run, brought together: the tasks of all ranks, as if they had been in one process."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from parlab.world.clock.log import ENTER, POST_RECEIVE, POST_SEND, WAIT
from parlab.world.errors import RemoteError, WorldError
from parlab.world.processes.deadlock import Report, deadlock_in
from parlab.world.processes.engine import MessageEnd, ProcessEngine
from parlab.world.processes.pickling import pack_result
from parlab.world.processes.wallclock import measured
from parlab.world.program import Outcome
from parlab.world.threads.tasks import CollectiveCall, Signal, Task


class Note:
    """A message or a collective call as a log names it run_on_processes: by `key`."""

    index = -1
    value: tuple[()] = ()  # left at home


MESSAGE = ("src", "dst", "name", "nbytes", "kept", "posted_at", "done_at")
CALL = ("key", "members", "names", "details")


class _Pickler(pickle.Pickler):
    """Leaves out of a log what belongs to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MessageEnd):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in MESSAGE}
            return Note, (), {**state, "label": label, "key": (*thing.key, thing.number)}
        if isinstance(thing, CollectiveCall):
            return Note, (), {name: getattr(thing, name) for name in CALL}
        if isinstance(thing, Signal):
            return Signal, (None,)
        return NotImplemented


def packed(world: ProcessEngine) -> bytes:
    """What this process knows of its rank."""
    program = world.tasks[0]
    try:
        result = pack_result(program.result)
    except Exception as error:
        result = pickle.dumps(None)
        program.error = program.error or WorldError(
            f"rank {program.rank} returned {program.result!r:.60}, which cannot leave its process ({error}); return "
            "arrays and numbers"
        )
    lines = [(line.log, line.printed, _error(line)) for line in (program, *program.background)]
    clock = (world.transport.ahead, world.computed, world.stood)
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump((result, lines, clock))
    return file.getvalue()


def _error(line: Task) -> tuple[bytes, str] | None:
    """The error of a line of work, and its traceback as text."""
    error = line.error
    if error is None:
        return None
    text = "".join(traceback.format_exception(error))
    try:
        data = pack_result(error)
        pickle.loads(data)
    except Exception:  # the error of a class that has other arguments, say
        data = pickle.dumps(RemoteError(f"{type(error).__name__}: {error}"))
    return data, text


def together(blobs: list[bytes], reports: list[Report]) -> Outcome:
    """The run, from what each process has packed, by rank, and the last reports of all."""
    tasks, clocks = [], []
    for rank, (result, lines, clock) in enumerate(map(pickle.loads, blobs)):
        program = Task(rank)
        program.background = [Task(rank, program) for _ in lines[1:]]
        for line, (log, printed, error) in zip((program, *program.background), lines, strict=True):
            line.log, line.printed = log, printed
            if error is not None:
                line.error = pickle.loads(error[0])
                line.error.__cause__ = RemoteError(f"there, it was\n\n{error[1]}")
        program.result = pickle.loads(result)
        tasks.append(program)
        clocks.append(clock)
    logs = [line.log for task in tasks for line in (task, *task.background)]
    messages = _joined(logs)
    return Outcome(tasks, deadlock_in(reports), measured(clocks, messages))


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
            elif code == ENTER:
                log[i + 1] = met = calls.setdefault(thing.key, thing)
                met.names |= thing.names
                met.details |= thing.details
    return [(sent.get(key), asked.get(key)) for key in {**sent, **asked}]
