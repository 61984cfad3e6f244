"""`Zero`: data parallelism whose ranks share the model's state instead of repeating it.

Weights: `stages.py`; gradients: `gradients.py`; the loop that calls them: `replica.py`. This file cuts the blocks,
and runs a step over all of them.

The memory of a rank for a block of n weights, which P ranks share; rank r owns n_r of them:

| after                | stage 1                      | stage 2                      | stage 3                       |
|----------------------|------------------------------|------------------------------|-------------------------------|
| construction         | n weights                    | n weights                    | n_r weights                   |
| `weights()` entered  | the same                     | the same                     | n_r weights, n gathered       |
| `weights()` left     | the same                     | the same                     | n_r weights                   |
| `add_gradients()`    | n gradients, its own         | n_r gradients, all ranks'    | n_r gradients, all ranks'     |
| `step()`             | n new weights, no gradients  | n new weights, no gradients  | n_r new weights, no gradients |

and always n_r of the optimizer's state. During a step there are also at most 1 + `prefetch` gathered blocks (and a tied
table beside the head), the gradients of one block on their way, and two messages of at most ⌈n/P⌉.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parlab.arguments import checked
from parlab.arrays import Array
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero.arguments import RULES, stage_from
from parlab.zero.block import ShardedBlock
from parlab.zero.flat import FlatLayout
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.nodes import sharers
from parlab.zero.offload import Offload
from parlab.zero.part import Part
from parlab.zero.precision import LossScale
from parlab.zero.prefetch import Prefetch
from parlab.zero.replica import Replica
from parlab.zero.shards import cut
from parlab.zero.stages import weights_in_stage
from parlab.zero.state import OptimizerShard


class Zero(Replica):
    """One replica, whose state the ranks share; see `Replica` for how to use it.

    Args:
        comm: the data-parallel group.
        params: the weights by name, the same on every rank.
        stage: 1: the optimizer's state is sharded; 2: the gradients too; 3: the weights too.
        optimizer: the hyperparameters; its state is kept here.
        blocks: the names of the weights that are gathered and reduced together, by block, in the order of the forward
            pass (`Llama.weight_blocks`). `params` is then taken over: its entries become views of ZeRO's memory, and in
            stage 3 are there inside `weights` only; the model need not know. None: every weight is a block, and
            `params` is copied.
        dtype: of the weights and gradients that the model computes with, such as "float16"; None: that of `params`.
            Masters and moments have the dtype of `params`, float32 at least.
        loss_scale: where it starts and how it moves; None: `LossScale()` for float16, else none.
        max_norm: to which the mean gradient is clipped.
        microbatches: how often gradients of each block are added before a step.
        prefetch: how many blocks stage 3 gathers ahead of the one in use. A pass that stops half-way leaves them under
            way; `step()` ends them.
        keep_after_forward: stage 3 keeps a block gathered until its gradients have come.
        keep_last_block: stage 3 keeps the last block so, the first one that the backward pass needs (FSDP's
            `reshard_after_forward=False` on the last layer). At the turn, the block before is still waited for,
            unless the last block's backward lasts as long as that gather.
        overlap_gather: stages 1 and 2 gather new weights beside the next forward pass: `step()` starts the all-gathers,
            and `weights(block)` waits for this block's. A program that ends after a step calls `finish()`.
        ranks_per_node: so many consecutive ranks of `comm` share a node: weights are gathered and gradients reduced in
            two levels, inside nodes and between them. None: in one ring.
        repeat_on_nodes: shard among the ranks of a node, and repeat the shards on each node (hybrid sharding, HSDP).
        offload: where the optimizer's state lives; None: on the device.
        accumulate: stages 2 and 3 keep whole gradients, and reduce them once, with the last microbatch: each rank
            holds n gradients of a block, and they are sent once. Reducing after each of k microbatches holds n_r, and
            sends them k times.
        part: for a replica that is itself cut (`parlab.train`); None: the replica is whole.

    Raises:
        ValueError: an argument that cannot be used.
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

    @checked({**RULES, "stage": stage_from(1)})
    def __init__(
        self,
        comm: Comm,
        params: dict[str, Array],
        stage: int,
        optimizer: AdamW,
        *,
        blocks: Mapping[str, Sequence[str]] | None = None,
        dtype: str | None = None,
        loss_scale: LossScale | None = None,
        max_norm: float | None = None,
        microbatches: int = 1,
        prefetch: int = 1,
        keep_after_forward: bool = False,
        keep_last_block: bool = False,
        overlap_gather: bool = False,
        ranks_per_node: int | None = None,
        repeat_on_nodes: bool = False,
        offload: Offload | None = None,
        accumulate: bool = False,
        part: Part | None = None,
    ) -> None:
        super().__init__(comm, params, optimizer, blocks, dtype, loss_scale, max_norm, microbatches, part)
        self.stage, self.overlap_gather = stage, overlap_gather
        self.shards, self.replicas, self.per_node = sharers(comm, ranks_per_node, repeat_on_nodes)

        counts = self._cut()
        self._blocks: dict[str, ShardedBlock] = {}
        for block, of_ranks in zip(self.block_names, counts, strict=True):
            shards, per_node = self._sharers(block), self._per_node(block)
            layout = FlatLayout(self._arrays(block), of_ranks, shards.rank)
            master = None if self.dtype == self.wide else layout.pack_own(self._arrays(block), self.wide)
            keep = keep_after_forward or (keep_last_block and block == self.block_names[-1])
            weights = weights_in_stage(stage, keep, shards, layout, self._home, self.dtype, block, per_node)
            gradients_of = WholeGradients if stage == 1 or accumulate else ShardedGradients
            gradients = gradients_of(shards, layout, self.dtype, per_node)
            state = OptimizerShard(comm, weights.shard if master is None else master, self.dtype, offload)
            self._blocks[block] = ShardedBlock(layout, weights, gradients, state)
            del master
        self._prefetch = Prefetch(self.block_names, prefetch)
        self._reducing: ShardedBlock | None = None

    def _sharers(self, block: str) -> Comm:
        """The ranks among which a block is cut."""
        group = self._group(block)
        return self.shards if group is self.comm else group

    def _cut(self) -> list[list[int]]:
        """How many elements of each block each rank owns: `[block][rank]`."""
        sizes = [sum(x.size for x in self._arrays(block).values()) for block in self.block_names]
        counts = cut(sizes, self.shards.size, alike=self.part is not None)
        for number, block in enumerate(self.block_names):
            if (group := self._group(block)) is not self.comm:
                counts[number] = cut([sizes[number]], group.size, alike=True)[0]
        return counts

    def begin(self, order: Sequence[str] | None = None) -> None:
        """As in `Replica`. Stage 3 gathers ahead in this order."""
        super().begin(order)
        self._prefetch.begin(order)

    @property
    def owned(self) -> dict[str, list[int]]:
        """How many elements of each block each rank of a node owns; in a block they follow each other by rank."""
        return {name: block.layout.counts for name, block in self._blocks.items()}

    def _open(self, block: str) -> dict[str, Array]:
        weights = self._blocks[block].weights
        weights.start_gather()
        for ahead in self._prefetch.after(block, alone=len(self._in_use) == 1):
            self._blocks[ahead].weights.start_gather()
        return weights.open()

    def _add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        of_block = self._blocks[block]
        if self._reducing is not None:
            self._reducing.gradients.finish()  # at most one block's gradients are on their way
        of_block.gradients.add(gradients, complete)
        of_block.weights.backward_done()
        self._reducing = of_block

    def _step(self, lr: float | None) -> float | None:
        blocks = self._blocks.values()
        gradients = [block.gradients.shard() for block in blocks]  # [n_r] each, summed over the ranks of a node
        if self.replicas is not None:
            requests = [self.replicas.iall_reduce(shard) for shard in gradients]
            gradients = [request.wait() for request in requests]  # summed over all ranks
        factor = self._factor(gradients, self.shards)
        if factor is not None:
            for block, shard in zip(blocks, gradients, strict=True):
                block.weights.finish()  # no gather sends the old part, which the optimizer changes in place
                block.weights.update(block.state.update(self.optimizer, shard, factor, self.steps, lr))
        for block in blocks:
            if not self.overlap_gather:
                block.weights.finish()
            block.gradients.free()
        self._reducing = None
        self._prefetch.begin(None)
        return factor

    def _gathered(self, block: str, x: Array) -> Array:
        return self._sharers(block).all_gather(x, counts=self._blocks[block].layout.counts)

    def _put(self, block: str, x: Array) -> None:
        self._blocks[block].weights.update(x)
