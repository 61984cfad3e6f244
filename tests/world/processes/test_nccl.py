"""Messages by NCCL, on a stand-in with its blocking rules: order, events, abort, and what no library may be asked."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random

import array_api_strict
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab import run
from parlab.sequence import shard
from parlab.world.processes import nccl
from parlab.world.processes.engine import ProcessEngine
from parlab.world.processes.transport import in_host_memory
from parlab.world.program import carry_out, per_rank
from tests.device import DEVICE, guarded, on_device
from tests.sequence.rings import both, draw_inputs
from tests.world.processes import fake_nccl
from tests.world.processes.nccl_peers import arrived, numbers, peers, together, until
from tests.world.processes.process_job import bits


@pytest.fixture
def two():
    with peers(2) as made:
        yield made


def test_a_send_is_over_only_when_its_receiver_has_asked_and_nothing_runs_before(two):
    x, (a, b) = numbers(5), two
    sent = a.send(b"head", [x], 1, 0)
    assert not sent.done()
    assert a._pairs[0, 1]._stream.log == [1]  # the first byte, which connects them
    coming = b.expect(0, 0, [x])
    assert coming.header() == b"head"
    assert not sent.done()
    assert np.array_equal(arrived(coming, [x], a, b)[0], x)
    until(sent.done, a, b)


def late_data(a, b, seconds=0.3):
    """A send is posted before the GPU has computed what it sends, and room before the GPU has done with it: neither is
    over before, however many seconds pass.
    """
    x, go = np.zeros(4), threading.Event()
    a._cupy.current.launch(lambda: (go.wait(), x.__setitem__(..., 7)))

    def used(shape, dtype):
        room = np.zeros(shape, dtype)
        b._cupy.current.launch(lambda: (go.wait(), room.__setitem__(..., -1)))
        return room

    b._cupy.empty = used
    sent, coming = a.send(b"", [x], 1, 0), b.expect(0, 0, [x])
    until(lambda: coming.header() is not None, a, b)
    leaves = coming.into([(x.shape, x.dtype)])
    with suppress(AssertionError):
        until(lambda: coming.done() or sent.done(), a, b, seconds=seconds)
    early = coming.done() or sent.done()
    go.set()
    until(lambda: coming.done() and sent.done(), a, b)
    b._cupy.current.record(event := b._cupy.cuda.Event())
    until(lambda: event.done)
    return not early and list(leaves[0]) == [7.0] * 4


def later_work(a, b, seconds=20):
    """What is computed after both ends are posted delays no message: it is over within so many seconds."""
    x, go = numbers(6), threading.Event()
    sent, coming = a.send(b"", [x], 1, 0), b.expect(0, 0, [x])
    a._cupy.current.launch(go.wait)
    b._cupy.current.launch(go.wait)
    try:
        came = arrived(coming, [x], a, b, seconds=seconds)
        until(sent.done, a, b)
        return np.array_equal(came[0], x)
    except AssertionError:
        return False
    finally:
        go.set()


def crossed(a, b, seed=0, seconds=20):
    """20 messages each way on 6 ways of several arrays, posted in one order here and in another there."""
    random = Random(seed)
    posts = [(src, tag, k, random.randrange(4)) for src in (0, 1) for tag in (3, 5, 8) for k in range(7)]
    sent, coming = [], {}
    for src, tag, _, count in random.sample(posts, len(posts)):
        me, peer = (a, b) if src == 0 else (b, a)
        order = sum(1 for done in sent if done[:2] == (src, tag))
        values = [numbers(order + 3 * i, seed=order) for i in range(count)]
        sent.append((src, tag, values, me.send(b"%d" % order, values, 1 - src, tag)))
    for src, tag, _, _ in random.sample(posts, len(posts)):
        me = b if src == 0 else a
        asked = coming.setdefault((src, tag), [])
        like = [values for s, t, values, _ in sent if (s, t) == (src, tag)][len(asked)]
        asked.append((like, me.expect(src, tag, like)))
    left = {way: list(asked) for way, asked in coming.items()}
    results = []
    while left:
        way = random.choice(list(left))
        like, asked = left[way].pop(0)
        until(lambda asked=asked: asked.header() is not None, a, b)
        results.append((like, asked, asked.into([(x.shape, x.dtype) for x in like])))
        left = {way: asked for way, asked in left.items() if asked}
    until(
        lambda: all(asked.done() for _, asked, _ in results) and all(end.done() for *_, end in sent),
        a,
        b,
        seconds=seconds,
    )
    return all(np.array_equal(x, y) for like, _, came in results for x, y in zip(like, came, strict=True))


CHECKS = {"late data": late_data, "later work": later_work, "crossed": crossed}


@pytest.mark.parametrize("name", CHECKS)
def test_events_and_orders(two, name):
    assert CHECKS[name](*two)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_42_messages_posted_in_random_orders_arrive_and_both_ends_of_a_pair_run_them_in_one_order(two, seed):
    assert crossed(*two, seed)
    for pair in ((0, 1), (1, 0)):
        assert two[0]._pairs[pair]._stream.log == two[1]._pairs[pair]._stream.log


def waits_for_nothing(monkeypatch):
    monkeypatch.setattr("tests.world.processes.fake_nccl.Stream.wait_event", lambda stream, event: None)


def done_when_launched(monkeypatch):
    for kind in (nccl._Sent, nccl._Coming):
        monkeypatch.setattr(kind, "done", lambda end: getattr(end, "event", None) or getattr(end, "_event", None))


def room_when_it_goes(monkeypatch):
    into = nccl._Coming.into

    def late(coming, forms):
        coming._room_for = None
        return into(coming, forms)

    monkeypatch.setattr(nccl._Coming, "into", late)


def last_come_first_served(monkeypatch):
    launch = nccl.NCCLTransport._launch

    def turned(transport, dst, tag):
        transport._offered[dst, tag].reverse()
        launch(transport, dst, tag)
        transport._offered[dst, tag].reverse()

    monkeypatch.setattr(nccl.NCCLTransport, "_launch", turned)


def launched_when_offered(monkeypatch):
    send, launch = nccl.NCCLTransport.send, nccl.NCCLTransport._launch

    def at_once(transport, header, leaves, dst, tag):
        sent = send(transport, header, leaves, dst, tag)
        if sent.on_gpu:
            launch(transport, dst, tag)
        return sent

    monkeypatch.setattr(nccl.NCCLTransport, "send", at_once)
    monkeypatch.setattr(nccl.NCCLTransport, "_launch", lambda transport, dst, tag: None)


MUTANTS = {
    waits_for_nothing: ("late data", 20),
    done_when_launched: ("late data", 20),
    room_when_it_goes: ("later work", 0.5),
    last_come_first_served: ("crossed", 20),
    launched_when_offered: ("crossed", 20),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_usual_mistake_is_caught(two, mutant, monkeypatch):
    mutant(monkeypatch)
    check, seconds = MUTANTS[mutant]
    with suppress(fake_nccl.NcclError):  # sizes that differ
        assert not CHECKS[check](*two, seconds=seconds)


def shifted(transports):
    """Each rank's neighbour's number, when all send to the right and let the left one go at once; None: it hangs."""
    size, pairs = len(transports), [pair for transport in transports for pair in transport._pairs.values()]
    over, all_asked = threading.Timer(1, lambda: [pair.abort() for pair in pairs]), threading.Barrier(size)
    over.start()

    def rank(me):
        transport, x = transports[me], np.full(3, float(me))
        sent, coming = transport.send(b"", [x], (me + 1) % size, 0), transport.expect((me - 1) % size, 0, [x])
        until(lambda: coming.header() is not None, transport)
        all_asked.wait()
        with suppress(fake_nccl.NcclError, BrokenPipeError):
            leaves = coming.into([(x.shape, x.dtype)])
            until(lambda: coming.done() and sent.done(), transport)
            return float(leaves[0][0])

    try:
        return together(rank, size)
    finally:
        over.cancel()
        over.join()


def test_the_first_messages_of_a_ring_of_4_pass_and_would_hang_if_pairs_were_not_connected(monkeypatch):
    with peers(4) as transports:
        assert shifted(transports) == [3.0, 0.0, 1.0, 2.0]
    monkeypatch.setattr(nccl._Pair, "_put", lambda pair, x: None)
    with peers(4) as transports:
        monkeypatch.undo()
        assert shifted(transports) == [None] * 4


def test_after_renew_nothing_of_what_was_under_way_is_left_and_messages_pass(two):
    x, (a, b) = numbers(5), two
    a.send(b"old", [x], 1, 0)
    b.expect(0, 0, [x])
    a.send(b"half", [x], 1, 4)
    coming = b.expect(0, 4, [x])
    until(lambda: coming.header() is not None, a, b)
    coming.into([(x.shape, x.dtype)])  # b receives, and a never hears that it may send
    a.tell(1, b"an old note")
    old = dict(a._pairs)
    together(lambda rank: two[rank].renew(), 2)
    with pytest.raises(RuntimeError, match="aborted"):
        old[0, 1].launch([x], a._posted([x]))
    sent, coming = a.send(b"new", [2 * x], 1, 0), b.expect(0, 0, [x])
    assert coming.header() == b"new"
    leaves = coming.into([(x.shape, x.dtype)])
    until(lambda: coming.done() and sent.done(), a, b)
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


def shift(comm, x):
    return comm.sendrecv(x, comm.right, comm.left)


def on_nccl(transports, program, args, kwargs):
    """The results of a program, and how many places looked at the device's arrays without saying so."""

    def body(rank):
        world = ProcessEngine(transports[rank])
        carry_out(world, program, args, kwargs)
        assert world.tasks[0].error is None, world.tasks[0].error
        return world.tasks[0].result

    with guarded() as seen:
        results = together(body, len(transports))
    return results, seen


