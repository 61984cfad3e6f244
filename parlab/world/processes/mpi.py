"""Messages by MPI, with mpi4py.

A message begins with its first packet (1024 bytes, even tag, `Issend`). The first packet holds the length of the
header, the header, and the arrays if they fit. The rest follows on the next odd tag: the rest of the header, and each
array. The receiver posts the receive of the first packet when its program asks for the message, so the synchronous send
never ends before that.

Invariant: the sends and the receives on the odd tag are posted in the order of the first packets, so they match. For
the header of a message is asked for only when that of the one before it has come (`Coming.receive_header`).

Importing this module starts MPI.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from parlab.world.processes.transport import Form, clock_ahead, fill, in_bytes, in_host_memory

FIRST_PACKET = 1024  # bytes


def _bytes(x: np.ndarray) -> list[Any]:
    """The memory of `x`, which is in C order, as bytes for MPI: its derived datatypes are many times slower."""
    return [in_bytes(x), MPI.BYTE]


class _Sent:
    """See `Sent`."""

    def __init__(self, comm: Any, header: bytes, leaves: Sequence[np.ndarray], dst: int, tag: int):
        framed = len(header).to_bytes(4, "big") + header
        if _fits(header, leaves):
            framed += b"".join(leaf.tobytes() for leaf in leaves)
            leaves = ()
        first, rest = framed[:FIRST_PACKET].ljust(FIRST_PACKET), framed[FIRST_PACKET:]
        self._requests = [comm.Issend([first, MPI.BYTE], dst, 2 * tag)]
        if rest:
            self._requests.append(comm.Isend([rest, MPI.BYTE], dst, 2 * tag + 1))
        self._requests += [comm.Isend(_bytes(leaf), dst, 2 * tag + 1) for leaf in leaves if leaf.size]

    def done(self) -> bool:
        return MPI.Request.Testall(self._requests)


def _fits(header: bytes, leaves: Sequence[np.ndarray]) -> bool:
    return 4 + len(header) + sum(leaf.nbytes for leaf in leaves) <= FIRST_PACKET


class _Coming:
    """See `Coming`."""

    def __init__(self, comm: Any, src: int, tag: int):
        self._comm, self._src, self._tag = comm, src, 2 * tag + 1
        self._framed = bytearray(FIRST_PACKET)
        self._requests = [comm.Irecv([self._framed, MPI.BYTE], src, 2 * tag)]
        self._header = b""

    def receive_header(self) -> bytes | None:
        if not self.done():
            return None
        end = 4 + int.from_bytes(self._framed[:4], "big")
        if end > len(self._framed):
            rest = bytearray(end - FIRST_PACKET)
            self._framed += rest
            buffer = memoryview(self._framed)[FIRST_PACKET:]
            self._requests = [self._comm.Irecv([buffer, MPI.BYTE], self._src, self._tag)]
            return self.receive_header()
        self._header = bytes(self._framed[4:end])
        return self._header

    def into(self, forms: list[Form]) -> list[np.ndarray]:
        leaves = [np.empty(*form) for form in forms]
        coming = [leaf for leaf in leaves if leaf.size]
        if _fits(self._header, leaves):
            fill(coming, self._framed, 4 + len(self._header))
        else:
            self._requests = [self._comm.Irecv(_bytes(leaf), self._src, self._tag) for leaf in coming]
        return leaves

    def done(self) -> bool:
        return MPI.Request.Testall(self._requests)


class MPITransport:
    """See `Transport`: among the processes that mpiexec, or Slurm, has started."""

    def __init__(self) -> None:
        self.rank, self.size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        self.node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks on this machine
        self.renew()
        self.ahead = clock_ahead(self.rank, self.size, self._send_clock, self._receive_clock)
        # All ranks have mapped MPICH's shared memory (3 MB). Unlink its file, so that killed ranks leave none behind.
        with suppress(OSError):
            for path in re.findall(r"/dev/shm/mpich\S+$", Path("/proc/self/maps").read_text("utf-8"), re.MULTILINE):
                os.unlink(path)

    def renew(self) -> None:
        """See `Transport`. Duplicates keep these messages apart from those of the program and of a failed run."""
        self._messages, self._notes = MPI.COMM_WORLD.Dup(), MPI.COMM_WORLD.Dup()
        self._told: list[Any] = []

    prepared = staticmethod(in_host_memory)

    def send(self, header: bytes, leaves: Sequence[np.ndarray], dst: int, tag: int) -> _Sent:
        """See `Transport`."""
        return _Sent(self._messages, header, leaves, dst, tag)

    def expect(self, src: int, tag: int, like: list[Any]) -> _Coming:
        """See `Transport`."""
        return _Coming(self._messages, src, tag)

    def tell(self, dst: int, note: bytes) -> None:
        """See `Transport`."""
        self._told = [told for told in self._told if not told.Test()]
        self._told.append(self._notes.Isend([note, MPI.BYTE], dst))

    def heard(self) -> Iterator[bytes]:
        """See `Transport`."""
        status = MPI.Status()
        while self._notes.Iprobe(MPI.ANY_SOURCE, 0, status):
            note = bytearray(status.Get_count(MPI.BYTE))
            self._notes.Recv([note, MPI.BYTE], status.source)
            yield bytes(note)

    def connect(self, members: tuple[int, ...], tag: int) -> MPICollectives:
        """See `Library`."""
        group = self._messages.group.Incl(list(members))
        return MPICollectives(self._messages.Create_group(group, tag))

    def gather(self, data: bytes) -> list[bytes]:
        """See `Transport`."""
        return self._notes.gather(data) or []

    def share(self, data: bytes) -> bytes:
        """See `Transport`."""
        return self._notes.bcast(data)

    def abort(self) -> None:
        """See `Transport`. A second later, or the abort overtakes what this process wrote, and mpiexec drops it."""
        time.sleep(1)
        MPI.COMM_WORLD.Abort(1)

    def _send_clock(self, data: bytes, dst: int) -> None:
        self._notes.Send([data, MPI.BYTE], dst, 1)

    def _receive_clock(self, src: int) -> bytearray:
        clock = bytearray(8)
        self._notes.Recv([clock, MPI.BYTE], src, 1)
        return clock


OPERATIONS = {"add": MPI.SUM, "multiply": MPI.PROD, "maximum": MPI.MAX, "minimum": MPI.MIN}


class _Started:
    """A collective that MPI has started. It keeps MPI's memory alive; mpi4py does so for some of them only."""

    def __init__(self, request: Any, *memory: Any, into: np.ndarray | None = None):
        self._request, self._memory, self._into = request, memory, into

    def finish(self) -> bool:
        """Whether this rank's part is over. Once it is, the first array of the memory is copied `into`."""
        if not self._request.Test():
            return False
        if self._into is not None:
            self._into[:] = self._memory[0]
        return True


