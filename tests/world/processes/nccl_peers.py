"""Ranks of engine="nccl" as threads of this process, on the stand-in: what a test can look into."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from parlab.world.processes import nccl
from parlab.world.processes.bootstrap import connect_all
from parlab.world.processes.engine import Pause
from parlab.world.processes.nccl import NCCLTransport
from parlab.world.processes.transport import form_of
from tests.world.processes import fake_nccl
from tests.world.processes.fake_nccl import FakeCuPy, pointer


def ends(transport):
    """In the place of the end of a process."""
    raise AssertionError(f"rank {transport.rank} ends all")


@contextmanager
def peers(folder, size, strict=False):
    """The transports of `size` ranks that meet in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)

    def come(rank):
        return NCCLTransport(rank, size, connect_all(rank, size, folder, b"key"), FakeCuPy(strict))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "pointer", pointer)
        patch.setattr(NCCLTransport, "abort", ends)
        made = together(come, size)
        try:
            yield made
        finally:
            for transport in made:
                transport._side.close()
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
    until(lambda: coming.header() is not None if coming._offer is None else True, *transports)
    leaves = coming.into([form_of(x) for x in like])
    until(coming.done, *transports, seconds=seconds)
    return leaves


def numbers(size, seed=0):
    return np.random.default_rng(seed).normal(size=size)
