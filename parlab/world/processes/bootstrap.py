"""Connections between all processes of a job, and to no other process.

Each process listens on a socket: in a folder that only this user can open, or on a port that anybody can reach. Both
ends of a connection prove that they know the key, a secret of the job, combined with both ranks. So a proof that a
stranger forwards is of no use at another process. A stranger that connects and says nothing delays no rank.
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

TIMEOUT = 300  # seconds until all processes of a job must be connected
PROOF_TIMEOUT = 10  # seconds in which a process that connects must prove that it knows the key

Place = Path | tuple[str, int]  # the folder of the sockets, or host and port of rank 0


def connect_all(rank: int, size: int, place: Place, key: bytes) -> dict[int, Connection]:
    """A connection to each other rank, when all are connected.

    A WorldError, if some rank is too late or does not know the key, or if the port is taken.
    """
    arrived: SimpleQueue[tuple[int, Connection, Any]] = SimpleQueue()
    connected: dict[int, Connection] = {}
    addresses: list[Any] = [str(place / "0") if isinstance(place, Path) else place]
    try:
        with _open(rank, place) as listener, _accepting(listener, rank, key, arrived):
            if rank:  # rank 0 tells the addresses of the others
                connected[0] = _connect(addresses[0], rank, 0, key)
                connected[0].send_bytes(json.dumps(listener.getsockname()).encode())
                addresses = json.loads(connected[0].recv_bytes())
                connected |= {peer: _connect(addresses[peer], rank, peer, key) for peer in range(1, rank)}
            addresses += [None] * (size - len(addresses))
            while len(connected) < size - 1:
                peer, connection, address = arrived.get(timeout=TIMEOUT)
                connected[peer] = connection
                if not rank:
                    said = json.loads(connection.recv_bytes())
                    addresses[peer] = said if isinstance(said, str) else (address[0], said[1])
            for connection in () if rank else connected.values():
                connection.send_bytes(json.dumps(addresses).encode())
    except (Empty, OSError, EOFError, AuthenticationError) as error:
        raise WorldError(f"rank {rank}: not all {size} ranks came together at {addresses[0]}: {error!r}") from error
    return connected


def prove(connection: Connection, key: bytes, *, host: bool) -> None:
    """Return when both ends have proved that they know `key`; else an AuthenticationError. The `host` asks first."""
    for step in (deliver_challenge, answer_challenge) if host else (answer_challenge, deliver_challenge):
        step(connection, key)


def _key_of_pair(key: bytes, peer: int, host: int) -> bytes:
    return hmac.digest(key, b"rank %d connects to rank %d" % (peer, host), "sha256")


def _open(rank: int, place: Place) -> socket.socket:
    if isinstance(place, Path):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place / str(rank)))
        listener.listen()
        return listener
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", 0 if rank else place[1]), family=family, dualstack_ipv6=both)


@contextmanager
def _accepting(listener: socket.socket, rank: int, key: bytes, arrived: SimpleQueue[Any]) -> Iterator[None]:
    """Within, accept processes that prove that they know the key, each on a thread of its own."""
    over = threading.Event()

    def authenticate(sock: socket.socket, address: Any) -> None:
        with suppress(OSError, EOFError, ValueError, AuthenticationError):
            connection = _connection(sock, PROOF_TIMEOUT)
            peer = int(connection.recv_bytes(20))
            prove(connection, _key_of_pair(key, peer, rank), host=True)
            arrived.put((peer, connection, address))

    def accept() -> None:
        while not over.is_set():
            with suppress(OSError):
                threading.Thread(target=authenticate, args=listener.accept(), daemon=True).start()

    listener.settimeout(0.02)
    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield
    finally:
        over.set()
        acceptor.join()


def _connect(address: Any, rank: int, host: int, key: bytes) -> Connection:
    """Connect to rank `host`, again and again until it listens."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            connection = _connection(_socket_to(address), TIMEOUT)
            connection.send_bytes(b"%d" % rank)
            prove(connection, _key_of_pair(key, rank, host), host=False)
            return connection
        except (ConnectionError, FileNotFoundError):  # it does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _socket_to(address: Any) -> socket.socket:
    if not isinstance(address, str):
        return socket.create_connection(address[:2], TIMEOUT)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock


def _connection(sock: socket.socket, seconds: int) -> Connection:
    """`sock` as a connection on which no operation lasts longer than this many seconds."""
    sock.setblocking(True)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))
    return Connection(sock.detach())
