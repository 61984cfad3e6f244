"""The way of dK/dV home: they follow their K/V around the ring, one hop behind, and each rank adds its share.

The K/V of rank s make h hops, P − 1 or fewer with documents: they are on the ranks s, s + 1, ..., s + h in turn. Their
gradients go the same way, and from rank s + h straight home. Those of rank 0, with P = 3 and h = 2:

                               step 0    step 1    step 2
    hop of the K/V             0 -> 1    1 -> 2
    hop of dK/dV               0 -> 1    1 -> 2    2 -> 0
    which are summed over      0         0, 1      0, 1, 2

Invariant: what rank r sends in step t is the sum over the ranks r − t, ..., r, for the K/V of rank r − t (all mod P).

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlab.sequence.attend import GRADIENTS, KV, add_to, like_sums
from parlab.world import Comm, Request
from parlab.world.collectives.walks import wait_both


class Homeward:
    """dK/dV on their way home. The caller passes its share on once a step, in the order of `around_ring`.

    The K/V of rank s make `hops[s]` hops (None: P − 1 each, all around, so the last rank that has them is on the left).
    """

    def __init__(self, comm: Comm, kv: KV, label: str, hops: Sequence[int] | None = None) -> None:
        self.comm, self.label, self.hops = comm, label, hops or [comm.size - 1] * comm.size
        self.step, self.like = 0, like_sums(kv)
        self.arriving: dict[int, Request] = {}  # sums on their way to this rank, by the rank whose K/V they are for
        self.leaving: Request | None = None  # the sum that it sent last
        self.never_left: KV | None = None  # of its own K/V, where no other rank had them

    def pass_on(self, share: Any) -> None:
        """One step: add `share`, this rank's dK and dV, to the sum that came from the ranks before, and send that on.
        None: the K/V of this step stopped before this rank, and so did their sum.
        """
        comm, rank, step = self.comm, self.comm.rank, self.step
        source, next_source = (rank - step) % comm.size, (rank - step - 1) % comm.size
        came = wait_both(self.arriving.pop(source, None), self.leaving)
        self.leaving = None
        if step == 0:  # our own K/V: ours is the first share
            if comm.size > 1:  # else it is all of the result, which the caller holds
                comm.hold(GRADIENTS, *share)
            self._send_on(share, source)
        elif came is not None:
            add_to(came, share)
            self._send_on(came, source)
        if step < self.hops[next_source]:
            self.arriving[next_source] = comm.irecv(comm.left, self.like, label=self.label)
        if step > 0 and step == self.hops[rank]:  # our own K/V have just stopped, so their sum is sent home
            self.arriving[rank] = comm.irecv((rank + step) % comm.size, self.like, label=self.label)
        self.step += 1

    def _send_on(self, total: KV, source: int) -> None:
        """To the right, after its K/V; straight home, to `source`, if these have stopped."""
        dst = self.comm.right if self.step < self.hops[source] else source
        if dst == self.comm.rank:
            self.never_left = total
        else:
            self.leaving = self.comm.isend(total, dst, label=self.label)

    def wait(self) -> Any:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        if self.leaving is not None:
            self.leaving.wait()
        home, total = self.arriving.pop(self.comm.rank, None), self.never_left
        self.leaving = self.never_left = None
        return total if home is None else home.wait()
