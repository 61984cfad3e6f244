"""How long a message takes between two ranks of this machine, by who carries it."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from parlab.arguments import one_of, whole
from parlab.world.run import run

ROUNDS, MOST_BYTES = 1000, 2**30  # rounds of a size: at most, and bytes in all of them
Calls = tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], Any]]  # how to send an array, and receive into one


def message_seconds(way: str, sizes: Sequence[int]) -> dict[int, float]:
    """Measure how long a message takes from one rank to another and into an array that is there.

    Rank 0 sends, rank 1 receives and sends back; half of the fastest round counts. Every call measures anew.

    Args:
        way: "threads": a queue between two threads of a process hands over a reference, and the receiver copies the
            array; "MPI": `MPI_Send` and `MPI_Recv` between two processes; "socket": a Unix socket between them.
        sizes: bytes of the messages.

    Returns:
        Seconds by the bytes of the message.

    Raises:
        ValueError: another way, sizes that are no whole numbers from 1, or no MPI on this machine.

    >>> message_seconds("threads", [1024])[1024] > 0
    True
    """
    one_of("way", way, list(WAYS))
    for nbytes in sizes:
        whole("nbytes", nbytes, 1)
    with tempfile.TemporaryDirectory() as folder:
        connect, path = WAYS[way], str(Path(folder) / "socket")
        if way == "threads":
            boxes = [SimpleQueue(), SimpleQueue()]  # type: ignore[var-annotated]
            return run(_rounds, 2, connect, boxes, sizes).results[0]
        return run(_rounds, 2, connect, path, sizes, engine="mpi").results[0]


def by_queue(comm: Any, boxes: Sequence[SimpleQueue[np.ndarray]]) -> Calls:
    """Threads: a reference goes through a queue, and the receiver copies."""
    return boxes[1 - comm.rank].put, lambda x: np.copyto(x, boxes[comm.rank].get())


def by_mpi(comm: Any, path: str) -> Calls:
    """Processes: MPI's own calls, past parlab."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda x: world.Send(x, 1 - comm.rank), lambda x: world.Recv(x, 1 - comm.rank)


def by_socket(comm: Any, path: str) -> Calls:
    """Processes: a socket of the operating system."""
    end = socket.socket(socket.AF_UNIX)
    if comm.rank == 0:
        end.bind(path)
        end.listen()
    comm.barrier()
    if comm.rank == 0:
        end, _ = end.accept()
    else:
        end.connect(path)

    def receive(x: np.ndarray) -> None:
        left = x.data
        while left.nbytes:
            arrived = end.recv_into(left, left.nbytes, socket.MSG_WAITALL)  # it may be less, for instance at a signal
            if not arrived:
                raise ConnectionError(f"rank {1 - comm.rank} has left, and {left.nbytes} bytes are missing")
            left = left[arrived:]

    return lambda x: end.sendall(x.data), receive


WAYS: dict[str, Callable[..., Calls]] = {"threads": by_queue, "MPI": by_mpi, "socket": by_socket}


def _rounds(comm: Any, connect: Callable[..., Calls], shared: Any, sizes: Sequence[int]) -> dict[int, float]:
    """Half of the fastest round of each size."""
    send, receive = connect(comm, shared)
    fastest = {}
    for nbytes in sizes:
        x, times = np.full(nbytes, 1 - comm.rank, dtype=np.uint8), []  # rank 1 has zeros until it receives
        for _ in range(max(3, min(ROUNDS, MOST_BYTES // nbytes))):
            start = time.perf_counter()
            for act in (send, receive) if comm.rank == 0 else (receive, send):
                act(x)
            times.append(time.perf_counter() - start)
        if not x.all():
            raise RuntimeError(f"{nbytes} bytes were sent, and others received")
        fastest[int(nbytes)] = min(times) / 2
    return fastest
