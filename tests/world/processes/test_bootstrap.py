"""Who may come in: the ranks of a job, and nobody else on the machine, whatever they try."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

import pytest

from parlab.world import WorldError
from parlab.world.processes import bootstrap
from parlab.world.processes.bootstrap import connect_all
from parlab.world.processes.side_channel import NOTE, SideChannel

KEY = b"a secret of at least 32 letters, say"
LONG = 3 * 10**6  # bytes: more than a socket takes at once


def on_each(work, size):
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


def greet(size, place, key=KEY):
    """What every rank hears from every other one, who send each other frames as soon as they are connected."""
    all_heard = threading.Barrier(size)

    def rank(me):
        side = SideChannel(connect_all(me, size, place, key))
        try:
            for peer in set(range(size)) - {me}:
                side.put(peer, NOTE, peer, b"from %d" % me, bytes(LONG))
                side.put(peer, NOTE, peer)
            heard = {}
            while len(heard) < 2 * (size - 1) or side.busy:
                for src, kind, tag, contents in side.frames():
                    heard[src, len(contents)] = (kind, tag, bytes(contents[:6]))
            all_heard.wait(10)
            return heard
        finally:
            side.close()

    return on_each(rank, size)


def expected(size):
    of = {}
    for me in range(size):
        of[me] = {(src, 6 + LONG): (NOTE, me, b"from %d" % src) for src in range(size) if src != me}
        of[me] |= {(src, 0): (NOTE, me, b"") for src in range(size) if src != me}
    return list(of.values())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_rank_hears_every_other_one_through_a_port_and_through_a_folder(size, port, tmp_path):
    for place in (("127.0.0.1", port), tmp_path):
        assert greet(size, place) == expected(size)


# Strangers


def says_nothing(sock):
    sock.recv(1)


def talks(sock):
    sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    sock.recv(1)


def promises_much(sock):
    sock.sendall(b"\x7f\xff\xff\xff" + bytes(1000))
    sock.recv(1)


def is_no_rank(sock):
    Connection(sock.detach()).send_bytes(b"one")


def guesses(sock):
    connection = Connection(sock.detach())
    connection.send_bytes(b"1")
    with suppress(AuthenticationError):
        bootstrap.prove(connection, bootstrap._key_of_pair(b"guessed", 1, 0), host=False)
    connection.close()


def leaves(sock):
    sock.close()


STRANGERS = (says_nothing, talks, promises_much, is_no_rank, guesses, leaves)


@contextmanager
def visited(port, strangers):
    """Within, strangers stand at the port of rank 0, from the first moment on."""
    over, threads = threading.Event(), []

    def visit(stranger):
        while not over.is_set():
            with suppress(OSError, EOFError), socket.create_connection(("127.0.0.1", port), 0.2) as sock:
                sock.settimeout(0.2)
                stranger(sock)

    for stranger in strangers:
        threads.append(threading.Thread(target=visit, args=(stranger,)))
        threads[-1].start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def test_6_kinds_of_strangers_at_the_port_are_not_let_in_and_disturb_nobody(port):
    with visited(port, STRANGERS):
        assert greet(3, ("127.0.0.1", port)) == expected(3)


def test_a_rank_with_another_key_is_told_so_and_the_one_that_waits_for_it_gives_up(port, monkeypatch):
    monkeypatch.setattr(bootstrap, "TIMEOUT", 1)

    def come(rank):
        with pytest.raises(WorldError, match=rf"rank {rank}: not all 2 ranks came together at"):
            connect_all(rank, 2, ("127.0.0.1", port), KEY + bytes([rank]))

    on_each(come, 2)


def test_a_proof_that_a_stranger_hands_on_opens_no_other_door(tmp_path):
    """Who stands at the port of rank 0 before it gets rank 1's proof, and tries it at the door of rank 2."""
    refused = []
    ours, to_stranger = socket.socketpair()
    to_rank_2, theirs = socket.socketpair()

    def rank_1():
        with pytest.raises((AuthenticationError, OSError, EOFError)):
            bootstrap.prove(Connection(ours.detach()), bootstrap._key_of_pair(KEY, 1, 0), host=False)

    def rank_2():
        try:
            bootstrap.prove(Connection(theirs.detach()), bootstrap._key_of_pair(KEY, 1, 2), host=True)
        except AuthenticationError:
            refused.append("rank 1's proof for rank 0")

    threads = [threading.Thread(target=target) for target in (rank_1, rank_2)]
    for thread in threads:
        thread.start()
    stranger = [Connection(to_stranger.detach()), Connection(to_rank_2.detach())]
    stranger[0].send_bytes(stranger[1].recv_bytes())  # the question
    stranger[1].send_bytes(stranger[0].recv_bytes())  # the answer
    stranger[0].send_bytes(stranger[1].recv_bytes())  # that it is wrong
    for thread in threads:
        thread.join()
    assert refused == ["rank 1's proof for rank 0"]
    for connection in stranger:
        connection.close()


def test_a_port_that_is_taken_is_an_error_of_rank_0():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorldError, match=f"rank 0: not all 2 ranks came together at .*{port}.*in use"):
            connect_all(0, 2, ("127.0.0.1", port), KEY)


def test_who_is_gone_is_noticed_and_frames_before_that_are_read(tmp_path):
    made = on_each(lambda rank: connect_all(rank, 2, tmp_path, KEY), 2)
    one, other = map(SideChannel, made)
    one.put(1, NOTE, 0, b"last words")
    one.close()
    heard = []
    while not other.gone:
        heard += [bytes(frame[3]) for frame in other.frames()]
    assert heard == [b"last words"]
    other.put(0, NOTE, 0, bytes(LONG))
    assert not other.busy
    other.close()
