"""The way of dK/dV home: they follow their K/V around the ring, one hop behind, and each rank adds its share.

Invariant, when hop t starts (from 0): rank r sends the gradients of the K/V of rank s = (r − t) mod P, summed over the
ranks s, s + 1, ..., r: to the right, as long as these K/V go on. Where they stop, after h hops, all their readers are
in the sum; it goes straight from rank s + h to rank s.

With P = 3 and h = 2, the gradients of rank 0's K/V: rank 0 sends its share to rank 1 in hop 0, rank 1 the sum with its
own to rank 2 in hop 1, and rank 2 the sum of all three home in hop 2.

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.sequence.attend import GRADIENTS, KV, add_to, form_of_sums
from parlab.world import Comm, Request
from parlab.world.collectives.walks import wait_both


class Homeward:
    """dK/dV on their way home. The caller passes its share on once a step, in the order of `around_ring`.

    The K/V of rank s make `hops[s]` hops (None: P − 1 each, all around, so the last rank that has them is on the left).
    """

    def __init__(self, comm: Comm, kv: KV, label: str, hops: Sequence[int] | None = None) -> None:
        self.comm, self.label, self.hops = comm, label, hops or [comm.size - 1] * comm.size
        self.step, self.form = 0, form_of_sums(kv)
        self.arriving: Request | None = None  # the sum for the K/V that this rank has next
        self.leaving: Request | None = None  # the sum that it sent last
        self.coming_home: Request | None = None  # the sum for its own K/V, from the last rank that had them
        self.never_left: KV | None = None  # the same, where no other rank had them

    def pass_on(self, share: KV | None) -> None:
        """One step: add this rank's share to the sum that came from the ranks before it, and send the sum on. `share`
        None: the K/V of this step stopped before this rank, and so did their sum.
        """
        total = self._sum_with(share)
        if total is not None:
            self._send_on(total)
        self._receive_next()
        self.step += 1

    def wait(self) -> Any:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        if self.leaving is not None:
            self.leaving.wait()
        total = self.never_left if self.coming_home is None else self.coming_home.wait()
        self.leaving = self.coming_home = self.never_left = None
        return total

    def _sum_with(self, share: Any) -> Any:
        """The sum that came, with this rank's share; of its own K/V, in step 0, the share alone."""
        total = wait_both(self.arriving, self.leaving)
        self.arriving = self.leaving = None
        if self.step == 0:
            if self.comm.size > 1:  # else it is all of the result, which the caller holds
                self.comm.hold(GRADIENTS, *share)
            return share
        if total is not None:
            add_to(total, share)
        return total

    def _send_on(self, total: KV) -> None:
        """Send the sum after its K/V, to the right; or straight home, if they stop here."""
        source = (self.comm.rank - self.step) % self.comm.size
        if self.step < self.hops[source]:
            self.leaving = self.comm.isend(total, self.comm.right, label=self.label)
        elif source != self.comm.rank:
            self.leaving = self.comm.isend(total, source, label=self.label)
        else:
            self.never_left = total

    def _receive_next(self) -> None:
        """Take the sum that follows the next K/V, from the left; and that of our own K/V, if they have just stopped."""
        rank, size = self.comm.rank, self.comm.size
        next_source = (rank - self.step - 1) % size
        if self.step < self.hops[next_source]:
            self.arriving = self.comm.irecv(self.comm.left, self.form, label=self.label)
        if 0 < self.step == self.hops[rank]:
            stopped_at = (rank + self.step) % size
            self.coming_home = self.comm.irecv(stopped_at, self.form, label=self.label)
