"""Sliding-window attention: a query sees the last W tokens, so a rank needs the tokens just before its own, no ring.

Source: Beltagy et al. 2020, "Longformer", section 3.1; Jiang et al. 2023, "Mistral 7B", section 2.
"""

from __future__ import annotations

from parlab.arguments import checked
from parlab.arrays import Array
from parlab.nn.attention import CAUSAL
from parlab.sequence.arguments import RULES
from parlab.sequence.attend import Call, Pair, Queries, Scale, add_to, backward_of
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.layouts import Block
from parlab.world import Comm


@checked(RULES)
def window_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, window: int | None = None, causal: bool = True, scale: Scale = None
) -> tuple[Array, Array]:
    """Attention in which query i sees the keys i − W + 1 to i, from this rank's contiguous shards; arguments as
    `ring_attention`, and `window`: W, from 1 to S.

    The W − 1 tokens before a rank's own come straight from the ranks that have them, ⌈(W − 1)/(S/P)⌉ neighbours to the
    left, while its own are attended. Backward they come once more, and their gradients go straight back.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> out, lse = run(window_attention, 4, pieces, pieces, pieces, window=2).results[3]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # everyone sees itself and the token before
    [2, 2]
    """
    call = Call("window", comm, q, k, v, scale, causal=causal, window=window)
    length, S = k.shape[2], k.shape[2] * comm.size
    if window is None:
        use = f"pass window=1 to {S} (up to {length + 1} the nearest neighbour is enough), or use another pattern"
        raise ValueError(f"window=None: neighbours alone give a sliding window's attention only; {use}")
    if not causal:
        raise ValueError("causal=False: a sliding window sees no later token; leave causal=True")
    tails = window_tails(S, comm.size, window)
    left, right = tails[: comm.rank], tails[: comm.size - 1 - comm.rank]  # the neighbours that there are
    queries = Queries(call, call.rows)
    sends = [comm.isend(_last(tail, k, v), comm.rank + far, label=call.label) for far, tail in enumerate(right, 1)]
    coming = [comm.irecv(comm.rank - far, _last(tail, k, v), label=call.label) for far, tail in enumerate(left, 1)]
    own = slice(0, length)
    gradients = queries.attend([Block(own, own, CAUSAL, window)], k, v)  # backward: [B, G, S/P, D]
    if gradients is not None:
        comm.hold("dq, dk, dv", *gradients)
        while sends:  # before the gradients are under way too
            sends.pop(0).wait()
    for number, (tail, arriving) in enumerate(zip(left, coming, strict=True)):
        ahead = number * length  # tokens between the tail and the first query, which sees most of it
        block = Block(slice(0, min(length, window - 1 - ahead)), slice(0, tail), ahead + tail, window)
        share = queries.attend([block], *arriving.wait())  # backward: [B, G, tail, D]
        if share is not None:
            sends.append(comm.isend(share, comm.rank - number - 1, label=call.label))
        del share
    if gradients is not None:
        for far, tail in enumerate(right, 1):
            mine = _last(tail, *gradients)
            add_to(mine, comm.recv(comm.rank + far, like=mine, label=call.label))
    for send in sends:
        send.wait()
    return call.results(queries.done(gradients), gradients)


window_attention_backward = backward_of(window_attention)


def _last(tail: int, k: Array, v: Array) -> Pair:
    return k[:, :, -tail:, :], v[:, :, -tail:, :]


def window_tails(S: int, size: int, window: int) -> list[int]:
    """How many tokens a rank needs of its first, second, ... neighbour to the left: the last ones of its shard.

    >>> window_tails(16, 4, window=4), window_tails(16, 4, window=5), window_tails(16, 4, window=8)
    ([3], [4], [4, 3])
    """
    if window > S:
        raise ValueError(f"window={window}: a query sees itself and the tokens before it, 1 to {S} in all")
    c = S // size
    return [min(c, window - 1 - first) for first in range(0, min(window - 1, S - c), c)]


@checked(RULES)
def window_cost(shape: AttentionShape, size: int, rank: int = 0, *, window: int, backward: bool = False) -> RankCost:
    """What `rank` sends, tails of its K/V to the right, backward also dK/dV to the left, and holds.

    >>> window_cost(AttentionShape(S=16, H=1, G=1, D=1, itemsize=4), 4, window=8)[:2]  # 4 tokens, and 3
    (2, 56)
    """
    tails, token = window_tails(shape.S, size, window), shape.token(backward=backward)
    right, left = tails[: size - 1 - rank], tails[:rank]
    held = shape.shard(size, rank) * (token.own + token.sums + token.dkv)
    turns = [sum(left[n + 1 :]) * token.kv + sum(left[: n + 1]) * token.dkv for n in range(len(left))]
    posted = sum(left) * token.kv
    most = max(posted, *turns, (sum(left) + sum(right[:1])) * token.dkv)
    back = left if backward else []
    return RankCost(len(right + back), sum(right) * token.kv + sum(back) * token.dkv, held + most)
