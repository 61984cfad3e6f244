"""When a deadlock is declared: only if no report, old or new, covers what another rank waits for."""

from __future__ import annotations

import pytest

from parlab.world.engines.log import POST_RECEIVE, POST_SEND
from parlab.world.processes.deadlock import (
    ForCollective,
    ForMessage,
    ForSignal,
    Report,
    Waiting,
    deadlock_in,
    failed,
    some_can_move,
)

WAY = ("world", "messages", 0, 1)  # from rank 0 to rank 1
BACK = ("world", "messages", 1, 0)


def report(rank, needs=None, *, posts=(), entered=0, raised=False, background=()):
    main = needs and Waiting("recv" if isinstance(needs, list) else "barrier", needs)
    sends, receives = {box: sent for box, sent, _ in posts}, {box: asked for box, _, asked in posts}
    return Report(
        rank, f", at line {rank}", raised, sends, receives, {"world": entered}, tasks=[main, *background], open=[]
    )


def receive(way, number):
    return [ForMessage(way, number, POST_RECEIVE)]


def send(way, number):
    return [ForMessage(way, number, POST_SEND)]


BARRIER = ForCollective("world", 2, (0, 1))
BOTH = [ForMessage(WAY, 0, POST_SEND), ForMessage(BACK, 0, POST_RECEIVE)]


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
        ([report(0, ForSignal(1), background=[Waiting("", BARRIER)], entered=3), report(1, entered=2)], False),
        ([report(0, ForSignal(1), background=[Waiting("", BARRIER)], entered=3), report(1, entered=3)], True),
        ([report(0), report(1)], False),
    ],
)
def test_a_rank_moves_if_and_only_if_some_report_covers_all_that_one_of_its_tasks_waits_for(reports, moves):
    assert some_can_move({said.rank: said for said in reports}) == moves


def test_left_is_an_end_an_error_comes_first_and_else_the_waits_are_a_deadlock_with_their_lines():
    assert not failed([report(0), report(1)])
    assert deadlock_in([report(0), report(1)]) is None
    raised = [report(0, receive(BACK, 0)), report(1, raised=True)]
    assert failed(raised)
    assert deadlock_in(raised) is None
    deadlock = deadlock_in([report(0, receive(BACK, 0)), report(1, receive(WAY, 0))])
    assert deadlock.cycle == [0, 1]
    assert "rank 0 waits in recv(from 1) for rank 1, at line 0" in str(deadlock)
    assert deadlock_in([report(0, receive(BACK, 0)), report(1)]).left == {1}
