"""Messages by MPI, with mpi4py.

A message begins with its first packet (1024 bytes, even tag, `Issend`). The first packet holds the length of the
header, the header, and the arrays if they fit. The rest follows on the next odd tag: the rest of the header, and each
array. The receiver posts the receive of the first packet when its program asks for the message, so the synchronous send
never ends before that.

Invariant: the sends and the receives on the odd tag are posted in the order of the first packets, so they match. For
the header of a message is asked for only when that of the one before it has come (`_ReceiveWire.receive_header`).

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

from parlab.world.processes.mpi_collectives import MPICollectives, memory_of, mpi_buffer
from parlab.world.processes.transport import ArraySpec, in_host_memory
from parlab.world.processes.wallclock import clock_ahead

NOTE, CLOCK = 0, 1  # tags on the side channel
LENGTH = 4  # bytes that say how long the header is
FIRST_PACKET = 1024  # bytes: a small message, as that of a barrier, is this one packet


def _tags(tag: int) -> tuple[int, int]:
    """MPI's tags of a first packet and of the rest, for the messages with this `tag`."""
    return 2 * tag, 2 * tag + 1


def _fits(header: bytes, leaves: Sequence[np.ndarray]) -> bool:
    """Whether the first packet has room for the arrays."""
    return LENGTH + len(header) + sum(leaf.nbytes for leaf in leaves) <= FIRST_PACKET


class _SendWire:
    """See `SendWire`."""

    def __init__(self, comm: Any, header: bytes, leaves: Sequence[np.ndarray], dst: int, tag: int):
        first_tag, rest_tag = _tags(tag)
        framed = len(header).to_bytes(LENGTH, "big") + header
        if _fits(header, leaves):
            framed += b"".join(leaf.tobytes() for leaf in leaves)
            leaves = ()
        first, rest = framed[:FIRST_PACKET].ljust(FIRST_PACKET), framed[FIRST_PACKET:]
        self._requests = [comm.Issend([first, MPI.BYTE], dst, first_tag)]
        if rest:
            self._requests.append(comm.Isend([rest, MPI.BYTE], dst, rest_tag))
        self._requests += [comm.Isend(mpi_buffer(leaf), dst, rest_tag) for leaf in leaves if leaf.size]

    def has_passed(self) -> bool:
        return MPI.Request.Testall(self._requests)


class _ReceiveWire:
    """See `ReceiveWire`."""

    def __init__(self, comm: Any, src: int, tag: int):
        first_tag, self._rest_tag = _tags(tag)
        self._comm, self._src = comm, src
        self._framed = bytearray(FIRST_PACKET)
        self._requests = [comm.Irecv([self._framed, MPI.BYTE], src, first_tag)]
        self._header = b""

    def receive_header(self) -> bytes | None:
        if not MPI.Request.Testall(self._requests):
            return None
        end = LENGTH + int.from_bytes(self._framed[:LENGTH], "big")
        if end > len(self._framed):
            rest = bytearray(end - FIRST_PACKET)
            self._framed += rest
            buffer = memoryview(self._framed)[FIRST_PACKET:]
            self._requests = [self._comm.Irecv([buffer, MPI.BYTE], self._src, self._rest_tag)]
            return self.receive_header()
        self._header = bytes(self._framed[LENGTH:end])
        return self._header

    def into(self, specs: list[ArraySpec]) -> list[np.ndarray]:
        leaves = [np.empty(*spec) for spec in specs]
        filled = [leaf for leaf in leaves if leaf.size]
        if _fits(self._header, leaves):
            self._fill_from_first_packet(filled)
        else:
            self._requests = [self._comm.Irecv(mpi_buffer(leaf), self._src, self._rest_tag) for leaf in filled]
        return leaves

    def _fill_from_first_packet(self, leaves: list[np.ndarray]) -> None:
        start = LENGTH + len(self._header)
        for leaf in leaves:
            memory_of(leaf)[:] = np.frombuffer(self._framed, np.uint8, leaf.nbytes, start)
            start += leaf.nbytes

    def has_passed(self) -> bool:
        return MPI.Request.Testall(self._requests)


class MPITransport:
    """See `NativeTransport`: among the processes that mpiexec, or Slurm, has started."""

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
        self._told: list[Any] = []  # sends of notes that may not be over

    prepared = staticmethod(in_host_memory)

    def send(self, header: bytes, leaves: Sequence[np.ndarray], dst: int, tag: int) -> _SendWire:
        """See `Transport`."""
        return _SendWire(self._messages, header, leaves, dst, tag)

    def expect(self, src: int, tag: int, like: list[Any]) -> _ReceiveWire:
        """See `Transport`."""
        return _ReceiveWire(self._messages, src, tag)

    def tell(self, dst: int, note: bytes) -> None:
        """See `Transport`."""
        self._told = [told for told in self._told if not told.Test()]
        self._told.append(self._notes.Isend([note, MPI.BYTE], dst, NOTE))

    def heard(self) -> Iterator[bytes]:
        """See `Transport`."""
        status = MPI.Status()
        while self._notes.Iprobe(MPI.ANY_SOURCE, NOTE, status):
            note = bytearray(status.Get_count(MPI.BYTE))
            self._notes.Recv([note, MPI.BYTE], status.source, NOTE)
            yield bytes(note)

    def connect(self, members: tuple[int, ...], tag: int) -> MPICollectives:
        """See `NativeTransport`."""
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
        self._notes.Send([data, MPI.BYTE], dst, CLOCK)

    def _receive_clock(self, src: int) -> bytearray:
        clock = bytearray(8)
        self._notes.Recv([clock, MPI.BYTE], src, CLOCK)
        return clock
