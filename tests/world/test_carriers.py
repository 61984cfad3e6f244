"""A message by several ways: every byte arrives, and each size has a time."""

import sys

import numpy as np
import pytest

from parlab import run
from parlab.world import carriers, message_seconds

pytestmark = pytest.mark.threads
needs_mpi = pytest.mark.skipif(sys.platform == "win32", reason="the mpich wheel is for Linux and macOS")
SIZES = [1, 1000, 300_001]  # the last one is more than a socket holds


def test_threads_have_a_time_for_each_size():
    measured = message_seconds("threads", SIZES)
    assert list(measured) == SIZES
    assert all(seconds > 0 for seconds in measured.values())


def twice(comm, connect, shared):
    """Rank 1 returns what it received, of two messages."""
    send, receive = connect(comm, shared)
    draw = np.random.default_rng(0)
    sent = [draw.integers(0, 256, n, dtype=np.uint8) for n in SIZES]
    if comm.rank == 0:
        for x in sent:
            send(x)
        receive(np.zeros(1, dtype=np.uint8))  # threads hand over a reference: it must live
        return True
    same = []
    for x in sent:
        found = np.zeros_like(x)
        receive(found)
        same.append(bool((found == x).all()))
    send(np.ones(1, dtype=np.uint8))
    return all(same)


def test_between_threads_every_byte_arrives():
    boxes = [carriers.SimpleQueue(), carriers.SimpleQueue()]
    assert run(twice, 2, carriers.by_queue, boxes).results == [True, True]


@needs_mpi
@pytest.mark.parametrize("connect", [carriers.by_mpi, carriers.by_socket])
def test_between_processes_every_byte_arrives(connect, tmp_path):
    assert run(twice, 2, connect, str(tmp_path / "s"), engine="mpi").results == [True, True]


@needs_mpi
@pytest.mark.parametrize("way", ["MPI", "socket"])
def test_processes_have_a_time_for_each_size(way):
    measured = message_seconds(way, SIZES)
    assert list(measured) == SIZES
    assert all(seconds > 0 for seconds in measured.values())


@pytest.mark.parametrize(
    ("way", "sizes", "said"),
    [("pigeon", [1], "way='pigeon'"), ("threads", [0], "nbytes=0"), ("MPI", [1.5], "nbytes=1.5")],
)
def test_another_way_and_no_bytes_are_refused(way, sizes, said):
    with pytest.raises(ValueError, match=said):
        message_seconds(way, sizes)


def half_a_message(comm, path):
    """Rank 1 wants 100 bytes, and rank 0 sends 50 and leaves."""
    send, receive = carriers.by_socket(comm, path)
    if comm.rank == 0:
        send(np.ones(50, dtype=np.uint8))
        return None
    try:
        return receive(np.zeros(100, dtype=np.uint8))
    except ConnectionError as error:
        return str(error)


@needs_mpi
def test_of_half_a_message_the_receiver_says_what_is_missing(tmp_path):
    said = run(half_a_message, 2, str(tmp_path / "s"), engine="mpi").results[1]
    assert said == "rank 0 has left, and 50 bytes are missing"
