"""Right answers to the exercises of notebooks 00 to 02, in several styles each."""

import math
from collections import defaultdict

import numpy as np

from parlab.labs import posted_ring
from tests.labs import answers

RIGHT = defaultdict(list)


def of(name):
    def keep(answer):
        RIGHT[name].append(answer)
        return answer

    return keep


for _name, _solution in answers.SOLUTIONS.items():
    RIGHT[_name].append(_solution)


@of("00.exchange")
def posted_first(comm, x):
    sent = [comm.isend(x, comm.right), comm.isend(x, comm.left)]
    found = comm.recv(comm.left, like=x), comm.recv(comm.right, like=x)
    for request in sent:
        request.wait()
    return found


@of("00.exchange")
def as_a_list_of_copies(comm, x):
    return [comm.sendrecv(x, there, back).copy() for there, back in ((comm.right, comm.left), (comm.left, comm.right))]


@of("00.exchange")
def one_message_for_two(comm, x):
    if comm.size == 2:
        other = comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank)
        return other, other
    return answers.exchange(comm, x)


@of("00.overlap")
def with_sends_awaited_last(comm, x, work):
    total, block, sent = 0, x, []
    for _ in range(comm.size - 1):
        sent.append(comm.isend(block, (comm.rank + 1) % comm.size))
        arriving = comm.irecv((comm.rank - 1) % comm.size, like=block)
        total = total + work(comm, block)
        block = arriving.wait()
    total = total + work(comm, block)
    for request in sent:
        request.wait()
    return total


@of("00.overlap")
def round_by_round(comm, block, work, left=None):
    left = comm.size - 1 if left is None else left
    if not left:
        return work(comm, block)
    requests = comm.isend(block, comm.right), comm.irecv(comm.left, like=block)
    done = work(comm, block)
    _, arrived = [request.wait() for request in requests]
    return done + round_by_round(comm, arrived, work, left - 1)


@of("00.to_blame")
def blamed_in_one_pass_from_the_end(waits, rank):
    before = math.inf
    for who, peer, _, came in sorted(waits, key=lambda wait: -wait[3]):
        if who == rank and came < before:
            rank, before = peer, came
    return rank


@of("00.to_blame")
def blamed_in_an_array(waits, rank):
    log, before = np.array(waits).reshape(-1, 4), np.inf
    while len(own := log[(log[:, 0] == rank) & (log[:, 3] < before)]):
        rank, before = own[own[:, 3].argmax()][[1, 3]]
    return rank


def straight_to_the_owners(comm, x):
    """Reduces and scatters, but not around a ring."""
    blocks = np.split(x, comm.size)
    total = blocks[comm.rank]
    for k in range(1, comm.size):
        to, source = (comm.rank + k) % comm.size, (comm.rank - k) % comm.size
        total = total + comm.sendrecv(blocks[to], to, source)
    return total


def halved_if_a_power_of_two(comm, x):
    """Reduces and scatters, but around a ring only if the number of ranks is no power of two."""
    if comm.size & (comm.size - 1):
        return answers.reduce_scatter(comm, x)
    half = comm.size // 2
    while half:
        upper = bool(comm.rank & half)
        low, high = np.split(x, 2)
        mine, theirs = (high, low) if upper else (low, high)
        x = mine + comm.sendrecv(theirs, comm.rank ^ half, comm.rank ^ half)
        half //= 2
    return x


