"""Tree attention: queries travel, not keys. Each rank attends all queries to its own K/V, and the partial outputs are
merged pairwise by their lse, level by level: ⌈log₂P⌉ levels up with the queries, and as many down with the outputs.
Where P is a power of two a rank sends one message a level, so 2 log₂P in all; the ring sends P − 1.

This pays for few queries and many keys. To decode, one new query against a long cache, `replicated` queries need no
gathering: the outputs go up, log₂P messages in all, and every rank ends with the merged result.

All ranks form two halves, each half forms two again, down to single ranks. Up, the halves of a group swap their rows;
down, each half gives the other its partial outputs for the other's rows. P = 3, "rows / over the keys of":

                             rank 0         rank 1         rank 2
    up, after level 1        0, 1           0, 1           2             0 and 1 swapped
    up, after level 2        0, 1, 2        0, 1, 2        0, 1, 2       0 and 2 swapped, and 2 gave to 1 too
    attended                 0, 1, 2 / 0    0, 1, 2 / 1    0, 1, 2 / 2
    down, after level 1      0, 1 / 0, 2    0, 1 / 1       2 / 0, 1, 2   2 gave to 0, and 0 and 1 to 2
    down, after level 2      0 / 0, 1, 2    1 / 0, 1, 2    2 / 0, 1, 2   0 and 1 swapped

Invariants, for every P. Up, after a level: each rank of a group has the rows of all its ranks. Down, after a level: of
the rows of a half, each key is in the partial outputs of exactly one of its ranks.

Source: Shyam et al. 2024, "Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU Clusters".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlab.arguments import flag
from parlab.arrays import Array, namespace
from parlab.nn.attention import CAUSAL, merge
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot
from parlab.sequence.attend import (
    GRADIENTS,
    SUMS,
    Scale,
    attend,
    attend_backward,
    call_label,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
    put,
)
from parlab.sequence.tiles import Tile, sharded_mask
from parlab.world import Comm

Parts = Sequence[Array]  # arrays whose rows, axis 2, are queries: out and lse, or dq
Combine = Callable[..., Parts]  # of two ranks' parts: merge or add


def tree_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, causal: bool = False, replicated: bool = False, scale: Scale = None
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's contiguous shards; arguments as `ring_attention`, and
    `replicated`: q `[B, H, T, D]`, of the sequence's last T tokens, is the same on every rank; so is what is returned.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> q, cache = np.ones((1, 2, 1, 4)), per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> done = run(tree_attention, 4, q, cache, cache, replicated=True)  # one new token
    >>> np.exp(done.results[3][1][0, 0] - 2).round().astype(int).tolist(), done.timeline.messages(3)
    ([8], 2)
    """
    flag("replicated", replicated)
    check_inputs(q, k, v, scale=scale, same_length=not replicated)
    refuse_more_queries(q, k, comm.size)
    mask = sharded_mask(comm.size, k.shape[2], causal)
    label = call_label("tree", mask, replicated=replicated, scale=scale)
    comm.hold("q, k, v", q, k, v)
    (all_q,) = [q] if replicated else gather_up(comm, [q], label)  # [B, H, S or T, D]
    tile = seen_tile(comm, all_q.shape[2], k.shape[2], causal=causal, replicated=replicated)
    sums = no_keys_yet(comm, all_q)
    attend(comm, [tile], all_q, (k, v), sums, scale=scale)
    del all_q  # no longer held when the partial results come
    merge_ranks = merge_up if replicated else merge_down
    out, lse = merge_ranks(comm, sums, merge, label)  # [B, H, S/P or T, D], [B, H, S/P or T]
    return narrowed(out, q), lse


def tree_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    replicated: bool = False,
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, and `replicated`.

    dk and dv are complete where they are made. dq is summed along the same tree.
    """
    flag("replicated", replicated)
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale, same_length=not replicated)
    refuse_more_queries(q, k, comm.size)
    mask = sharded_mask(comm.size, k.shape[2], causal)
    label = call_label("tree backward", mask, replicated=replicated, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P or T]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    rows = [q, dout, lse, delta]  # twice [B, H, S/P or T, D], twice [B, H, S/P or T]
    all_q, all_dout, all_lse, all_delta = rows if replicated else gather_up(comm, rows, label)
    tile = seen_tile(comm, all_q.shape[2], k.shape[2], causal=causal, replicated=replicated)
    dq = no_gradient_yet(comm, all_q)
    dk, dv = attend_backward(comm, [tile], all_dout, all_q, (k, v), all_lse, all_delta, dq, scale=scale)
    comm.hold(GRADIENTS, dk, dv)
    del all_q, all_dout, all_lse, all_delta  # no longer held when the partial results come
    merge_ranks = merge_up if replicated else merge_down
    (dq,) = merge_ranks(comm, (dq,), lambda a, b: (a + b,), label)  # [B, H, S/P or T, D]
    return narrowed(dq, q), narrowed(dk, k), narrowed(dv, v)


def refuse_more_queries(q: Array, k: Array, size: int) -> None:
    """ValueError: the sequence has fewer tokens than q has."""
    S = size * k.shape[2]
    if q.shape[2] > S:
        raise ValueError(f"q has {q.shape[2]} queries: the sequence has {S} tokens")


def seen_tile(comm: Comm, queries: int, keys: int, *, causal: bool, replicated: bool) -> Tile:
    """The tile of so many queries, all or the last ones of the sequence, and this rank's keys."""
    first = comm.rank * keys  # this rank's first token
    if not causal:
        return Tile(slice(0, queries), slice(0, keys))
    if replicated:
        return Tile(slice(0, queries), slice(0, keys), comm.size * keys - queries - first)
    return Tile(slice(first, queries), slice(0, keys), CAUSAL)


