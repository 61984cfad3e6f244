"""Messages by NCCL, on a stand-in with its blocking rules: events, abort, and what no library may be asked."""

from __future__ import annotations

import threading

import array_api_strict
import numpy as np
import pytest

from parlab import run
from parlab.sequence import shard
from parlab.world.processes.engine import ProcessEngine
from parlab.world.program import carry_out, per_rank
from tests.device import DEVICE, guarded, on_device
from tests.sequence.rings import both, draw_inputs
from tests.world.processes.nccl_peers import arrived, numbers, peers, together, until
from tests.world.processes.process_job import bits


@pytest.fixture
def two():
    with peers(2) as made:
        yield made


def test_a_send_is_over_only_when_its_receiver_has_asked_and_nothing_runs_before(two):
    x, (a, b) = numbers(5), two
    sent = a.send(b"head", [x], 1, 0)
    assert not sent.has_passed()
    coming = b.expect(0, 0, [x])
    assert coming.receive_header() == b"head"
    assert not sent.has_passed()
    assert np.array_equal(arrived(coming, [x], a, b)[0], x)
    until(sent.has_passed, a, b)


def test_a_message_waits_until_the_gpu_has_computed_its_data_and_has_done_with_the_memory_that_it_fills(two):
    a, b = two
    x, go = np.zeros(4), threading.Event()
    a._cupy.current.launch(lambda: (go.wait(), x.__setitem__(..., 7)))

    def used(shape, dtype):
        room = np.zeros(shape, dtype)
        b._cupy.current.launch(lambda: (go.wait(), room.__setitem__(..., -1)))
        return room

    b._cupy.empty = used
    sent, coming = a.send(b"", [x], 1, 0), b.expect(0, 0, [x])
    assert coming.receive_header() == b""
    (came,) = coming.into([(x.shape, x.dtype)])
    try:
        with pytest.raises(AssertionError, match="it hangs"):
            until(lambda: coming.has_passed() or sent.has_passed(), a, b, seconds=0.3)
    finally:
        go.set()
    until(lambda: coming.has_passed() and sent.has_passed(), a, b)
    b._cupy.current.synchronize()
    assert list(came) == [7.0] * 4


def test_what_is_computed_after_both_ends_are_posted_delays_no_message(two):
    x, (a, b), go = numbers(6), two, threading.Event()
    sent, coming = a.send(b"", [x], 1, 0), b.expect(0, 0, [x])
    a._cupy.current.launch(go.wait)
    b._cupy.current.launch(go.wait)
    try:
        assert np.array_equal(arrived(coming, [x], a, b)[0], x)
        until(sent.has_passed, a, b)
    finally:
        go.set()


def test_after_renew_nothing_of_what_was_under_way_is_left_and_messages_pass(two):
    x, (a, b) = numbers(5), two
    a.send(b"old", [x], 1, 0)
    b.expect(0, 0, [x])
    a.send(b"half", [x], 1, 4)
    coming = b.expect(0, 4, [x])
    until(lambda: coming.receive_header() is not None, a, b)
    coming.into([(x.shape, x.dtype)])  # b receives, and a never hears that it may send
    a.tell(1, b"an old note")
    old = dict(a._pairs)
    together(lambda rank: two[rank].renew(), 2)
    with pytest.raises(RuntimeError, match="aborted"):
        old[0, 1].launch([x], a._ready_event([x]))
    sent, coming = a.send(b"new", [2 * x], 1, 0), b.expect(0, 0, [x])
    assert coming.receive_header() == b"new"
    leaves = coming.into([(x.shape, x.dtype)])
    until(lambda: coming.has_passed() and sent.has_passed(), a, b)
    assert np.array_equal(leaves[0], 2 * x)
    assert list(b.heard()) == []


# Whole programs, on device arrays that must not be looked at


def mixed(comm, xp):
    """Arrays of both kinds in one message, empty ones too, to others and to oneself; then a collective."""
    here = xp.asarray(np.arange(6.0).reshape(2, 3) + comm.rank, device=DEVICE)
    value = {"gpu": here, "host": np.arange(3.0) * comm.rank, "none": here[:0, ...], "flat": here.T, "one": here[0, 0]}
    came = comm.sendrecv(value, comm.right, comm.left)
    request = comm.irecv(comm.rank, value)
    comm.isend(value, comm.rank).wait()
    return came, request.wait(), comm.all_reduce(here), comm.iall_gather(here).wait()


@pytest.mark.parametrize("size", [2, 3])
def test_what_lies_on_the_device_stays_there_and_has_the_bits_of_threads(size):
    cut = [shard(x, size, "zigzag") for x in draw_inputs(1, 4, 2, 8 * size, 3)]
    programs = [
        (both, [per_rank([on_device(x) for x in pieces]) for pieces in cut], {"causal": True, "layout": "zigzag"}),
        (mixed, [array_api_strict], {}),
    ]
    with peers(size, strict=True) as transports:
        for program, args, kwargs in programs:

            def rank(me, program=program, args=args, kwargs=kwargs):
                world = ProcessEngine(transports[me])
                carry_out(world, program, args, kwargs)
                assert world.tasks[0].error is None, world.tasks[0].error
                return world.tasks[0].result

            with guarded() as seen:
                results = together(rank, size)
            assert [place for place in seen.explicit if not place.startswith("world/send_buffer.py")] == []
            assert len(seen.explicit) <= size  # one look a rank, after its program: has what it sent changed?
            with guarded():
                threads = run(program, size, *args, **kwargs).results
            assert bits(at_home(results)) == bits(at_home(threads))


def at_home(value):
    """The values, with every array in host memory, and the name of where it was."""
    if isinstance(value, dict):
        return {name: at_home(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [at_home(item) for item in value]
    return [str(value.device), np.asarray(value) if isinstance(value, np.ndarray) else np.from_dlpack(value)]
