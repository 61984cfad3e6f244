"""Ring attention over packed documents: K/V travel no further than to the last rank that reads them.

Invariant: that of the ring (`parlab.sequence.ring`), but the K/V of rank s make `kv_hops(mask)[s]` hops instead of
P − 1. So at a step a rank may have nothing to send, to take, or to attend. The backward stands with the ring's: the
last rank that has a pair of K/V sends their gradients straight home (`Homeward`).
"""

from __future__ import annotations

from parlab.arrays import Array
from parlab.sequence.attend import SUMS, Scale, attend, call_label, narrowed, no_keys_yet
from parlab.sequence.costs import RankCost, TokenBytes
from parlab.sequence.tiles import ShardedMask, kv_hops, tiles_between
from parlab.world import Comm
from parlab.world.collectives.walks import around_ring


def packed_ring_attention(
    comm: Comm, q: Array, k: Array, v: Array, mask: ShardedMask, scale: Scale
) -> tuple[Array, Array]:
    """`ring_attention` with documents: at each step a rank attends the tiles of one source, one a document."""
    label = call_label("ring", mask, scale=scale)
    comm.hold("q, k, v", q, k, v)
    out, lse = no_keys_yet(comm, q)
    hops = kv_hops(mask)
    for source, kv in around_ring(comm, (k, v), label, hops):  # None: they stopped before this rank
        if kv is not None:
            tiles = tiles_between(comm.rank, source, mask)
            attend(comm, tiles, q, kv, (out, lse), scale=scale)
        del kv  # no longer held when the next hop begins
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


def packed_ring_cost(token: TokenBytes, rank: int, mask: ShardedMask, *, backward: bool) -> RankCost:
    """`ring_cost` with documents: the K/V of rank s make `kv_hops(mask)[s]` hops, and their dK/dV one more.

    Rank 2 of 4, where the K/V of ranks 0, 1, 2 and 3 make 2, 1, 1 and 0 hops:

        step      0    1    2    3
        source    2    1    0    3
        here      yes  yes  yes  no     their K/V are on this rank
        goes      yes  no   no   no     they go on to the right
        comes     yes  yes  no   no     those of the next step are on their way to this rank
        leaves    yes  yes  yes  no     their dK/dV leave this rank, to the right or straight home
        home      no   yes  yes  yes    our own dK/dV are on their way home, or here
    """
    size, c, hops = mask.size, mask.length, kv_hops(mask)
    hops_right = back = most = 0
    for step in range(size):
        source, next_source = (rank - step) % size, (rank - step - 1) % size
        here = step <= hops[source]
        goes, comes = step < hops[source], step < hops[next_source]
        leaves = here and hops[source] > 0
        home = step >= max(hops[rank], 1)
        kv = (here and step > 0) + comes  # pairs of K/V: attended, if not our own, and arriving
        dkv = here + comes + home  # pairs of dK/dV: added to, arriving, and our own
        most = max(most, dkv * token.dkv + kv * token.kv)
        hops_right += goes
        back += leaves and backward
    nbytes = hops_right * token.kv + back * token.dkv
    return RankCost(hops_right + back, c * nbytes, c * (token.own + token.sums + most))
