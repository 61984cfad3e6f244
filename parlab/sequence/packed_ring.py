"""Ring attention over packed documents: K/V travel no further than to the last rank that needs them.

The K/V of rank s make `journeys[s]` hops instead of P − 1. So at each step a rank may have nothing to send, nothing to
take, or nothing to attend. The last rank to hold a pair of K/V sends its gradients straight home.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.sums import wide_zeros
from parlab.sequence.attend import (
    GRADIENTS,
    KV,
    SUMS,
    Scale,
    add_to,
    attend,
    attend_backward,
    begin,
    begin_backward,
    narrowed,
    no_gradient_yet,
    no_keys_yet,
)
from parlab.sequence.costs import RankCost, Token
from parlab.sequence.layouts import Documents
from parlab.sequence.ring_schedule import RingSchedule, journeys
from parlab.world import Comm, Request

Hop = tuple[Request | None, Request | None]  # a send and a receive; None where there is none
NO_HOP: Hop = (None, None)


def packed_ring_attention(
    comm: Comm, q: Array, k: Array, v: Array, *, causal: bool, layout: str, documents: Documents, scale: Scale
) -> tuple[Array, Array]:
    """`ring_attention` with documents: at each step a rank attends the tiles of one source, one a document."""
    dealt: Any = {"causal": causal, "layout": layout, "documents": documents}
    label = begin(comm, "ring", q, k, v, scale=scale, **dealt)
    out, lse = no_keys_yet(comm, q)
    ring, hops = RingSchedule(comm.rank, comm.size), journeys(comm.size, k.shape[2], **dealt)
    for _, source, kv in travel_as_needed(comm, (k, v), hops, label):
        if kv is not None:
            attend(comm, ring.tiles(source, k.shape[2], **dealt), q, kv, (out, lse), scale=scale)
        del kv  # no longer held when the next hop begins
    out = narrowed(out, q)
    comm.hold(SUMS, out)
    return out, lse


def packed_ring_attention_backward(
    comm: Comm,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool,
    layout: str,
    documents: Documents,
    scale: Scale,
) -> tuple[Array, Array, Array]:
    """`ring_attention_backward` with documents."""
    dealt: Any = {"causal": causal, "layout": layout, "documents": documents}
    label, delta = begin_backward(comm, "ring", dout, q, k, v, out, lse, scale=scale, **dealt)
    dq = no_gradient_yet(comm, q)
    ring, hops = RingSchedule(comm.rank, comm.size), journeys(comm.size, k.shape[2], **dealt)
    home = PackedHomeward(comm, (k, v), hops, label)
    for step, source, kv in travel_as_needed(comm, (k, v), hops, label):
        if kv is None:
            home.pass_on(step, source)
        else:
            tiles = ring.tiles(source, k.shape[2], **dealt)
            home.pass_on(step, source, attend_backward(comm, tiles, dout, q, kv, lse, delta, dq, scale=scale))
        del kv  # no longer held when the next hop begins
    dk, dv = home.wait()
    comm.hold(GRADIENTS, dk, dv)
    dq = narrowed(dq, q)
    comm.hold(GRADIENTS, dq)
    return dq, narrowed(dk, k), narrowed(dv, v)


def travel_as_needed(comm: Comm, kv: KV, hops: list[int], label: str) -> Iterator[tuple[int, int, KV | None]]:
    """As `travel`, but the K/V of rank s make `hops[s]` hops: yields (step, source, its K/V, or None where they stopped
    before this rank).
    """
    held: KV | None = kv
    for step in range(comm.size):
        source, coming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        outgoing = held if hops[source] > step else None
        hop = post(comm, outgoing, comm.right, kv if hops[coming] > step else None, comm.left, label)
        del outgoing
        yield step, source, held
        held = arrived(hop)


class PackedHomeward:
    """dK/dV on their way home, as `Homeward`, where the K/V of rank s make `hops[s]` hops."""

    def __init__(self, comm: Comm, kv: KV, hops: list[int], label: str) -> None:
        self.comm, self.hops, self.label = comm, hops, label
        form = [namespace(x).broadcast_to(wide_zeros(x[:1, :1, :1, :1]), x.shape) for x in kv]  # without its memory
        self.form: KV = (form[0], form[1])
        self.passing = self.homing = NO_HOP  # the sums of another rank's K/V; the sums of ours
        self.mine: KV | None = None  # where our K/V stay at home

    def pass_on(self, step: int, source: int, share: KV | None = None) -> None:
        """Add this rank's share for the K/V of rank `source` to the shares of the ranks before it, and send the sum on;
        from the last rank that holds these K/V, home.
        """
        comm, total = self.comm, arrived(self.passing)
        if share is not None and step > 0:
            add_to(total, share)
        elif share is not None:
            total = share
            if comm.size > 1:
                comm.hold(GRADIENTS, *total)
        own, coming = self.hops[comm.rank], (source - 1) % comm.size
        if self.hops[source] == 0 and step == 0:
            self.mine, total = total, None
        dst = comm.right if self.hops[source] > step else source
        self.passing = post(comm, total, dst, self.form if self.hops[coming] > step else None, comm.left, self.label)
        if step == own > 0:
            self.homing = post(comm, None, comm.rank, self.form, (comm.rank + own) % comm.size, self.label)

    def wait(self) -> KV:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        arrived(self.passing)
        return arrived(self.homing) if self.mine is None else self.mine


def post(comm: Comm, x: KV | None, dst: int, form: KV | None, src: int, label: str) -> Hop:
    """Send x to `dst` and take a value of this form from `src`, without waiting. None: no such message."""
    sending = None if x is None else comm.isend(x, dst, label=label)
    return sending, None if form is None else comm.irecv(src, form, label=label)


def arrived(hop: Hop) -> Any:
    """The value that came with this hop; None where none was to come."""
    sending, receiving = hop
    came = None if receiving is None else receiving.wait()
    if sending is not None:
        sending.wait()
    return came


def packed_ring_cost(token: Token, c: int, hops: list[int], rank: int, *, backward: bool) -> RankCost:
    """`ring_cost` of shards of c tokens, where the K/V of rank s make `hops[s]` hops, and their dK/dV one more."""
    size = len(hops)
    sources = [(rank - step) % size for step in range(size)]  # the owner of the K/V that may arrive at each step
    here = [hops[source] >= step for step, source in enumerate(sources)]
    goes = [hops[source] > step for step, source in enumerate(sources)]
    comes = [*here[1:], False]
    leaves = [here[step] and hops[source] > 0 for step, source in enumerate(sources)]  # dK/dV
    home = [step >= max(hops[rank], 1) for step in range(size)]  # our own dK/dV: arriving, or never gone
    kv = [(step > 0 and here[step]) + comes[step] for step in range(size)]  # attended, if not our own, and arriving
    dkv = [here[step] + comes[step] + home[step] for step in range(size)]  # added to, arriving, and our own
    most = max(dkv[step] * token.dkv + kv[step] * token.kv for step in range(size))
    back = sum(leaves) if backward else 0
    nbytes = sum(goes) * token.kv + back * token.dkv
    return RankCost(sum(goes) + back, c * nbytes, c * (token.own + token.sums + most))