@pytest.mark.parametrize("size", [2, 3])
def test_what_lies_on_the_device_stays_there_and_has_the_bits_of_threads(size):
    cut = [shard(x, size, "zigzag") for x in draw_inputs(1, 4, 2, 8 * size, 3)]
    programs = [
        (both, [per_rank([on_device(x) for x in pieces]) for pieces in cut], {"causal": True, "layout": "zigzag"}),
        (mixed, [array_api_strict], {}),
    ]
    with peers(size, strict=True) as transports:
        for program, args, kwargs in programs:
            results, seen = on_nccl(transports, program, args, kwargs)
            asked = [place for place in seen.explicit if not place.startswith("world/send_buffer.py")]
            assert asked == []
            assert len(seen.explicit) <= size  # one look a rank, after its program: has what it sent changed?
            with guarded():
                threads = run(program, size, *args, **kwargs).results
            assert bits(at_home(results)) == bits(at_home(threads))


def test_a_transport_that_goes_by_host_memory_is_seen_to(monkeypatch):
    monkeypatch.setattr(nccl.NCCLTransport, "ready", lambda transport, x: in_host_memory(x))
    with peers(2, strict=True) as transports:
        _, seen = on_nccl(
            transports, lambda comm, x: comm.sendrecv(x, comm.right, comm.left), [on_device(np.ones(3))], {}
        )
    assert len(seen.explicit) == 2  # a message a rank


def at_home(value):
    """The values, with every array in host memory, and the name of where it was."""
    if isinstance(value, dict):
        return {name: at_home(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [at_home(item) for item in value]
    return [str(value.device), np.asarray(value) if isinstance(value, np.ndarray) else np.from_dlpack(value)]
