"""ZeRO, stages 1, 2 and 3: data parallelism whose ranks share the model's state instead of repeating it.

What a rank holds of a block of n weights, of which it owns n_r:

| after                | stage 1                      | stage 2                      | stage 3                       |
|----------------------|------------------------------|------------------------------|-------------------------------|
| construction         | n weights                    | n weights                    | n_r weights                   |
| `weights()` entered  | the same                     | the same                     | n_r weights, n gathered       |
| `weights()` left     | the same                     | the same                     | n_r weights                   |
| `add_gradients()`    | n gradients, its own         | n_r gradients, all ranks'    | n_r gradients, all ranks'     |
| `step()`             | n new weights, no gradients  | n new weights, no gradients  | n_r new weights, no gradients |

and always n_r of the optimizer's state. A ring all-reduce is a reduce-scatter and then an all-gather. ZeRO puts the
optimizer between the two, and so sends no byte more than plain data parallelism, until stage 3, which has to gather the
weights once for the forward pass and once more for the backward.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from parlab.arrays import Array
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.world.arguments import whole
from parlab.zero.arguments import (
    Params,
    at_least,
    check_block,
    check_complete,
    check_gradients,
    check_numbers,
    checked_blocks,
    dtypes,
)
from parlab.zero.costs import check_stage
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.offload import Offload
from parlab.zero.precision import LossScale, StepGuard, StepResult
from parlab.zero.replica import Replica
from parlab.zero.shards import Layout, ShardMap, cut
from parlab.zero.state import OptimizerShard
from parlab.zero.weights import ShardedWeights, WholeWeights


class Block(NamedTuple):
    """The parts of a block's state. A stage says which of them are whole."""

    layout: Layout
    weights: WholeWeights | ShardedWeights
    gradients: WholeGradients | ShardedGradients
    state: OptimizerShard


