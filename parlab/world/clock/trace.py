"""The logs of a run, numbered: what the replay reads, free of the threads that wrote it.

A message's row is its sender's rank and posting number in order, so the same program always gives the same trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from parlab.world import values
from parlab.world.clock.log import AWAIT, COMPUTE, ENTER, HOLD, POST_SEND, PRINT, SIGNAL

if TYPE_CHECKING:
    from parlab.world.threads.tasks import Task


class TracedCollective(NamedTuple):
    """A collective call: its name on each rank that entered it, and the group's members.

    `joint`: nobody leaves it before all have entered, because by entering they tell each other something, or because
    some never do.
    """

    names: dict[int, str]
    members: tuple[int, ...]
    joint: bool


@dataclass
class Trace:
    """What every line of work did, in the order of its program: first the ranks', then what ran beside them.

    Attributes:
        size: how many ranks.
        ranks: the rank of each line of work.
        programs: for each line of work its (code, operand) pairs, as `log` has them; but in the place of a message, a
            collective or a signal stands its number.
        src, dst, nbytes, kept, names, labels, posting: the messages, in columns; `kept` are the bytes that the sender
            holds for it while it is under way, `posting` counts within the sender.
        collectives: the collective calls.
        signals: how many there are.
    """

    size: int
    ranks: list[int]
    programs: list[list[tuple[int, Any]]] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    posting: list[int] = field(default_factory=list)
    collectives: list[TracedCollective] = field(default_factory=list)
    signals: int = 0


def traced(tasks: list[Task]) -> Trace:
    """The trace of the logs of all ranks, and of what ran beside them."""
    lines = [*tasks, *(line for task in tasks for line in task.background)]
    trace = Trace(len(tasks), [line.rank for line in lines])
    for task in tasks:
        sends = (
            message for line in (task, *task.background) for code, message in _pairs(line.log) if code == POST_SEND
        )
        for number, message in enumerate(sends):
            _add_message(trace, message, number)
    for line in lines:
        trace.programs.append([(code, _operand(trace, code, thing)) for code, thing in _pairs(line.log)])
    return trace


def _pairs(log: list[Any]) -> zip[tuple[int, Any]]:
    return zip(log[::2], log[1::2], strict=True)


def _add_message(trace: Trace, message: Any, posting: int) -> None:
    message.index = len(trace.src)
    trace.src.append(message.src)
    trace.dst.append(message.dst)
    trace.nbytes.append(message.nbytes)
    trace.kept.append(message.kept)
    trace.names.append(message.name)
    trace.labels.append(message.label)
    trace.posting.append(posting)


def _operand(trace: Trace, code: int, thing: Any) -> Any:
    if code in (COMPUTE, HOLD, PRINT):
        return thing
    if thing.index < 0:
        if code == ENTER:
            thing.index = len(trace.collectives)
            joint = len(thing.names) < len(thing.members) or any(d is not None for d in thing.details.values())
            trace.collectives.append(TracedCollective(thing.names, thing.members, joint))
        elif code in (SIGNAL, AWAIT):
            thing.index = trace.signals
            trace.signals += 1
        else:  # a message that nobody sent
            thing.nbytes = thing.nbytes or values.nbytes(thing.value)
            _add_message(trace, thing, 0)
    return thing.index
