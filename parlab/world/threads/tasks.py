"""Who holds what while a program runs: a `Task` for each rank, a `Mailbox` for each direction between two ranks of a
`Group`, a `Message` for each value on its way, a `CollectiveCall` for each collective call.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from parlab import arrays
from parlab.arrays import Array
from parlab.world import values
from parlab.world.clock.log import HOLD
from parlab.world.values import Value


class Message:
    """One value on its way from rank `src` to rank `dst`, posted by one end or by both."""

    matched = False
    waiter: Task | None = None  # the rank that is parked for it; only the end that has posted can be
    nbytes = 0  # of what is sent
    kept = 0  # bytes that its sender holds for it while it is under way
    label: Any = None
    expected: Any = None  # the receiver's label
    error: str | None = None
    index = -1  # its row in the trace, when the run is over

    def __init__(self, src: int, dst: int, value: Value, name: str):
        self.src = src
        self.dst = dst
        self.value = value  # what is sent; until then, what is expected
        self.name = name  # the collective that it belongs to, or "message"


class Mailbox:
    """The way from rank `src` to rank `dst` in one group and channel: what one end has posted and the other not yet."""

    __slots__ = ("dst", "receives", "sends", "src")

    def __init__(self, src: int, dst: int):
        self.src = src
        self.dst = dst
        self.sends: deque[Message] = deque()
        self.receives: deque[Message] = deque()


class CollectiveCall:
    """A collective call: the members that have entered, each with its call. Elsewhere it is known by `key`: the name of
    its group, and how many came before it there.
    """

    __slots__ = ("calls", "details", "error", "index", "key", "members", "names", "serial", "waiters")

    def __init__(self, members: tuple[int, ...], key: tuple[str, int] = ("", 0)):
        self.members = members
        self.key = key
        self.names: dict[int, str] = {}  # the rank in the whole run: what it has entered
        self.calls: dict[int, str] = {}  # the rank in the group: its call
        self.details: dict[int, Any] = {}  # what the members tell each other by entering
        self.waiters: list[Task] = []
        self.error: str | None = None
        self.serial = 0  # of a split of processes: a number that no other split of these ranks has
        self.index = -1


BACKGROUND = " (background)"  # ends the name of the group of the collectives that run beside a program


class Group:
    """Ranks that talk to each other: `members` are their ranks in the whole run, by their rank in the group."""

    def __init__(self, name: str, members: tuple[int, ...]):
        self.name = name
        self.members = members
        self.mailboxes: dict[tuple[str, int, int], Mailbox] = {}
        self.collective: CollectiveCall | None = None

    def mailbox(self, channel: str, src: int, dst: int) -> Mailbox:
        """The way from group rank `src` to group rank `dst`; both ends ask, the first one builds it."""
        box = Mailbox(self.members[src], self.members[dst])
        return self.mailboxes.setdefault((channel, src, dst), box)


class Signal:
    """A point in one line of work of a rank that another of its lines of work can wait for."""

    def __init__(self, task: Task):
        self.task = task  # the line of work that raises it
        self.raised = False
        self.waiters: list[Task] = []
        self.index = -1


class Task:
    """What the engine knows of one line of work: a rank's program, or a collective that runs beside it."""

    thread: threading.Thread

    def __init__(self, rank: int, program: Task | None = None):
        self.rank = rank
        self.background: list[Task] = []  # what runs, or ran, beside this program
        self.is_background = program is not None
        self.park = threading.Lock()  # held while the rank runs; released by whoever wakes it
        self.park.acquire()
        self.missing = 0  # how many unmatched messages, or 1 collective or signal, it is parked for
        self.waits_for: tuple[Message, ...] | CollectiveCall | Signal = ()
        self.call = ""  # the call it is parked in
        self.log: list[Any] = []
        self.printed = False
        self.inside = False  # whether its thread may be sent an exception: earlier, `Thread.start` would wait for ever,
        # and later its number may be another thread's
        self.open: set[Any] = set()  # requests that were not waited for yet
        self.to_finish: list[Any] = []  # comparisons of what was sent from a device
        self.held: dict[int, Held] = {} if program is None else program.held  # a rank has one memory
        self.result: Any = None
        self.error: BaseException | None = None

    def hold(self, array: Array, name: str) -> None:
        """Count the memory under `array` as held, until it dies; memory that is counted already stays as it is."""
        owner = arrays.owning_buffer(array)
        if id(owner) not in self.held:
            nbytes = arrays.nbytes(owner)
            self.log += (HOLD, (name, nbytes))
            self.watch(owner, name, nbytes)

    def counts(self, array: Array) -> bool:
        """Whether the memory under `array` counts as held.

        What the program holds is not looked at from a line of work beside it: it may begin or end at any time.
        """
        held = self.held.get(id(arrays.owning_buffer(array)))
        return held is not None and (held.task is self or not self.is_background)

    def uncounted(self, value: Value) -> int:
        """Bytes of `value` in memory that does not count as held."""
        if not self.held:
            return values.nbytes(value)
        leaves = (value,) if type(value) is np.ndarray else values.leaves(value)
        return sum(arrays.nbytes(leaf) for leaf in leaves if not self.counts(leaf))

    def watch(self, owner: Any, name: str, nbytes: int) -> None:
        """Log the death of `owner`, whose birth is in the log."""
        self.held[id(owner)] = held = Held(owner, _died)
        held.task, held.key, held.name, held.nbytes = self, id(owner), name, nbytes


class Held(weakref.ref):
    """A weak reference to memory that a rank holds."""

    __slots__ = ("key", "name", "nbytes", "task")
    task: Task
    key: int
    name: str
    nbytes: int


class Working(threading.local):
    """What a thread works on."""

    task: Task | None = None


working = Working()


def _died(held: Held) -> None:
    """Log the death where it happened: in the line of work that dropped the last reference."""
    if held.task.held.pop(held.key, None) is not None:
        task = working.task or held.task
        log = task.log if task.rank == held.task.rank else held.task.log
        log += (HOLD, (held.name, -held.nbytes))
