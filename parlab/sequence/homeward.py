"""The way of dK/dV home: they follow their K/V around the ring, one hop behind, and each rank adds its share.

Invariant, when hop t starts (from 0): rank r sends the gradients of the K/V of rank s = (r − t) mod P, summed over the
ranks s, s + 1, ..., r: to the right, as long as these K/V go on. Where they stop, after h hops, all their readers are
in the sum; it goes straight from rank s + h to rank s.

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

    The K/V of rank s make `hops[s]` hops (None: P − 1 each, all around, so the last rank that has them is on the left).
    """

    def __init__(self, comm: Comm, kv: KV, label: str, hops: Sequence[int] | None = None) -> None:
        self.comm, self.label, self.hops = comm, label, hops or [comm.size - 1] * comm.size
        self.step, self.form = 0, form_of_sums(kv)
        self.arriving: Request | None = None  # the sum for the K/V that this rank has next
        self.leaving: Request | None = None  # the sum that it sent last
        self.coming_home: Request | None = None  # the sum for its own K/V, from the last rank that had them
        self.never_left: KV | None = None  # the same, where no other rank had them

    def add(self, share: Any) -> None:
        """One step: add this rank's share to the sum that came from the ranks before it, and send the sum on. `share`
        None: the K/V of this step stopped before this rank, and so did their sum.
        """
        comm, step = self.comm, self.step
        source, next_source = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        stops_at = self.hops[source]  # the step at which the K/V of this step stop
        goes_on, goes_home = step < stops_at, step == stops_at > 0
        comes = step < self.hops[next_source]
        comes_home = step == self.hops[comm.rank] > 0  # our own K/V have stopped

        total = arrived(self.arriving, self.leaving)
        self.arriving = self.leaving = None
        if step == 0:  # our own K/V: no rank had them before
            total = share
            self.never_left = total if stops_at == 0 else None
            if comm.size > 1:
                comm.hold(GRADIENTS, *total)
        elif total is not None:
            add_to(total, share)
        if goes_on:
            self.leaving = comm.isend(total, comm.right, label=self.label)
        if goes_home:
            self.leaving = comm.isend(total, source, label=self.label)
        if comes:
            self.arriving = comm.irecv(comm.left, self.form, label=self.label)
        if comes_home:  # from the rank `step` places on, where they stopped
            self.coming_home = comm.irecv((comm.rank + step) % comm.size, self.form, label=self.label)
        self.step += 1

    def wait(self) -> Any:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        arrived(None, self.leaving)
        total = arrived(self.coming_home, None) or self.never_left
        self.leaving = self.coming_home = self.never_left = None
        return total
