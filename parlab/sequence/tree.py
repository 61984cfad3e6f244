"""Tree attention: queries travel, not keys. Each rank attends all queries to its own K/V, and the partial outputs are
merged pairwise by their lse, level by level: ⌈log₂P⌉ messages instead of P − 1.

That is for few queries and many keys. To decode, one new query against a long cache, `replicated` queries need no
gathering, and every rank ends with the merged result.

Source: Shyam et al. 2024, "Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU Clusters".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.attention import CAUSAL, check_inputs, merge
from parlab.sequence.attend import Queries, QueryGradients, agreed, backward_rows, label, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.schedule import Block
from parlab.world import Comm

Parts = Sequence[Array]  # out and lse, say: arrays whose rows, axis 2, are queries
Combine = Callable[..., Parts]  # of two ranks' parts: merge or add


def tree_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    replicated: bool = False,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention over the whole sequence, from this rank's contiguous shards of it; arguments as `ring_attention`, and
    `replicated`: q `[B, H, T, D]` is the same on every rank, the queries of the sequence's last T tokens, and so is
    what is returned.

    Raises:
        ValueError: shapes that do not fit, before any message.
        MismatchError: another rank was told another `causal`, `replicated` or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> q, cache = np.ones((1, 2, 1, 4)), per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> done = run(tree_attention, 4, q, cache, cache, replicated=True)  # one new token
    >>> np.exp(done.results[3][1][0, 0] - 2).round().astype(int).tolist(), done.timeline.messages(3)
    ([8], 2)
    """
    told = _checked(comm, "tree", q, k, v, causal, replicated, scale)
    (rows,) = [q] if replicated else gather_rows(comm, [q], told)  # [B, H, S or T, D]
    queries = Queries(comm, rows, scale)
    queries.attend(tree_blocks(comm, rows, k, causal, replicated), k, v)
    out, lse = queries.out, queries.lse  # [B, H, S or T, D], [B, H, S or T]
    del rows, queries
    out, lse = (merge_all if replicated else merge_rows)(comm, (out, lse), merge, told)
    return narrowed([out], [q])[0], lse


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
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`, and `replicated`.

    dk and dv are complete where they are made; dq is summed along the same tree.

    Raises: as the forward.
    """
    told = _checked(comm, "tree backward", q, k, v, causal, replicated, scale)
    rows = backward_rows(comm, dout, q, out, lse)
    every = rows if replicated else gather_rows(comm, rows, told)  # [B, H, S or T, ...]
    queries = QueryGradients(comm, every, scale)
    dk, dv = queries.attend(tree_blocks(comm, queries.dq, k, causal, replicated), k, v)  # [B, G, S/P, D]
    comm.hold("dq, dk, dv", dk, dv)
    dq = queries.dq  # [B, H, S or T, D]
    del every, queries
    (dq,) = (merge_all if replicated else merge_rows)(comm, (dq,), lambda a, b: (a + b,), told)
    return narrowed((dq, dk, dv), (q, k, v))


def tree_blocks(comm: Comm, queries: Array, k: Array, causal: bool, replicated: bool) -> list[Block]:
    """What all queries see of this rank's K/V."""
    rows, keys = queries.shape[2], slice(0, k.shape[2])
    first = comm.rank * k.shape[2]
    if not causal:
        return [Block(slice(0, rows), keys)]
    if replicated:
        return [Block(slice(0, rows), keys, comm.size * k.shape[2] - rows - first)]
    return [Block(slice(first, rows), keys, CAUSAL)]


class Level(NamedTuple):
    """One level of the tree: the group's ranks in two halves, and with whom of the other half a rank has to do.

    Attributes:
        mine, other: the ranks of its half, and of the other.
        partner: who gets what the other half is to have, and gives what it has.
        clients: for whom this rank is the partner: one rank, or none, or two, where the halves differ.
    """

    mine: range
    other: range
    partner: int
    clients: list[int]


def levels(rank: int, size: int) -> list[Level]:
    """The levels of `rank`, the whole group's first: ⌈log₂P⌉ of them at most.

    >>> [(level.partner, level.clients) for level in levels(0, 8)]
    [(4, [4]), (2, [2]), (1, [1])]
    >>> [(level.partner, level.clients) for level in levels(2, 3)]  # halves of 2 ranks and 1
    [(0, [0, 1])]
    """
    found = []
    group = range(size)
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
        theirs = _rows(whole, level.other, length)
        _put(theirs, _give(comm, level, _rows(whole, level.mine, length), theirs, label))
    return whole


def merge_rows(comm: Comm, parts: Parts, combine: Combine, label: str) -> list[Array]:
    """Each rank's rows, combined over all ranks, down the tree: a half gets its rows from the other, and goes on."""
    length = parts[0].shape[2] // comm.size
    for level in levels(comm.rank, comm.size):
        ours, theirs = _rows(parts, level.mine, length), _rows(parts, level.other, length)
        if not level.clients:
            comm.send(theirs, level.partner, label=label)
        for number, client in enumerate(level.clients):  # the first is the partner
            if number == 0:
                came = comm.sendrecv(theirs, client, client, like=ours, label=label)
            else:
                came = comm.recv(client, like=ours, label=label)
            _put(ours, combine(*ours, *came))
            del came
    xp = namespace(*parts)
    return [xp.asarray(x, copy=True) for x in _rows(parts, range(comm.rank, comm.rank + 1), length)]


def merge_all(comm: Comm, parts: Parts, combine: Combine, label: str) -> Parts:
    """All rows, combined over all ranks, on every rank, up the tree: the same to the bit."""
    for level in reversed(levels(comm.rank, comm.size)):
        other = _give(comm, level, parts, parts, label)
        first, second = (parts, other) if level.mine.start < level.other.start else (other, parts)
        parts = combine(*first, *second)
        del other, first, second
        comm.hold("out, lse", *parts)
    return parts


def _give(comm: Comm, level: Level, x: Parts, like: Parts, label: str) -> Parts:
    """Give x to the clients, and take what the partner, who is the first of them, gives."""
    if not level.clients:
        return comm.recv(level.partner, like, label=label)
    came = comm.sendrecv(x, level.partner, level.partner, like, label=label)
    for client in level.clients[1:]:
        comm.send(x, client, label=label)
    return came


def _rows(parts: Parts, ranks: range, length: int) -> list[Array]:
    """Views of the rows of these ranks."""
    return [x[:, :, ranks.start * length : ranks.stop * length, ...] for x in parts]


def _put(places: Parts, parts: Parts) -> None:
    for place, part in zip(places, parts, strict=True):
        place[...] = part


def _checked(
    comm: Comm, method: str, q: Array, k: Array, v: Array, causal: bool, replicated: bool, scale: float | None
) -> str:
    """The label, or a refusal."""
    if not replicated:
        return agreed(comm, method, q, k, v, scale, causal)[0]
    check_inputs(q, k, v, causal=False, scale=scale)
    if q.shape[2] > comm.size * k.shape[2]:
        raise ValueError(f"q has {q.shape[2]} queries: the sequence has {comm.size * k.shape[2]} tokens")
    comm.hold("q, k, v", q, k, v)
    return label(method, causal=causal, replicated=replicated, scale=scale)


def tree_cost(
    shape: AttentionShape, size: int, rank: int = 0, *, queries: int | None = None, backward: bool = False
) -> RankCost:
    """What `rank` sends and holds. The rows of half the group at every level, up and down: S·(P − 1)/P rows each way in
    all, where P is a power of two. `queries`: so many replicated ones instead; all of them at every level.

    >>> tree_cost(AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4), 8)[:2]  # q up; out and lse down
    (6, 3698688)
    >>> tree_cost(AttentionShape(S=1024, H=8, G=8, D=64, itemsize=4), 8, queries=1)[:2]
    (3, 6240)
    """
    up, down = shape.rows(backward=backward), shape.sums(backward=backward)  # bytes of one query
    tree, c = levels(rank, size), shape.S // size
    dkv = c * shape.dkv if backward else 0
    if queries is not None:
        messages = sum(len(level.clients) for level in tree)
        sums = min(len(tree) + 1, 3) * queries * down  # its own, those so far, and what arrives
        own = c * shape.kv + queries * (shape.own(backward=backward) - shape.kv)
        return RankCost(messages, messages * queries * down, own + dkv + sums)
    messages = sum(len(level.clients) + 1 for level in tree)
    given = sum(len(level.clients) * len(level.mine) for level in tree)
    nbytes = c * (given * up + sum(len(level.other) for level in tree) * down)
    coming = c * max((len(level.other) for level in tree), default=0) * up
    merged = c * max((len(level.mine) for level in tree if level.clients), default=0) * down
    sums = shape.S * down + dkv
    held = c * shape.own(backward=backward) + max(shape.S * up + max(coming, sums), sums + merged)
    return RankCost(messages, nbytes, held)
