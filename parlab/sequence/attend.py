"""The local work of every method: name the call, attend tiles of queries × keys, and finish the sums.

The methods differ in which rank holds which q, k and v when. Between their messages they all do what stands here.

Invariant: after each call of `attend`, out and lse are the attention over all keys that the queries have met so far;
after each call of `attend_backward`, dq is its sum over these keys.

Sources: Milakov and Gimelshein 2018 (online softmax); Liu et al. 2023, "Ring Attention", section 3 (tiles from other
ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.attention import attend_tile, attend_tile_backward
from parlab.nn.sums import wide_zeros
from parlab.sequence.costs import pair_flops
from parlab.sequence.tiles import ShardedMask, Tile
from parlab.world import Comm

Scale = float | None
KV = tuple[Array, Array]  # K and V, or their gradients
Heads = list[tuple[slice, slice]]  # query heads, and the K/V heads that they read: equally many to each

ALL: Heads = [(slice(None), slice(None))]
SUMS, GRADIENTS = "out, lse", "dq, dk, dv"  # the names under which results are held


def call_label(method: str, mask: ShardedMask, **others: Any) -> str:
    """The label of every message of a call. It names all arguments, so that a rank that was called with others is a
    MismatchError.
    """
    arguments = {"causal": mask.causal, "layout": mask.layout, "documents": mask.documents} | others
    return ", ".join([method, *(f"{name}={value}" for name, value in arguments.items() if value is not None)])


def no_keys_yet(comm: Comm, q: Array) -> tuple[Array, Array]:
    """out `[B, H, S, D]` and lse `[B, H, S]` of queries that have seen no key: zeros and −inf, float32 or wider."""
    xp, out = namespace(q), wide_zeros(q)
    lse = xp.full(q.shape[:-1], -xp.inf, dtype=out.dtype, device=q.device)
    comm.hold(SUMS, out, lse)
    return out, lse


def no_gradient_yet(comm: Comm, q: Array) -> Array:
    """dq of queries that have seen no key: zeros, float32 or wider."""
    dq = wide_zeros(q)
    comm.hold(GRADIENTS, dq)
    return dq


def attend(
    comm: Comm,
    tiles: Sequence[Tile],
    q: Array,
    kv: KV,
    sums: tuple[Array, Array],
    *,
    scale: Scale,
    heads: Heads = ALL,
) -> None:
    """Let the queries attend these tiles, and merge the results into `sums`, out and lse, in place."""
    if not tiles:
        return
    (k, v), (out, lse) = kv, sums
    with comm.compute("attend", flops=_flops(tiles, q)):
        for tile, (h, g) in product(tiles, heads):
            queries, keys = (slice(None), h, tile.queries, ...), (slice(None), g, tile.keys, ...)
            how: Any = {"diagonal": tile.diagonal, "window": tile.window, "scale": scale}
            attend_tile(q[queries], k[keys], v[keys], into=(out[queries], lse[queries]), **how)


def attend_backward(
    comm: Comm,
    tiles: Sequence[Tile],
    dout: Array,
    q: Array,
    kv: KV,
    lse: Array,
    delta: Array,
    dq: Array,
    *,
    scale: Scale,
    heads: Heads = ALL,
) -> KV:
    """Add the share of these tiles to dq, in place. Returns their share of dk and dv, in float32 or wider.

    `delta [B, H, S]` is the sum of dout · out over D, of the whole forward: what the softmax subtracts from each row of
    the gradient of the weights.
    """
    k, v = kv
    dk, dv = wide_zeros(k), wide_zeros(v)
    if not tiles:
        return dk, dv
    with comm.compute("attend backward", flops=_flops(tiles, q, backward=True)):
        for tile, (h, g) in product(tiles, heads):
            queries, keys = (slice(None), h, tile.queries, ...), (slice(None), g, tile.keys, ...)
            how: Any = {"diagonal": tile.diagonal, "window": tile.window, "scale": scale}
            totals = dq[queries], dk[keys], dv[keys]
            attend_tile_backward(
                dout[queries], q[queries], k[keys], v[keys], lse[queries], delta[queries], totals=totals, **how
            )
    return dk, dv


def add_to(totals: Sequence[Array], parts: Sequence[Array]) -> None:
    """Add each part to its total, in place."""
    for total, part in zip(totals, parts, strict=True):
        total += part


def put(places: Sequence[Array], parts: Sequence[Array]) -> None:
    """Write each part into its place."""
    for place, part in zip(places, parts, strict=True):
        place[...] = part


def like_sums(kv: KV) -> KV:
    """The template for a message with sums over K and V, their gradients: it takes no memory."""
    k, v = (namespace(x).broadcast_to(wide_zeros(x[:1, :1, :1, :1]), x.shape) for x in kv)
    return k, v


def narrowed(x: Array, like: Array) -> Array:
    """A sum in the dtype of `like`."""
    return namespace(x).astype(x, like.dtype, copy=False)


def _flops(tiles: Sequence[Tile], q: Array, *, backward: bool = False) -> int:
    B, H, _, D = q.shape
    return pair_flops(sum(tile.pairs for tile in tiles), B, H, D, backward=backward)
