"""The checker of the ring says what is wrong: the direction, the start, the last message, and hops beside no work."""

import numpy as np
import pytest

from parlab import Cluster, per_rank, run
from parlab.labs import posted_ring
from parlab.nn.attention import merge
from parlab.nn.dense_attention import dense_attention
from tests.labs.answers import refused, reviewed, ring
from tests.labs.lucky_answers import ring_of


def test_the_passing_text_shows_7_messages_and_a_makespan_of_8_works():
    assert reviewed("02.ring", ring).text == (
        "02.ring: passed, 16 cases and 4 drawn anew. With 8 ranks, 6 tokens on each:\n"
        "  messages a rank sends: 7; closed form: P − 1 = 7\n"
        "  makespan: 80.0 µs; closed form: P works = 80.0 µs"
    )


@pytest.mark.parametrize("P", [1, 2, 3, 5])
def test_the_ring_that_stands_in_is_dense_attention_with_its_hops_beside_the_work(P):
    q, k, v = np.random.default_rng(P).standard_normal((3, 1, 1, 4 * P, 3))

    def attends(comm, q, *kv):
        def attend_to(source, kv):
            assert (kv[0] == np.split(k[0, 0], P)[source]).all()
            with comm.compute("attend", seconds=1e-6):
                out, lse = dense_attention(*(x[None, None] for x in (q, *kv)))
                return out[0, 0], lse[0, 0]

        return posted_ring(comm, kv, attend_to, merge)

    shards = (per_rank(np.split(x[0, 0], P)) for x in (q, k, v))
    done = run(attends, P, *shards, cluster=Cluster.uniform(latency=1e-6, bandwidth=1e18))
    expected = dense_attention(q, k, v)
    for number in (0, 1):
        made = np.concatenate([result[number] for result in done.results])
        assert np.max(np.abs(made - expected[number][0, 0])) <= 1e-12
    assert done.timeline.makespan == P * 10**6
    assert [done.timeline.messages(rank) for rank in range(P)] == [P - 1] * P


def says(source, sent=lambda first, kv: kv):
    """A ring whose sources, or what it sends, are other ones."""

    def ring(comm, kv, attend_to, merge):
        return ring_of(comm, kv, attend_to, merge, lambda hop: source(comm, hop), sent)

    return ring


def without_modulo(comm, kv, attend_to, merge):
    return ring(comm, kv, lambda source, kv: attend_to(source - comm.size * (source > comm.rank), kv), merge)


