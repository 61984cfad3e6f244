"""Why ranks cannot move on, as text: who waits for whom, in which call, at which line; and how two calls differ."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from parlab.world import values
from parlab.world.engines.tasks import CollectiveCall, Message, Signal, Task
from parlab.world.errors import DeadlockError, WaitsFor
from parlab.world.values import Value


def deadlock_of(tasks: list[Task]) -> DeadlockError:
    """The error that names each blocked rank, its call, its line, and its peers. No rank may run meanwhile."""
    places = places_of(tasks)
    waiting = {
        task.rank: WaitsFor(
            task.rank,
            _blocked_call(task),
            _peers(task),
            places[task.rank],
            tuple(sorted(str(request) for request in task.open if not request.met)),
        )
        for task in tasks
        if task.missing
    }
    return DeadlockError(waiting, frozenset(task.rank for task in tasks) - waiting.keys())


def places_of(tasks: list[Task]) -> dict[int, str]:
    """For each blocked rank of this process, the line of its program, as text."""
    return {task.rank: _where(task.strand.frame) for task in tasks if task.missing}


def _peers(task: Task) -> tuple[int, ...]:
    """The ranks without which `task` cannot move on."""
    if isinstance(task.waits_for, Signal):
        return _peers(task.waits_for.task)
    if isinstance(task.waits_for, CollectiveCall):
        return tuple(member for member in task.waits_for.members if member not in task.waits_for.arrivals)
    late = [message for message in task.waits_for if not message.passed]
    return tuple(sorted({message.dst if message.src == task.rank else message.src for message in late}))


def _blocked_call(task: Task) -> str:
    """The call in which a task is blocked, with the ranks that it names."""
    if not isinstance(task.waits_for, tuple):  # a collective, or a signal
        return task.call
    sends = {"sendrecv": (True, False), "send": (True,), "isend": (True,)}.get(task.call, (False,))
    ends = [(message.dst if out else message.src, out) for message, out in zip(task.waits_for, sends, strict=True)]
    return call_as_text(task.call, ends)


def call_as_text(name: str, ends: Iterable[tuple[int, bool]]) -> str:
    """A call as text. `ends` are its messages: the other rank, and whether the call sends to it."""
    said = ", ".join(f"to {peer}" if out else f"from {peer}" for peer, out in ends)
    return f"{name}({said})" + ".wait()" * (name in ("isend", "irecv"))


WORLD = str(Path(__file__).parents[1])
Line = tuple[str, int, str]  # file, number, function

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # frames of their own before Python 3.12


def _where(frame: FrameType | None) -> str:
    """The line of the program in which a rank stands, as text."""
    line = _line_of(frame)
    if line is None:
        return ""
    file, number, function = line
    text = linecache.getline(file, number).strip()
    return f", at line {number} of {function}" + (f": {text}" if text else "")


def program_line() -> Line:
    """The line of the program from which this package was called."""
    return _line_of(sys._getframe(1)) or ("", 0, "")


def _line_of(frame: FrameType | None) -> Line | None:
    """The innermost line outside this package."""
    while frame is not None and frame.f_code.co_filename.startswith(WORLD):
        frame = frame.f_back
    if frame is None:
        return None
    file, number = frame.f_code.co_filename, frame.f_lineno
    while frame.f_code.co_name in COMPREHENSIONS and frame.f_back is not None:
        frame = frame.f_back
    return file, number, frame.f_code.co_name


def message_mismatch(message: Message, like: Value) -> str | None:
    """How a message differs from the form of `like`, or from the expected label, as text; None if it fits."""
    if not values.same_form(message.value, like):
        return form_mismatch(message, values.form(message.value), values.form(like))
    return label_mismatch(message)


def form_mismatch(message: Message, sent: str, expected: str) -> str:
    """The text of a message whose form is `sent`, and not `expected`."""
    label = "" if message.label is None else f" ({message.label})"
    return (
        f"a message from rank {message.src} to rank {message.dst}{label} holds {sent}, but "
        f"rank {message.dst} expects {expected}; messages between two ranks match in the order in which "
        "they are posted"
    )


def label_mismatch(message: Message) -> str | None:
    """How the labels of both ends differ, as text; None if they do not."""
    label, expected = message.label, message.expected_label
    if label is not expected and label is not None and expected is not None and str(label) != str(expected):
        return (
            f"rank {message.dst} expected {expected} from rank {message.src}, got {label}; messages "
            "between two ranks match in the order in which they are posted"
        )
    return None


def collective_mismatch(collective: CollectiveCall, group: str) -> str | None:
    """How the calls of the group's members differ, as text; None if they do not."""
    first = collective.members[0]
    expected = collective.arrivals[first].call
    for member in collective.members:
        if (call := collective.arrivals[member].call) != expected:
            return (
                f"the ranks of group {group} entered different collectives: "
                f"rank {first} calls {expected}, rank {member} calls {call}"
            )
    return None
