"""The records of all processes, merged: the tasks of all ranks, as if they had run in one process."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

from parlab.world.engines.log import ENTER, POST_RECEIVE, POST_SEND, WAIT
from parlab.world.engines.tasks import Signal, Task
from parlab.world.errors import RemoteError, WorldError
from parlab.world.processes.deadlock import Report, deadlock_in
from parlab.world.processes.doorkeeper import ProcessCall
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.messages import MessageEnd
from parlab.world.processes.pickling import pack_result
from parlab.world.processes.wallclock import measured
from parlab.world.program import Outcome


class Reference:
    """A message in a log that has left its process: both ends have one `key` (`MessageEnd.key`)."""

    index = -1
    like: tuple[()] = ()  # stays in its process, as the value does


OF_MESSAGE = ("key", "src", "dst", "name", "nbytes", "kept", "posted_at", "done_at")


class _LogPickler(pickle.Pickler):
    """Packs a log without the objects that belong to its process."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, MessageEnd):
            label = thing.label if isinstance(thing.label, str | int | float | None) else str(thing.label)
            state = {name: getattr(thing, name) for name in OF_MESSAGE}
            return Reference, (), {**state, "label": label}
        if isinstance(thing, ProcessCall):
            slots = {"arrivals": thing.arrivals}  # its waiters stay in its process
            return ProcessCall, (thing.members, thing.key), (None, slots)
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
    _LogPickler(file, pickle.HIGHEST_PROTOCOL).dump((result, tasks, engine.watch))
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
    tasks, watches = [], []
    for rank, (result, packed, watch) in enumerate(map(pickle.loads, records)):
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
        watches.append(watch)
    logs = [task.log for main in tasks for task in (main, *main.background)]
    sent, asked = (_by_key(logs, code) for code in (POST_SEND, POST_RECEIVE))
    _join(logs, sent)
    ends = [(sent.get(key), asked.get(key)) for key in {**sent, **asked}]
    return Outcome(tasks, deadlock_in(reports), measured(watches, ends))


def _by_key(logs: list[list[Any]], posts: int) -> dict[Any, Reference]:
    """The messages that were posted with this code, by their keys."""
    return {log[i + 1].key: log[i + 1] for log in logs for i in range(0, len(log), 2) if log[i] == posts}


def _join(logs: list[list[Any]], sent: dict[Any, Reference]) -> None:
    """Let both ends of a message that was sent, and all members of a collective, share one object in their logs."""
    calls: dict[Any, Any] = {}
    for log in logs:
        for i in range(0, len(log), 2):
            code, thing = log[i], log[i + 1]
            if code in (POST_RECEIVE, WAIT):
                log[i + 1] = sent.get(thing.key, thing)
            elif code == ENTER:
                log[i + 1] = call = calls.setdefault(thing.key, thing)
                call.arrivals |= thing.arrivals
