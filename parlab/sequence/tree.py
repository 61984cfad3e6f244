"""Tree attention: queries travel, not keys. Each rank attends all queries to its own K/V, and the partial outputs are
merged pairwise by their lse, level by level: ⌈log₂P⌉ messages instead of P − 1.

That is for few queries and many keys. To decode, one new query against a long cache, `replicated` queries need no
gathering, and every rank ends with the merged result.

Source: Shyam et al. 2024, "Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU Clusters".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from parlab.arguments import checked
from parlab.arrays import Array, namespace
from parlab.nn.attention import CAUSAL, merge
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import Call, Queries, Scale, backward_of, swap
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.layouts import Block
from parlab.world import Comm

Parts = Sequence[Array]  # out and lse, say: arrays whose rows, axis 2, are queries
Combine = Callable[..., Parts]  # of two ranks' parts: merge or add


@checked(RULES)
def tree_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, causal: bool = False, replicated: bool = False, scale: Scale = None
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's contiguous shards; arguments as `ring_attention`, and
    `replicated`: q `[B, H, T, D]`, of the sequence's last T tokens, is the same on every rank; so is what is returned.

    Backward dk and dv are complete where they are made; dq is summed along the same tree.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> q, cache = np.ones((1, 2, 1, 4)), per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> done = run(tree_attention, 4, q, cache, cache, replicated=True)  # one new token
    >>> np.exp(done.results[3][1][0, 0] - 2).round().astype(int).tolist(), done.timeline.messages(3)
    ([8], 2)
    """
    call, keys = Call("tree", comm, q, k, v, scale, causal=causal, replicated=replicated), k.shape[2]
    if call.q.shape[2] > comm.size * keys:
        raise ValueError(f"q has {call.q.shape[2]} queries: the sequence has {comm.size * keys} tokens")
    given = call.rows if replicated else gather_rows(comm, call.rows, call.label)  # [B, H, S or T, ...]
    queries = Queries(call, given)
    rows, first = queries.sums[0].shape[2], comm.rank * keys
    block = Block(slice(0, rows), slice(0, keys))  # what all queries see of this rank's K/V
    if causal and replicated:
        block = Block(slice(0, rows), slice(0, keys), comm.size * keys - rows - first)
    elif causal:
        block = Block(slice(first, rows), slice(0, keys), CAUSAL)
    gradients = queries.attend([block], k, v)  # backward: [B, G, S/P, D]
    comm.hold(call.made, *(gradients or ()))
    sums: Parts = tuple(queries.sums)
    del queries, given
    combine = merge if gradients is None else lambda a, b: (a + b,)
    sums = (merge_all if replicated else merge_rows)(comm, sums, combine, call.label)  # [B, H, S/P or T, ...]
    return call.results(sums, gradients)


tree_attention_backward = backward_of(tree_attention)


class Level(NamedTuple):
    """One level of the tree: the group's ranks in two halves, and with whom of the other half a rank has to do."""

    mine: range  # the ranks of its own half
    other: range
    partner: int  # who gets what the other half is to have, and gives what it has
    clients: list[int]  # for whom this rank is the partner: one rank, or, where the halves differ, none or two


def levels(rank: int, size: int) -> list[Level]:
    """The levels of `rank`, the whole group's first: ⌈log₂P⌉ of them at most."""
    found, group = [], range(size)
    while len(group) > 1:
        middle = (len(group) + 1) // 2
        mine, other = group[:middle], group[middle:]
        if rank not in mine:
            mine, other = other, mine
        place = mine.index(rank)
        clients = [peer for number, peer in enumerate(other) if number % len(mine) == place]
        found.append(Level(mine, other, other[place % len(other)], clients))
        group = mine
    return found


