"""Sliding-window attention: a query sees the last W tokens, so a rank needs the tokens just before its own, no ring.

Source: Beltagy et al. 2020, "Longformer", section 3.1; Jiang et al. 2023, "Mistral 7B", section 2.
"""

from __future__ import annotations

from parlab.arguments import whole
from parlab.arrays import Array
from parlab.nn.attention import CAUSAL
from parlab.sequence.attend import Queries, QueryGradients, add_to, agreed, backward_rows, narrowed
from parlab.sequence.costs import AttentionShape, RankCost
from parlab.sequence.schedule import Block
from parlab.world import Comm, Request


def window_attention(
    comm: Comm,
    q: Array,
    k: Array,
    v: Array,
    *,
    window: int | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """Attention in which query i sees the keys i − W + 1 to i, from this rank's contiguous shards; arguments as
    `ring_attention`, and `window`: W, from 1 to S.

    The W − 1 tokens before a rank's own come straight from the ranks that have them, ⌈(W − 1)/(S/P)⌉ neighbours to
    the left, while its own are attended.

    Raises:
        ValueError: shapes or a window that do not fit, or `causal=False`, before any message.
        MismatchError: another rank was told another window or scale.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> out, lse = run(window_attention, 4, pieces, pieces, pieces, window=2).results[3]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # everyone sees itself and the token before
    [2, 2]
    """
    blocks, tails, label = _checked(comm, "window", q, k, v, window, causal, scale)
    queries = Queries(comm, q, scale)
    sends, coming = _post(comm, k, v, tails, label)
    queries.attend(blocks[:1], k, v)
    for block, pair in zip(blocks[1:], coming, strict=False):  # the first ranks have fewer neighbours
        queries.attend([block], *pair.wait())
    for send in sends:
        send.wait()
    return queries.done()


def window_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    window: int | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of this rank's shards; arguments as `ring_attention_backward`, and `window`.

    The neighbours' K/V come once more, and their gradients go straight back, in float32 or wider.

    Raises: as the forward.
    """
    blocks, tails, label = _checked(comm, "window backward", q, k, v, window, causal, scale)
    rows = backward_rows(comm, dout, q, out, lse)
    queries = QueryGradients(comm, rows, scale)
    sends, coming = _post(comm, k, v, tails, label)
    dk, dv = queries.attend(blocks[:1], k, v)  # [B, G, S/P, D]
    comm.hold("dq, dk, dv", dk, dv)
    for send in sends:
        send.wait()
    sends = []
    for distance, (block, pair) in enumerate(zip(blocks[1:], coming, strict=False), 1):
        share = queries.attend([block], *pair.wait())  # [B, G, tail, D]
        sends.append(comm.isend(share, comm.rank - distance, label=label))
        del share
    for distance, tail in enumerate(tails[: comm.size - 1 - comm.rank], 1):
        mine = dk[:, :, -tail:, :], dv[:, :, -tail:, :]
        add_to(mine, comm.recv(comm.rank + distance, like=mine, label=label))
    for send in sends:
        send.wait()
    return narrowed(queries.done(dk, dv), (q, k, v))


def window_tails(S: int, size: int, window: int) -> list[int]:
    """How many tokens a rank needs of its first, second, ... neighbour to the left: the last ones of its shard.

    >>> window_tails(16, 4, window=4), window_tails(16, 4, window=5), window_tails(16, 4, window=8)
    ([3], [4], [4, 3])
    """
    c = S // size
    return [min(c, window - 1 - first) for first in range(0, min(window - 1, S - c), c)]


def window_blocks(length: int, window: int, tails: list[int]) -> list[Block]:
    """What a rank's queries see of its own K/V, and of each neighbour's tail; every first query sees most of it."""
    blocks = [Block(slice(0, length), slice(0, length), CAUSAL, window)]
    for number, tail in enumerate(tails):
        ahead = number * length  # tokens between the tail and the first query
        blocks.append(Block(slice(0, min(length, window - 1 - ahead)), slice(0, tail), ahead + tail, window))
    return blocks


def window_cost(shape: AttentionShape, size: int, rank: int = 0, *, window: int, backward: bool = False) -> RankCost:
    """What `rank` sends and holds: tails of its K/V to the neighbours on its right; backward also dK/dV to the left.

    What leaves is held (a copy) until it has passed.

    >>> window_cost(AttentionShape(S=16, H=1, G=1, D=1, itemsize=4), 4, window=8)[:2]  # 4 tokens, and 3
    (2, 56)
    """
    tails = window_tails(shape.S, size, window)
    right, left, c = tails[: size - 1 - rank], tails[:rank], shape.S // size
    held = c * (shape.own(backward=backward) + shape.sums(backward=backward))
    posted = (sum(right) + sum(left)) * shape.kv
    if not backward:
        return RankCost(len(right), sum(right) * shape.kv, held + posted)
    turns = [sum(left[n + 1 :]) * shape.kv + sum(left[: n + 1]) * shape.dkv for n in range(len(left))]
    held += c * shape.dkv + max(posted, *turns, (sum(left) + sum(right[:1])) * shape.dkv)
    return RankCost(len(right) + len(left), sum(right) * shape.kv + sum(left) * shape.dkv, held)


def _post(comm: Comm, k: Array, v: Array, tails: list[int], label: str) -> tuple[list[Request], list[Request]]:
    """Start to send the tails of our K/V to the right, and to receive the left neighbours', the nearest first."""
    sends, coming = [], []
    for distance, tail in enumerate(tails, 1):
        pair = k[:, :, -tail:, :], v[:, :, -tail:, :]
        if comm.rank + distance < comm.size:
            sends.append(comm.isend(pair, comm.rank + distance, label=label))
        if comm.rank >= distance:
            coming.append(comm.irecv(comm.rank - distance, like=pair, label=label))
    return sends, coming


def _checked(
    comm: Comm, method: str, q: Array, k: Array, v: Array, window: int | None, causal: bool, scale: float | None
) -> tuple[list[Block], list[int], str]:
    """The blocks, the tails and the label, or a refusal."""
    label, _ = agreed(comm, method, q, k, v, scale, causal, window=window)
    S = q.shape[2] * comm.size
    if window is None:
        raise ValueError(
            f"window=None: neighbours alone give a sliding window's attention only; pass window=1 to {S} (up to "
            f"{q.shape[2] + 1} the nearest neighbour is enough), or use another pattern"
        )
    if not 1 <= whole("window", window) <= S:
        raise ValueError(f"window={window}: a query sees itself and the tokens before it, 1 to {S} in all")
    if not causal:
        raise ValueError("causal=False: a sliding window sees no later token; leave causal=True")
    tails = window_tails(S, comm.size, window)
    return window_blocks(q.shape[2], window, tails), tails, label
