"""The transport protocol: all that `ProcessEngine` needs of MPI, or of another library that carries bytes.

No method waits, except `gather` and `share`, which all processes call together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from parlab import arrays

ROUND_TRIPS = 50  # the shortest one gives the offset between two clocks


Form = tuple[tuple[int, ...], Any]  # shape and NumPy's dtype


def form_of(x: Any) -> Form:
    """The form of an array of any library."""
    return x.shape, getattr(x.dtype, "_np_dtype", x.dtype)


class Sent(Protocol):
    """One end of a message: the sender's."""

    def done(self) -> bool:
        """Whether the receiver has asked for the message, and nothing reads the sender's arrays any more."""


class Coming(Protocol):
    """One end of a message: the receiver's."""

    def receive_header(self) -> bytes | None:
        """Receive the sender's header; None: not all of it has come. Messages of a mailbox are asked in their order."""

    def into(self, forms: list[Form]) -> list[Any]:
        """New arrays of these forms, in C order, that are filled when the message is done.

        The header has told the number of bytes.
        """

    def done(self) -> bool:
        """Whether the message has arrived."""


class Transport(Protocol):
    """Messages between processes, in order for each (src, dst, tag), and a side channel for notes.

    A message is a rendezvous: it is `done` for its sender only when the receiver has asked for it.
    """

    rank: int
    size: int
    ahead: int  # nanoseconds by which this process's `perf_counter` is ahead of that of rank 0

    def prepared(self, x: Any) -> Any:
        """An array in the form in which it travels: in C order, and for some libraries in host memory."""

    def send(self, header: bytes, leaves: Sequence[Any], dst: int, tag: int) -> Sent:
        """Offer arrays that are `prepared`. They do not change until the message is done."""

    def expect(self, src: int, tag: int, like: list[Any]) -> Coming:
        """Ask for the next message from `src` with this tag. Its arrays should have the forms of `like`."""

    def tell(self, dst: int, note: bytes) -> None:
        """Send a note on the side channel. Notes arrive in order."""

    def heard(self) -> Iterator[bytes]:
        """The notes that have arrived."""

    def gather(self, data: bytes) -> list[bytes]:
        """The data of all, on rank 0; on the others, nothing."""

    def share(self, data: bytes) -> bytes:
        """The data of rank 0, on all."""

    def renew(self) -> None:
        """Forget all messages under way, after a run that failed. All processes call this."""

    def abort(self) -> None:
        """End all processes, this one too."""


def in_host_memory(x: Any) -> np.ndarray:
    """`x` in host memory and in C order."""
    return np.asarray(arrays.to_numpy(x), order="C")


def in_bytes(x: np.ndarray) -> np.ndarray:
    """The memory of `x`, which is in C order."""
    return x.reshape(-1).view(np.uint8)


def fill(leaves: Iterable[np.ndarray], contents: bytearray, start: int = 0) -> None:
    """Copy the bytes of `contents` from `start` on into arrays in C order, one after the other."""
    for leaf in leaves:
        in_bytes(leaf)[:] = np.frombuffer(contents, np.uint8, leaf.nbytes, start)
        start += leaf.nbytes


def clock_ahead(
    rank: int, size: int, send: Callable[[bytes, int], None], receive: Callable[[int], bytes | bytearray]
) -> int:
    """See `Transport.ahead`; all processes call this. `send(data, dst)` and `receive(src)` wait.

    Rank 0 answers each question of a rank with its clock. The fastest answer was read half a round trip earlier.
    """
    best, ahead = None, 0
    for peer in range(1, size):
        for _ in range(ROUND_TRIPS):
            if rank == 0:
                receive(peer)
                send(time.perf_counter_ns().to_bytes(8, "big"), peer)
            elif rank == peer:
                asked = time.perf_counter_ns()
                send(bytes(8), 0)
                theirs = int.from_bytes(receive(0), "big")
                answered = time.perf_counter_ns()
                if best is None or answered - asked < best:
                    best, ahead = answered - asked, (asked + answered) // 2 - theirs
    return ahead
