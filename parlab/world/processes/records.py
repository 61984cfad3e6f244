"""The records of all processes, merged: the tasks of all ranks, as if they had run in one process.

Invariant of merged logs: what several ranks have logged is one object in all their logs, as on threads. This is the
sender's end of each message that was sent, also in the receiver's log, and one call of each collective, with the
arrivals of all members that entered. In the records they are several objects with one key.
"""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any, NamedTuple

from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND, WAIT, actions
from parlab.world.engines.tasks import Signal, Task
from parlab.world.errors import RemoteError, WorldError
from parlab.world.processes.coordinator import ProcessCollective
from parlab.world.processes.deadlock import Report, deadlock_in
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.messages import MessageEnd
from parlab.world.processes.pickling import pack_result
from parlab.world.processes.wallclock import Measurements, measured_timeline
from parlab.world.program import Outcome


class PackedError(NamedTuple):
    """An error as it leaves its process."""

    data: bytes
    traceback: str


class PackedTask(NamedTuple):
    """A task as it leaves its process."""

    log: list[Any]
    printed: bool
    error: PackedError | None


class Record(NamedTuple):
    """All that a rank brings back from a run."""

    result: bytes
    tasks: list[PackedTask]  # the main task, then those in its background
    measurements: Measurements


class LoggedEnd:
    """One end of a message, as it is in a log that has left its process."""

    index = -1
    like: tuple[()] = ()  # no arrays: the value and its form stay in their process, and `nbytes` says its size


LOGGED_FIELDS = ("key", "src", "dst", "name", "nbytes", "holds", "posted_at", "passed_at")  # of an end, but its label


class _LogPickler(pickle.Pickler):
    """Packs a log without the objects that belong to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MessageEnd):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in LOGGED_FIELDS}
            state["label"] = label
            return LoggedEnd, (), state
        if isinstance(thing, ProcessCollective):
            slots = {"arrivals": thing.arrivals}  # its waiters stay in its process
            return ProcessCollective, (thing.members, thing.key), (None, slots)  # None: it has no dictionary
        if isinstance(thing, Signal):
            return Signal, (None,)
        return NotImplemented


def pack_record(engine: ProcessEngine) -> bytes:
    """The `Record` of this process's rank."""
    main = engine.tasks[0]
    try:
        result = pack_result(main.result)
    except Exception as error:
        result = pickle.dumps(None)
        main.error = main.error or WorldError(
            f"rank {main.rank} returned {main.result!r:.60}, which cannot leave its process ({error}); return "
            "arrays and numbers"
        )
    tasks = [PackedTask(task.log, task.printed, _packed_error(task)) for task in (main, *main.background)]
    file = io.BytesIO()
    _LogPickler(file, pickle.HIGHEST_PROTOCOL).dump(Record(result, tasks, engine.measurements))
    return file.getvalue()


def _packed_error(task: Task) -> PackedError | None:
    error = task.error
    if error is None:
        return None
    try:
        data = pack_result(error)
        pickle.loads(data)
    except Exception:  # for instance, its class takes other arguments
        data = pickle.dumps(RemoteError(f"{type(error).__name__}: {error}"))
    return PackedError(data, "".join(traceback.format_exception(error)))


def merge_records(records: list[bytes], reports: list[Report]) -> Outcome:
    """The outcome of a run, from the record of each rank and the last reports of all."""
    unpacked: list[Record] = [pickle.loads(record) for record in records]
    mains = [_main_task(rank, record) for rank, record in enumerate(unpacked)]
    messages = _merge_logs([task for main in mains for task in (main, *main.background)])
    wallclock = measured_timeline([record.measurements for record in unpacked], messages)
    return Outcome(mains, deadlock_in(reports), wallclock)


def _main_task(rank: int, record: Record) -> Task:
    """The main task of a rank, with those in its background."""
    main = Task(rank)
    main.result = pickle.loads(record.result)
    main.background = [Task(rank, main) for _ in record.tasks[1:]]
    for task, packed in zip((main, *main.background), record.tasks, strict=True):
        task.log, task.printed = packed.log, packed.printed
        if packed.error is not None:
            task.error = pickle.loads(packed.error.data)
            task.error.__cause__ = RemoteError(f"there, it was\n\n{packed.error.traceback}")
    return main


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
