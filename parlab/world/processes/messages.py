"""A message between processes: each process has one end of it.

The sender's header travels first: form and label of the value. When it has come, the receiver compares it with
what it expects, and makes the arrays that the rest of the message fills.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world import values
from parlab.world.engines.diagnosis import form_mismatch, label_mismatch
from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.engines.tasks import Message
from parlab.world.processes.mailboxes import BoxKey, ProcessMailbox
from parlab.world.processes.transport import ReceiveWire, spec_of
from parlab.world.values import Value


class MessageEnd(Message):
    """One end of a message. To make one counts it as posted in its mailbox, which gives it its number."""

    end: int  # POST_SEND or POST_RECEIVE
    passed_at = 0

    def __init__(self, box: ProcessMailbox, name: str, wire: Any):
        super().__init__(box.src, box.dst, name)
        self.wire = wire  # until it has passed: it refers to the memory, which must die with its last reference
        self.box_key = box.key
        self.number = box.posts[self.end]
        box.posts[self.end] += 1
        self.posted_at = time.perf_counter_ns()

    @property
    def key(self) -> tuple[BoxKey, int]:
        """The name of the message, the same at both ends: the key of its mailbox, and its number there."""
        return self.box_key, self.number

    def finish_if_passed(self) -> bool:
        """Let the wire go if this end of the message has passed, and say whether it has."""
        if not self.wire.has_passed():
            return False
        self.passed_at = time.perf_counter_ns()
        self.wire = None
        return True


class SendEnd(MessageEnd):
    """The sender's end of a message, on a `SendWire`."""

    end = POST_SEND


class ReceiveEnd(MessageEnd):
    """The receiver's end of a message, on a `ReceiveWire`. Its value should have the form of `like`."""

    end = POST_RECEIVE
    leaves: list[Any]  # the arrays, from the header on

    def __init__(self, box: ProcessMailbox, name: str, wire: ReceiveWire, like: Value):
        super().__init__(box, name, wire)
        self.like = values.mapped(ExpectedArray, like)

    def make_arrays(self, header: bytes) -> None:
        """The header has come: make the arrays. A message that does not fit is received and dropped."""
        form, sizes, self.label = json.loads(header)
        expected_form = values.form(self.like)
        if form == expected_form:
            self.error = label_mismatch(self)
            specs = [spec_of(leaf) for leaf in values.leaves(self.like)]
        else:
            self.error = form_mismatch(self, form, expected_form)
            specs = [((size,), np.uint8) for size in sizes]
        self.leaves = self.wire.into(specs)

    def finish_if_passed(self) -> bool:
        """See `MessageEnd`. The value has come, unless it does not fit."""
        passed = super().finish_if_passed()
        if passed and self.error is None:
            leaves = iter(self.leaves)
            self.value = values.mapped(lambda expected: expected.filled(next(leaves)), self.like)
            del self.leaves
        return passed


def header_of(value: Value, leaves: list[Any], label: Any) -> bytes:
    """The header of a message. `leaves` are the arrays of `value` as they travel."""
    shown = None if label is None else str(label)
    return json.dumps([values.form(value), [arrays.nbytes(leaf) for leaf in leaves], shown]).encode()


class ExpectedArray(values.Template):
    """Shape, dtype and library of an array that is expected."""

    __slots__ = ("xp",)

    def __init__(self, x: Any):
        super().__init__(x)
        self.xp = np if type(x) is np.ndarray else arrays.namespace(x)

    def filled(self, x: Any) -> Any:
        """The array that came as `x`, as an array of the expected library."""
        return arrays.to_numpy(x) if self.xp is np else self.xp.asarray(x)
