"""Collectives and matching, broken on purpose: each fault must be caught, by its values, its counts or the clock."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from parlab.world import WorldError, run, values
from parlab.world.collectives import algorithms, circulant, ring, rings, two_levels
from parlab.world.engines import tasks
from tests.world.test_collectives import (
    test_values_equal_numpys_and_messages_bytes_and_time_those_of_the_papers as equals_numpy_and_the_papers,
)


def shifted_by_one(comm, flat, pieces, how, sent, received, shift=ring._shift):
    return shift(comm, flat, pieces, how, (sent + 1) % comm.size, (received + 1) % comm.size)


def whole_array_sent(comm, flat, pieces, how, sent, received):
    return comm.sendrecv(flat, comm.right, comm.left)[pieces[received]]


def forgotten(*arguments):
    """Nothing is sent."""


def wrong_operation(op, x):
    return np.maximum


def swapped_levels(comm, g, levels=two_levels.inside_and_between):
    return levels(comm, comm.size // g)


def floored_halvings(size):
    steps, window = [], size
    while window > 1:
        steps.append((window, window // 2))
        window //= 2
    return steps


def same_place(rank, size, ring, part, g, ring_place=rings.ring_place):
    """Every ring crosses where ring 0 does."""
    return ring_place(rank, size, 0, part, g)


def one_ring_after_the_other(comm, flat, places, back, shift=rings._shift_on_all):
    """A rank waits on each ring before it sends on the next: the rank that it waits for waits for it."""
    return [came for place in places for came in shift(comm, flat, [place], back)]


MUTANTS = [
    (ring, "_shift", shifted_by_one, ("all_reduce", "ring", 6, 6)),
    (ring, "_shift", whole_array_sent, ("all_reduce", "ring", 6, 6)),
    (ring, "ring_all_gather", forgotten, ("all_reduce", "ring", 6, 6)),
    (algorithms, "combiner", wrong_operation, ("all_reduce", "ring", 6, 6)),
    (two_levels, "inside_and_between", swapped_levels, ("all_gather", "hierarchical", 6, 3)),
    (two_levels, "inside_and_between", swapped_levels, ("reduce_scatter", "hierarchical", 6, 3)),
    (two_levels, "inside_and_between", swapped_levels, ("all_to_all", "hierarchical", 6, 3)),
    (two_levels, "ring_reduce_scatter", forgotten, ("reduce_scatter", "hierarchical", 6, 3)),
    (rings, "ring_place", same_place, ("all_reduce", "rings", 6, 3)),
    (rings, "_shift_on_all", one_ring_after_the_other, ("all_reduce", "rings", 6, 3)),
    (circulant, "halvings", floored_halvings, ("all_reduce", "circulant", 6, 6)),
]


@pytest.mark.parametrize(("module", "name", "mutant", "case"), MUTANTS)
def test_each_of_11_usual_mistakes_is_caught(monkeypatch, module, name, mutant, case):
    equals_numpy_and_the_papers(np, *case)
    monkeypatch.setattr(module, name, mutant)
    with pytest.raises((AssertionError, WorldError, ValueError, IndexError)):
        equals_numpy_and_the_papers(np, *case)


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
