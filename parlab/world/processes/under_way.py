"""The messages of this process that are under way.

A message passes in four steps. Each process makes its steps whenever a task of it polls (`UnderWay.take_passed`):

    sender                                          receiver
    post: offers header and arrays                  post: asks for the next message of this mailbox
                                            ────▶   listen: the header has come; makes the arrays (`meet`)
    passed: the receiver has asked          ────▶   passed: the arrays are filled; keeps the value
    match: wakes the task that waits                match: wakes the task that waits

Invariant: until a message has passed, it is in `moving`, or in the `no_header_yet` of a mailbox that is `listening`,
and in no other place.
"""

from __future__ import annotations

from parlab.world.processes.messages import MessageEnd, ProcessMailbox, ReceiveEnd, SendEnd


class UnderWay:
    """The messages under way, with one end in this process."""

    def __init__(self) -> None:
        self.moving: list[MessageEnd] = []  # the transport does the rest
        self.listening: dict[ProcessMailbox, None] = {}  # mailboxes with receives that wait for a header

    def offer(self, message: SendEnd) -> None:
        """A send is posted."""
        self.moving.append(message)

    def ask(self, message: ReceiveEnd, box: ProcessMailbox) -> None:
        """A receive is posted."""
        box.no_header_yet.append(message)
        self.listening[box] = None

    def take_passed(self) -> list[MessageEnd]:
        """Receive the headers that have arrived, and take out the messages that have passed."""
        self._listen()
        passed = [message for message in self.moving if message.finish_if_passed()]
        for message in passed:
            self.moving.remove(message)
        return passed

    def _listen(self) -> None:
        """Headers of a mailbox come in the order of its receives."""
        for box in list(self.listening):
            while box.no_header_yet and (header := box.no_header_yet[0].wire.receive_header()) is not None:
                message = box.no_header_yet.popleft()
                message.meet(header)
                self.moving.append(message)
            if not box.no_header_yet:
                del self.listening[box]
