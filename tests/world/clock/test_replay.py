"""The clock against a second one, written from DESIGN's rules alone, on random programs and in small cases by hand."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from parlab.world import CLASSROOM, Cluster, DeadlockError, Link, per_rank, run
from tests.world.clock.slow_clock import Clocked, Rules, simulate
from tests.world.random_programs import operations, program, random_steps


def clusters(random):
    """Links on which a byte takes one tick and a message few, so that much happens at the same instant."""
    links = [Link(latency=random.randrange(4) * 1e-12, bandwidth=1e12) for _ in "ab"]
    return Cluster(
        "ticks", CLASSROOM.device, random.randrange(1, 4), *links, ports=random.choice((1, 1, 2, None, "a level"))
    )


def as_clocked(timeline):
    return Clocked(
        sorted((t.src, t.dst, t.nbytes, t.ready, t.start, t.end) for t in timeline.transfers),
        sorted((c.rank, c.start, c.end, c.name) for c in timeline.computes),
        sorted((w.rank, w.start, w.end, None if w.name == "split" else w.peer, *w[4:]) for w in timeline.waits),
        timeline.makespan,
    )


@pytest.mark.parametrize(
    ("programs", "size", "length"),
    [(10, 1, 20), (20, 3, 30), (15, 6, 60), pytest.param(200, 6, 60, marks=pytest.mark.slow)],
)
def test_random_programs_take_exactly_the_times_of_the_slow_clock(programs, size, length):
    for seed in range(programs):
        random = Random(seed)
        steps = random_steps(random, size, length, timed=True)
        done = run(program, size, steps)
        lists, flows, collectives = operations(steps, size)
        for cluster in [clusters(random) for _ in range(3)]:
            assert as_clocked(done.on(cluster)) == simulate(lists, flows, collectives, cluster), seed


BROKEN_RULES = {
    "no ports": Rules(sender_port=False, receiver_port=False),
    "the sender's port alone": Rules(receiver_port=False),
    "the receiver's port alone": Rules(sender_port=False),
    "senders first": Rules(order=lambda ready, number, src: (src, ready, number)),
    "posting numbers first": Rules(order=lambda ready, number, src: (number, ready, src)),
    "senders before posting numbers": Rules(order=lambda ready, number, src: (ready, src, number)),
    "the latest first": Rules(order=lambda ready, number, src: (-ready, number, src)),
    "nobody passed over": Rules(pass_over=False),
    "starts before all endings": Rules(endings_first=False),
    "collectives are barriers": Rules(barriers=True),
}


@pytest.mark.parametrize("broken", BROKEN_RULES.values(), ids=BROKEN_RULES)
def test_the_random_programs_tell_each_rule_from_a_broken_one(broken):
    for seed in range(200):
        random = Random(seed)
        steps = random_steps(random, 5, 40, timed=True)
        cluster = clusters(random)
        lists, flows, collectives = operations(steps, 5)
        if simulate(lists, flows, collectives, cluster) != simulate(lists, flows, collectives, cluster, broken):
            return
    raise AssertionError("200 programs cannot tell this rule from the right one")


TICKS = Cluster.uniform(latency=10e-12, bandwidth=1e12)  # 10 ticks and one a byte


def bytes_(count):
    return np.zeros(count, dtype=np.uint8)


def late(comm, seconds):
    """Come so many ticks late."""
    with comm.compute("late", seconds=seconds * 1e-12):
        pass


def test_of_two_messages_in_a_queue_the_second_goes_at_110_where_the_first_finds_its_other_port_busy_until_310():
    def program_(comm):
        posts = {
            0: [(comm.isend, 100, 2), (comm.isend, 100, 1), (comm.isend, 100, 2)],
            1: [(comm.irecv, 300, 3), (comm.irecv, 100, 0)],
            2: [(comm.irecv, 100, 0), (comm.irecv, 100, 0)],
            3: [(comm.isend, 300, 1)],
        }[comm.rank]
        for request in [
            post(bytes_(count), peer) if post == comm.isend else post(peer, bytes_(count))
            for post, count, peer in posts
        ]:
            request.wait()

    went = sorted((t.src, t.dst, t.start, t.end) for t in run(program_, 4, cluster=TICKS).timeline.transfers)
    assert went == [(0, 1, 310, 420), (0, 2, 0, 110), (0, 2, 110, 220), (3, 1, 0, 310)]


def test_a_wait_that_never_ends_names_who_never_came_and_one_for_work_beside_the_program_its_own_rank():
    def program_(comm):
        if comm.rank == 2:
            late(comm, 30)
        else:
            request = comm.iall_reduce(np.ones(2))
            comm.recv(2, bytes_(1)) if comm.rank else request.wait()

    with pytest.raises(DeadlockError) as caught:
        run(program_, 3)
    assert caught.value.run.timeline.waits == [(0, 0, 30, 0, "request", 0), (1, 0, 30, 2, "receive", 30)]


# Collectives


def test_a_split_is_left_when_the_last_of_5_ranks_enters_whoever_it_is_and_the_waits_name_it():
    def program_(comm, last):
        late(comm, 1000 * (comm.rank == last))
        comm.split(0)

    for last in range(5):
        waits = run(program_, 5, last, cluster=TICKS).timeline.waits
        assert sorted(waits) == [(rank, 0, 1000, last, "split", 1000) for rank in range(5) if rank != last]


def test_a_collective_that_ranks_2_and_3_never_enter_is_left_by_nobody_and_the_waits_name_rank_2():
    def program_(comm):
        late(comm, 10 * comm.rank)
        if comm.rank < 2:
            comm.barrier() if comm.rank else comm.broadcast(np.zeros(1))

    with pytest.raises(DeadlockError) as caught:
        run(program_, 4)
    timeline = caught.value.run.timeline
    assert timeline.transfers == []
    assert timeline.waits == [(0, 0, 30, 2, "broadcast", 30), (1, 10, 30, 2, "barrier", 30)]
    assert timeline.makespan == 30


def test_a_message_to_oneself_takes_no_time_no_port_and_is_not_counted_as_sent():
    def to_itself(comm):
        return comm.sendrecv(bytes_(1000), comm.rank, comm.rank).size

    done = run(to_itself, 2, cluster=TICKS)
    assert done.results == [1000, 1000]
    assert (done.timeline.makespan, done.timeline.messages(0), done.timeline.bytes_sent(0)) == (0, 0, 0)


def test_a_compute_lasts_its_roofline_or_its_seconds():
    cluster = Cluster.uniform(0, 1e9, flops=4e9, memory_bandwidth=1e9)

    def computes(comm):
        with comm.compute("by flops", flops=4000, bytes=1000):
            pass
        with comm.compute("by bytes", flops=10, bytes=2000):
            pass
        with comm.compute("as stated", flops=10**9, seconds=3e-6):
            pass

    spans = run(computes, 2, cluster=cluster).timeline.computes
    for rank in (0, 1):
        lasted = [span.end - span.start for span in spans if span.rank == rank]
        assert lasted == [1_000_000, 2_000_000, 3_000_000]


def test_a_collective_beside_a_compute_of_equal_length_costs_no_time():
    size = 4
    x = np.ones(8 * size)
    alone = run(lambda comm: comm.iall_reduce(x).wait(), size, cluster=TICKS).timeline.makespan
    assert alone == run(lambda comm: comm.all_reduce(x), size, cluster=TICKS).timeline.makespan

    def overlapped(comm):
        request = comm.iall_reduce(x)
        with comm.compute("hidden", seconds=alone * 1e-12):
            pass
        return request.wait()

    done = run(overlapped, size, cluster=TICKS)
    assert done.timeline.makespan == alone
    assert done.timeline.waits == []  # its messages wait for each other, and no rank for them
    np.testing.assert_array_equal(done.results[3], size * x)


def test_of_a_message_and_one_beside_the_program_ready_at_once_the_programs_goes_first():
    def program_(comm):
        total = comm.iall_reduce(np.ones(2))
        message = comm.irecv(0, bytes_(8)) if comm.rank else comm.isend(bytes_(8), 1)
        message.wait()
        total.wait()

    timeline = run(program_, 2, cluster=TICKS).timeline
    assert [(t.name, t.start) for t in timeline.transfers if t.src == 0] == [
        ("message", 0),
        ("all_reduce", 18),
        ("all_reduce", 36),
    ]


def test_prints_come_by_simulated_time_then_rank(capsys):
    def program_(comm, seconds):
        comm.print("first", 1)
        with comm.compute("work", seconds=seconds):
            pass
        comm.print(comm.rank, [2], "lines\nof text")

    run(program_, 3, per_rank([3e-6, 1e-6, 1e-6]))
    assert capsys.readouterr().out.splitlines() == [
        "rank 0: first 1",
        "rank 1: first 1",
        "rank 2: first 1",
        "rank 1: 1 [2] lines",
        "of text",
        "rank 2: 2 [2] lines",
        "of text",
        "rank 0: 0 [2] lines",
        "of text",
    ]


def test_what_a_rank_prints_at_one_time_stays_in_the_order_of_its_program(capsys):
    def program_(comm):
        for word in ("second", "first", "10", "9", "Z", "a"):
            comm.print(word)

    run(program_, 2)
    words = ["second", "first", "10", "9", "Z", "a"]
    assert capsys.readouterr().out.splitlines() == [f"rank {rank}: {word}" for rank in (0, 1) for word in words]
