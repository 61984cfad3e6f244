"""The records of all processes, merged: the tasks of all ranks, as if they had run in one process."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND, WAIT
from parlab.world.engines.tasks import CollectiveCall, Signal, Task
from parlab.world.errors import RemoteError, WorldError
from parlab.world.processes.deadlock import Report, deadlock_in
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.messages import MessageEnd
from parlab.world.processes.pickling import pack_result
from parlab.world.processes.wallclock import measured
from parlab.world.program import Outcome


class Reference:
    """A message or a collective call in a log that has left its process: it is known by its `key`."""

    index = -1
    value: tuple[()] = ()  # stays in its process


MESSAGE = ("src", "dst", "name", "nbytes", "kept", "posted_at", "done_at")
CALL = ("key", "members", "names", "details")


class _LogPickler(pickle.Pickler):
    """Packs a log without the objects that belong to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MessageEnd):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in MESSAGE}
            return Reference, (), {**state, "label": label, "key": (*thing.key, thing.number)}
        if isinstance(thing, CollectiveCall):
            return Reference, (), {name: getattr(thing, name) for name in CALL}
        if isinstance(thing, Signal):
            return Signal, (None,)
        return NotImplemented


def pack_record(world: ProcessEngine) -> bytes:
    """The record of this process: result, logs, errors and measured times of its rank."""
    program = world.tasks[0]
    try:
        result = pack_result(program.result)
    except Exception as error:
        result = pickle.dumps(None)
        program.error = program.error or WorldError(
            f"rank {program.rank} returned {program.result!r:.60}, which cannot leave its process ({error}); return "
            "arrays and numbers"
        )
    tasks = [(task.log, task.printed, _error(task)) for task in (program, *program.background)]
    clock = (world.transport.ahead, world.computed, world.stood)
    file = io.BytesIO()
    _LogPickler(file, pickle.HIGHEST_PROTOCOL).dump((result, tasks, clock))
    return file.getvalue()


def _error(task: Task) -> tuple[bytes, str] | None:
    """The error of a task, and its traceback as text."""
    error = task.error
    if error is None:
        return None
    text = "".join(traceback.format_exception(error))
    try:
        data = pack_result(error)
        pickle.loads(data)
    except Exception:  # for instance, its class takes other arguments
        data = pickle.dumps(RemoteError(f"{type(error).__name__}: {error}"))
    return data, text


def merge_records(records: list[bytes], reports: list[Report]) -> Outcome:
    """The outcome of a run, from the record of each rank and the last reports of all."""
    programs, clocks = [], []
    for rank, (result, packed, clock) in enumerate(map(pickle.loads, records)):
        program = Task(rank)
        program.background = [Task(rank, program) for _ in packed[1:]]
        for task, (log, printed, error) in zip((program, *program.background), packed, strict=True):
            task.log, task.printed = log, printed
            if error is not None:
                task.error = pickle.loads(error[0])
                task.error.__cause__ = RemoteError(f"there, it was\n\n{error[1]}")
        program.result = pickle.loads(result)
        programs.append(program)
        clocks.append(clock)
    logs = [task.log for program in programs for task in (program, *program.background)]
    messages = _joined(logs)
    return Outcome(programs, deadlock_in(reports), measured(clocks, messages))


def _joined(logs: list[list[Any]]) -> list[tuple[Reference | None, Reference | None]]:
    """Let both ends of a message, and all members of a collective, share one object in their logs. Returns the ends."""
    sent = {log[i + 1].key: log[i + 1] for log in logs for i in range(0, len(log), 2) if log[i] == POST_SEND}
    asked = {log[i + 1].key: log[i + 1] for log in logs for i in range(0, len(log), 2) if log[i] == POST_RECEIVE}
    calls: dict[Any, Any] = {}
    for log in logs:
        for i in range(0, len(log), 2):
            code, thing = log[i], log[i + 1]
            if code in (POST_RECEIVE, WAIT):
                log[i + 1] = sent.get(thing.key, thing)
            elif code == ENTER:
                log[i + 1] = call = calls.setdefault(thing.key, thing)
                call.names |= thing.names
                call.details |= thing.details
    return [(sent.get(key), asked.get(key)) for key in {**sent, **asked}]