@of("01.reduce_scatter")
def leftwards(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(1, comm.size):
        incoming = (comm.rank + step + 1) % comm.size
        blocks[incoming] = blocks[incoming] + comm.sendrecv(blocks[incoming - 1], comm.left, comm.right)
    return blocks[comm.rank]


@of("01.reduce_scatter")
def in_place_by_slices(comm, x):
    x, n = x.copy(), len(x) // comm.size
    for step in range(comm.size - 1):
        out, back = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        x[back * n : (back + 1) * n] += comm.sendrecv(x[out * n : (out + 1) * n], comm.right, comm.left)
    return x[comm.rank * n :][:n]


@of("01.reduce_scatter")
def where_one_rank_receives_first(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        out, back = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        if comm.rank:
            comm.send(blocks[out], comm.right)
        came = comm.recv(comm.left, like=blocks[back])
        if not comm.rank:
            comm.send(blocks[out], comm.right)
        blocks[back] = blocks[back] + came
    return blocks[comm.rank]


@of("01.circulant")
def that_counts_the_pieces_backwards(comm, x):
    """The own piece, then those of the ranks behind: all goes the other way round."""
    P, pieces = comm.size, np.split(x, comm.size)
    window = np.stack([pieces[(comm.rank - i) % P] for i in range(P)])
    while (width := len(window)) > 1:
        half = (width + 1) // 2
        came = comm.sendrecv(window[half:], (comm.rank - half) % P, (comm.rank + half) % P)
        window = window[:half] + np.pad(came, [(0, half - len(came))] + [(0, 0)] * x.ndim)
    return window[0]


@of("01.circulant")
def halved_by_partners_if_a_power_of_two(comm, x):
    return halved_if_a_power_of_two(comm, x) if comm.size & (comm.size - 1) == 0 else answers.circulant(comm, x)


@of("02.zigzag_tile")
def with_open_ends(rank, source, length):
    if source == rank:
        return slice(None), slice(None), True
    return (slice(None), slice(length // 2), False) if source < rank else (slice(length // 2, None), slice(None), False)


@of("02.zigzag_tile")
def as_a_list(rank, source, length):
    return list(answers.zigzag_tile(rank, source, length))


@of("02.zigzag_tile")
def with_numbers_of_numpy(rank, source, length):
    half, kind = np.int64(length) // 2, np.sign(source - rank)
    return slice(half if kind > 0 else 0, length), slice(0, half if kind < 0 else length), kind == 0


@of("02.merge")
def by_a_sigmoid(out_a, lse_a, out_b, lse_b):
    difference = np.nan_to_num(lse_b - lse_a, nan=0.0)
    share = 1 / (1 + np.exp(difference))[:, None]
    return share * out_a + (1 - share) * out_b, np.logaddexp(lse_a, lse_b)


@of("02.merge")
def in_longer_floats(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a.astype(np.longdouble), lse_b)
    a, b = (np.exp(np.where(np.isneginf(side), -np.inf, side - lse)) for side in (lse_a, lse_b))
    return (a[:, None] * out_a + b[:, None] * out_b).astype(float), lse.astype(float)


@of("02.merge")
def by_the_larger_one_in_place(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    top[np.isneginf(top)] = 0
    a, b = np.exp(lse_a - top), np.exp(lse_b - top)
    out_a *= (a / np.where(a + b == 0, 1, a + b))[:, None]
    out_a += out_b * (b / np.where(a + b == 0, 1, a + b))[:, None]
    lse_a[:] = top + np.log(a + b)
    return out_a, lse_a


@of("02.ring")
def by_the_library(comm, kv, attend_to, merge):
    return posted_ring(comm, kv, attend_to, merge)


@of("02.ring")
def from_no_keys_on(comm, kv, attend_to, merge):
    out, lse = np.zeros_like(kv[0]), np.full(len(kv[0]), -np.inf)
    for source in range(comm.rank + comm.size, comm.rank, -1):
        last = source == comm.rank + 1
        requests = [] if last else [comm.isend(kv, (comm.rank + 1) % comm.size), comm.irecv(comm.left, like=kv)]
        out, lse = merge(out, lse, *attend_to(source % comm.size, kv))
        for request in requests:
            kv = request.wait()
    return out, lse


@of("02.bring_home")
def in_one_loop(comm, x):
    total = np.zeros_like(x[0])
    for hop in range(comm.size):
        total = total + x[(comm.rank - hop) % comm.size]
        total = comm.sendrecv(total, comm.right, comm.left)
    return total


@of("02.bring_home")
def home_by_requests(comm, x):
    total = x[comm.rank]
    for source in [*((comm.rank - hop) % comm.size for hop in range(1, comm.size)), None]:
        sent, arriving = comm.isend(total, comm.right), comm.irecv(comm.left, like=x[0])
        total = arriving.wait() + (0 if source is None else x[source])
        sent.wait()
    return total
