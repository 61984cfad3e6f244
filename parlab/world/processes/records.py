"""The records of all processes, merged: the tasks of all ranks, as if they had run in one process.

Invariant of merged logs: what several ranks have logged is one object in all their logs, as on threads. This is the
sender's end of each message that was sent, also in the receiver's log, and one call of each collective, with the
arrivals of all members that entered. In the records they are several objects with one key.
"""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND, WAIT, actions
from parlab.world.engines.tasks import Signal, Task
from parlab.world.errors import RemoteError, WorldError
from parlab.world.processes.deadlock import Report, deadlock_in
from parlab.world.processes.doorkeeper import ProcessCollective
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.messages import MessageEnd
from parlab.world.processes.pickling import pack_result
from parlab.world.processes.wallclock import measured
from parlab.world.program import Outcome


class LoggedEnd:
    """One end of a message, as it is in a log that has left its process."""

    index = -1
    like: tuple[()] = ()  # stays in its process, as the value does


OF_END = ("key", "src", "dst", "name", "nbytes", "kept", "posted_at", "passed_at")  # of a `MessageEnd`


class _LogPickler(pickle.Pickler):
    """Packs a log without the objects that belong to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MessageEnd):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in OF_END}
            return LoggedEnd, (), {**state, "label": label}
        if isinstance(thing, ProcessCollective):
            slots = {"arrivals": thing.arrivals}  # its waiters stay in its process
            return ProcessCollective, (thing.members, thing.key), (None, slots)
        if isinstance(thing, Signal):
            return Signal, (None,)
        return NotImplemented


def pack_record(engine: ProcessEngine) -> bytes:
    """The record of this process: result, logs, errors and measured times of its rank."""
    main = engine.tasks[0]
    try:
        result = pack_result(main.result)
    except Exception as error:
        result = pickle.dumps(None)
        main.error = main.error or WorldError(
            f"rank {main.rank} returned {main.result!r:.60}, which cannot leave its process ({error}); return "
            "arrays and numbers"
        )
    tasks = [(task.log, task.printed, _error(task)) for task in (main, *main.background)]
    file = io.BytesIO()
    _LogPickler(file, pickle.HIGHEST_PROTOCOL).dump((result, tasks, engine.measurements))
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
    tasks, measurements = [], []
    for rank, (result, packed, times) in enumerate(map(pickle.loads, records)):
        main = Task(rank)
        main.background = [Task(rank, main) for _ in packed[1:]]
        for task, (log, printed, error) in zip((main, *main.background), packed, strict=True):
            task.log, task.printed = log, printed
            if error is not None:
                data, text = error
                task.error = pickle.loads(data)
                task.error.__cause__ = RemoteError(f"there, it was\n\n{text}")
        main.result = pickle.loads(result)
        tasks.append(main)
        measurements.append(times)
    messages = _merge_logs([task for main in tasks for task in (main, *main.background)])
    return Outcome(tasks, deadlock_in(reports), measured(measurements, messages))


def _merge_logs(tasks: list[Task]) -> list[tuple[LoggedEnd | None, LoggedEnd | None]]:
    """Establish the invariant. Returns the two ends of each message; None for one that was not posted."""
    sends, receives = _ends(tasks, POST_SEND), _ends(tasks, POST_RECEIVE)
    collectives: dict[Any, ProcessCollective] = {}
    for task in tasks:
        merged: list[Any] = []
        for code, operand in actions(task.log):
            if code in (POST_RECEIVE, WAIT):
                operand = sends.get(operand.key, operand)
            elif code == ENTER:
                arrivals = operand.arrivals
                operand = collectives.setdefault(operand.key, operand)
                operand.arrivals |= arrivals
            merged += (code, operand)
        task.log = merged
    return [(sends.get(key), receives.get(key)) for key in {**sends, **receives}]


def _ends(tasks: list[Task], code: int) -> dict[Any, LoggedEnd]:
    """The ends that were posted with this code, by the keys of their messages."""
    return {end.key: end for task in tasks for posted, end in actions(task.log) if posted == code}
