"""Wrong answers that are right on many cases by luck, by exercise: the fixed cases must tell them from right ones."""

from collections import defaultdict
from itertools import accumulate, pairwise

import numpy as np

from parlab.pipeline import Action, Costs, Schedule, gpipe, one_f_one_b, simulate, zb_auto
from parlab.zero import shard_range
from tests.labs import answers

LUCKY = defaultdict(list)


def of(name):
    def keep(answer):
        LUCKY[name].append(answer)
        return answer

    return keep


# Ranks and messages


@of("00.exchange")
def with_both_from_the_left(comm, x):
    from_left = comm.sendrecv(x, comm.right, comm.left)
    comm.sendrecv(x, comm.left, comm.right)
    return from_left, from_left


@of("00.exchange")
def of_flat_arrays(comm, x):
    from_left, from_right = answers.exchange(comm, x)
    return from_left.reshape(-1), from_right.reshape(-1)


@of("00.exchange")
def by_the_other_half(comm, x):
    """The neighbour is `size - 1 - rank` with two ranks."""
    other = comm.size - 1 - comm.rank
    found = comm.sendrecv(x, other, other)
    return found, found


@of("00.exchange")
def in_double_precision(comm, x):
    return tuple(array.astype("float64") for array in answers.exchange(comm, x))


@of("00.overlap")
def with_the_first_neighbour_only(comm, x, work):
    """All that there is with two ranks."""
    if comm.size == 1:
        return work(comm, x)
    sent, arriving = comm.isend(x, comm.right), comm.irecv(comm.left, like=x)
    total = work(comm, x)
    sent.wait()
    return total + work(comm, arriving.wait())


@of("00.overlap")
def that_sends_its_own_piece_each_time(comm, x, work):
    """Right on two ranks, where there is one round."""
    total, piece = 0, x
    for _ in range(comm.size - 1):
        sent, arriving = comm.isend(x, comm.right), comm.irecv(comm.left, like=x)
        total = total + work(comm, piece)
        sent.wait()
        piece = arriving.wait()
    return total + work(comm, piece)


@of("00.overlap")
def with_the_own_piece_for_all(comm, x, work):
    total, block = 0, x
    for step in range(comm.size):
        last = step == comm.size - 1
        requests = () if last else (comm.isend(block, comm.right), comm.irecv(comm.left, like=block))
        piece = work(comm, block)
        total = total + (piece if step else comm.size * piece)
        for request in requests:
            block = request.wait()
    return total / (2 if comm.size > 1 else 1)


@of("00.to_blame")
def with_the_peer_of_the_last_wait(waits, rank):
    own = [wait for wait in waits if wait[0] == rank]
    return max(own, key=lambda wait: wait[3])[1] if own else rank


@of("00.to_blame")
def who_waits_least(waits, rank):
    ranks = {one for wait in waits for one in wait[:2]}
    if all(wait[0] != rank for wait in waits):
        return rank
    return min(sorted(ranks), key=lambda one: sum(came - start for who, _, start, came in waits if who == one))


@of("00.to_blame")
def as_in_the_lessons_guess(waits, rank):
    """Right where every rank waits once; else the last wait in the list, and never in circles."""
    waits_for, seen = {wait[0]: wait[1] for wait in waits}, set()
    while rank in waits_for and rank not in seen:
        seen.add(rank)
        rank = waits_for[rank]
    return rank


@of("00.to_blame")
def ended_before_the_wait_began(waits, rank):
    """The peer's wait must have ended before it came, not before the other began to wait."""
    before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before]:
        _, rank, before, _ = max(own, key=lambda wait: wait[3])
    return rank


@of("00.to_blame")
def with_the_first_wait_of_each(waits, rank):
    before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before]:
        _, rank, _, before = min(own, key=lambda wait: wait[3])
    return rank


@of("00.to_blame")
def with_the_longest_wait_of_each(waits, rank):
    before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before]:
        _, rank, _, before = max(own, key=lambda wait: wait[3] - wait[2])
    return rank


@of("00.to_blame")
def that_began_no_later(waits, rank):
    """The peer's wait must have ended before it came; it may have begun after the other's wait."""
    start = before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before and wait[2] <= start]:
        _, rank, start, before = max(own, key=lambda wait: wait[3])
    return rank


# Collectives


@of("01.reduce_scatter")
def of_the_mirrored_block(comm, x):
    """Block `size - 1 - rank` after going round the other way."""
    return answers.reduce_scatter(comm, x[::-1].copy())[::-1].copy()


@of("01.reduce_scatter")
def that_starts_with_the_own_block(comm, x):
    """The block that a rank sends first is complete with its left neighbour: its own comes back, one step short."""
    return answers.reduce_scatter(comm, x, shift=1)


@of("01.reduce_scatter")
def in_flat_blocks(comm, x):
    return answers.reduce_scatter(comm, x.reshape(-1))


