"""The way of gradients from a backward to ZeRO, and over pp where several of its ranks hold a block.

Invariant: a step brings ZeRO the gradients of each block `expected` times: as often as they are made; or, of a block
that several ranks of pp hold, once, when all microbatches are done, summed over these ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.nn.stage import Gradients, add_gradients
from parlab.train.own_model import OwnModel
from parlab.world import Comm
from parlab.zero import Zero


class GradientsToZero:
    """Takes each new gradient to `replica`, those of shared blocks at the end of a step.

    Args:
        comm: all ranks; it counts the memory that gradients hold.
        own: this rank's model and its blocks.
        shared: the blocks here that several ranks of pp hold, each with the group of these ranks.
        replica: ZeRO's.
    """

    def __init__(self, comm: Comm, own: OwnModel, shared: dict[str, Any], replica: Zero) -> None:
        self.comm, self.blocks, self.shared, self.replica = comm, own.blocks, shared, replica
        self.waiting: dict[str, Gradients] = {}

    def take(self, gradients: Gradients) -> None:
        """Give new gradients to ZeRO; those of shared blocks wait until all microbatches are done."""
        self.comm.hold("new gradients", gradients)
        for block, names in self.blocks.items():
            found = {name: gradients[name] for name in names if name in gradients}
            if found and block in self.shared:
                self.waiting[block] = add_gradients(self.waiting.get(block, {}), found)
                self.comm.hold("gradients", self.waiting[block])
            elif found:
                self.replica.add_gradients(block, found)

    def sum_shared(self) -> None:
        """Sum the gradients of each shared block over the ranks of pp that hold it, and give them to ZeRO."""
        for block, group in self.shared.items():
            own = self.waiting.pop(block)
            self.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})


def groups_of_shared_blocks(pp: Comm, own: OwnModel) -> dict[str, Any]:
    """Of each block here that several ranks of `pp` hold, their group. Every rank of `pp` takes part in making each."""
    several = sorted({ranks for ranks in own.pp_ranks.values() if len(ranks) > 1})
    groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
    return {block: groups[own.pp_ranks_of(block)] for block in own.blocks if own.pp_ranks_of(block) in groups}


def expected_calls(uses: Mapping[str, int], shared: Mapping[str, Any]) -> dict[str, int]:
    """How often `add_gradients` is called for each block in a step. `uses`: how often its gradients are made."""
    return {block: 1 if block in shared else number for block, number in uses.items()}
