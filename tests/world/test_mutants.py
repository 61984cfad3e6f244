"""Collectives and matching, broken on purpose: each fault must be caught, by its values or by its counts."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from parlab.world import collectives, per_rank, run, values
from parlab.world.collectives import calls
from parlab.world.engines import tasks
from tests.world.test_collectives import EVEN, LINK, counted, draw


def betrayed_by(broken, monkeypatch, length=12):
    """Which of the values and counts of a 4-rank all-reduce betray `broken`, put in the place of the ring."""
    monkeypatch.setitem(calls.ALL_REDUCE, "ring", broken)
    xs = draw(np, 4, length)
    done = run(lambda comm, x: comm.all_reduce(x), 4, per_rank(xs), cluster=EVEN)
    wrong = []
    if any(not np.array_equal(result, np.sum(xs, axis=0)) for result in done.results):
        wrong.append("values")
    cost = collectives.ring_all_reduce_cost(4, length, 8, LINK)
    wrong += [
        what
        for what, a, b in zip(
            ("messages", "bytes", "time"), counted(done), (cost.messages, cost.nbytes, cost.picoseconds), strict=True
        )
        if a != b
    ]
    return wrong


def ring(comm, x, combine, *, shift=0, drop=0, gather=True, whole=False):
    """A ring all-reduce with a fault for each argument."""
    total = np.array(x).reshape(-1)
    size = comm.size
    blocks = np.array_split(np.arange(total.size), size)
    for step in range(size - 1 - drop):
        out, into = blocks[(comm.rank - step - 1 + shift) % size], blocks[(comm.rank - step - 2 + shift) % size]
        if whole:
            total[into] = combine(total[into], comm.sendrecv(total, comm.right, comm.left)[into])
        else:
            total[into] = combine(total[into], comm.sendrecv(total[out], comm.right, comm.left, total[into]))
    for step in range(size - 1 if gather else 0):
        out, into = blocks[(comm.rank - step) % size], blocks[(comm.rank - step - 1) % size]
        total[into] = comm.sendrecv(total[out], comm.right, comm.left, total[into])
    return total.reshape(x.shape)


def test_the_mutants_unbroken_original_passes(monkeypatch):
    assert betrayed_by(ring, monkeypatch) == []


@pytest.mark.parametrize(
    ("fault", "caught_by"),
    [
        (dict(shift=1), {"values"}),
        (dict(drop=1), {"values", "messages", "bytes", "time"}),
        (dict(gather=False), {"values", "messages", "bytes", "time"}),
        (dict(whole=True), {"bytes", "time"}),
    ],
    ids=["shifted by one", "last step dropped", "all-gather forgotten", "whole array sent"],
)
def test_a_broken_ring_is_caught_by(monkeypatch, fault, caught_by):
    broken = lambda comm, x, combine: ring(comm, x, combine, **fault)  # noqa: E731
    assert set(betrayed_by(broken, monkeypatch)) == caught_by


def test_a_ring_that_combines_with_the_wrong_operation_is_caught_by_values_alone(monkeypatch):
    broken = lambda comm, x, combine: ring(comm, x, np.maximum)  # noqa: E731
    assert betrayed_by(broken, monkeypatch) == ["values"]


def test_matching_that_ignores_the_channel_of_collectives_is_caught(monkeypatch):
    """A posted irecv must not swallow a message of the collective that runs before its partner sends."""

    def program(comm):
        if comm.rank == 0:
            request = comm.irecv(1, np.ones(1))
            total = comm.all_reduce(np.ones(1), algorithm="recursive_doubling")
            return [float(request.wait()[0]), float(total[0])]
        total = comm.all_reduce(np.ones(1), algorithm="recursive_doubling")
        comm.send(np.full(1, 7.0), 0)
        return float(total[0])

    assert run(program, 2).results == [[7.0, 2.0], 2.0]
    with_channel = tasks.Group.mailbox
    monkeypatch.setattr(tasks.Group, "mailbox", lambda self, channel, src, dst: with_channel(self, "one", src, dst))
    assert run(program, 2).results != [[7.0, 2.0], 2.0]


def two_sends_then_two_receives(comm):
    """Returns what arrives, where nothing is received before both values are posted."""
    other_way = comm.split(0)
    if comm.rank == 0:
        requests = [comm.isend(np.full(1, value), 1) for value in (1.0, 2.0)]
        other_way.send(np.ones(1), 1)
        for request in requests:
            request.wait()
        return None
    other_way.recv(0, np.ones(1))
    requests = [comm.irecv(0, np.ones(1)), comm.irecv(0, np.ones(1))]
    return [float(request.wait()[0]) for request in requests]


def test_matching_the_last_first_is_caught(monkeypatch):
    assert run(two_sends_then_two_receives, 2).results[1] == [1.0, 2.0]

    class Stack(deque):
        popleft = deque.pop

    monkeypatch.setattr(tasks, "deque", Stack)
    assert run(two_sends_then_two_receives, 2).results[1] == [2.0, 1.0]


def test_sending_without_a_copy_is_caught(monkeypatch):
    def program(comm):
        """The first value is changed after its wait, and looked at when the second has come."""
        x = np.ones(1)
        if comm.rank == 0:
            comm.isend(x, 1).wait()
            x += 1
            comm.send(x, 1)
            return None
        return [value[0] for value in [comm.recv(0, x), comm.recv(0, x)]]

    assert run(program, 2).results[1] == [1.0, 2.0]
    monkeypatch.setattr(values, "copied", lambda value: value)
    assert run(program, 2).results[1] == [2.0, 2.0]
