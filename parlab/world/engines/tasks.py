"""The records of a running program.

A `Task` is a rank's program, or a collective in its background. A `Group` has a `Mailbox` for each direction between
two of its ranks. A `Message` is a value on its way, and a `CollectiveCall` is one collective call of a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from parlab.world.engines.memory import Memory
from parlab.world.engines.strands import Strand
from parlab.world.values import Value


class Message:
    """One value on its way from rank `src` to rank `dst`, posted by one end or by both.

    It has `passed` when both ends are posted (threads), or when this end has sent or received all of it (processes).
    """

    passed = False
    waiter: Task | None = None  # the task that is blocked for it; only an end that has posted can be
    nbytes = 0  # of the value that is sent
    holds = 0  # bytes at its sender, until it has passed
    label: Any = None
    expected_label: Any = None  # the receiver's
    error: str | None = None
    index = -1  # its row in the trace, when the run is over

    def __init__(self, src: int, dst: int, name: str, *, value: Value = None, like: Value = None):
        self.src = src
        self.dst = dst
        self.name = name  # of its collective, or "message"
        self.value = value  # that is sent
        self.like = like  # the form that the receiver expects, as long as nothing is sent


class Mailbox:
    """The messages from rank `src` to rank `dst`, in a group and channel, that only one end has posted."""

    __slots__ = ("dst", "receives", "sends", "src")

    def __init__(self, src: int, dst: int):
        self.src = src
        self.dst = dst
        self.sends: deque[Message] = deque()
        self.receives: deque[Message] = deque()


class Arrival(NamedTuple):
    """A member's arrival at a collective."""

    name: str  # of the collective
    call: str  # with its arguments, as text; the calls of all members must be equal
    wish: Any = None  # of a split alone, which tells it to the other members: (color, key)


class CollectiveCall:
    """A collective call of a group, and the arrivals of the members that have entered."""

    __slots__ = ("arrivals", "error", "index", "members", "waiters")

    def __init__(self, members: tuple[int, ...]):
        self.members = members
        self.arrivals: dict[int, Arrival] = {}  # by rank in the run
        self.waiters: list[Task] = []
        self.error: str | None = None
        self.index = -1

    @property
    def all_entered(self) -> bool:
        """Whether every member has entered."""
        return len(self.arrivals) == len(self.members)

    @property
    def is_split(self) -> bool:
        """Whether its members tell each other their wishes."""
        return any(arrival.wish is not None for arrival in self.arrivals.values())


BACKGROUND = " (background)"  # ends the name of a group of background collectives


class Group:
    """Ranks that send messages to each other. `members[r]` is the rank in the whole run of rank r of the group."""

    def __init__(self, name: str, members: tuple[int, ...]):
        self.name = name
        self.members = members
        self.mailboxes: dict[tuple[str, int, int], Mailbox] = {}
        self.collective: CollectiveCall | None = None  # on threads: the one that some members have entered, not all

    def mailbox(self, channel: str, src: int, dst: int) -> Mailbox:
        """The mailbox from group rank `src` to group rank `dst`. Both ends call this; the first one makes it."""
        box = Mailbox(self.members[src], self.members[dst])
        return self.mailboxes.setdefault((channel, src, dst), box)


class Signal:
    """A point in one task of a rank, for which its other tasks can wait."""

    def __init__(self, task: Task):
        self.task = task  # raises it
        self.raised = False
        self.waiters: list[Task] = []
        self.index = -1


Awaited = tuple[Message, ...] | CollectiveCall | Signal  # by a blocked task


class Helper:
    """A strand beside a rank's program. It performs background tasks, one after another, and parks between them."""

    strand: Strand
    work: Callable[[], None] | None = None  # that performs its next task; None: there is none


class Task:
    """The engine's record of a rank's program (the rank's main task), or of a collective in its background."""

    strand: Strand  # that performs it

    def __init__(self, rank: int, main: Task | None = None):
        self.rank = rank
        self.background: list[Task] = []  # collectives that this task has started
        self.parked_helpers: list[Helper] = []  # for the next one
        self.is_background = main is not None
        self.interruptible = False  # whether its strand may be sent an exception: before, `Thread.start` would wait for
        # ever; afterwards, the strand performs another task, or another thread has its ident
        # While it is blocked:
        self.missing = 0  # of what it waits for: messages that have not passed; 1 for a collective or a signal
        self.waits_for: Awaited = ()
        self.call = ""  # in which it waits
        # Of its program:
        self.log: list[Any] = []
        self.memory: Memory = Memory(self.log, None if main is None else main.memory)
        self.printed = False
        self.open: set[Any] = set()  # requests that were not waited for yet
        self.flags: list[Any] = []  # of what it sent from a device, to be read when the program is over: `send_buffer`
        self.result: Any = None
        self.error: BaseException | None = None


current_task: ContextVar[Task | None] = ContextVar("current_task", default=None)  # that runs in this strand
