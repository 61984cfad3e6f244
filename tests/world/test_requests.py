"""Requests that are not waited for once are errors; what a request is started with."""

from __future__ import annotations

import inspect
import time

import numpy as np
import pytest

from parlab.world import Comm, RequestError, run

X = np.ones(2)


def test_a_request_never_waited_for_is_an_error_that_names_it():
    def forgets(comm):
        comm.isend(X, comm.right)
        comm.irecv(comm.left, X)

    with pytest.raises(RequestError, match=r"^rank 0 returned without waiting for irecv\(from 2\), isend\(to 1\)"):
        run(forgets, 3)


def test_a_collective_beside_never_waited_for_is_an_error_that_names_it():
    with pytest.raises(RequestError, match=r"^rank 0 returned without waiting for iall_reduce"):
        run(lambda comm: comm.iall_reduce(X) and None, 2)


def test_a_request_waited_for_twice_is_an_error_that_names_it():
    def twice(comm):
        sent, request = comm.isend(X, comm.right), comm.irecv(comm.left, X)
        sent.wait()
        request.wait()
        request.wait()

    with pytest.raises(RequestError, match=r"rank 0 waits for irecv\(from 1\) a second time"):
        run(twice, 2)


def test_a_collective_beside_the_program_sums_what_its_array_was_at_the_call():
    """Rank 1 comes when rank 0 has changed its own."""

    def program(comm):
        x = np.ones(2)
        if comm.rank == 1:
            comm.recv(0, x)
        total = comm.iall_reduce(x)
        x += 10
        if comm.rank == 0:
            comm.send(x, 1)
        return total.wait().tolist()

    assert run(program, 2).results == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_collective_beside_the_program_takes_what_the_other_takes_and_has_its_defaults(name):
    signatures = (inspect.signature(getattr(Comm, call)) for call in (f"i{name}", name))
    beside, plain = ({one.name: one.default for one in found.parameters.values()} for found in signatures)
    assert beside.items() <= plain.items()


def test_20_collectives_beside_the_program_in_turn_share_1_strand_and_4_at_once_have_4():
    def program(comm):
        engine = comm._engine
        me = engine.tasks[comm.rank]
        for _ in range(20):
            comm.iall_reduce(X).wait()
            while not me.parked_helpers:  # its result is there a moment before it parks
                time.sleep(0)
        in_turn = {task.strand for task in me.background}
        if comm.rank == 1:
            comm.recv(0, X)  # until then rank 0 gets no further than its four calls
        requests = [comm.iall_reduce(X) for _ in range(4)]
        if comm.rank == 0:
            comm.send(X, 1)
        for request in requests:
            request.wait()
        return len(in_turn), len({task.strand for task in me.background})

    of_rank_0, of_rank_1 = run(program, 2).results
    assert of_rank_0 == (1, 4)
    assert of_rank_1[0] == 1
