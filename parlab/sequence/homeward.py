"""The way of dK/dV home: they follow their K/V around the ring, one hop behind, and each rank adds its share.

Invariant, when hop t starts (from 0): rank r sends the gradients of the K/V of rank s = (r − t) mod P, summed over the
ranks s, s + 1, ..., r.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.sequence.attend import GRADIENTS, KV, add_to, form_of_sums
from parlab.world import Comm, Request
from parlab.world.collectives.walks import arrived


class Homeward:
    """dK/dV on their way home. The caller adds its share once a step, in the order of `around_ring`.

    The K/V of rank s make `hops[s]` hops (None: P − 1 each, all around). The last rank that has them sends their
    gradients home: without `hops` that is the rank on the left.
    """

    def __init__(self, comm: Comm, kv: KV, label: str, hops: Sequence[int] | None = None) -> None:
        self.comm, self.label, self.hops = comm, label, hops or [comm.size - 1] * comm.size
        self.step, self.form = 0, form_of_sums(kv)
        self.arriving: Request | None = None  # the sum for the K/V that this rank has next
        self.leaving: Request | None = None  # the sum that it sent last
        self.home: Request | None = None  # the sum for its own K/V, from the last rank that had them
        self.stayed: KV | None = None  # the same, where they never left

    def add(self, share: Any) -> None:
        """Add this rank's share, for the K/V that it has at this step (None: it has none), to the sum over the ranks
        before it, and send the sum on.
        """
        comm, step, hops = self.comm, self.step, self.hops
        source, coming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        last = hops[source]  # the step at which these K/V stop
        total = arrived(self.arriving, self.leaving)
        self.arriving = self.leaving = None
        if step == 0:  # our own K/V: no rank had them before
            total = share
            self.stayed = total if last == 0 else None
            if comm.size > 1:
                comm.hold(GRADIENTS, *total)
        elif total is not None:
            add_to(total, share)
        if last > 0 and step <= last:  # the sum goes on behind its K/V, and from where they stop it goes home
            self.leaving = comm.isend(total, comm.right if step < last else source, label=self.label)
        if step < hops[coming]:
            self.arriving = comm.irecv(comm.left, self.form, label=self.label)
        if step == hops[comm.rank] > 0:  # our own K/V have stopped, at the rank `step` places on
            self.home = comm.irecv((comm.rank + step) % comm.size, self.form, label=self.label)
        self.step += 1

    def wait(self) -> Any:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        arrived(None, self.leaving)
        total = arrived(self.home, None) or self.stayed
        self.leaving = self.home = self.stayed = None
        return total
