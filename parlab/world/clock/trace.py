"""The trace of a run: all logs, with numbers in the place of messages, collectives and signals. The replay reads it.

Messages are numbered by sender, then by the order of its posts. So the same program always gives the same trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parlab.world import values
from parlab.world.engines.log import AWAIT, COMPUTE, ENTER, HOLD, POST_SEND, PRINT, SIGNAL, actions
from parlab.world.engines.tasks import Task


class TracedCollective(NamedTuple):
    """A collective call: its name on each rank that entered it, and the group's members.

    In a `joint` collective no rank leaves before all have entered: they exchange something by entering, or some rank
    never enters.
    """

    names: dict[int, str]
    members: tuple[int, ...]
    joint: bool


@dataclass
class Trace:
    """The actions of every task, in the order of its program: first the ranks' programs, then background collectives.

    Attributes:
        size: how many ranks.
        ranks: the rank of each task.
        actions: the (code, operand) pairs of each task, as in `log`, with the numbers of messages, collectives and
            signals as operands.
        src, dst, nbytes, holds, names, labels, posting: the messages, in columns. A message `holds` bytes at its sender
            until it has passed; `posting` numbers the messages of a sender.
        collectives: the collective calls.
        signals: how many there are.
    """

    size: int
    ranks: list[int]
    actions: list[list[tuple[int, Any]]] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    holds: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    posting: list[int] = field(default_factory=list)
    collectives: list[TracedCollective] = field(default_factory=list)
    signals: int = 0


def traced(tasks: list[Task]) -> Trace:
    """The trace of the ranks' programs and their background collectives."""
    everyone = [*tasks, *(background for task in tasks for background in task.background)]
    trace = Trace(len(tasks), [task.rank for task in everyone])
    for task in tasks:
        of_rank = (action for each in (task, *task.background) for action in actions(each.log))
        sends = (message for code, message in of_rank if code == POST_SEND)
        for number, message in enumerate(sends):
            _add_message(trace, message, number)
    for task in everyone:
        trace.actions.append([(code, _operand(trace, code, thing)) for code, thing in actions(task.log)])
    return trace


def _add_message(trace: Trace, message: Any, posting: int) -> None:
    message.index = len(trace.src)
    trace.src.append(message.src)
    trace.dst.append(message.dst)
    trace.nbytes.append(message.nbytes)
    trace.holds.append(message.holds)
    trace.names.append(message.name)
    trace.labels.append(message.label)
    trace.posting.append(posting)


def _operand(trace: Trace, code: int, thing: Any) -> Any:
    if code in (COMPUTE, HOLD, PRINT):
        return thing
    if thing.index < 0:
        if code == ENTER:
            thing.index = len(trace.collectives)
            names = {rank: arrival.name for rank, arrival in thing.arrivals.items()}
            joint = not thing.all_entered or thing.is_split
            trace.collectives.append(TracedCollective(names, thing.members, joint))
        elif code in (SIGNAL, AWAIT):
            thing.index = trace.signals
            trace.signals += 1
        else:  # a message that no rank has sent
            thing.nbytes = thing.nbytes or values.nbytes(thing.like)
            _add_message(trace, thing, 0)
    return thing.index
