"""A message between processes: each process has one end of it.

The sender's header travels first: form, types and label of the value. When it has come, the receiver compares it with
what it expects, and makes the arrays that the rest of the message fills.

Invariant of a mailbox: the k-th send at its `src` and the k-th receive at its `dst` are the two ends of one message,
and have one `key`. No other mailbox between these two ranks has its tag (`tag_of`), and a transport keeps the order of
messages with one tag.
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.engines.diagnosis import other_form, other_label
from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import Group, Mailbox, Message
from parlab.world.processes.deadlock import BoxKey
from parlab.world.processes.transport import Coming, Sent, form_of
from parlab.world.values import Value


def tag_of(split: int, background: bool, channel: str) -> int:
    """The tag of a group's messages: a number in bits. From the highest on: the number of the split that made the group
    (0: the world); whether it runs collectives in the background; the channel. MPI adds one more, for the rest of a
    message behind its first packet.
    """
    return 4 * split + 2 * background + (channel == "collectives")


class ProcessGroup(Group):
    """A group of processes. No other group that shares two of its ranks has both its `split` and its `background`."""

    def __init__(self, name: str, members: tuple[int, ...], split: int, *, background: bool = False):
        super().__init__(name, members)
        self.split, self.background = split, background
        self.next_collective = 0  # the number of the one that this rank enters next

    def tag(self, channel: str) -> int:
        """The tag of its messages on this channel."""
        return tag_of(self.split, self.background, channel)

    def mailbox(self, channel: str, src: int, dst: int) -> ProcessMailbox:
        """See `Group`."""
        if (channel, src, dst) not in self.mailboxes:
            key = (self.name, channel, self.members[src], self.members[dst])
            self.mailboxes[channel, src, dst] = ProcessMailbox(key, self.tag(channel))
        return self.mailboxes[channel, src, dst]  # type: ignore[return-value]


class ProcessMailbox(Mailbox):
    """One end of a mailbox between processes. It counts this end's posts, and keeps its receives without a header."""

    __slots__ = ("key", "no_header_yet", "posts", "tag")

    def __init__(self, key: BoxKey, tag: int):
        super().__init__(*key[2:])
        self.key = key
        self.tag = tag
        self.posts = {POST_SEND: 0, POST_RECEIVE: 0}
        self.no_header_yet: deque[ReceiveEnd] = deque()


class MessageEnd(Message):
    """One end of a message. To make one counts it as posted in its mailbox, which gives it its number."""

    end: int  # POST_SEND or POST_RECEIVE
    wire: Any  # carries it, until it has passed: it refers to the memory, which must die with its last reference
    done_at = 0

    def __init__(self, box: ProcessMailbox, name: str):
        super().__init__(box.src, box.dst, name)
        self.box_key = box.key
        self.number = box.posts[self.end]
        box.posts[self.end] += 1
        self.posted_at = time.perf_counter_ns()

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """The name of the message, the same at both ends: the key of its mailbox, and its number there."""
        return *self.box_key, self.number

    def finish_if_passed(self) -> bool:
        """Let the wire go if the message has passed, and say whether it has."""
        if not self.wire.done():
            return False
        self.done_at = time.perf_counter_ns()
        self.wire = None
        return True


class SendEnd(MessageEnd):
    """The sender's end of a message."""

    end = POST_SEND

    def __init__(self, box: ProcessMailbox, name: str, wire: Sent):
        super().__init__(box, name)
        self.wire = wire


class ReceiveEnd(MessageEnd):
    """The receiver's end of a message. Its value should have the form of `like`."""

    end = POST_RECEIVE
    leaves: list[Any]  # the arrays, from the header on

    def __init__(self, box: ProcessMailbox, name: str, wire: Coming, like: Value):
        super().__init__(box, name)
        self.wire = wire
        self.like = values.mapped(ExpectedArray, like)

    def meet(self, header: bytes) -> None:
        """The header has come: make the arrays. A message that does not fit is received and dropped."""
        form, kinds, sizes, self.label = json.loads(header)
        expected = values.form(self.like)
        if (form, kinds) == (expected, _kinds(self.like)):
            self.error = other_label(self)
            forms = [form_of(blank) for blank in values.leaves(self.like)]
        else:
            self.error = other_form(self, form, expected)
            forms = [((size,), np.uint8) for size in sizes]
        self.leaves = self.wire.into(forms)

    def finish_if_passed(self) -> bool:
        """See `MessageEnd`. The value has come, unless it does not fit."""
        passed = super().finish_if_passed()
        if passed and self.error is None:
            leaves = iter(self.leaves)
            self.value = values.mapped(lambda blank: blank.filled(next(leaves)), self.like)
            del self.leaves
        return passed


def header_of(value: Value, leaves: list[Any], label: Any) -> bytes:
    """The header of a message. `leaves` are the arrays of `value` as they travel."""
    shown = None if label is None else str(label)
    return json.dumps([values.form(value), _kinds(value), [arrays.nbytes(leaf) for leaf in leaves], shown]).encode()


def _kinds(value: Value) -> str:
    """The types of the tuples and lists in `value`, which its form does not show."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    elif not isinstance(value, tuple | list):
        return ""
    return f"{type(value).__name__}({','.join(map(_kinds, value))})"


class ExpectedArray(values.Template):
    """Shape, dtype and library of an array that is expected."""

    __slots__ = ("xp",)

    def __init__(self, x: Any):
        super().__init__(x)
        self.xp = np if type(x) is np.ndarray else arrays.namespace(x)

    def filled(self, x: Any) -> Any:
        """The array that came as `x`, as an array of the expected library."""
        return arrays.to_numpy(x) if self.xp is np else self.xp.asarray(x)