class MPICollectives:
    """MPI's own collectives in one group, each under the name of our algorithm and with its arguments after the comm;
    see `Library.connect`.
    """

    def __init__(self, comm: Any):
        self._comm = comm

    def free(self) -> None:
        """Give its number back to MPI, which has some two thousand."""
        self._comm.Free()

    def ring_all_reduce(self, x: np.ndarray, combine: Any) -> tuple[_Started, np.ndarray]:
        """MPI_Iallreduce."""
        x = np.array(x, order="C")
        total = np.empty_like(x)
        return _Started(self._comm.Iallreduce(x, total, OPERATIONS[combine.__name__]), x, total), total

    def ring_all_gather(self, flat: np.ndarray, pieces: list[slice]) -> tuple[_Started, None]:
        """MPI_Iallgatherv, in place."""
        buffer = np.ascontiguousarray(flat)  # which it is, unless it is the caller's `out`
        counts = [flat.itemsize * (piece.stop - piece.start) for piece in pieces]  # in bytes, as the starts
        starts = [flat.itemsize * piece.start for piece in pieces]
        request = self._comm.Iallgatherv(MPI.IN_PLACE, [buffer, counts, starts, MPI.BYTE])
        return _Started(request, buffer, into=None if buffer is flat else flat), None

    def ring_reduce_scatter(self, flat: np.ndarray, pieces: list[slice], combine: Any) -> tuple[_Started, None]:
        """MPI_Ireduce_scatter."""
        counts, own = [piece.stop - piece.start for piece in pieces], flat[pieces[self._comm.rank]]
        x = flat.copy()
        return _Started(self._comm.Ireduce_scatter(x, own, counts, OPERATIONS[combine.__name__]), x, own), None

    def pairwise_all_to_all(self, pieces: list[np.ndarray]) -> tuple[_Started, list[np.ndarray]]:
        """MPI_Ialltoall."""
        out = np.stack(pieces)
        back = np.empty(out.shape, out.dtype)  # in C order, in which `out` need not be
        return _Started(self._comm.Ialltoall(_bytes(out), _bytes(back)), out, back), list(back)

    def binomial_broadcast(self, x: np.ndarray, root: int) -> tuple[_Started, np.ndarray]:
        """MPI_Ibcast."""
        x = np.array(x, order="C")
        return _Started(self._comm.Ibcast(_bytes(x), root), x), x

    def binomial_reduce(self, x: np.ndarray, root: int, combine: Any) -> tuple[_Started, np.ndarray | None]:
        """MPI_Ireduce."""
        x = np.array(x, order="C")
        total = np.empty_like(x) if self._comm.rank == root else None
        return _Started(self._comm.Ireduce(x, total, OPERATIONS[combine.__name__], root), x, total), total

    def linear_scatter(self, pieces: list[np.ndarray], root: int) -> tuple[_Started, np.ndarray]:
        """MPI_Iscatter."""
        out = _bytes(np.stack(pieces)) if self._comm.rank == root else None
        own = np.empty(pieces[0].shape, pieces[0].dtype)
        return _Started(self._comm.Iscatter(out, _bytes(own), root), out, own), own

    def linear_gather(self, x: np.ndarray, root: int) -> tuple[_Started, list[np.ndarray] | None]:
        """MPI_Igather."""
        x = np.array(x, order="C")
        back = np.empty((self._comm.size, *x.shape), x.dtype) if self._comm.rank == root else None
        request = self._comm.Igather(_bytes(x), None if back is None else _bytes(back), root)
        return _Started(request, x, back), None if back is None else list(back)

    def dissemination_barrier(self) -> tuple[_Started, None]:
        """MPI_Ibarrier."""
        return _Started(self._comm.Ibarrier()), None