def to_the_left(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        last = hop == comm.size - 1
        requests = () if last else (comm.isend(kv, comm.left), comm.irecv(comm.right, kv))
        part = attend_to((comm.rank + hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
        for request in requests:
            kv = request.wait()
    return found


def one_hop_too_many(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        requests = (comm.isend(kv, comm.right), comm.irecv(comm.left, kv)) if comm.size > 1 else ()
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
        for request in requests:
            kv = request.wait()
    return found


def hops_before_the_first_work(comm, kv, attend_to, merge):
    """The usual start that is off by one: send and receive, then attend, P times."""
    found = None
    for hop in range(comm.size):
        kv = comm.sendrecv(kv, comm.right, comm.left) if comm.size > 1 else kv
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
    return found


def one_hop_too_few(comm, kv, attend_to, merge):
    found = attend_to(comm.rank, kv)
    for hop in range(1, comm.size - 1):
        kv = comm.sendrecv(kv, comm.right, comm.left)
        found = merge(*found, *attend_to((comm.rank - hop) % comm.size, kv))
    return found


def without_its_own(comm, kv, attend_to, merge):
    found = None if comm.size > 1 else attend_to(0, kv)
    for hop in range(1, comm.size):
        kv = comm.sendrecv(kv, comm.right, comm.left)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
    return found


def after_the_work(comm, kv, attend_to, merge):
    found = attend_to(comm.rank, kv)
    for hop in range(1, comm.size):
        kv = comm.sendrecv(kv, comm.right, comm.left)
        found = merge(*found, *attend_to((comm.rank - hop) % comm.size, kv))
    return found


def posted_after_the_work(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        if hop < comm.size - 1:
            sent, coming = comm.isend(kv, comm.right), comm.irecv(comm.left, kv)
            kv = coming.wait()
            sent.wait()
    return found


def waits_before_the_work(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        coming = comm.sendrecv(kv, comm.right, comm.left) if hop < comm.size - 1 else None
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        kv = coming
    return found


def sends_first(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        if hop < comm.size - 1:
            comm.send(kv, comm.right)
            coming = comm.recv(comm.left, like=kv)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found, kv = part if hop == 0 else merge(*found, *part), coming
    return found


def keys_and_values_apart(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        if hop < comm.size - 1:
            sent = [comm.isend(x, comm.right) for x in kv]
            coming = [comm.irecv(comm.left, x) for x in kv]
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        if hop < comm.size - 1:
            kv = [request.wait() for request in coming]
            [request.wait() for request in sent]
    return found


def attends_a_request(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        if hop < comm.size - 1:
            comm.isend(kv, comm.right)
            coming = comm.irecv(comm.left, kv)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found, kv = part if hop == 0 else merge(*found, *part), coming
    return found


def posts_in_the_last_round(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        sent, coming = comm.isend(kv, comm.right), comm.irecv(comm.left, kv)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        if hop < comm.size - 1:
            kv = coming.wait()
            sent.wait()
    return found


def never_waits_for_its_sends(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        if hop < comm.size - 1:
            comm.isend(kv, comm.right)
            coming = comm.irecv(comm.left, kv)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        kv = coming.wait() if hop < comm.size - 1 else kv
    return found


def merges_pairs(comm, kv, attend_to, merge):
    part = attend_to(comm.rank, kv)
    return merge(part, part)


def never_takes_what_came(comm, kv, attend_to, merge):
    found = None
    for hop in range(comm.size):
        if hop < comm.size - 1:
            sent, coming = comm.isend(kv, comm.right), comm.irecv(comm.left, kv)
        part = attend_to((comm.rank - hop) % comm.size, kv)
        found = part if hop == 0 else merge(*found, *part)
        if hop < comm.size - 1:
            coming.wait()
            sent.wait()
    return found


def to_everybody(comm, kv, attend_to, merge):
    if comm.size == 2:
        return ring(comm, kv, attend_to, merge)
    found = attend_to(comm.rank, kv)
    for step in range(1, comm.size):
        dst, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        found = merge(*found, *attend_to(source, comm.sendrecv(kv, dst, source)))
    return found


def by_an_all_gather(comm, kv, attend_to, merge):
    k, v = (comm.all_gather(x[None]) for x in kv)
    parts = [attend_to(source, (k[source], v[source])) for source in range(comm.size)]
    found = parts[0]
    for part in parts[1:]:
        found = merge(*found, *part)
    return found


def last_part_alone(comm, kv, attend_to, merge):
    return ring(comm, kv, attend_to, lambda out_a, lse_a, out_b, lse_b: (out_b, lse_b))


def merge_is_not_kept(comm, kv, attend_to, merge):
    return ring(comm, kv, attend_to, lambda out_a, lse_a, out_b, lse_b: (out_a, lse_a))


def added(comm, kv, attend_to, merge):
    return ring(comm, kv, attend_to, lambda out_a, lse_a, out_b, lse_b: (out_a + out_b, lse_a + lse_b))


def own_part_twice(comm, kv, attend_to, merge):
    found = None

    def remembered(source, kv):
        nonlocal found
        part = attend_to(source, kv)
        found = part if found is None else found
        return part

    return merge(*ring(comm, kv, remembered, merge), *found)


def only_out(comm, kv, attend_to, merge):
    return ring(comm, kv, attend_to, merge)[0]


WRONG = [
    (says(lambda comm, hop: comm.rank + hop), "wrong direction: K/V that came h hops to the right"),
    (to_the_left, "wrong direction: send to comm.right, receive from comm.left"),
    (says(lambda comm, hop: comm.rank - hop - 1), "off by one: the first K/V, before any hop, are the rank's own"),
    (says(lambda comm, hop: comm.rank - hop + 1), "off by one: the first K/V, before any hop, are the rank's own"),
    (hops_before_the_first_work, "off by one at the start: the first hop is over before the first call"),
    (one_hop_too_many, "the last message is one too many: after P − 1 hops"),
    (after_the_work, "a hop starts after the work, so nothing overlaps: post isend and irecv before attend_to"),
    (posted_after_the_work, "a hop starts after the work, so nothing overlaps"),
    (waits_before_the_work, "a rank waits for the hop before it works: call wait() after attend_to"),
    (without_modulo, "so `% comm.size`"),
    (says(lambda comm, hop: comm.rank), "not the rank that works"),
    (says(lambda comm, hop: comm.left), "comm.left hands them all over"),
    (says(lambda comm, hop: hop), "the number of the hop is no rank"),
    (one_hop_too_few, "no hop was made: one too few, or none is posted at all"),
    (without_its_own, "the rank's own K/V are not attended"),
    (never_takes_what_came, "what came is never taken"),
    (sends_first, "no rank can move"),
    (keys_and_values_apart, "keys and values travel in two messages"),
    (posts_in_the_last_round, "in the last round nothing is left to come: post no hop there"),
    (never_waits_for_its_sends, "keep what isend returns, and wait() for it after attend_to"),
    (merges_pairs, "missing 2 required positional arguments: 'out_b' and 'lse_b'"),
    (merges_pairs, "merge takes four arrays: merge(*found, *part)"),
    (attends_a_request, "isend and irecv return a request"),
    (to_everybody, "should be to its right"),
    (by_an_all_gather, "comm.all_gather did the work"),
    (last_part_alone, "this is the last part alone"),
    (merge_is_not_kept, "this is the part of the rank's own K/V alone"),
    (added, "the parts are added, not merged"),
    (own_part_twice, "the rank's own part is merged twice"),
    (only_out, "expected (out, lse)"),
]


@pytest.mark.parametrize(("answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_ring_is_refused_with_its_cause(answer, said):
    text = refused("02.ring", answer)
    assert said in text, text
