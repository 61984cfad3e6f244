"""The same program gives the same run, however the threads are scheduled."""

from __future__ import annotations

import sys
from random import Random

import numpy as np
import pytest

from parlab.world import MismatchError, WorldError, run
from tests.world.random_programs import program, random_steps


@pytest.fixture(autouse=True)
def threads_switch_at_random():
    """Let the interpreter switch threads far more often than it would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def fingerprint(timeline):
    return (
        tuple(timeline.spans),
        tuple(timeline.transfers),
        tuple(timeline.waits),
        tuple(tuple(timeline.held(rank)) for rank in range(timeline.size)),
        tuple(str(timeline.held_by_name(rank)) for rank in range(timeline.size)),
        timeline.makespan,
    )


@pytest.mark.parametrize(
    "seed", [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(30)]
)
def test_one_timeline_one_output_one_result_in_10_runs_under_random_delays_of_program(seed, capsys):
    random = Random(seed)
    size = random.randrange(2, 7)
    steps = random_steps(random, size, 40)
    outcomes = set()
    for delays in range(10):
        done = run(program, size, steps) if delays == 0 else run(program, size, steps, delays=delays)
        outcomes.add((fingerprint(done.timeline), capsys.readouterr().out, str(done.results)))
    assert len(outcomes) == 1


@pytest.mark.parametrize("programs", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_correct_programs_raise_no_false_alarm(programs):
    for seed in range(programs):
        random = Random(1000 + seed)
        size = random.randrange(1, 6)
        run(program, size, random_steps(random, size, 12))


def failures(broken, *, runs=8):
    """The texts and timelines of the runs of a program that fails, each under other delays."""
    outcomes = set()
    for delays in range(runs):
        with pytest.raises(WorldError) as caught:
            run(broken, 4, delays)
        outcomes.add((str(caught.value), fingerprint(caught.value.run.timeline)))
    return outcomes


def hesitate(comm, delays):
    import time

    time.sleep(Random(f"{delays} {comm.rank}").random() * 2e-3)


def test_a_run_that_fails_has_one_text_and_one_timeline_too():
    def deadlock(comm, delays):
        comm.compute("before", seconds=comm.rank)
        hesitate(comm, delays)
        if comm.rank == 3:
            return
        comm.barrier() if comm.rank % 2 else comm.all_reduce(np.ones(2))

    def other_shapes(comm, delays):
        hesitate(comm, delays)
        comm.sendrecv(np.ones(2 + comm.rank), comm.right, comm.left, like=np.ones(9))

    def other_labels(comm, delays):
        hesitate(comm, delays)
        request = comm.irecv(comm.left, np.ones(2), label="F0")
        hesitate(comm, delays + 100)
        comm.send(np.ones(2), comm.right, label="F1")
        request.wait()

    def other_collectives(comm, delays):
        hesitate(comm, delays)
        comm.all_reduce(np.ones(2)) if comm.rank else comm.barrier()

    def not_waited_for(comm, delays):
        hesitate(comm, delays)
        comm.irecv(comm.left, np.ones(3))
        comm.isend(np.ones(3), comm.right)

    for broken in (deadlock, other_shapes, other_labels, other_collectives, not_waited_for):
        assert len(failures(broken)) == 1, broken.__name__


def test_the_lowest_rank_that_raises_wins_in_8_runs_although_others_raise_earlier():
    def raises(comm, delays):
        if comm.rank == 1:
            comm.recv(0, np.ones(1))  # rank 1 raises last
        hesitate(comm, delays)
        if comm.rank == 0:
            comm.send(np.ones(1), 1)
            comm.barrier()
        raise KeyError(comm.rank)

    for delays in range(8):
        with pytest.raises(KeyError) as caught:
            run(raises, 4, delays)
        assert (caught.value.args, caught.value.rank) == ((1,), 1)


def test_a_mismatch_is_an_error_of_the_receiver_in_8_runs():
    def other_dtype(comm, delays):
        hesitate(comm, delays)
        if comm.rank == 0:
            comm.send(np.ones(2, dtype=np.float32), 1)
        elif comm.rank == 1:
            comm.recv(0, np.ones(2))

    for delays in range(8):
        with pytest.raises(MismatchError) as caught:
            run(other_dtype, 4, delays)
        assert caught.value.rank == 1