class Level(NamedTuple):
    """One level of the tree for one rank: the halves of its group, and the ranks of the other half that it meets."""

    mine: range  # the ranks of its own half
    other: range  # the ranks of the other half
    partner: int  # in the other half: up, this rank takes from it; down, it gives to it
    clients: list[int]  # the ranks whose partner it is, its own partner first: one; of unequal halves, none or two


def levels(rank: int, size: int) -> list[Level]:
    """The levels of `rank`, the level of the whole group first: at most ⌈log₂P⌉.

    >>> [(level.partner, level.clients) for level in levels(2, 4)]
    [(0, [0]), (3, [3])]
    >>> [[(level.partner, level.clients) for level in levels(rank, 3)] for rank in range(3)]  # halves 0, 1 and 2
    [[(2, [2]), (1, [1])], [(2, []), (0, [0])], [(0, [0, 1])]]
    """
    found, group = [], range(size)
    while len(group) > 1:
        middle = (len(group) + 1) // 2
        mine, other = group[:middle], group[middle:]
        if rank not in mine:
            mine, other = other, mine
        clients = [peer for peer in other if partner_of(peer, other, mine) == rank]
        found.append(Level(mine, other, partner_of(rank, mine, other), clients))
        group = mine
    return found


def partner_of(rank: int, mine: range, other: range) -> int:
    """The rank at its place in the other half; the first one, if the other half is shorter and has no such place.

    >>> [partner_of(rank, range(0, 3), range(3, 5)) for rank in range(3)]
    [3, 4, 3]
    """
    return other[mine.index(rank) % len(other)]


def gather_up(comm: Comm, parts: Parts, label: str) -> list[Array]:
    """The rows of all ranks: in each level each half gives all of its rows to the other half."""
    xp, length = namespace(*parts), parts[0].shape[2]
    rows = [xp.empty((*x.shape[:2], comm.size * length, *x.shape[3:]), dtype=x.dtype, device=x.device) for x in parts]
    comm.hold("rows", *rows)
    put(_rows(rows, range(comm.rank, comm.rank + 1), length), parts)
    for level in reversed(levels(comm.rank, comm.size)):
        ours, theirs = _rows(rows, level.mine, length), _rows(rows, level.other, length)
        put(theirs, swap_up(comm, level, ours, theirs, label))
    return rows


def merge_up(comm: Comm, parts: Parts, combine: Combine, label: str) -> Parts:
    """All rows, combined over all ranks, the same to the bit on every rank: each half gives its parts to the other."""
    for level in reversed(levels(comm.rank, comm.size)):
        other = swap_up(comm, level, parts, parts, label)
        parts = combine(*parts, *other)  # a + b is b + a to the bit, so the order of the two does not matter
        del other
        comm.hold(SUMS, *parts)
    return parts


def swap_up(comm: Comm, level: Level, ours: Parts, like: Parts, label: str) -> Parts:
    """Give `ours` to the clients, the partner among them unless there are none, and take from the partner."""
    if not level.clients:
        return comm.recv(level.partner, like, label=label)
    theirs = comm.sendrecv(ours, level.partner, level.partner, like, label=label)
    for client in level.clients[1:]:
        comm.send(ours, client, label=label)
    return theirs


def merge_down(comm: Comm, parts: Parts, combine: Combine, label: str) -> list[Array]:
    """Each rank's rows, combined over all ranks: in each level each half takes its own rows from the other half."""
    length = parts[0].shape[2] // comm.size
    for level in levels(comm.rank, comm.size):
        ours, theirs = _rows(parts, level.mine, length), _rows(parts, level.other, length)
        if not level.clients:
            comm.send(theirs, level.partner, label=label)
        for client in level.clients:
            if client == level.partner:
                came = comm.sendrecv(theirs, client, client, ours, label=label)
            else:
                came = comm.recv(client, ours, label=label)
            put(ours, combine(*ours, *came))
            del came  # no longer held when the next one comes
    return [namespace(x).asarray(x, copy=True) for x in _rows(parts, range(comm.rank, comm.rank + 1), length)]


def _rows(parts: Parts, ranks: range, length: int) -> list[Array]:
    """Views of the rows of these ranks."""
    return [x[:, :, ranks.start * length : ranks.stop * length, ...] for x in parts]
