"""ZeRO, stages 1, 2 and 3: data parallelism whose ranks share the model's state instead of repeating it.

What a rank holds of a block of n weights, of which it owns n_r:

| after                | stage 1                      | stage 2                      | stage 3                       |
|----------------------|------------------------------|------------------------------|-------------------------------|
| construction         | n weights                    | n weights                    | n_r weights                   |
| `weights()` entered  | the same                     | the same                     | n_r weights, n gathered       |
| `weights()` left     | the same                     | the same                     | n_r weights                   |
| `add_gradients()`    | n gradients, its own         | n_r gradients, all ranks'    | n_r gradients, all ranks'     |
| `step()`             | n new weights, no gradients  | n new weights, no gradients  | n_r new weights, no gradients |

and always n_r of the optimizer's state. Beside it, while a step goes on: at most 1 + `prefetch` gathered blocks (and a
tied table beside the head), the gradients of one block on their way, and two messages of n/N.

A ring all-reduce is a reduce-scatter and then an all-gather. ZeRO puts the optimizer between the two, and so sends no
byte more than plain data parallelism, until stage 3, which has to gather the weights once for the forward pass and once
more for the backward.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from parlab.arguments import whole
from parlab.arrays import Array
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero.arguments import Params, check_stage
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.offload import Offload
from parlab.zero.part import Part
from parlab.zero.precision import LossScale
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
            They are copied.
        stage: 1: the optimizer's state is sharded; 2: the gradients too; 3: the weights too.
        optimizer: the hyperparameters; its state is kept here.
        blocks: for the weights of a model: the names of those that are gathered and reduced together, by block, in the
            order of the forward pass (`Llama.weight_blocks`). The model's dictionary is then taken over: its entries
            become views of ZeRO's memory, and in stage 3 are there inside `weights` only; the model need not know.
            None: `params` is in blocks, or every weight is one.
        shard_map: which rank owns which block, whole; None: every block is cut among all ranks.
        dtype: of the weights and gradients that the model computes with, such as "float16"; None: that of `params`.
            Masters and moments have the dtype of `params`, float32 at least.
        loss_scale: where it starts and how it moves; None: `LossScale()` for float16, else none.
        max_norm: to which the mean gradient is clipped.
        microbatches: how often gradients of each block are added before a step.
        prefetch: how many blocks stage 3 gathers ahead of the one in use. A pass that stops half-way leaves them under
            way; `step()` ends them.
        keep_after_forward: stage 3 keeps a block gathered until its gradients have come.
        ranks_per_node: shard among this many consecutive ranks, and repeat the shards on each such node.
        offload: where the optimizer's state lives; None: on the device.
        accumulate: stages 2 and 3 keep whole gradients, and reduce them once, with the last microbatch's: Ψ elements
            sent and Ψ held, where to reduce each microbatch's at once sends Ψ as often.
        part: what there is to know where the replica is itself cut (`parlab.train`); None: it is whole.

    Raises:
        ValueError: an argument that is not as said.
        MismatchError: weights or an optimizer that are not the same on every rank.

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
        accumulate: bool = False,
        part: Part | None = None,
    ) -> None:
        super().__init__(comm, params, optimizer, blocks, dtype, loss_scale, max_norm, microbatches, part)
        check_stage(stage, least=1)
        whole("prefetch", prefetch, 0)
        per_node = _checked_ranks_per_node(ranks_per_node, comm.size)
        if offload is not None and not isinstance(offload, Offload):
            raise ValueError(f"offload={offload!r:.60}: an Offload is needed")
        sizes = [sum(x.size for x in of_block.arrays.values()) for of_block in self._members.values()]
        counts = cut(sizes, per_node, shard_map, apart=part is not None)
        self.stage, self.prefetch = stage, prefetch

        self.shards: Comm = comm  # the ranks that share the state
        self.replicas: Comm | None = None  # those that have the same shard of it
        if per_node < comm.size:
            self.shards = cast(Comm, comm.split(comm.rank // per_node))
            self.replicas = comm.split(comm.rank % per_node)

        self._blocks: dict[Any, Block] = {}
        for (block, of_block), of_ranks in zip(self._members.items(), counts, strict=True):
            arrays, home = of_block.arrays, of_block.home
            layout = Layout(arrays, of_ranks, self.shards.rank)
            weights: WholeWeights | ShardedWeights
            if stage < 3:
                weights = WholeWeights(self.shards, layout, home, self.dtype)
            else:
                weights = ShardedWeights(self.shards, layout, home, self.dtype, block=block, keep=keep_after_forward)
            whole_kept = stage == 1 or accumulate
            gradients = (WholeGradients if whole_kept else ShardedGradients)(self.shards, layout, self.dtype)
            master = weights.shard if self.dtype == self.wide else layout.pack_own(arrays, self.wide)
            self._blocks[block] = Block(layout, weights, gradients, OptimizerShard(comm, master, self.dtype, offload))
            del arrays, master
        self._at, self._direction = -1, 1  # the number of the block used last, and which way blocks have come
        self._order: list[Any] | None = None  # in which blocks will be opened, from the end; None: unknown
        self._reducing: Block | None = None

    def begin(self, order: Sequence[Any] | None = None) -> None:
        """As in `Replica`: so that stage 3 gathers ahead what comes next."""
        super().begin(order)
        self._order = None if order is None else list(reversed(order))

    @property
    def owned(self) -> dict[Any, list[int]]:
        """How many elements of each block each rank of a node owns; in a block they follow each other by rank."""
        return {name: block.layout.counts for name, block in self._blocks.items()}

    def _open(self, block: Any) -> dict[str, Array]:
        weights = self._blocks[block].weights
        weights.start()
        if self._order is not None:
            expected = self._order.pop() if self._order else None
            if expected != block:
                raise ValueError(f"block={block!r}: opened where the order given for this step has {expected!r}")
            for ahead_block in self._order[: -self.prefetch - 1 : -1]:
                self._blocks[ahead_block].weights.start()
        elif len(self._in_use) == 1:  # a block used beside another, as a tied table is, says nothing about the way
            for ahead in self._ahead(self.block_names.index(block)):
                self._blocks[self.block_names[ahead]].weights.start()
        return weights.open()

    def _add(self, block: Any, gradients: Mapping[str, Array], complete: bool) -> None:
        of_block = self._blocks[block]
        if self._reducing is not None:
            self._reducing.gradients.settle()  # so that one block at most is on its way
        of_block.gradients.add(gradients, complete)
        of_block.weights.gradients_came()
        self._reducing = of_block

    def _step(self, lr: float | None) -> float | None:
        blocks = self._blocks.values()
        gradients = [of_block.gradients.shard() for of_block in blocks]  # [n_r] each, summed over the shards' ranks
        if self.replicas is not None:
            requests = [self.replicas.iall_reduce(shard) for shard in gradients]
            gradients = [request.wait() for request in requests]
        factor = self._factor(gradients, self.shards)
        if factor is not None:
            for of_block, shard in zip(blocks, gradients, strict=True):
                of_block.weights.publish(of_block.state.update(self.optimizer, shard, factor, self.steps, lr))
        for of_block in blocks:
            of_block.weights.settle()
            of_block.gradients.free()
        self._reducing = self._order = None
        return factor

    def _gathered(self, block: Any, x: Array) -> Array:
        return self.shards.all_gather(x, counts=self._blocks[block].layout.counts)

    def _publish(self, of_block: Any, x: Array) -> None:
        of_block.weights.publish(x)

    def _ahead(self, index: int) -> list[int]:
        """The blocks to gather ahead of block number `index`: the next ones in the direction in which blocks have come.

        Up on the way forward, down on the way back; a block used twice in a row is where the way turns.
        """
        if index == self._at:
            self._direction = -self._direction
        elif self._at >= 0:
            self._direction = 1 if index > self._at else -1
        self._at = index
        number = min(self.prefetch, index if self._direction < 0 else len(self.block_names) - 1 - index)
        return [index + self._direction * distance for distance in range(1, number + 1)]


def _checked_ranks_per_node(ranks_per_node: int | None, size: int) -> int:
    if ranks_per_node is None:
        return size
    if whole("ranks_per_node", ranks_per_node) < 1 or size % ranks_per_node:
        raise ValueError(f"ranks_per_node={ranks_per_node!r}: a divisor of {size}, the group's size, is needed")
    return ranks_per_node
