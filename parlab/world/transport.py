"""What carries bytes between processes: all that `ProcessEngine` asks of MPI, or of another library.

Nothing here waits, except `gather` and `share`, which all processes call together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Sent(Protocol):
    """A message on its way out."""

    def done(self) -> bool:
        """Whether the receiver has asked for it, and has it."""


class Coming(Protocol):
    """A message that is asked for."""

    def header(self) -> bytes | None:
        """What the sender says of it, as soon as that is here. Ask in the order of the messages of one way."""

    def into(self, leaves: list[np.ndarray]) -> None:
        """Receive it in this memory, in C order; the header has said how much there is."""

    def done(self) -> bool:
        """Whether it is there."""


class Transport(Protocol):
    """Messages between processes, in order for each (src, dst, tag), and a side channel for notes.

    A message is a rendezvous: it is `done` for its sender only when the receiver has asked for it.
    """

    rank: int
    size: int
    ahead: int  # nanoseconds by which this process's `perf_counter` is ahead of that of rank 0

    def send(self, header: bytes, leaves: Sequence[np.ndarray], dst: int, tag: int) -> Sent:
        """Offer arrays in C order, which stay as they are until it is done."""

    def expect(self, src: int, tag: int) -> Coming:
        """Ask for the next message of this way."""

    def tell(self, dst: int, note: bytes) -> None:
        """Send a note; it arrives at some time, after those that were sent before."""

    def heard(self) -> Iterator[bytes]:
        """The notes that are here."""

    def connect(self, members: tuple[int, ...], tag: int) -> Any:
        """The library's own collectives among `members`, who all call this. Each is a method, named as our algorithm,
        that starts it and returns (a handle with `done`, what our algorithm would return); `free` ends them all.
        """

    def gather(self, data: bytes) -> list[bytes]:
        """The data of all, on rank 0; on the others, nothing."""

    def share(self, data: bytes) -> bytes:
        """The data of rank 0, on all."""

    def renew(self) -> None:
        """Forget what is under way: a run has failed. All call this."""

    def abort(self) -> None:
        """End all processes, this one too."""