class Zero(Replica):
    """One replica, whose state the ranks share; see `Replica` for how to use it.

    Args:
        comm: the data-parallel group.
        params: the weights by name, the same on every rank; or a dictionary or list of blocks, each of them by name.
            The dictionaries are taken over: their entries become views of ZeRO's memory, and in stage 3 are there
            inside `weights` only. A model that reads them need not know.
        stage: 1: the optimizer's state is sharded; 2: the gradients too; 3: the weights too.
        optimizer: the hyperparameters; its state is kept here.
        blocks: where `params` has no blocks: names of weights that are gathered and reduced together, by block, in the
            order of the forward pass (`Llama.weight_blocks`); None: every weight is a block.
        shard_map: which rank owns which block, whole; None: every block is cut among all ranks.
        dtype: of the weights and gradients that the model computes with, such as "float16"; None: that of `params`.
            Masters and moments have the dtype of `params`, float32 at least.
        loss_scale: where it starts and how it moves; None: `LossScale()` for float16, else none.
        max_norm: to which the mean gradient is clipped.
        microbatches: how often gradients of each block are added before a step.
        prefetch: how many blocks stage 3 gathers ahead of the one in use.
        keep_after_forward: stage 3 keeps a block gathered until its gradients have come.
        ranks_per_node: shard among this many consecutive ranks, and repeat the shards on each such node.
        offload: where the optimizer's state lives; None: on the device.

    Raises:
        ValueError: an argument that is not as said.

    >>> import numpy as np
    >>> from parlab import run
    >>> def program(comm, w):
    ...     zero = Zero(comm, {"w": w}, stage=3, optimizer=AdamW(lr=0.5, weight_decay=0.0))
    ...     zero.add_gradients("w", {"w": np.full(3, 1.0 + comm.rank)})
    ...     zero.step()
    ...     return zero.full_weights()["w"]
    >>> run(program, 2, np.ones(3)).results[1].round(6)
    array([0.5, 0.5, 0.5])
    """

    def __init__(
        self,
        comm: Comm,
        params: Params,
        stage: int,
        optimizer: AdamW,
        *,
        blocks: Mapping[str, Sequence[str]] | None = None,
        shard_map: ShardMap | None = None,
        dtype: str | None = None,
        loss_scale: LossScale | None = None,
        max_norm: float | None = None,
        microbatches: int = 1,
        prefetch: int = 1,
        keep_after_forward: bool = False,
        ranks_per_node: int | None = None,
        offload: Offload | None = None,
    ) -> None:
        members = checked_blocks(params, blocks)
        check_stage(stage, least=1)
        check_numbers(optimizer, max_norm, microbatches)
        at_least("prefetch", prefetch, 0)
        work, wide = dtypes(members, dtype)
        per_node = _checked_ranks_per_node(ranks_per_node, comm.size)
        _check_shard_map(shard_map, len(members), per_node)
        if offload is not None and not isinstance(offload, Offload):
            raise ValueError(f"offload={offload!r:.60}: an Offload is needed")
        self.comm, self.stage, self.optimizer = comm, stage, optimizer
        self.microbatches, self.prefetch = microbatches, prefetch
        self.given_in_blocks = all(of_block.home is not params for of_block in members.values())
        self.guard = StepGuard.of(comm.size * microbatches, max_norm, loss_scale, work)

        self.shards: Comm = comm  # the ranks that share the state
        self.replicas: Comm | None = None  # those that have the same shard of it
        if per_node < comm.size:
            self.shards = cast(Comm, comm.split(comm.rank // per_node))
            self.replicas = comm.split(comm.rank % per_node)

        sizes = [sum(x.size for x in of_block.arrays.values()) for of_block in members.values()]
        self._blocks: dict[Any, Block] = {}
        for (block, of_block), counts in zip(members.items(), cut(sizes, per_node, shard_map), strict=True):
            arrays, home = of_block.arrays, of_block.home
            layout = Layout(arrays, counts, self.shards.rank)
            weights: WholeWeights | ShardedWeights
            if stage < 3:
                weights = WholeWeights(self.shards, layout, home, work)
            else:
                weights = ShardedWeights(self.shards, layout, home, work, keep=keep_after_forward)
            gradients = (WholeGradients if stage == 1 else ShardedGradients)(self.shards, layout, work, microbatches)
            master = weights.shard if work == wide else layout.pack_own(arrays, wide)
            self._blocks[block] = Block(layout, weights, gradients, OptimizerShard(comm, master, work, offload))
            del arrays, master
        self._order = list(self._blocks)
        self._at, self._direction = -1, 1  # the number of the block used last, and which way blocks have come
        self._reducing: Block | None = None

    @property
    def block_names(self) -> Iterable[str]:
        """In the order of the forward pass."""
        return self._order

    @property
    def owned(self) -> dict[str, list[int]]:
        """How many elements of each block each rank of a node owns; in a block they follow each other by rank."""
        return {name: block.layout.counts for name, block in self._blocks.items()}

    @contextmanager
    def weights(self, block: str) -> Iterator[dict[str, Array]]:
        """A block's weights by name, for as long as the `with` lasts.

        Stage 3 gathers them if they are not here, and starts to gather the next block in the direction in which blocks
        have come: the one after it on the way forward, the one before it on the way back.

        Raises:
            ValueError: there is no such block.
        """
        of_block = self._block(block).weights
        of_block.start()
        for ahead in self._ahead(self._order.index(block)):
            self._blocks[self._order[ahead]].weights.start()
        try:
            yield of_block.open()
        finally:
            of_block.close()

    def add_gradients(self, block: str, gradients: Mapping[str, Array]) -> None:
        """The gradients of a block's weights from one microbatch, by name; they are copied.

        Raises:
            ValueError: there is no such block, or its gradients have come already, or they do not fit the weights.
        """
        of_block = self._block(block)
        check_gradients(block, gradients, of_block.layout.shapes, of_block.gradients.added, self.microbatches)
        if self._reducing is not None:
            self._reducing.gradients.settle()  # so that one block at most is on its way
        of_block.gradients.add(gradients)
        of_block.weights.gradients_came()
        self._reducing = of_block

    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight, each on the rank that owns it; `lr` instead of the optimizer's, if given.

        Raises:
            ValueError: gradients of a block are missing.
        """
        blocks = self._blocks.values()
        check_complete({name: of_block.gradients.added for name, of_block in self._blocks.items()}, self.microbatches)
        gradients = [of_block.gradients.shard() for of_block in blocks]  # [n_r] each, summed over the shards' ranks
        if self.replicas is not None:
            requests = [self.replicas.iall_reduce(shard) for shard in gradients]
            gradients = [request.wait() for request in requests]
        factor = self.guard.factor(gradients, self.shards)
        if factor is not None:
            for of_block, shard in zip(blocks, gradients, strict=True):
                of_block.weights.publish(of_block.state.update(self.optimizer, shard, factor, self.steps, lr))
            for of_block in blocks:
                of_block.weights.settle()
        for of_block in blocks:
            of_block.gradients.free()
        self._reducing = None
        return self.guard.result(factor)

    def _ahead(self, index: int) -> list[int]:
        """The blocks to gather ahead of block number `index`. A block used twice in a row is where the way turns."""
        if index == self._at:
            self._direction = -self._direction
        elif self._at >= 0:
            self._direction = 1 if index > self._at else -1
        self._at = index
        number = min(self.prefetch, index if self._direction < 0 else len(self._order) - 1 - index)
        return [index + self._direction * distance for distance in range(1, number + 1)]

    def _block(self, block: str) -> Block:
        check_block(block, self._blocks)
        return self._blocks[block]


def _checked_ranks_per_node(ranks_per_node: int | None, size: int) -> int:
    if ranks_per_node is None:
        return size
    if whole("ranks_per_node", ranks_per_node) < 1 or size % ranks_per_node:
        raise ValueError(f"ranks_per_node={ranks_per_node!r}: a divisor of {size}, the group's size, is needed")
    return ranks_per_node


def _check_shard_map(shard_map: ShardMap | None, num_blocks: int, ranks: int) -> None:
    if shard_map is None:
        return
    if not isinstance(shard_map, ShardMap):
        raise ValueError(f"shard_map={shard_map!r:.60}: a ShardMap is needed")
    if (len(shard_map.owners), shard_map.size) != (num_blocks, ranks):
        raise ValueError(
            f"shard_map has {len(shard_map.owners)} blocks on {shard_map.size} ranks: {num_blocks} blocks on {ranks} "
            "are needed (with_ends() adds the embedding and the head)"
        )
