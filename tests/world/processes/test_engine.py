"""The engine of ranks as processes: when it reports that it is stuck, and what it keeps alive."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace

import numpy as np

from parlab import run
from parlab.world.processes import engine
from parlab.world.processes.deadlock import Report
from parlab.world.processes.engine import ProcessEngine
from parlab.world.program import carry_out
from tests.world.processes.nccl_peers import peers, together


def receives_and_drops(comm):
    """Which arrays that came are dead when the program has dropped them."""
    dead = []
    for size in (4, 100_000):
        x = comm.sendrecv(np.full(size, float(comm.rank)), comm.right, comm.left)
        memory = weakref.ref(x if x.base is None else x.base)
        del x
        dead.append(memory() is None)
        request = comm.irecv(comm.left, np.zeros(size))
        comm.isend(np.zeros(size), comm.right).wait()
        x = request.wait()
        memory = weakref.ref(x if x.base is None else x.base)
        del x, request
        dead.append(memory() is None)
    return dead


def test_what_was_received_dies_with_the_programs_last_reference():
    assert run(receives_and_drops, 2).results == [[True] * 4] * 2


def test_what_was_received_by_nccl_dies_with_the_programs_last_reference():
    with peers(2) as transports:

        def body(rank):
            world = ProcessEngine(transports[rank])
            carry_out(world, receives_and_drops, (), {})
            return world.tasks[0].result

        assert together(body, 2) == [[True] * 4] * 2


def test_a_rank_reports_once_after_a_while_in_a_wait_and_at_once_when_its_program_is_over(monkeypatch):
    reports = []
    world = ProcessEngine(SimpleNamespace(rank=1, size=2, ahead=0))
    monkeypatch.setattr(world, "_tell", lambda rank, note: reports.append((rank, type(note))))
    now = [100.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter_ns=time.perf_counter_ns))
    world._report_if_due()
    assert reports == []  # it runs

    world.blocked = world.present
    world._all_blocked()
    world._report_if_due()
    assert reports == []  # it has only begun to wait
    now[0] += engine.PATIENCE + 0.01
    world.blocked = 0
    world._report_if_due()
    assert reports == []  # it has gone on meanwhile
    world.blocked = world.present
    for _ in range(3):
        world._report_if_due()
    assert reports == [(0, Report)]

    world._all_blocked()  # it went on, and waits again: a new report
    now[0] += engine.PATIENCE + 0.01
    world._report_if_due()
    assert reports == [(0, Report)] * 2

    world.present = world.blocked = 0
    monkeypatch.setattr(world, "_caller_woken", lambda within: True)
    monkeypatch.setattr(world, "_poll", lambda over: world._report_if_due())
    world._await_the_end()
    assert reports == [(0, Report)] * 3  # its program is over, which will not change
