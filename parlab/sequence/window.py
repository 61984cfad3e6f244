"""Sliding-window attention: a query sees the last W tokens, so a rank needs no more than the tokens before its own.

Invariant: when n tails have come, each query has met all keys that it sees on this rank and on its n nearest neighbours
on the left. No message goes further than the window reaches.

Source: Beltagy et al. 2020, "Longformer", section 3.1; Jiang et al. 2023, "Mistral 7B", section 2.
"""

from __future__ import annotations

from parlab.arguments import whole
from parlab.arrays import Array
from parlab.nn.attention import CAUSAL
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs
from parlab.nn.sums import row_dot
from parlab.sequence.attend import (
    GRADIENTS,
    KV,
    SUMS,
    Scale,
    add_to,
    attend,
    attend_backward,
    call_label,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
)
from parlab.sequence.tiles import Tile, sharded_mask
from parlab.world import Comm


def window_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, window: int | None = None, causal: bool = True, scale: Scale = None
) -> tuple[Array, Array]:
    """Attention in which query i sees the keys i − W + 1 to i, from this rank's contiguous shards; arguments as
    `ring_attention`, and `window`: W, from 1 to S.

    The W − 1 tokens before a rank's own come straight from the ranks that have them, ⌈(W − 1)/(S/P)⌉ neighbours to the
    left, while its own are attended.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> from parlab.sequence import shard
    >>> pieces = per_rank(shard(np.ones((1, 2, 8, 4)), 4))
    >>> out, lse = run(window_attention, 4, pieces, pieces, pieces, window=2).results[3]
    >>> np.exp(lse[0, 0] - 2).round().astype(int).tolist()  # everyone sees itself and the token before
    [2, 2]
    """
    check_inputs(q, k, v, scale=scale)
    length = k.shape[2]
    mask = sharded_mask(comm.size, length, causal)
    W = checked_window(window, causal, length, comm.size)
    label = call_label("window", mask, window=W, scale=scale)
    comm.hold("q, k, v", q, k, v)
    takes, gives = tails_of_neighbours(comm, length, W)
    out, lse = no_keys_yet(comm, q)
    leaving = [comm.isend(last_tokens(tail, (k, v)), comm.rank + far, label=label) for far, tail in enumerate(gives, 1)]
    coming = [comm.irecv(comm.rank - far, last_tokens(tail, (k, v)), label=label) for far, tail in enumerate(takes, 1)]
    attend(comm, [own_tile(length, W)], q, (k, v), (out, lse), scale=scale)
    for far, (tail, arriving) in enumerate(zip(takes, coming, strict=True), 1):
        tile = tail_tile(far, tail, length, W)
        attend(comm, [tile], q, arriving.wait(), (out, lse), scale=scale)  # twice [B, G, tail, D]
    for tail_sent in leaving:
        tail_sent.wait()
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


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
    scale: Scale = None,
) -> tuple[Array, Array, Array]:
    """Gradients of this rank's shards; arguments as `ring_attention_backward`, and `window`.

    The tails of the neighbours' K/V come once more, and their gradients go straight back.
    """
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale)
    length = k.shape[2]
    mask = sharded_mask(comm.size, length, causal)
    W = checked_window(window, causal, length, comm.size)
    label = call_label("window backward", mask, window=W, scale=scale)
    delta = row_dot(dout, out)  # [B, H, S/P]
    comm.hold("q, k, v", q, k, v)
    comm.hold("dout, out, lse", dout, out, lse, delta)
    takes, gives = tails_of_neighbours(comm, length, W)
    dq = no_gradient_yet(comm, q)
    leaving = [comm.isend(last_tokens(tail, (k, v)), comm.rank + far, label=label) for far, tail in enumerate(gives, 1)]
    coming = [comm.irecv(comm.rank - far, last_tokens(tail, (k, v)), label=label) for far, tail in enumerate(takes, 1)]
    dk, dv = attend_backward(comm, [own_tile(length, W)], dout, q, (k, v), lse, delta, dq, scale=scale)
    comm.hold(GRADIENTS, dk, dv)
    for tail_sent in leaving:  # before the gradients are under way too
        tail_sent.wait()
    going_home = []  # the gradients of the neighbours' tails
    for far, (tail, arriving) in enumerate(zip(takes, coming, strict=True), 1):
        tile = tail_tile(far, tail, length, W)
        share = attend_backward(comm, [tile], dout, q, arriving.wait(), lse, delta, dq, scale=scale)
        going_home.append(comm.isend(share, comm.rank - far, label=label))  # twice [B, G, tail, D]
        del share  # it belongs to the message
    for far, tail in enumerate(gives, 1):
        mine = last_tokens(tail, (dk, dv))
        add_to(mine, comm.recv(comm.rank + far, like=mine, label=label))
    for share_sent in going_home:
        share_sent.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


def checked_window(window: int | None, causal: bool, length: int, size: int) -> int:
    """The window on `size` shards of `length` tokens; ValueError: it is missing, not causal, or not in 1..S."""
    S = length * size
    if window is None:
        use = f"pass window=1 to {S} (up to {length + 1} the nearest neighbour is enough), or use another pattern"
        raise ValueError(f"window=None: neighbours alone give a sliding window's attention only; {use}")
    if not causal:
        raise ValueError("causal=False: a sliding window sees no later token; leave causal=True")
    if whole("window", window, least=1) > S:
        raise ValueError(f"window={window}: a query sees itself and the tokens before it, 1 to {S} in all")
    return window


def tails_of_neighbours(comm: Comm, length: int, window: int) -> tuple[list[int], list[int]]:
    """`(takes, gives)`: how many tokens this rank takes from each neighbour on its left, and gives to each on its
    right, the nearest first, as far as there are any.
    """
    tails = window_tails(length * comm.size, comm.size, window)
    return tails[: comm.rank], tails[: comm.size - 1 - comm.rank]


def last_tokens(tail: int, kv: KV) -> KV:
    """Views of the last `tail` tokens of K and V: twice `[B, G, tail, D]`."""
    k, v = kv
    return k[:, :, -tail:, :], v[:, :, -tail:, :]


def own_tile(length: int, window: int) -> Tile:
    """The tile of a rank's queries and its own keys."""
    own = slice(0, length)
    return Tile(own, own, CAUSAL, window)


def tail_tile(far: int, tail: int, length: int, window: int) -> Tile:
    """The tile of a rank's queries and the last `tail` tokens of the rank that is `far` ranks to its left, from 1."""
    ahead = (far - 1) * length  # tokens between the tail and the first query, which sees most of it
    return Tile(slice(0, min(length, window - 1 - ahead)), slice(0, tail), ahead + tail, window)


def window_tails(S: int, size: int, window: int) -> list[int]:
    """How many tokens a rank needs of its first, second, ... neighbour on the left: the last tokens of that shard.

    >>> window_tails(16, 4, window=4), window_tails(16, 4, window=5), window_tails(16, 4, window=8)
    ([3], [4], [4, 3])
    """
    c = S // size
    return [min(c, window - 1 - first) for first in range(0, min(window - 1, S - c), c)]
