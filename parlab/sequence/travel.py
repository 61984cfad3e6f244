"""The ways of keys, values and gradients between ranks: around a ring, home again, or from every rank to every rank.

Invariants, when hop t starts (from 0), s = (r − t) mod P, of `travel`: rank r holds the K/V of rank s; of `Homeward`:
rank r sends the gradients of these K/V, summed over the ranks s, s + 1, ..., r; of `exchange`: rank r has the values
from the ranks r, r − 1, ..., s + 1 (in a grid: from those of its node first).

With packed documents the K/V of rank s make `hops[s]` hops only, and the last rank that has them sends their gradients
straight home. So a rank may hold nothing at a step, and have nothing to send. `hops` None: P − 1 each, all around.

Source: Liu et al. 2023, "Ring Attention", algorithm 1; `exchange`: the pairwise all-to-all of
`parlab.world.collectives.shifts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from parlab.sequence.attend import GRADIENTS, KV, add_to, form_of_sums
from parlab.sequence.costs import checked_group
from parlab.world import Comm, MismatchError, Request

Hops = Sequence[int] | None


def travel(comm: Comm, kv: KV, label: str, hops: Hops = None) -> Iterator[tuple[int, Any]]:
    """Brings the K/V of all ranks to this one: yields (source, the K/V of rank `source`), its own first, P in all; None
    in place of K/V that stopped before this rank.

    While the caller attends one pair, the next is on its way to the right.
    """
    hops, held = hops or [comm.size - 1] * comm.size, kv
    for step in range(comm.size):
        source, coming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        leaving = comm.isend(held, comm.right, label=label) if hops[source] > step else None
        arriving = comm.irecv(comm.left, kv, label=label) if hops[coming] > step else None
        yield source, held
        held = arrived(arriving, leaving)


class Homeward:
    """dK/dV on their way home: they follow their K/V around the ring, one hop behind, and each rank adds its share. The
    caller adds once a step, in the order of `travel`.
    """

    def __init__(self, comm: Comm, kv: KV, label: str, hops: Hops = None) -> None:
        self.comm, self.label, self.hops = comm, label, hops or [comm.size - 1] * comm.size
        self.step, self.form = 0, form_of_sums(kv)
        self.arriving: Request | None = None  # the sum of the K/V that this rank has next
        self.leaving: Request | None = None  # the sum that it sent last
        self.home: Request | None = None  # the sum of its own K/V, from the last rank that had them
        self.stayed: KV | None = None  # the same, where they never left

    def add(self, share: Any) -> None:
        """Add this rank's share, for the K/V that it has at this step (None: it has none), to the sum over the ranks
        before it, and send the sum on.
        """
        comm, step, hops = self.comm, self.step, self.hops
        source, coming = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        total = arrived(self.arriving, self.leaving)
        if total is None:
            total = share  # no rank before it had these K/V
        else:
            add_to(total, share)
        if step == 0 and comm.size > 1:
            comm.hold(GRADIENTS, *total)
        self.leaving = self.arriving = None
        if step == hops[source] == 0:
            self.stayed = total
        elif total is not None:
            after = comm.right if hops[source] > step else source  # after its K/V; from the last rank, home
            self.leaving = comm.isend(total, after, label=self.label)
        if hops[coming] > step:
            self.arriving = comm.irecv(comm.left, self.form, label=self.label)
        if step == hops[comm.rank] > 0:
            self.home = comm.irecv((comm.rank + step) % comm.size, self.form, label=self.label)
        self.step += 1

    def wait(self) -> Any:
        """The gradients of this rank's own K/V, summed over all ranks that had them."""
        arrived(None, self.leaving)
        total = arrived(self.home, None) or self.stayed
        self.leaving = self.home = self.stayed = None
        return total


def arrived(arriving: Request | None, leaving: Request | None) -> Any:
    """The value that comes, once it is here and the one sent is gone; None where none was to come."""
    came = None if arriving is None else arriving.wait()
    if leaving is not None:
        leaving.wait()
    return came


def exchange(
    comm: Comm, gives: Sequence[Any], forms: Sequence[Any], label: str, ranks_per_node: int | None = None
) -> Iterator[tuple[int, Any]]:
    """Every rank gives something to every rank: in step s, from 0, it sends `gives[rank + s]` and takes from rank − s
    a value of the form `forms[rank − s]`, which is yielded with its source. None: nothing is sent, or nothing comes.

    With `ranks_per_node` in a grid: step (d, e) goes d nodes and e places on, so that no step mixes links.
    """
    per_node = ranks_per_node or comm.size
    node, place = divmod(comm.rank, per_node)
    for nodes, places in product(range(comm.size // per_node), range(per_node)):
        dst = (node + nodes) * per_node % comm.size + (place + places) % per_node
        src = (node - nodes) * per_node % comm.size + (place - places) % per_node
        if forms[src] is None:
            swap(comm, gives[dst], dst, None, src, label)
        else:
            yield src, gives[dst] if dst == comm.rank else swap(comm, gives[dst], dst, forms[src], src, label)


def swap(comm: Comm, x: Any, dst: int, form: Any, src: int, label: str) -> Any:
    """Send x to `dst`, and at once take from `src` a value of this form. None: nothing is sent, or nothing comes."""
    if form is None:
        return None if x is None else comm.send(x, dst, label=label)
    if x is None:
        return comm.recv(src, form, label=label)
    return comm.sendrecv(x, dst, src, form, label=label)


def grid(comm: Comm, name: str, inside: int) -> tuple[Comm, Comm]:
    """This rank's group of `inside` consecutive ranks; and the ranks with the same index in the other groups.

    Raises:
        ValueError: `inside`, the argument called `name`, does not divide the ranks.
        MismatchError: another rank was told another `inside`.
    """
    checked_group(name, inside, comm.size)
    groups: tuple[Any, Any] = comm.split(comm.rank // inside), comm.split(comm.rank % inside)
    if (groups[0].size, groups[1].size) != (inside, comm.size // inside):
        raise MismatchError(f"rank {comm.rank} was told {name}={inside}, and another rank something else")
    return groups
