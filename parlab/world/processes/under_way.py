"""The messages of this process that are under way.

A message passes in four steps. Each process makes its steps whenever a task of it polls (`UnderWay.take_passed`):

    sender                                          receiver
    post: offers header and arrays                  post: asks for the next message of this mailbox
                                            ────▶   header: it has come; makes the arrays
    passed: the receiver has asked,         ────▶   passed: the arrays are filled; keeps the value
            and the arrays are free
    wakes the task that waits                       wakes the task that waits

Invariant: until this end of a message has passed, it is in `moving` or in `no_header_yet`, and not in both.
"""

from __future__ import annotations

from collections import defaultdict, deque

from parlab.world.processes.mailboxes import BoxKey
from parlab.world.processes.messages import MessageEnd, ReceiveEnd, SendEnd


class UnderWay:
    """The messages under way, with one end in this process."""

    def __init__(self) -> None:
        self.no_header_yet: defaultdict[BoxKey, deque[ReceiveEnd]] = defaultdict(deque)  # by mailbox, as posted
        self.moving: list[MessageEnd] = []  # the transport does the rest

    def offer(self, message: SendEnd) -> None:
        """A send is posted."""
        self.moving.append(message)

    def ask(self, message: ReceiveEnd) -> None:
        """A receive is posted."""
        self.no_header_yet[message.box_key].append(message)

    def take_passed(self) -> list[MessageEnd]:
        """Receive the headers that have arrived, and take out the messages that have passed."""
        self._receive_headers()
        passed = [message for message in self.moving if message.finish_if_passed()]
        for message in passed:
            self.moving.remove(message)
        return passed

    def _receive_headers(self) -> None:
        """Receive those that have arrived. Headers of a mailbox come in the order of its receives."""
        for box_key, receives in list(self.no_header_yet.items()):
            while receives and (header := receives[0].wire.receive_header()) is not None:
                message = receives.popleft()
                message.make_arrays(header)
                self.moving.append(message)
            if not receives:
                del self.no_header_yet[box_key]
