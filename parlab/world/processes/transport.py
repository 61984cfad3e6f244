"""What carries bytes between processes: all that `ProcessEngine` asks of MPI, or of another library.

Nothing here waits, except `gather` and `share`, which all processes call together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from parlab import arrays

ROUND_TRIPS = 50  # whose shortest one sets the clock


Form = tuple[tuple[int, ...], Any]  # shape and NumPy's dtype


def form_of(x: Any) -> Form:
    """The form of an array of any library."""
    return x.shape, getattr(x.dtype, "_np_dtype", x.dtype)


class Sent(Protocol):
    """A message on its way out."""

    def done(self) -> bool:
        """Whether the receiver has asked for it, and has it."""


class Coming(Protocol):
    """A message that is asked for."""

    def header(self) -> bytes | None:
        """What the sender says of it, as soon as that is here. Ask in the order of the messages of one way."""

    def into(self, forms: list[Form]) -> list[Any]:
        """Receive it in arrays of these forms, made for it, in C order, filled when it is done; the header has said how
        many bytes there are.
        """

    def done(self) -> bool:
        """Whether it is there."""


class Transport(Protocol):
    """Messages between processes, in order for each (src, dst, tag), and a side channel for notes.

    A message is a rendezvous: it is `done` for its sender only when the receiver has asked for it.
    """

    rank: int
    size: int
    ahead: int  # nanoseconds by which this process's `perf_counter` is ahead of that of rank 0

    def ready(self, x: Any) -> Any:
        """An array as it travels, in C order: itself, or in host memory."""

    def send(self, header: bytes, leaves: Sequence[Any], dst: int, tag: int) -> Sent:
        """Offer arrays that are `ready`, and stay as they are until it is done."""

    def expect(self, src: int, tag: int, like: list[Any]) -> Coming:
        """Ask for the next message of this way, whose arrays should have these forms."""

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


def in_host_memory(x: Any) -> np.ndarray:
    """`x` as it travels where only the host's memory does."""
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

    Rank 0 answers each rank's questions with its clock; the fastest answer was read half a round trip ago.
    """
    best, ahead = None, 0
    for guest in range(1, size):
        for _ in range(ROUND_TRIPS):
            if rank == 0:
                receive(guest)
                send(time.perf_counter_ns().to_bytes(8, "big"), guest)
            elif rank == guest:
                asked = time.perf_counter_ns()
                send(bytes(8), 0)
                theirs = int.from_bytes(receive(0), "big")
                answered = time.perf_counter_ns()
                if best is None or answered - asked < best:
                    best, ahead = answered - asked, (asked + answered) // 2 - theirs
    return ahead