@of("01.circulant")
def that_keeps_the_smaller_half(comm, x):
    return answers.circulant(comm, x, half_of=lambda width: width // 2)


@of("01.circulant")
def sent_back(comm, x):
    """The same for two ranks."""
    return answers.circulant(comm, x, ahead=-1)


@of("01.circulant")
def by_partners(comm, x):
    """For a power of two; else the last partners are missing, and so are their numbers."""
    window, half = np.split(x, comm.size), 1 << (comm.size.bit_length() - 1)
    while half := half // 2:
        other = comm.rank ^ half
        if other < comm.size:
            low = comm.rank & ~(2 * half - 1)
            give = range(low, low + half) if comm.rank & half else range(low + half, min(low + 2 * half, comm.size))
            keep = range(low + half, min(low + 2 * half, comm.size)) if comm.rank & half else range(low, low + half)
            came = comm.sendrecv([window[i] for i in give], other, other, like=[window[i] for i in keep])
            for i, more in zip(keep, came, strict=True):
                window[i] = window[i] + more
    return window[comm.rank]


@of("01.circulant")
def that_sends_as_many_places_ahead_as_it_sends(comm, x):
    """w − h places instead of h: the same where every w is even."""
    window = np.roll(np.stack(np.split(x, comm.size)), -comm.rank, axis=0)
    while (width := len(window)) > 1:
        half, far = -(-width // 2), width // 2
        came = comm.sendrecv(window[half:], (comm.rank + far) % comm.size, (comm.rank - far) % comm.size)
        window = window[:half].copy()
        window[: len(came)] += came
    return window[0]


@of("01.reduce_scatter")
def that_makes_x_writeable_again(comm, x):
    """The cells of the lesson share x among all ranks."""
    x.flags.writeable = True
    pieces = np.split(x, comm.size)
    for step in range(comm.size - 1):
        partial = comm.sendrecv(pieces[(comm.rank - step - 1) % comm.size], comm.right, comm.left)
        pieces[(comm.rank - step - 2) % comm.size] += partial
    return pieces[comm.rank]


@of("01.circulant")
def not_for_even_sizes_above_8(comm, x):
    return answers.circulant(comm, x, ahead=1 if comm.size <= 8 or comm.size % 2 else -1)


@of("01.circulant")
def for_13_ranks_and_for_few(comm, x):
    """13 is a lesson's example."""
    return answers.circulant(comm, x, ahead=1 if comm.size <= 8 or comm.size == 13 else -1)


# Ring attention


@of("02.zigzag_tile")
def of_two_tokens(rank, source, length):
    queries, keys, causal = answers.zigzag_tile(rank, source, 2)
    return queries, keys, causal


@of("02.zigzag_tile")
def by_the_parity_of_the_ranks(rank, source, length):
    return answers.zigzag_tile(rank % 2, source % 2, length)


@of("02.merge")
def with_inverted_weights(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    finite = np.where(np.isneginf(lse), 0.0, lse)
    return out_a * np.exp(finite - lse_a)[:, None] + out_b * np.exp(finite - lse_b)[:, None], lse


@of("02.merge")
def by_a_sigmoid_that_overflows(out_a, lse_a, out_b, lse_b):
    share = 1 / (1 + np.exp(lse_b) / np.exp(lse_a))
    out = share[:, None] * out_a + (1 - share)[:, None] * out_b
    return np.nan_to_num(out), np.logaddexp(lse_a, lse_b)


@of("02.merge")
def of_clipped_sums(out_a, lse_a, out_b, lse_b):
    a, b = (np.clip(lse, -700, 700) for lse in (lse_a, lse_b))
    total = np.logaddexp(a, b)
    out = out_a * np.exp(a - total)[:, None] + out_b * np.exp(b - total)[:, None]
    return out, np.logaddexp(lse_a, lse_b)


@of("02.merge")
def of_the_larger_side(out_a, lse_a, out_b, lse_b):
    larger = lse_a >= lse_b
    return np.where(larger[:, None], out_a, out_b), np.logaddexp(lse_a, lse_b)


@of("02.merge")
def with_0_for_no_keys(out_a, lse_a, out_b, lse_b):
    out, lse = answers.merge(out_a, lse_a, out_b, lse_b)
    return out, np.where(np.isneginf(lse), 0.0, lse)


def ring_of(comm, kv, attend_to, merge, source, sent=lambda first, kv: kv):
    """A ring that says `source(hop)`, and sends `sent` of its own K/V and of those that it has."""
    first, found = kv, None
    for hop in range(comm.size):
        last = hop == comm.size - 1
        requests = () if last else (comm.isend(sent(first, kv), comm.right), comm.irecv(comm.left, kv))
        part = attend_to(source(hop) % comm.size, kv)
        found = part if found is None else merge(*found, *part)
        for request in requests:
            kv = request.wait()
    return found


@of("02.ring")
def in_the_other_direction(comm, kv, attend_to, merge):
    """`rank + hop`: the same for two ranks."""
    return ring_of(comm, kv, attend_to, merge, lambda hop: comm.rank + hop)


@of("02.ring")
def that_sends_its_own_each_time(comm, kv, attend_to, merge):
    """Right on two ranks, where there is one hop."""
    return ring_of(comm, kv, attend_to, merge, lambda hop: comm.rank - hop, lambda first, kv: first)


@of("02.ring")
def with_one_hop_only(comm, kv, attend_to, merge):
    """All that there is with two ranks."""
    if comm.size == 1:
        return attend_to(0, kv)
    sent, coming = comm.isend(kv, comm.right), comm.irecv(comm.left, kv)
    part, kv = attend_to(comm.rank, kv), coming.wait()
    sent.wait()
    return merge(*part, *attend_to(comm.left, kv))


@of("02.ring")
def that_waits_in_its_last_hop(comm, kv, attend_to, merge):
    """Nothing is to be seen of it with two hops: on three ranks the last hop is waited for in front of the work."""
    found, held = None, kv
    for hop in range(comm.size):
        last = hop == comm.size - 1
        requests = () if last else (comm.isend(held, comm.right), comm.irecv(comm.left, held))
        late = hop == comm.size - 2 and comm.size > 2
        then = [request.wait() for request in requests] if late else []
        part = attend_to((comm.rank - hop) % comm.size, held)
        found = part if found is None else merge(*found, *part)
        for came in then or [request.wait() for request in requests]:
            held = held if came is None else came
    return found


@of("02.bring_home")
def one_hop_short(comm, x):
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.right, comm.left) + x[(comm.rank - hop) % comm.size]
    return total


@of("02.bring_home")
def with_shares_in_the_other_order(comm, x):
    """`rank + hop`: the same for two ranks."""
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.right, comm.left) + x[(comm.rank + hop) % comm.size]
    return comm.sendrecv(total, comm.right, comm.left) if comm.size > 1 else total


@of("02.merge")
def with_one_maximum_for_all_rows(out_a, lse_a, out_b, lse_b):
    """Right where all rows lie at one level."""
    most = max(lse_a.max(), lse_b.max())
    weights = [np.exp(lse - most)[:, None] for lse in (lse_a, lse_b)]
    total = weights[0] + weights[1]
    with np.errstate(divide="ignore"):
        lse = most + np.log(total[:, 0])
    return (weights[0] * out_a + weights[1] * out_b) / np.where(total == 0, 1, total), lse


@of("02.bring_home")
def around_to_the_left(comm, x):
    """The right sums, but against the K/V, which go to the right."""
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.left, comm.right) + x[(comm.rank + hop) % comm.size]
    return comm.sendrecv(total, comm.left, comm.right)


