"""Connections among the processes of a job, and from nobody else.

Each process has a door: a socket in a folder that only this user may enter, or one at a port that anybody can reach.
Both ends of a connection prove that they know the key, a secret of the job, mixed with both ranks: a proof that a
stranger hands on opens no other door. Strangers who say nothing delay nobody.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from parlab.world.errors import WorldError

PATIENCE = 300  # seconds until all processes of a job must have come
PROOF = 10  # seconds in which who knocks must have proved that it belongs here

Place = Path | tuple[str, int]  # the folder of the doors, or host and port of rank 0's


def connect_all(rank: int, size: int, place: Place, key: bytes) -> dict[int, Connection]:
    """A connection to each other rank, when all have come.

    A WorldError, if they did not come in time, or do not know the key, or the port is taken.
    """
    guests: SimpleQueue[tuple[int, Connection, Any]] = SimpleQueue()
    come: dict[int, Connection] = {}
    doors: list[Any] = [str(place / "0") if isinstance(place, Path) else place]
    try:
        with _open(rank, place) as door, _welcoming(door, rank, key, guests):
            if rank:  # rank 0 tells where the other doors are
                come[0] = _knock(doors[0], rank, 0, key)
                come[0].send_bytes(json.dumps(door.getsockname()).encode())
                doors = json.loads(come[0].recv_bytes())
                come |= {peer: _knock(doors[peer], rank, peer, key) for peer in range(1, rank)}
            doors += [None] * (size - len(doors))
            while len(come) < size - 1:
                guest, connection, address = guests.get(timeout=PATIENCE)
                come[guest] = connection
                if not rank:
                    said = json.loads(connection.recv_bytes())
                    doors[guest] = said if isinstance(said, str) else (address[0], said[1])
            for connection in () if rank else come.values():
                connection.send_bytes(json.dumps(doors).encode())
    except (Empty, OSError, EOFError, AuthenticationError) as error:
        raise WorldError(f"rank {rank}: not all {size} ranks came together at {doors[0]}: {error!r}") from error
    return come


def prove(connection: Connection, key: bytes, *, host: bool) -> None:
    """Return when both ends have proved that they know `key`, else an AuthenticationError; the `host` asks first."""
    for step in (deliver_challenge, answer_challenge) if host else (answer_challenge, deliver_challenge):
        step(connection, key)


def _between(key: bytes, guest: int, host: int) -> bytes:
    return hmac.digest(key, b"rank %d at the door of rank %d" % (guest, host), "sha256")


def _open(rank: int, place: Place) -> socket.socket:
    if isinstance(place, Path):
        door = socket.socket(socket.AF_UNIX)
        door.bind(str(place / str(rank)))
        door.listen()
        return door
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0 if rank else place[1]), family=family, dualstack_ipv6=both)


@contextmanager
def _welcoming(door: socket.socket, rank: int, key: bytes, guests: SimpleQueue[Any]) -> Iterator[None]:
    """Within, let those in who prove that they may, each on a thread of its own."""
    over = threading.Event()

    def let_in(sock: socket.socket, address: Any) -> None:
        with suppress(OSError, EOFError, ValueError, AuthenticationError):
            connection = _connection(sock, PROOF)
            guest = int(connection.recv_bytes(20))
            prove(connection, _between(key, guest, rank), host=True)
            guests.put((guest, connection, address))

    def stand() -> None:
        while not over.is_set():
            with suppress(OSError):
                threading.Thread(target=let_in, args=door.accept(), daemon=True).start()

    door.settimeout(0.02)
    porter = threading.Thread(target=stand, daemon=True)
    porter.start()
    try:
        yield
    finally:
        over.set()
        porter.join()


def _knock(address: Any, rank: int, host: int, key: bytes) -> Connection:
    """Ask rank `host` until it is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = _connection(_reached(address), PATIENCE)
            connection.send_bytes(b"%d" % rank)
            prove(connection, _between(key, rank, host), host=False)
            return connection
        except (ConnectionError, FileNotFoundError):  # not there yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _reached(address: Any) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address[:2], PATIENCE)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _connection(sock: socket.socket, seconds: int) -> Connection:
    """`sock` as a connection on which nothing lasts longer than so many seconds."""
    sock.setblocking(True)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    return Connection(sock.detach())
