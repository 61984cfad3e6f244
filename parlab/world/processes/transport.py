"""The transport protocol: all that `ProcessEngine` needs of MPI, or of another library that carries bytes.

A message travels on a wire, which has an end in each of two processes. No method waits, except `gather` and `share`,
which all processes call together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parlab import arrays

ArraySpec = tuple[tuple[int, ...], Any]  # of an array: shape and NumPy's dtype


def spec_of(x: Any) -> ArraySpec:
    """The spec of an array of any library."""
    return x.shape, getattr(x.dtype, "_np_dtype", x.dtype)


class SendWire(Protocol):
    """The sender's end of the wire of a message."""

    def has_passed(self) -> bool:
        """Whether the receiver has asked for the message, and nothing reads the sender's arrays any more."""


class ReceiveWire(Protocol):
    """The receiver's end of the wire of a message."""

    def receive_header(self) -> bytes | None:
        """Receive the sender's header; None: not all of it has come. Messages of a mailbox are asked in their order."""

    def into(self, specs: list[ArraySpec]) -> list[Any]:
        """New arrays, in C order, that are filled when the message has passed.

        The header has told the number of bytes.
        """

    def has_passed(self) -> bool:
        """Whether the arrays of `into` are filled."""


class Transport(Protocol):
    """Messages between processes, in order for each (src, dst, tag), and a side channel for notes.

    A message is a rendezvous: at its sender it has not passed before the receiver has asked for it.
    """

    rank: int
    size: int
    ahead: int  # nanoseconds by which this process's `perf_counter` is ahead of that of rank 0

    def prepared(self, x: Any) -> Any:
        """An array in the form in which it travels: in C order, and for some libraries in host memory."""

    def send(self, header: bytes, leaves: Sequence[Any], dst: int, tag: int) -> SendWire:
        """Offer arrays that are `prepared`. They do not change until the message has passed."""

    def expect(self, src: int, tag: int, like: list[Any]) -> ReceiveWire:
        """Ask for the next message from `src` with this tag. Its arrays should have the specs of `like`."""

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


@runtime_checkable
class NativeTransport(Transport, Protocol):
    """A transport whose library has collectives of its own. MPI is one."""

    def connect(self, members: tuple[int, ...], tag: int) -> Any:
        """The library's own collectives among `members`. All members call this.

        Each is a method with the name of our algorithm. It starts the collective, and returns two things at once: a
        handle, whose `finish_if_over` says whether this rank's part is over, and the result of our algorithm, which is
        whole from then on. `free` gives all of them back.
        """


def in_host_memory(x: Any) -> np.ndarray:
    """`x` in host memory and in C order."""
    return np.asarray(arrays.to_numpy(x), order="C")
