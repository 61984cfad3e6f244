"""`Zero`: data parallelism whose ranks share the model's state instead of repeating it.

Weights: `stages.py`; gradients: `gradients.py`; the loop that calls them: `replica.py`. This file cuts the blocks,
gathers ahead, and runs a step over all of them.

Invariant, after each call: the n weights of a block are cut at the same places for its weights, gradients and
optimizer's state, and rank r owns n_r of each. It alone updates these, from gradients summed over all ranks, so weights
that several ranks have are equal to the bit. A rank has in memory, for a block that P ranks share:

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
from typing import Any

from parlab.arguments import flag, instance, whole
from parlab.arrays import Array
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero.arguments import check_stage, checked_ranks_per_node
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.precision import LossScale
from parlab.zero.replica import Part, Replica
from parlab.zero.shards import FlatLayout, cut
from parlab.zero.stages import Prefetch
from parlab.zero.state import Offload


class Zero(Replica):
    """One replica, whose state the ranks share; see `Replica` for how to use it.

    The paper's algorithm needs the first four arguments. `blocks`, `microbatches` and `accumulate` fit it to a model's
    backward pass; `dtype`, `loss_scale` and `max_norm` say how it counts; `prefetch`, `keep_...` and `overlap_gather`
    when weights are gathered; all others where ranks and memory are.

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
        check_stage(stage, least=1)
        whole("prefetch", prefetch, least=0)
        flag("keep_after_forward", keep_after_forward)
        flag("keep_last_block", keep_last_block)
        flag("overlap_gather", overlap_gather)
        flag("repeat_on_nodes", repeat_on_nodes)
        if repeat_on_nodes and ranks_per_node is None:
            raise ValueError("repeat_on_nodes=True: say ranks_per_node, the ranks among which the state is sharded")
        checked_ranks_per_node(ranks_per_node, comm.size)
        if offload is not None:
            instance("offload", offload, Offload)
        flag("accumulate", accumulate)
        super().__init__(comm, params, optimizer, blocks, dtype, loss_scale, max_norm, microbatches, part)
        self.stage, self.overlap_gather = stage, overlap_gather
        self.sharers, self.same_shard, self.ranks_per_node = _sharing(comm, ranks_per_node, repeat_on_nodes)

        gradients_of = WholeGradients if stage == 1 or accumulate else ShardedGradients
        self._gradients: dict[str, WholeGradients | ShardedGradients] = {}
        for block, counts in zip(self.block_names, self._cut(), strict=True):
            sharers, in_two_levels = self._sharers_of(block)
            layout = FlatLayout(self._arrays(block), counts, sharers.rank)
            until_backward = keep_after_forward or (keep_last_block and block == self.block_names[-1])
            self._take_over(block, layout, offload, sharded=stage == 3, until_backward=until_backward)
            self._gradients[block] = gradients_of(sharers, layout, self.dtype, in_two_levels)
        self._reducing: WholeGradients | ShardedGradients | None = None  # of the block that came last
        self._prefetch = Prefetch(self.block_names, prefetch)

    def _cut(self) -> list[list[int]]:
        """How many elements of each block each rank owns: `[block][rank]`."""
        sizes = [sum(x.size for x in self._arrays(block).values()) for block in self.block_names]
        if self.part is None:
            return cut(sizes, self.sharers.size)
        ranks = [self._sharers_of(block)[0].size for block in self.block_names]
        return [cut([size], number)[0] for size, number in zip(sizes, ranks, strict=True)]  # each alike on every part

    def begin(self, order: Sequence[str] | None = None) -> None:
        """As in `Replica`. Stage 3 gathers ahead in this order."""
        super().begin(order)
        self._prefetch.begin(order)

    def _open(self, block: str) -> dict[str, Array]:
        weights = self._blocks[block].weights
        weights.start_gather()
        for ahead in self._prefetch.after(block, alone=len(self._in_use) == 1):
            self._blocks[ahead].weights.start_gather()
        return weights.open()

    def _add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        if self._reducing is not None:
            self._reducing.finish()  # at most one block's gradients are on their way
        self._reducing = self._gradients[block]
        self._reducing.add(gradients, complete)
        self._blocks[block].weights.backward_done()

    def _step(self, lr: float | None) -> float | None:
        gradients = [self._gradients[block].reduced() for block in self.block_names]  # [n_r] each, over the sharers
        if self.same_shard is not None:
            requests = [self.same_shard.iall_reduce(shard) for shard in gradients]
            gradients = [request.wait() for request in requests]  # summed over all ranks
        factor = self._decide(gradients, self.sharers)
        if factor is not None:
            for block, shard in zip(self._blocks.values(), gradients, strict=True):
                block.weights.update(block.state.update(self.optimizer, shard, factor, self.steps, lr))
        for name, block in self._blocks.items():
            if not self.overlap_gather:
                block.weights.finish()
            self._gradients[name].free()
        self._reducing = None
        self._prefetch.begin(None)
        return factor

    def _gathered(self, block: str, x: Array) -> Array:
        return self._sharers_of(block)[0].all_gather(x, counts=self._blocks[block].layout.counts)

    def _put(self, block: str, x: Array) -> None:
        self._blocks[block].weights.update(x)


def _sharing(comm: Comm, ranks_per_node: int | None, repeat_on_nodes: bool) -> tuple[Comm, Comm | None, int | None]:
    """The ranks that share the state; those that have the same shard, one on each node, if there are several; and how
    many consecutive ranks of the first share a node, if they fill several.
    """
    if ranks_per_node is None or not repeat_on_nodes:
        return comm, None, ranks_per_node
    inside: Any = comm.split(comm.rank // ranks_per_node)
    across: Any = comm.split(comm.rank % ranks_per_node) if ranks_per_node < comm.size else None
    return inside, across, None
