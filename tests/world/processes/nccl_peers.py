"""Ranks of engine="nccl" as threads of this process, on the stand-in: what a test can look into."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from parlab.world.processes import nccl
from parlab.world.processes.nccl import NCCLTransport
from parlab.world.processes.pause import Pause
from parlab.world.processes.transport import in_host_memory, spec_of
from tests.world.processes import fake_nccl
from tests.world.processes.fake_nccl import FakeCuPy, pointer


class Way:
    """The messages from one rank to another with one tag: what was sent, and how many were asked for."""

    def __init__(self):
        self.sent, self.asked = [], 0


class End:
    """One end of a message in host memory: `SendWire` or `ReceiveWire`."""

    def __init__(self, way, number):
        self.way, self.number = way, number

    def receive_header(self):
        return self.way.sent[self.number][0] if len(self.way.sent) > self.number else None

    def into(self, specs):
        leaves = self.way.sent[self.number][1]
        return [leaf.copy().view(dtype).reshape(shape) for leaf, (shape, dtype) in zip(leaves, specs, strict=True)]

    def has_passed(self):
        return len(self.way.sent) > self.number and self.way.asked > self.number


class Host:
    """In MPI's place: a `Transport` between threads. `shared` has what all ranks see."""

    ahead = 0
    prepared = staticmethod(in_host_memory)

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared = rank, size, shared

    def send(self, header, leaves, dst, tag):
        way = self.shared["ways"][self.rank, dst, tag]
        way.sent.append((header, [np.array(leaf) for leaf in leaves]))
        return End(way, len(way.sent) - 1)

    def expect(self, src, tag, like):
        way = self.shared["ways"][src, self.rank, tag]
        way.asked += 1
        return End(way, way.asked - 1)

    def tell(self, dst, note):
        self.shared["notes"][dst].append(note)

    def heard(self):
        notes = self.shared["notes"][self.rank]
        while notes:
            yield notes.popleft()

    def all_say(self, data):
        self.shared["said"][self.rank] = data
        self.shared["barrier"].wait()
        said = list(self.shared["said"])
        self.shared["barrier"].wait()
        return said

    def gather(self, data):
        return self.all_say(data) if self.rank == 0 else self.all_say(data)[:0]

    def share(self, data):
        return self.all_say(data)[0]

    def renew(self):
        self.share(b"")
        self.shared["ways"].clear()
        self.shared["notes"].clear()
        self.share(b"")

    def abort(self):
        raise AssertionError(f"rank {self.rank} ends all")


@contextmanager
def peers(size, strict=False):
    """The transports of `size` ranks."""
    shared = dict(ways=defaultdict(Way), notes=defaultdict(deque), said=[b""] * size, barrier=threading.Barrier(size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "pointer", pointer)
        try:
            yield together(lambda rank: NCCLTransport(Host(rank, size, shared), FakeCuPy(strict)), size)
        finally:
            fake_nccl.stop()


def together(work, size):
    """The results of `work(rank)`, all called at once, in threads."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


def until(done, *transports, seconds=20):
    """Let the transports move on until `done()`."""
    over, pause = threading.Event(), Pause()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    try:
        while not done():
            for transport in transports:
                assert list(transport.heard()) == []
            assert not over.is_set(), "it hangs"
            pause()
    finally:
        timer.cancel()
        timer.join()


def arrived(coming, like, *transports, seconds=20):
    """The arrays of a message that is asked for."""
    until(lambda: coming.receive_header() is not None, *transports)
    leaves = coming.into([spec_of(x) for x in like])
    until(coming.has_passed, *transports, seconds=seconds)
    return leaves


def numbers(size, seed=0):
    return np.random.default_rng(seed).normal(size=size)
