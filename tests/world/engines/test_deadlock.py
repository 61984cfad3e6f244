"""Every way to stop for ever that we could think of: named at once, with ranks, calls and a cause that are true."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.world import DeadlockError, collectives, run

X = np.ones(2)


def both_send_first(comm):
    other = 1 - comm.rank
    comm.send(X, other)
    comm.recv(other, X)


def ring_of_receives(comm):
    comm.recv(comm.left, X)
    comm.send(X, comm.right)


def ring_that_waits_the_wrong_way(comm):
    request = comm.irecv(comm.right, X)
    comm.send(X, comm.right)
    request.wait()


def ring_that_sends_ahead_and_waits_the_wrong_way(comm):
    sent, request = comm.isend(X, comm.right), comm.irecv(comm.right, X)
    request.wait()
    sent.wait()


def ring_that_sends_and_receives_on_the_same_side(comm):
    comm.sendrecv(X, comm.right, comm.right)


def rank_1_skips_one_barrier(comm):
    if comm.rank != 1:
        comm.barrier()
    comm.barrier()


def crossed_order_of_two_groups(comm):
    row, column = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    first, second = (row, column) if comm.rank in (0, 3) else (column, row)
    first.barrier()
    second.barrier()


def a_receive_that_nobody_meets(comm):
    if comm.rank == 0:
        comm.irecv(1, X).wait()
    else:
        comm.barrier()


def send_to_oneself(comm):
    comm.send(X, comm.rank)


def receive_from_a_rank_that_is_finished(comm):
    if comm.rank == 0:
        comm.recv(2, X)


def collective_against_messages(comm):
    if comm.rank == 0:
        comm.all_reduce(X)
    elif comm.rank == 1:
        comm.recv(2, X)
    else:
        comm.send(X, 0)


def the_odd_ranks_of_a_group_send_first(comm):
    group = comm.split(comm.rank % 2)
    if comm.rank % 2:
        group.send(X, 1 - group.rank)
        group.recv(1 - group.rank, X)


def rank_5_skips_the_collective_of_its_group(comm):
    group = comm.split(comm.rank % 2)
    if comm.rank != 5:
        group.all_reduce(X)


def collective_beside_a_program_that_one_rank_skips(comm):
    if comm.rank != 2:
        comm.iall_reduce(X).wait()


def strategy(comm, x):
    """Stands for a strategy function that a program calls: it hands on to the right, and nobody takes."""
    comm.send(x, comm.right)
    return comm.recv(comm.left, x)


def inside_a_strategy(comm):
    return strategy(comm, X)


def inside_a_collective_that_one_rank_calls_on_its_own(comm):
    if comm.rank == 0:
        collectives.ring_all_reduce(comm, X, np.add)


# program, ranks; who waits in which call for whom; the path; the cause

CASES = [
    (
        both_send_first,
        2,
        {0: ("send(to 1)", (1,)), 1: ("send(to 0)", (0,))},
        [0, 1, 0],
        "every rank sends first, and a send returns when it is received; let one receive first, or use sendrecv",
    ),
    (
        ring_of_receives,
        4,
        {rank: (f"recv(from {(rank - 1) % 4})", ((rank - 1) % 4,)) for rank in range(4)},
        [0, 3, 2, 1, 0],
        "every rank receives first, so nobody sends; let one send first, or use sendrecv",
    ),
    (
        ring_that_waits_the_wrong_way,
        3,
        {0: ("send(to 1)", (1,)), 1: ("send(to 2)", (2,)), 2: ("send(to 0)", (0,))},
        [0, 1, 2, 0],
        "rank 0 has posted irecv(from 1), which does not meet send(to 0) of rank 2; check who sends to whom",
    ),
    (
        ring_that_sends_ahead_and_waits_the_wrong_way,
        3,
        {r: (f"irecv(from {(r + 1) % 3}).wait()", ((r + 1) % 3,)) for r in range(3)},
        [0, 1, 2, 0],
        "rank 0 has posted isend(to 1), which does not meet irecv(from 0).wait() of rank 2; check who sends to whom",
    ),
    (
        ring_that_sends_and_receives_on_the_same_side,
        3,
        {r: (f"sendrecv(to {(r + 1) % 3}, from {(r + 1) % 3})", ((r + 1) % 3,)) for r in range(3)},
        [0, 1, 2, 0],
        "the ranks' calls do not pair up; compare their order and direction on both sides",
    ),
    (
        rank_1_skips_one_barrier,
        4,
        dict.fromkeys((0, 2, 3), ("barrier", (1,))),
        [0, 1],
        "rank 1 takes part in fewer calls than its peers expect: nothing in it meets barrier",
    ),
    (
        crossed_order_of_two_groups,
        4,
        {
            0: ("barrier of group world/1:0", (1,)),
            1: ("barrier of group world/2:1", (3,)),
            2: ("barrier of group world/2:0", (0,)),
            3: ("barrier of group world/1:1", (2,)),
        },
        [0, 1, 3, 2, 0],
        "the ranks enter their groups' collectives in different orders, or one skips a collective",
    ),
    (
        a_receive_that_nobody_meets,
        2,
        {0: ("irecv(from 1).wait()", (1,)), 1: ("barrier", (0,))},
        [0, 1, 0],
        "rank 0 needs rank 1, which has gone on to barrier; their calls come in different orders, or one is missing",
    ),
    (
        send_to_oneself,
        2,
        {0: ("send(to 0)", (0,)), 1: ("send(to 1)", (1,))},
        [0, 0],
        "rank 0 waits for itself; post both isend and irecv first, then wait",
    ),
    (
        receive_from_a_rank_that_is_finished,
        3,
        {0: ("recv(from 2)", (2,))},
        [0, 2],
        "rank 2 takes part in fewer calls than its peers expect: nothing in it meets recv(from 2)",
    ),
    (
        collective_against_messages,
        3,
        {0: ("all_reduce", (1, 2)), 1: ("recv(from 2)", (2,)), 2: ("send(to 0)", (0,))},
        [0, 1, 2, 0],
        "rank 2 needs rank 0, which has gone on to all_reduce",
    ),
    (
        the_odd_ranks_of_a_group_send_first,
        4,
        {1: ("send(to 3)", (3,)), 3: ("send(to 1)", (1,))},
        [1, 3, 1],
        "ranks 1, 3 send first, and a send returns when it is received; let one receive first, or use sendrecv",
    ),
    (
        rank_5_skips_the_collective_of_its_group,
        6,
        {1: ("all_reduce of group world/1:1", (5,)), 3: ("all_reduce of group world/1:1", (5,))},
        [1, 5],
        "rank 5 takes part in fewer calls than its peers expect: nothing in it meets all_reduce of group world/1:1",
    ),
    (
        collective_beside_a_program_that_one_rank_skips,
        3,
        {0: ("iall_reduce().wait()", (2,)), 1: ("iall_reduce().wait()", (2,))},
        [0, 2],
        "rank 2 takes part in fewer calls than its peers expect: nothing in it meets iall_reduce().wait()",
    ),
    (
        inside_a_collective_that_one_rank_calls_on_its_own,
        3,
        {0: ("sendrecv(to 1, from 2)", (1, 2))},
        [0, 1],
        "rank 1 takes part in fewer calls than its peers expect: nothing in it meets sendrecv(to 1, from 2)",
    ),
]


def deadlock_of(program, size, *args):
    with pytest.raises(DeadlockError) as caught:
        run(program, size, *args)
    return caught.value


@pytest.mark.parametrize(("program", "size", "waiting", "path", "cause"), CASES, ids=[c[0].__name__ for c in CASES])
def test_a_deadlock_is_named_with_ranks_calls_and_cause(program, size, waiting, path, cause):
    error = deadlock_of(program, size)
    assert {rank: (step.call, step.peers) for rank, step in error.waiting.items()} == waiting
    assert error.path == path
    assert error.left == set(range(size)) - waiting.keys()
    assert error.cycle == (path[:-1] if path[-1] in path[:-1] else [])
    assert error.rank == min(waiting)
    text = str(error)
    assert text.splitlines()[0] == f"no rank can move: {len(waiting)} blocked, {size - len(waiting)} finished"
    assert f"\nlikely cause: {cause}" in text
    on_path = [rank for rank in dict.fromkeys(path) if rank in waiting]
    for rank, line in zip(on_path, text.splitlines()[1:], strict=False):
        call, peers = waiting[rank]
        of = f"rank {peers[0]}" if len(peers) == 1 else f"ranks {', '.join(map(str, peers))}"
        assert line.startswith(f"  rank {rank} waits in {call} for {of}, at line ")
    if path[-1] not in waiting:
        assert f"  rank {path[-1]} has already returned from the program" in text


def test_the_line_of_the_innermost_caller_is_shown():
    text = str(deadlock_of(inside_a_strategy, 2))
    assert "of strategy: comm.send(x, comm.right)" in text


def test_a_request_that_its_peer_has_met_is_not_named_as_the_cause():
    def program(comm):
        if comm.rank == 0:
            met, unmet = comm.isend(X, 1), comm.isend(X, 1)
            comm.recv(1, X)
            met.wait(), unmet.wait()
        else:
            comm.recv(0, X)
            comm.send(X, comm.rank)

    error = deadlock_of(program, 2)
    assert error.waiting[0].unmet == ("isend(to 1)",)


def test_a_long_circle_of_20_ranks_shows_8_and_counts_the_other_12():
    error = deadlock_of(ring_of_receives, 20)
    assert len(error.cycle) == 20
    assert "  ... and 12 more in the same chain" in str(error)
    assert str(error).count(" waits in ") == 8


def test_a_collective_of_20_ranks_of_which_9_are_missing_names_8_and_counts_1():
    def nine_missing(comm):
        if comm.rank < 11:
            comm.barrier()

    assert "for ranks 11, 12, 13, 14, 15, 16, 17, 18 and 1 more, at" in str(deadlock_of(nine_missing, 20))


def test_a_deadlock_that_cannot_be_described_still_ends_the_run(monkeypatch):
    def fails(tasks):
        raise ZeroDivisionError("no description")

    monkeypatch.setattr("parlab.world.engines.threads.deadlock_of", fails)
    with pytest.raises(ZeroDivisionError, match="no description"):
        run(lambda comm: comm.recv(comm.left, np.ones(1)), 3)
