"""The ways of keys, values and gradients between ranks: around a ring, home again, or from every rank to every rank.

Invariants, when hop t starts (from 0), s = (r − t) mod P, of `travel`: rank r holds the K/V of rank s; of `Homeward`:
rank r sends the gradients of these K/V, summed over the ranks s, s + 1, ..., r; of `exchange`: rank r has the values
from the ranks r, r − 1, ..., s + 1 (in a grid: from those of its node first).

Source: Liu et al. 2023, "Ring Attention", algorithm 1; `exchange`: the pairwise all-to-all of
`parlab.world.collectives.shifts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from parlab.sequence.attend import GRADIENTS, KV, add_to
from parlab.sequence.costs import checked_group
from parlab.world import Comm, MismatchError, Request


def travel(comm: Comm, kv: KV, label: str) -> Iterator[tuple[int, KV]]:
    """Brings the K/V of all ranks to this one: yields (source, the K/V of rank `source`), its own first, P in all.

    While the caller attends one pair, the next is on its way: P − 1 hops to the right.

    Invariant: when hop t starts (from 0), rank r holds the K/V of rank (r − t) mod P.
    """
    for hop in range(comm.size):
        last = hop == comm.size - 1
        if not last:
            leaving = comm.isend(kv, comm.right, label=label)
            arriving = comm.irecv(comm.left, kv, label=label)
        yield (comm.rank - hop) % comm.size, kv
        if not last:
            kv = arriving.wait()
            leaving.wait()


class Homeward:
    """dK/dV on their way home: they follow their K/V around the ring, one hop behind, and each rank adds its share.

    Invariant: when hop t starts (from 0), rank r sends the gradients of the K/V of rank s = (r − t) mod P, summed over
    the ranks s, s + 1, ..., r. After P hops they are at home.
    """

    def __init__(self, comm: Comm, label: str) -> None:
        self.comm, self.label = comm, label
        self.hop: tuple[Request, Request] | None = None  # the sum that left last, and the next one, on its way to us
        self.alone: KV | None = None  # in a ring of one rank

    def add(self, share: KV) -> None:
        """Add this rank's share for the K/V that it holds to the shares of the ranks before it, and send the sum on."""
        comm, total = self.comm, share
        if comm.size == 1:
            self.alone = total
            return
        if self.hop is None:
            comm.hold(GRADIENTS, *total)
        else:
            leaving, arriving = self.hop
            total = arriving.wait()
            leaving.wait()
            add_to(total, share)
        self.hop = comm.isend(total, comm.right, label=self.label), comm.irecv(comm.left, total, label=self.label)

    def wait(self) -> KV:
        """The gradients of this rank's own K/V, summed over all ranks."""
        if self.alone is not None:
            total, self.alone = self.alone, None
            return total
        assert self.hop is not None
        (leaving, arriving), self.hop = self.hop, None
        leaving.wait()
        return arriving.wait()


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
