"""When a deadlock is declared: only if no report, old or new, covers what another rank waits for."""

from __future__ import annotations

import pytest

from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.processes.deadlock import deadlock_in, failed, some_can_move

WAY = ["world", "messages", 0, 1]  # from rank 0 to rank 1
BACK = ["world", "messages", 1, 0]


def report(rank, waits=None, *, posts=(), entered=0, error=False, background=()):
    tasks = [waits and ["recv" if waits[0] == "messages" else "barrier", waits], *background]
    posts = [list(counts) for counts in posts]
    place = f", at line {rank}"
    return dict(rank=rank, place=place, error=error, posts=posts, collectives={"world": entered}, tasks=tasks, open=[])


def receive(way, number):
    return ["messages", [[way, number, POST_RECEIVE]]]


def send(way, number):
    return ["messages", [[way, number, POST_SEND]]]


BARRIER = ["collective", ["world", 2], [0, 1]]
BOTH = ["messages", [[WAY, 0, POST_SEND], [BACK, 0, POST_RECEIVE]]]


@pytest.mark.parametrize(
    ("reports", "moves"),
    [
        ([report(0, receive(BACK, 0)), report(1, receive(WAY, 0))], False),
        ([report(0, receive(BACK, 0)), report(1, receive(WAY, 0), posts=[[BACK, 1, 0]])], True),
        ([report(0, receive(BACK, 1)), report(1, receive(WAY, 0), posts=[[BACK, 1, 0]])], False),
        ([report(0, send(WAY, 0)), report(1, None, posts=[[WAY, 0, 1]])], True),
        ([report(0, send(WAY, 0), posts=[[WAY, 1, 1]]), report(1)], False),  # its own posts meet nothing
        ([report(0, BOTH), report(1, None, posts=[[WAY, 0, 1]])], False),  # a sendrecv needs both
        ([report(0, BOTH), report(1, None, posts=[[WAY, 0, 1], [BACK, 1, 0]])], True),
        ([report(0, BARRIER, entered=3), report(1, receive(WAY, 0), entered=2)], False),
        ([report(0, BARRIER, entered=3), report(1, receive(WAY, 0), entered=3)], True),
        ([report(0, ["signal", 1], background=[["", BARRIER]], entered=3), report(1, entered=2)], False),
        ([report(0, ["signal", 1], background=[["", BARRIER]], entered=3), report(1, entered=3)], True),
        ([report(0), report(1)], False),
    ],
)
def test_a_rank_moves_if_and_only_if_some_report_covers_all_that_one_of_its_tasks_waits_for(reports, moves):
    assert some_can_move({said["rank"]: said for said in reports}) == moves


def test_left_is_an_end_an_error_comes_first_and_else_the_waits_are_a_deadlock_with_their_lines():
    assert not failed([report(0), report(1)])
    assert deadlock_in([report(0), report(1)]) is None
    raised = [report(0, receive(BACK, 0)), report(1, error=True)]
    assert failed(raised)
    assert deadlock_in(raised) is None
    deadlock = deadlock_in([report(0, receive(BACK, 0)), report(1, receive(WAY, 0))])
    assert deadlock.cycle == [0, 1]
    assert "rank 0 waits in recv(from 1) for rank 1, at line 0" in str(deadlock)
    assert deadlock_in([report(0, receive(BACK, 0)), report(1)]).left == {1}
