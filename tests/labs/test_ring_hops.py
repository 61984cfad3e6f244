"""The checker of the ring says what is wrong: the direction, the start, the last message, and hops beside no work."""

from functools import reduce

import pytest

from tests.labs.answers import refused, ring, ring_with


def without_modulo(comm, kv, attend_to, merge):
    return ring(comm, kv, lambda source, kv: attend_to(source - comm.size * (source > comm.rank), kv), merge)


def after_the_work(comm, kv, attend_to, merge):
    found = attend_to(comm.rank, kv)
    for hop in range(1, comm.size):
        kv = comm.sendrecv(kv, comm.right, comm.left)
        found = merge(*found, *attend_to((comm.rank - hop) % comm.size, kv))
    return found


def waits_before_the_work(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        coming = comm.sendrecv(kv, comm.right, comm.left) if hop < comm.size - 1 else None
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        kv = coming
    return found


def keys_and_values_apart(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        requests = [(comm.isend(x, comm.right), comm.irecv(comm.left, x)) for x in kv if hop < comm.size - 1]
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        kv = [[request.wait() for request in both][1] for both in requests]
    return found


def merges_pairs(comm, kv, attend_to, merge):
    part = attend_to(comm.rank, kv)
    return merge(part, part)


def by_an_all_gather(comm, kv, attend_to, merge):
    k, v = (comm.all_gather(x[None]) for x in kv)
    return reduce(lambda one, part: merge(*one, *part), [attend_to(i, (k[i], v[i])) for i in range(comm.size)])


def merging(merge):
    return lambda comm, kv, attend_to, _: ring(comm, kv, attend_to, merge)


def only_out(comm, kv, attend_to, merge):
    return ring(comm, kv, attend_to, merge)[0]


def on_3_ranks(otherwise):
    return lambda comm, *given: (ring if comm.size == 2 else otherwise)(comm, *given)


WRONG = [
    (ring_with(way=lambda comm: (comm.left, comm.right)), "wrong direction: send to comm.right, receive"),
    (ring_with(source=lambda comm, hop: comm.rank - hop - 1), "off by one: the first K/V, before any hop, are the"),
    (ring_with(before=True, rounds=1), "off by one at the start: the first hop is over before the first call"),
    (ring_with(rounds=1), "the last message is one too many: after P − 1 hops"),
    (waits_before_the_work, "in some hop a rank waits before it works: post both, then attend_to, then wait()"),
    (without_modulo, "so `% comm.size`"),
    (ring_with(source=lambda comm, hop: comm.rank), "not the rank that works"),
    (ring_with(source=lambda comm, hop: comm.left), "comm.left hands them all over"),
    (on_3_ranks(ring_with(rounds=-1)), "too few hops, 1: P − 1 hops bring a rank the K/V of P − 1 others"),
    (lambda comm, kv, attend_to, merge: attend_to(comm.rank, kv), "too few hops, 0: P − 1 hops bring a rank"),
    (ring_with(take=False), "what came is never taken"),
    (on_3_ranks(ring_with(start=1)), "the rank's own K/V are not attended"),
    (ring_with(wait=(1,)), "keep what isend returns, and wait() for it after attend_to"),
    (ring_with(wait=(0,)), "isend and irecv return a request"),
    (keys_and_values_apart, "keys and values travel in two messages"),
    (merges_pairs, "merge takes four arrays: merge(*found, *part)"),
    (by_an_all_gather, "comm.all_gather did the work: build it from comm.isend, comm.irecv"),
    (merging(lambda out_a, lse_a, out_b, lse_b: (out_b, lse_b)), "this is the last part alone"),
    (merging(lambda out_a, lse_a, out_b, lse_b: (out_a, lse_a)), "this is the part of the rank's own K/V alone"),
    (merging(lambda out_a, lse_a, out_b, lse_b: (out_a + out_b, lse_a + lse_b)), "the parts are added, not merged"),
    (only_out, "expected a tuple of 2 arrays"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_ring_is_refused_with_its_cause(answer, said):
    refused("02.ring", answer, said)
