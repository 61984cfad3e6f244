"""Ranks in two dimensions: groups of neighbours, and the ranks with the same index in all groups.

Invariant: with g ranks in a group, rank r is number r mod g of group r // g, and its two groups share no other rank.
"""

from __future__ import annotations

from typing import Any

from parlab.sequence.arguments import checked_group
from parlab.world import Comm, MismatchError


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