def gather_rows(comm: Comm, parts: Parts, label: str) -> list[Array]:
    """The rows of all ranks, up the tree: a half that has all of its own gives them to the other."""
    xp, length = namespace(*parts), parts[0].shape[2]
    whole = [xp.empty((*x.shape[:2], comm.size * length, *x.shape[3:]), dtype=x.dtype, device=x.device) for x in parts]
    comm.hold("rows", *whole)
    _put(_rows(whole, range(comm.rank, comm.rank + 1), length), parts)
    for level in reversed(levels(comm.rank, comm.size)):
        ours, theirs = _rows(whole, level.mine, length), _rows(whole, level.other, length)
        _put(theirs, *_swaps(comm, ours, level.clients, theirs, [level.partner], label))
    return whole


def merge_rows(comm: Comm, parts: Parts, combine: Combine, label: str) -> list[Array]:
    """Each rank's rows, combined over all ranks, down the tree: a half gets its rows from the other, and goes on."""
    length = parts[0].shape[2] // comm.size
    for level in levels(comm.rank, comm.size):
        ours, theirs = _rows(parts, level.mine, length), _rows(parts, level.other, length)
        for came in _swaps(comm, theirs, [level.partner], ours, level.clients, label):
            _put(ours, combine(*ours, *came))
            del came
    return [namespace(x).asarray(x, copy=True) for x in _rows(parts, range(comm.rank, comm.rank + 1), length)]


def merge_all(comm: Comm, parts: Parts, combine: Combine, label: str) -> Parts:
    """All rows, combined over all ranks, on every rank, up the tree: the same to the bit."""
    for level in reversed(levels(comm.rank, comm.size)):
        (other,) = _swaps(comm, parts, level.clients, parts, [level.partner], label)
        first, second = (parts, other) if level.mine.start < level.other.start else (other, parts)
        parts = combine(*first, *second)
        del other, first, second
        comm.hold("out, lse", *parts)
    return parts


def _swaps(comm: Comm, x: Parts, to: list[int], form: Parts, givers: list[int], label: str) -> Iterator[Parts]:
    """Give x to some, and take what others give; with the first of both, who is the same rank, at once."""
    for dst, src in zip_longest(to, givers):
        if src is None:
            swap(comm, x, dst, None, dst, label)
        else:
            yield swap(comm, None if dst is None else x, src, form, src, label)


def _rows(parts: Parts, ranks: range, length: int) -> list[Array]:
    """Views of the rows of these ranks."""
    return [x[:, :, ranks.start * length : ranks.stop * length, ...] for x in parts]


def _put(places: Parts, parts: Parts) -> None:
    for place, part in zip(places, parts, strict=True):
        place[...] = part


@checked(RULES)
def tree_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, queries: int | None = None, backward: bool = False
) -> RankCost:
    """What `rank` sends and holds: the rows of half the group at every level, up and down, S·(P − 1)/P each way in all,
    where P is a power of two. `queries`: so many replicated ones instead; all of them at every level.

    >>> tree_cost(AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4), 8, queries=1)[:2]
    (3, 6240)
    """
    c, token, tree = shape.shard(size, rank), shape.token(backward=backward), levels(rank, size)
    if queries is not None:
        if queries > shape.S:
            raise ValueError(f"queries={queries}: the sequence has {shape.S} tokens")
        messages = sum(len(level.clients) for level in tree)
        sums = min(len(tree) + 1, 3) * token.sums  # its own, those so far, and what arrives
        held = c * (token.kv + token.dkv) + queries * (token.own - token.kv + sums)
        return RankCost(messages, messages * queries * token.sums, held)
    messages = sum(len(level.clients) + 1 for level in tree)
    up = sum(len(level.clients) * len(level.mine) for level in tree) * token.rows
    down = sum(len(level.other) for level in tree) * token.sums
    coming = max((len(level.other) for level in tree), default=0) * token.rows
    merged = max((len(level.mine) for level in tree if level.clients), default=0) * token.sums
    sums = size * token.sums + token.dkv
    held = token.own + max(size * token.rows + max(coming, sums), sums + merged)
    return RankCost(messages, c * (up + down), c * held)
