"""Held bytes: counted from the irecv until the memory dies, each buffer once, the same in every run."""

from __future__ import annotations

import sys
import weakref

import numpy as np
import pytest

from parlab.world import Cluster, DeadlockError, per_rank, run

KB = 1000
TICKS = Cluster.uniform(latency=0, bandwidth=1e12)  # a picosecond a byte


def bytes_(xp, count):
    return xp.zeros(count, dtype=xp.uint8)


def test_a_message_is_held_from_its_irecv_on_until_its_last_reference_dies(xp):
    def program(comm):
        with comm.compute("before", seconds=100e-12):
            pass
        if comm.rank == 1:
            comm.send(bytes_(xp, KB), 0)
            return
        request = comm.irecv(1, bytes_(xp, KB))
        x = request.wait()
        with comm.compute("use", seconds=50e-12):
            pass
        del x
        with comm.compute("after", seconds=50e-12):
            pass

    timeline = run(program, 2, cluster=TICKS).timeline
    assert timeline.held(0) == [(100, KB), (1150, 0)]
    assert timeline.held_by_name(0) == {"received": [(100, KB), (1150, 0)]}
    assert timeline.peak_bytes(0) == KB
    assert timeline.makespan == 1200


SENDS = {
    "send": lambda comm, x: comm.recv(0, x) if comm.rank else comm.send(x, 1),
    "isend": lambda comm, x: comm.recv(0, x) if comm.rank else comm.isend(x, 1).wait(),
    "sendrecv": lambda comm, x: comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "gather": lambda comm, x: comm.gather(x, root=1),
}


@pytest.mark.parametrize("how", SENDS.values(), ids=SENDS)
def test_what_is_sent_is_held_by_its_sender_from_the_send_until_it_has_passed(xp, how):
    """A message takes 10 ticks; the receiver comes at 100."""

    def program(comm):
        with comm.compute("late", seconds=100e-12 * comm.rank):
            pass
        how(comm, bytes_(xp, KB))

    timeline = run(program, 2, cluster=Cluster.uniform(latency=0, bandwidth=100e12)).timeline
    assert timeline.held_by_name(0)["sent"] == [(0, KB), (110, 0)]


def test_what_is_sent_from_memory_that_counts_is_counted_once_blocking_or_posted_ahead(xp):
    """Two ranks exchange a block that they hold: their own and the one that comes, 2 blocks at the most."""

    def blocking(comm, x):
        comm.hold("own block", x)
        with comm.compute("work", seconds=2e-9):
            pass
        y = comm.sendrecv(x, comm.right, comm.left)
        comm.send(y, comm.right) if comm.rank else comm.recv(comm.left, x)

    def ahead(comm, x):
        comm.hold("own block", x)
        sent, arriving = comm.isend(x, comm.right), comm.irecv(comm.left, x)
        with comm.compute("work", seconds=2e-9):
            pass
        sent.wait()
        arriving.wait()

    blocks = per_rank([bytes_(xp, KB)] * 2)
    timelines = [run(program, 2, blocks, cluster=TICKS).timeline for program in (blocking, ahead)]
    assert [timeline.peak_bytes(1) for timeline in timelines] == [2 * KB, 2 * KB]
    assert all("sent" not in timeline.held_by_name(1) for timeline in timelines)
    received = timelines[1].held_by_name(1)["received"]
    assert received == [(0, KB), (2000, 0)]  # with overlap the receive buffer is held longer: while the rank works


def test_memory_that_counts_lives_until_the_wait_of_its_isend_and_other_memory_as_long_as_the_program_wants(xp):
    def program(comm):
        other = 1 - comm.rank
        held, temporary = bytes_(xp, KB), bytes_(xp, KB)
        comm.hold("held", held)
        died = weakref.ref(temporary)
        requests = [comm.isend(x, other) for x in (held, temporary)]
        del held, temporary
        assert died() is None
        arriving = [comm.irecv(other, bytes_(xp, KB)) for _ in requests]
        with comm.compute("work", seconds=9e-9):
            pass
        for request in (*arriving, *requests):
            request.wait()

    timeline = run(program, 2, cluster=TICKS).timeline
    assert timeline.held_by_name(1)["held"] == [(0, KB), (9000, 0)]  # at the wait
    assert timeline.held_by_name(1)["sent"] == [(0, KB), (2000, 0)]  # the temporary one: until it has passed


@pytest.mark.parametrize("beside", [False, True])
def test_a_ring_all_reduce_of_4_blocks_holds_the_block_that_leaves_and_the_one_that_comes(xp, beside):
    x = bytes_(xp, 4 * KB)
    all_reduce = (lambda comm: comm.iall_reduce(x).wait()) if beside else (lambda comm: comm.all_reduce(x))
    timeline = run(all_reduce, 4).timeline
    assert [timeline.peak_bytes(rank) for rank in range(4)] == [2 * KB] * 4
    assert max(total for _, total in timeline.held_by_name(2)["sent"]) == KB


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_collective_beside_sends_counts_alike_whenever_the_program_holds_its_memory(when):
    def program(comm):
        whole = bytes_(np, 4 * KB)
        if when == "before":
            comm.hold("whole", whole)
        request = comm.iall_gather(whole[comm.rank * KB :][:KB], out=whole)
        if when == "after":
            comm.hold("whole", whole)
        request.wait()

    timeline = run(program, 4).timeline
    assert max(total for _, total in timeline.held_by_name(1)["sent"]) == KB