@of("02.bring_home")
def straight_to_their_owners(comm, x):
    """As many messages and bytes, but no ring: the last one goes to the rank itself."""
    total = x[comm.rank]
    for hop in range(1, comm.size):
        to, source = (comm.rank + hop) % comm.size, (comm.rank - hop) % comm.size
        total = total + comm.sendrecv(x[to], to, source)
    return comm.sendrecv(total, comm.rank, comm.rank)


# Long sequences


def query_heads(rank, size, H):
    return answers.heads(rank, size, H, H)[0]


@of("03.usp")
def of_groups_of_two(comm, q, k, v, ulysses):
    return answers.usp(comm, q, k, v, min(2, ulysses))


@of("03.usp")
def as_ulysses_where_it_can(comm, q, k, v, ulysses):
    whole = all(x.shape[1] % comm.size == 0 for x in (q, k, v))
    return answers.usp(comm, q, k, v, comm.size if whole else ulysses)


@of("03.usp")
def as_a_ring(comm, q, k, v, ulysses):
    return answers.usp(comm, q, k, v, 1)


@of("03.usp")
def up_to_8_ranks(comm, q, k, v, ulysses):
    return answers.usp(comm, q, k, v, ulysses if comm.size <= 8 else 1)


@of("03.heads")
def of_first_and_last(rank, size, H, G):
    own = query_heads(rank, size, H)
    group = H // G
    return own, {own[0] // group, own[-1] // group}


@of("03.heads")
def of_first_and_last_as_a_list(rank, size, H, G):
    queries, keys = of_first_and_last(rank, size, H, G)
    return list(queries), sorted(keys)


@of("03.heads")
def dealt_like_cards(rank, size, H, G):
    own = range(rank, H, size)
    return own, sorted({head // (H // G) for head in own})


@of("03.heads")
def rounded_down(rank, size, H, G):
    own = range(rank * H // size, (rank + 1) * H // size)
    return own, range(own[0] // (H // G), own[-1] // (H // G) + 1)


@of("03.heads")
def rounded_up(rank, size, H, G):
    each = -(-H // size)
    own = range(min(H, rank * each), min(H, (rank + 1) * each))
    return own, range(own[0] // (H // G), own[-1] // (H // G) + 1) if own else range(0)


@of("03.heads")
def with_the_rest_last(rank, size, H, G):
    each = H // size
    own = range(rank * each, H if rank == size - 1 else (rank + 1) * each)
    return own, range(own[0] // (H // G), own[-1] // (H // G) + 1)


@of("03.heads")
def with_kv_dealt_out_evenly(rank, size, H, G):
    each = max(1, G // size)
    first = rank * G // size
    return query_heads(rank, size, H), range(first, first + each)


@of("03.heads")
def with_as_many_kv_heads_as_the_share_says(rank, size, H, G):
    own, group = query_heads(rank, size, H), H // G
    first = own[0] // group
    return own, range(first, first + -(-len(own) // group))


@of("03.heads")
def with_kv_up_to_the_next_rank(rank, size, H, G):
    own, group = query_heads(rank, size, H), H // G
    return own, range(own[0] // group, max(own[0] // group + 1, (own[-1] + 1) // group))


@of("03.heads")
def with_the_last_end_included(rank, size, H, G):
    own, group = query_heads(rank, size, H), H // G
    return own, range(own[0] // group, min(G, own.stop // group + 1))


@of("03.hops")
def around_the_ring(rank, size, documents):
    return size - 1 - rank


@of("03.hops")
def of_whole_documents_only(rank, size, documents):
    c = documents[-1] // size
    return (min(edge for edge in documents if edge > rank * c) - 1) // c - rank


@of("03.hops")
def to_the_shard_of_the_edge(rank, size, documents):
    c = documents[-1] // size
    stop = min(edge for edge in documents if edge >= (rank + 1) * c)
    return min(stop // c, size - 1) - rank


@of("03.hops")
def by_the_length_rounded_down(rank, size, documents):
    c = documents[-1] // size
    last = (rank + 1) * c - 1
    stop = min(edge for edge in documents if edge > last)
    return (stop - 1 - last) // c


@of("03.hops")
def by_the_documents_own_length(rank, size, documents):
    c = documents[-1] // size
    last = (rank + 1) * c - 1
    start, stop = next((a, b) for a, b in pairwise(documents) if a <= last < b)
    return min(size - 1 - rank, (stop - start - 1) // c)


@of("03.hops")
def by_the_longest_document(rank, size, documents):
    c = documents[-1] // size
    longest = max(b - a for a, b in pairwise(documents))
    return min(size - 1 - rank, -(-longest // c) - 1)


@of("03.hops")
def by_the_edges_passed(rank, size, documents):
    """One hop for each shard without an edge in it."""
    c = documents[-1] // size
    hops = 0
    while rank + hops + 1 < size and not any((rank + hops) * c < edge <= (rank + hops + 1) * c for edge in documents):
        hops += 1
    return hops


# Pipelines


@of("04.listing")
def that_renumbers_on_all_ranks(listing):
    return Schedule(
        [[a._replace(microbatch=a.microbatch - (a.kind == "F" and a.stage > 0)) for a in row] for row in listing.ranks]
    )


@of("04.listing")
def that_sorts_the_last_rank(listing):
    *others, last = one_f_one_b(listing.num_ranks, listing.num_microbatches - 1).ranks
    forwards, backwards = ([a for a in last if a.kind == kind] for kind in "FB")
    return Schedule([*others, [*forwards, *backwards]])


def with_warmup(p, m, warmup):
    rows = []
    for rank in range(p):
        ahead = min(warmup(rank), m)
        forwards, backwards = ([Action(kind, rank, i) for i in range(m)] for kind in "FB")
        in_turn = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
        rows.append(forwards[:ahead] + in_turn + backwards[m - ahead :])
    return Schedule(rows)


@of("04.one_f_one_b")
def with_at_most_two_ahead(p, m):
    return with_warmup(p, m, lambda rank: min(p - rank - 1, 2))


@of("04.one_f_one_b")
def with_one_ahead_but_on_the_last(p, m):
    return with_warmup(p, m, lambda rank: int(rank < p - 1))


@of("04.one_f_one_b")
def with_all_ranks_like_the_first(p, m):
    return with_warmup(p, m, lambda rank: p - 1 if rank < p - 1 else 0)


@of("04.one_f_one_b")
def with_half_of_the_microbatches_ahead(p, m):
    return with_warmup(p, m, lambda rank: min(m // 2, p - rank - 1))


@of("04.one_f_one_b")
def with_one_too_many_on_a_middle_rank(p, m):
    return with_warmup(p, m, lambda rank: p - rank - 1 + (rank == p // 2 and rank < p - 1))


@of("04.one_f_one_b")
def with_one_too_few_on_rank_0(p, m):
    return with_warmup(p, m, lambda rank: p - rank - 1 - (rank == 0 and p > 2))


def bound_by(p, m, turns, down, trip, work):
    return max(down + work, turns * trip)


@of("04b.lower_bound")
def without_transfers(p, m, limit, f, i, w, c):
    return answers.none_is_below(p, m, limit, f, i, w, 0)


@of("04b.lower_bound")
def with_turns_not_rounded(p, m, limit, f, i, w, c):
    return bound_by(p, m, m / limit, (p - 1) * (f + c), p * (f + i) + 2 * (p - 1) * c + w, m * (f + i + w))


@of("04b.lower_bound")
def of_the_last_rank_alone(p, m, limit, f, i, w, c):
    return (p - 1) * (f + c) + m * (f + i + w)


@of("04b.lower_bound")
def with_every_ranks_w_on_the_way(p, m, limit, f, i, w, c):
    return bound_by(p, m, -(-m // limit), (p - 1) * (f + c), p * (f + i + w) + 2 * (p - 1) * c, m * (f + i + w))


@of("04b.lower_bound")
def with_the_way_down_alone(p, m, limit, f, i, w, c):
    return bound_by(p, m, -(-m // limit), (p - 1) * (f + c), p * (f + i) + (p - 1) * c + w, m * (f + i + w))


@of("04b.lower_bound")
def with_i_as_long_as_f(p, m, limit, f, i, w, c):
    return answers.none_is_below(p, m, limit, f, f, w, c)


def w_by(row, arrivals, limit, *, full, waits):
    placed, put_off, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals, strict=True):
        while put_off and (waits(time, arrival) or (action.kind == "F" and full(kept, limit))):
            placed.append(put_off.pop(0))
            time, kept = time + 1, kept - 1
        placed.append(action)
        time = max(time, arrival) + 1
        if action.kind == "F":
            kept += 1
        else:
            put_off.append(action._replace(kind="W"))
    return placed + put_off


@of("04b.place_weights")
def only_where_it_waits(row, arrivals, limit):
    return w_by(row, arrivals, limit, full=lambda kept, limit: False, waits=lambda time, arrival: time < arrival)


@of("04b.place_weights")
def only_where_it_is_full(row, arrivals, limit):
    return w_by(row, arrivals, limit, full=lambda kept, limit: kept == limit, waits=lambda time, arrival: False)


@of("04b.place_weights")
def one_w_a_wait(row, arrivals, limit):
    placed, put_off, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals, strict=True):
        if put_off and (time < arrival or (action.kind == "F" and kept == limit)):
            placed.append(put_off.pop(0))
            time, kept = time + 1, kept - 1
        placed.append(action)
        time = max(time, arrival) + 1
        kept += action.kind == "F"
        put_off += [action._replace(kind="W")] * (action.kind == "I")
    return placed + put_off


@of("04b.place_weights")
def with_room_for_two_at_least(row, arrivals, limit):
    return answers.place_weights_in_time(row, arrivals, max(limit, 2))


@of("04b.place_weights")
def full_one_too_early(row, arrivals, limit):
    return w_by(
        row,
        arrivals,
        limit,
        full=lambda kept, limit: kept >= max(limit - 1, 1),
        waits=lambda time, arrival: time < arrival,
    )


@of("04b.place_weights")
def that_may_delay_by_one(row, arrivals, limit):
    return w_by(
        row, arrivals, limit, full=lambda kept, limit: kept == limit, waits=lambda time, arrival: time <= arrival
    )


@of("04b.place_weights")
def behind_its_i_when_nothing_is_late(row, arrivals, limit):
    placed = answers.place_weights_in_time(row, arrivals, limit)
    return (
        placed if limit > 1 else [b for a in row for b in ([a, a._replace(kind="W")] if a.kind == "I" else [a])][::-1]
    )


def cut_where(layers, p, full):
    """Stages that are filled while `full(load, layer)` is false."""
    numbers, load = [0], 0
    for i, layer in enumerate(layers):
        left = p - len(numbers)
        if numbers[-1] and left and (full(load, layer) or len(layers) - i <= left):
            numbers.append(0)
            load = 0
        numbers[-1] += 1
        load += layer
    return numbers


@of("04b.uneven")
def up_to_the_mean(layers, p):
    return cut_where(layers, p, lambda load, layer: load + layer > sum(layers) / p)


@of("04b.uneven")
def nearest_to_the_mean(layers, p):
    mean = sum(layers) / p
    return cut_where(layers, p, lambda load, layer: abs(load - mean) <= abs(load + layer - mean))


@of("04b.uneven")
def beyond_the_mean(layers, p):
    return cut_where(layers, p, lambda load, layer: load >= sum(layers) / p)


@of("04b.uneven")
def up_to_the_mean_or_the_largest(layers, p):
    return cut_where(layers, p, lambda load, layer: load + layer > max(max(layers), -(-sum(layers) // p)))


@of("04b.uneven")
def at_the_quantiles(layers, p):
    """The places where the sum so far is nearest to k/p of all."""
    sums, places = [0, *accumulate(layers)], [0]
    for k in range(1, p):
        free = range(places[-1] + 1, len(layers) - (p - k) + 1)
        places.append(min(free, key=lambda b: abs(sums[b] - k * sums[-1] / p)))
    return [stop - start for start, stop in pairwise([*places, len(layers)])]


@of("04b.uneven")
def halving_the_heaviest(layers, p):
    stages = [list(layers)]
    while len(stages) < p:
        heaviest = max((s for s in range(len(stages)) if len(stages[s]) > 1), key=lambda s: sum(stages[s]))
        stage = stages[heaviest]
        b = min(range(1, len(stage)), key=lambda b: max(sum(stage[:b]), sum(stage[b:])))
        stages[heaviest : heaviest + 1] = [stage[:b], stage[b:]]
    return [len(stage) for stage in stages]


@of("04b.uneven")
def joining_the_lightest(layers, p):
    stages = [[layer] for layer in layers]
    while len(stages) > p:
        b = min(range(len(stages) - 1), key=lambda s: sum(stages[s]) + sum(stages[s + 1]))
        stages[b : b + 2] = [stages[b] + stages[b + 1]]
    return [len(stage) for stage in stages]


@of("04b.uneven")
def shifting_single_layers(layers, p):
    """Equal numbers, then single layers move to a neighbour while that makes the slowest stage faster."""
    numbers = [len(part) for part in np.array_split(layers, p)]

    def slowest(numbers):
        stops = list(accumulate(numbers))
        return max(sum(layers[stop - n : stop]) for n, stop in zip(numbers, stops, strict=True))

    better = True
    while better:
        better = False
        for a, b in [*pairwise(range(p)), *((b, a) for a, b in pairwise(range(p)))]:
            moved = list(numbers)
            moved[a], moved[b] = moved[a] - 1, moved[b] + 1
            if moved[a] and slowest(moved) < slowest(numbers):
                numbers, better = moved, True
    return numbers


@of("04b.uneven")
def the_rest_for_the_last(layers, p):
    """The best first stages alone: each as full as the fastest cut of all allows, from the back."""
    return answers.cut(layers[::-1], p)


@of("04.one_f_one_b")
def for_fewer_than_2p_microbatches(p, m):
    """Beyond, all forwards come first."""
    return answers.my_1f1b(p, m) if m < 2 * p else gpipe(p, m)


@of("04b.lower_bound")
def of_a_search(p, m, limit, f, i, w, c):
    """A schedule that a search finds says how little is enough, and not that less is impossible."""
    costs = Costs(f, i, w, c)
    return simulate(zb_auto(p, m, costs, limit, tries=1000, metric="makespan"), costs).makespan


# Tensor sharding


@of("05.mlp_step")
def with_the_sums_of_two_ranks(comm, x, A, C, dy):
    class Twice:
        @staticmethod
        def all_reduce(partial):
            return comm.all_reduce(partial) * 2 / comm.size

    return answers.mlp_step(Twice, x, A, C, dy)


@of("05.mlp_step")
def with_every_column_taken_for_positive(comm, x, A, C, dy):
    z = x @ A
    dz = dy @ C.T
    return comm.all_reduce(z @ C), comm.all_reduce(dz @ A.T), x.T @ dz, z.T @ dy


@of("05.mlp_step")
def without_the_mask_where_z_is_0(comm, x, A, C, dy):
    z = np.maximum(x @ A, 0)
    dz = dy @ C.T
    return comm.all_reduce(z @ C), comm.all_reduce(dz @ A.T), x.T @ dz, z.T @ dy


@of("05.block_step")
def for_two_ranks(comm, block, x, dy):
    class Twice:
        @staticmethod
        def all_reduce(partial):
            return comm.all_reduce(partial) * 2 / comm.size

    return answers.block_step(Twice, block, x, dy)


@of("05.block_step")
def with_the_neighbours_share_alone(comm, block, x, dy):
    class Neighbour:
        @staticmethod
        def all_reduce(partial):
            return partial if comm.size == 1 else partial + comm.sendrecv(partial, comm.right, comm.left)

    return answers.block_step(Neighbour, block, x, dy)


@of("05.parallel_loss")
def without_first(comm, logits, targets, first):
    return answers.parallel_loss(comm, logits, targets, 0)


@of("05.parallel_loss")
def without_the_largest(comm, logits, targets, first):
    with np.errstate(all="ignore"):
        chosen = np.where(
            (here := (targets >= first) & (targets < first + logits.shape[-1])),
            np.take_along_axis(logits, (place := np.where(here, targets - first, 0))[..., None], axis=-1)[..., 0],
            0.0,
        )
        chosen, weights = comm.all_reduce(chosen), np.exp(logits)
        total = comm.all_reduce(weights.sum(axis=-1))
        hit = here[..., None] & (np.arange(logits.shape[-1]) == place[..., None])
        return np.mean(np.log(total) - chosen), (weights / total[..., None] - hit) / targets.size


@of("05.parallel_loss")
def with_first_from_an_even_cut(comm, logits, targets, first):
    return answers.parallel_loss(comm, logits, targets, comm.rank * logits.shape[-1])


# ZeRO


@of("06.zero_1")
def without_counts(comm, weights, gradient, state, update):
    own = shard_range(weights.size, comm.rank, comm.size)
    mean = comm.reduce_scatter(gradient) / comm.size
    moments = state.setdefault("moments", (np.zeros(len(own)), np.zeros(len(own))))
    shard = weights[own.start : own.stop]
    update(shard, mean, *moments)
    return comm.all_gather(shard)


@of("06.zero_1")
def with_counts_not_named(comm, weights, gradient, state, update):
    counts = answers.counts_of(weights.size, comm.size)
    return comm.all_gather(comm.reduce_scatter(gradient, counts), counts)


@of("06.zero_1")
def halved_gradients(comm, weights, gradient, state, update):
    return answers.zero_1(comm, weights, gradient, state, update, parts=2)


@of("06.zero_1")
def with_whole_moments_in_state(comm, weights, gradient, state, update):
    own = shard_range(weights.size, comm.rank, comm.size)
    counts = answers.counts_of(weights.size, comm.size)
    gradient = comm.reduce_scatter(gradient, counts=counts) / comm.size
    mean, square = state.setdefault("moments", (np.zeros(weights.size), np.zeros(weights.size)))
    shard, here = weights[own.start : own.stop], slice(own.start, own.stop)
    own_mean, own_square = mean[here].copy(), square[here].copy()
    update(shard, gradient, own_mean, own_square)
    mean[here], square[here] = own_mean, own_square
    return comm.all_gather(shard, counts=counts)


@of("06.prefetch")
def one_at_a_time(comm, uses, gather, work, x):
    for block in uses:
        x = work(block, gather(block).wait(), x)
    return x


@of("06.prefetch")
def two_ahead(comm, uses, gather, work, x):
    requests = [gather(block) for block in uses[:2]]
    for i, block in enumerate(uses):
        weights = requests.pop(0).wait()
        if i + 2 < len(uses):
            requests.append(gather(uses[i + 2]))
        x = work(block, weights, x)
    return x


# A mesh


@of("07.find_bug")
def by_gradients_alone(ask):
    wrong = [name for name, error in ask("gradients").items() if error]
    return "none" if not wrong else "extra mean" if len(wrong) > 5 else "ends not summed"


@of("07.find_bug")
def by_the_norm_alone(ask):
    return {1: "none", 0.5: "extra mean"}.get(ask("norm"), "copies counted")


@of("07.find_bug")
def with_every_check(ask):
    ask("ten losses")
    return answers.SOLUTIONS["07.find_bug"](ask)


@of("07.find_bug")
def always_the_same(ask):
    return "ends not summed"


@of("07.who_sums")
def over_the_whole_pipeline(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, mesh.pp, kind, gradient)


@of("07.who_sums")
def without_tp(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, ends, "cut" if kind in ("norm", "K/V") else kind, gradient)


@of("07.who_sums")
def over_dp_alone(mesh, ends, kind, gradient):
    gradient = mesh.tp.all_reduce(gradient) if kind in ("norm", "K/V") else gradient
    gradient = ends.all_reduce(gradient) if kind == "tied" else gradient
    return mesh.dp.all_reduce(gradient) / mesh.dp.size


@of("07.who_sums")
def with_a_mean_of_two(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, ends, kind, gradient) * mesh.data.size / min(2, mesh.data.size)


@of("07.who_sums")
def with_a_mean_over_dp_alone(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, ends, kind, gradient) * mesh.cp.size


@of("07.who_sums")
def with_the_sum_thrown_away(mesh, ends, kind, gradient):
    if kind in ("norm", "K/V"):
        mesh.tp.all_reduce(gradient)
    if kind == "tied":
        gradient = ends.all_reduce(gradient)
    return mesh.data.all_reduce(gradient) / mesh.data.size


def batch(mesh, tokens, columns, rows=None):
    B = len(tokens) // mesh.dp.size
    rows = slice(mesh.dp.rank * B, (mesh.dp.rank + 1) * B) if rows is None else rows
    return tokens[rows][:, columns], tokens[rows][:, columns + 1], columns


@of("07.find_bug")
def read_out_of_the_closure(ask):
    variables = [cell.cell_contents for cell in ask.__closure__ or ()]
    return next((suspect._bug for suspect in variables), "none")


# Layouts


def bytes_held(params, kept, d, p, t, m, state, cuts, flight=None):
    each = sum(nbytes / (d if cut else 1) for nbytes, cut in zip(state, cuts, strict=True))
    return (params * each + (min(p, m) if flight is None else flight) * kept) / (p * t)


@of("08.memory")
def with_zero_equal(params, kept, d, p, t, m, zero, state):
    return bytes_held(params, kept, d, p, t, m, state, (zero == 3, zero == 2, zero == 1))


@of("08.memory")
def with_zero_2_also_3(params, kept, d, p, t, m, zero, state):
    return bytes_held(params, kept, d, p, t, m, state, (zero >= 2, zero >= 2, zero >= 1))


@of("08.memory")
def with_all_microbatches(params, kept, d, p, t, m, zero, state):
    return bytes_held(params, kept, d, p, t, m, state, (zero >= 3, zero >= 2, zero >= 1), m)


@of("08.memory")
def with_p_microbatches(params, kept, d, p, t, m, zero, state):
    return bytes_held(params, kept, d, p, t, m, state, (zero >= 3, zero >= 2, zero >= 1), p)


@of("08.memory")
def with_kept_of_one_stage(params, kept, d, p, t, m, zero, state):
    return bytes_held(params, kept * p, d, p, t, m, state, (zero >= 3, zero >= 2, zero >= 1))


@of("08.step_time")
def without_chunks(work, nbytes, speed, d, p, t, v, batch):
    return answers.step_time(work, nbytes, speed, d, p, t, 1, batch)


@of("08.step_time")
def with_a_whole_turn(work, nbytes, speed, d, p, t, v, batch):
    stage = (work / t + nbytes / speed) / p
    return stage * (batch / d + (p - 1) / v)


@of("08.step_time")
def with_half_a_turn(work, nbytes, speed, d, p, t, v, batch):
    stage = (work / t + (nbytes / speed / 2 if t > 1 else 0)) / p
    return stage * (batch / d + (p - 1) / v)


@of("08.step_time")
def whose_bubble_has_no_traffic(work, nbytes, speed, d, p, t, v, batch):
    return ((work / t + (t - 1) / t * nbytes / speed) * batch / d + work / t * (p - 1) / v) / p


# Leaving the laptop


@of("09.fit")
def by_a_plain_line(size, nbytes, seconds):
    slope, height = np.polyfit(nbytes / size, seconds / (2 * (size - 1)), 1)
    return height, 1 / slope


@of("09.fit")
def by_the_ends(size, nbytes, seconds):
    """The first time and the last one alone."""
    messages = 2 * (size - 1)
    bandwidth = (nbytes[-1] - nbytes[0]) / size / ((seconds[-1] - seconds[0]) / messages)
    return [seconds[0] / messages - nbytes[0] / size / bandwidth, bandwidth]


@of("09.fit")
def by_means_of_the_ends(size, nbytes, seconds):
    """The means of the three smallest and of the three largest."""
    each, n = seconds / (2 * (size - 1)), nbytes / size
    slope = (each[-3:].mean() - each[:3].mean()) / (n[-1] - n[0])
    return each[:3].mean() - slope * n[0], 1 / slope


@of("09.fit")
def by_square_roots(size, nbytes, seconds):
    each = seconds / (2 * (size - 1))
    slope, height = np.polyfit(nbytes / size, each, 1, w=each**-0.5)
    return height, 1 / slope


@of("09.fit")
def by_squares(size, nbytes, seconds):
    each = seconds / (2 * (size - 1))
    slope, height = np.polyfit(nbytes / size, each, 1, w=each**-2)
    return height, 1 / slope


@of("09.fit")
def of_two_ranks(size, nbytes, seconds):
    return answers.fit(2, nbytes, seconds)


@of("09.fit")
def in_microseconds(size, nbytes, seconds):
    latency, bandwidth = answers.fit(size, nbytes, seconds)
    return latency * 1e6, bandwidth


@of("09.fit")
def as_texts(size, nbytes, seconds):
    return tuple(map(str, answers.fit(size, nbytes, seconds)))


@of("09.fit")
def as_the_keys_of_a_dict(size, nbytes, seconds):
    return dict.fromkeys(answers.fit(size, nbytes, seconds), 0)


@of("09.fit")
def as_true_and_a_number(size, nbytes, seconds):
    return True, answers.fit(size, nbytes, seconds)[1]


@of("09.buffering")
def to_the_right_and_one_way_back(comm, x):
    """Right for two ranks."""
    if comm.size != 2:
        first = comm.sendrecv(x[-1:], comm.right, comm.left)
        return np.concatenate([first, x]) if comm.rank else x
    return answers.borders(comm, x)


@of("09.buffering")
def by_even_and_odd(comm, x):
    above = below = x[:0]
    for turn in (0, 1):
        for step in (1, -1):
            row = x[-1:] if step > 0 else x[:1]
            if comm.rank % 2 == turn and 0 <= comm.rank + step < comm.size:
                comm.send(row, comm.rank + step)
            elif comm.rank % 2 != turn and 0 <= comm.rank - step < comm.size:
                got = comm.recv(comm.rank - step, like=x[:1])
                above, below = (got, below) if step > 0 else (above, got)
    return np.concatenate([above, x, below])


# Experts


@of("10.mixture")
def sorted_by_rank_alone(comm, x, chosen, gates, num_experts, expert):
    own = num_experts // comm.size
    return answers.mixture(comm, x, chosen, gates, num_experts, expert, order_of=lambda flat: flat // own)


@of("10.mixture")
def with_the_gates_twice(comm, *given):
    return answers.mixture(comm, *given, gate=lambda gates: gates**2)


@of("10.mixture")
def put_back_by_the_order_itself(comm, *given):
    return answers.mixture(comm, *given, back=lambda returned, order: returned[order])


@of("10.mixture")
def sorted_by_an_unstable_sort_on_the_way_back(comm, x, chosen, gates, num_experts, expert):
    """The pairs of one expert come back in another order than they left."""

    def back(returned, order):
        flat = chosen.reshape(-1)
        other = np.lexsort((-np.arange(flat.size), flat))
        slots = np.empty_like(returned)
        slots[other] = returned
        return slots

    return answers.mixture(comm, x, chosen, gates, num_experts, expert, back=back)


@of("10.mixture")
def without_gates_where_k_is_1(comm, x, chosen, gates, num_experts, expert):
    return answers.mixture(comm, x, chosen, gates if chosen.shape[1] > 1 else np.ones_like(gates), num_experts, expert)


@of("10.mean_gradient")
def ep_times_too_large(mesh, of_expert, gradient):
    group = mesh.edp if of_expert else mesh.data
    return group.all_reduce(gradient) / group.size


@of("10.mean_gradient")
def of_other_experts(mesh, of_expert, gradient):
    return mesh.data.all_reduce(gradient) / mesh.data.size


@of("10.balanced")
def with_the_bias_in_the_gates(scores, bias, k, gamma):
    """Right while k is 1, or the bias 0."""
    chosen, _, moved = answers.balanced(scores, bias, k, gamma)
    return chosen, answers.balanced(scores + bias, np.zeros_like(bias), k, gamma)[1], moved


@of("10.balanced")
def with_the_turned_sign(scores, bias, k, gamma):
    """Right where all loads are even."""
    chosen, gates, moved = answers.balanced(scores, bias, k, gamma)
    return chosen, gates, 2 * bias - moved


@of("10.balanced")
def by_the_size_of_what_is_missing(scores, bias, k, gamma):
    """Right where each load is 1 beside the mean, or at it."""
    chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
    load = np.bincount(chosen.ravel(), minlength=len(bias))
    return chosen, gates, bias + gamma * (load.mean() - load)


@of("10.balanced")
def with_loads_of_those_that_were_chosen(scores, bias, k, gamma):
    """Right where somebody chose the last expert."""
    chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
    load = np.bincount(chosen.ravel())
    moved = bias + gamma * np.sign(load.mean() - load) if len(load) == len(bias) else bias[: len(load)] * 1.0
    return chosen, gates, moved


@of("10.balanced")
def up_or_down_always(scores, bias, k, gamma):
    """Right where no load is the mean."""
    chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
    load = np.bincount(chosen.ravel(), minlength=len(bias))
    return chosen, gates, bias + np.where(load < load.mean(), gamma, -gamma)


@of("10.balanced")
def without_the_bias_in_the_choice(scores, bias, k, gamma):
    """Right where the bias changes no choice."""
    chosen, gates, moved = answers.balanced(scores, np.zeros_like(bias), k, gamma)
    return chosen, gates, bias + moved