def test_a_message_that_nobody_takes_is_held_to_the_end_and_one_to_oneself_for_no_time(xp):
    def program(comm):
        comm.sendrecv(bytes_(xp, 10), comm.rank, comm.rank)
        if comm.rank == 0:
            comm.send({"k": (bytes_(xp, KB), bytes_(xp, 5))}, 1)

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    assert caught.value.run.timeline.held_by_name(0)["sent"] == [(0, 10), (0, 0), (0, KB + 5)]


def test_memory_for_a_message_that_nobody_sends_is_held_from_its_receive_on(xp):
    def program(comm):
        if comm.rank == 0:
            comm.recv(1, {"k": (bytes_(xp, KB), xp.zeros((2, 3), dtype=xp.float64))})

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    assert caught.value.run.timeline.held(0) == [(0, KB + 48)]


def test_the_array_that_says_what_comes_is_not_kept_alive_by_an_irecv(xp):
    def program(comm):
        if comm.rank == 1:
            comm.recv(0, bytes_(xp, 1))
            comm.send(bytes_(xp, KB), 0)
            return
        like = bytes_(xp, KB)
        comm.hold("like", like)
        request = comm.irecv(1, like)
        del like
        comm.send(bytes_(xp, 1), 1)
        request.wait()

    timeline = run(program, 2, cluster=TICKS).timeline
    assert timeline.held_by_name(0)["like"] == [(0, KB), (0, 0)]


def test_a_view_that_is_held_counts_the_memory_it_keeps(xp):
    def program(comm):
        view = bytes_(xp, KB)[:10]
        comm.hold("slice", view)
        return view

    assert run(program, 1).timeline.peak_bytes(0) == KB


def test_the_same_memory_is_counted_once_under_its_first_name(xp):
    def program(comm):
        x = bytes_(xp, KB)
        comm.hold("first", x)
        comm.hold("second", x, x[:5], [x], {"k": (x,)})
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            received = comm.recv(0, x)
            comm.hold("third", received)

    timeline = run(program, 2).timeline
    assert set(timeline.held_by_name(0)) == {"first"}
    assert set(timeline.held_by_name(1)) == {"first", "received"}
    assert timeline.peak_bytes(1) == 2 * KB


def test_hold_takes_nested_values_and_names_add_up(xp):
    def program(comm):
        kept = {"a": [bytes_(xp, 10), (bytes_(xp, 20),)], "b": bytes_(xp, 30)}
        comm.hold("nested", kept, bytes_(xp, 40))  # the last one dies at once
        comm.hold("other", bytes_(xp, 50))
        return kept

    timeline = run(program, 1).timeline
    assert timeline.held_by_name(0)["nested"][-1] == (0, 60)
    assert timeline.held_by_name(0)["other"][-1] == (0, 0)
    assert timeline.peak_bytes(0) == 110


def test_what_outlives_its_program_is_held_to_the_end_and_dies_after_the_run_unnoticed():
    kept = []

    def program(comm):
        kept.append(bytes_(np, KB))
        comm.hold("kept", kept[-1])

    done = run(program, 1)
    kept.clear()
    assert done.timeline.held(0) == [(0, KB)]


def test_an_empty_array_holds_nothing(xp):
    def program(comm):
        comm.hold("empty", bytes_(xp, 0))
        comm.sendrecv(bytes_(xp, 0), comm.right, comm.left)

    assert run(program, 2).timeline.peak_bytes(0) == 0
    exchanged = run(lambda comm: comm.sendrecv(bytes_(xp, 0), comm.right, comm.left), 2).timeline
    assert exchanged.held(0) == []  # not even a change by nothing


@pytest.mark.parametrize("runs", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_an_array_that_a_gather_beside_the_program_filled_dies_where_the_program_drops_it(runs):
    """However the threads are switched: after each of 50 computations of 1 ms."""

    def program(comm):
        for _ in range(50):
            whole = np.empty(comm.size)
            comm.hold("whole", whole)
            request = comm.iall_gather(np.ones(1), out=whole)
            with comm.compute("meanwhile", seconds=1e-3):
                request.wait()
            del whole

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        held = [run(program, 4).timeline.held_by_name(3)["whole"] for _ in range(runs)]
    finally:
        sys.setswitchinterval(interval)
    expected = [(ms * 10**9, total) for step in range(50) for ms, total in ((step, 32), (step + 1, 0))]
    assert held == [expected] * runs
