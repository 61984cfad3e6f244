"""`Zero`: data parallelism whose ranks share the model's state instead of repeating it.

This file cuts the blocks, gathers ahead, and runs the step over all of them. A block's weights are in `weights.py`, its
gradients in `gradients.py`, its moments in `state.py`; `replica.py` checks what a program calls, and in which order.

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

and always n_r of the optimizer's state. During a step there are also at most two gathered blocks, the one in use and
the next (and a tied table beside the head), sharded gradients of one block on their way (whole ones stay until the
step), and two messages of at most ⌈n/P⌉.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arguments import flag, instance
from parlab.arrays import Array
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, grid
from parlab.zero.arguments import check_stage
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.replica import Replica
from parlab.zero.shards import FlatLayout, cut
from parlab.zero.state import Offload
from parlab.zero.weights import Prefetch


class Zero(Replica):
    """One replica, whose state the ranks share; see `Replica` for how to use it.

    The paper's algorithm needs the first four arguments. The next four say when weights are gathered and gradients
    reduced, the last two where ranks and memory are.

    Args:
        comm, params, optimizer: as for `Replica`.
        stage: 1: the optimizer's state is sharded; 2: the gradients too; 3: the weights too.
        keep_after_forward: stage 3 keeps a block gathered until its gradients have come.
        keep_last_block: stage 3 keeps the last block so, the first one that the backward pass needs (FSDP's
            `reshard_after_forward=False` on the last layer). At the turn, the block before is still waited for,
            unless the last block's backward lasts as long as that gather.
        overlap_gather: stages 1 and 2 gather new weights beside the next forward pass: `step()` starts the all-gathers,
            and `weights(block)` waits for this block's. A program that ends after a step calls `finish()`.
        accumulate: stages 2 and 3 keep whole gradients, and reduce them once, with the last microbatch: each rank
            holds n gradients of a block, and they are sent once. Reducing after each of k microbatches holds n_r, and
            sends them k times.
        ranks_per_node: so many consecutive ranks of `comm` share a node: the state is sharded among them, and repeated
            on each node (hybrid sharding, HSDP). None: it is sharded among all ranks.
        offload: where the optimizer's state lives; None: on the device.
        of_replica: further arguments of `Replica`: blocks, microbatches, dtype, loss_scale, max_norm, model_parallel.

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
        keep_after_forward: bool = False,
        keep_last_block: bool = False,
        overlap_gather: bool = False,
        accumulate: bool = False,
        ranks_per_node: int | None = None,
        offload: Offload | None = None,
        **of_replica: Any,
    ) -> None:
        check_stage(stage, least=1)
        flag("keep_after_forward", keep_after_forward)
        flag("keep_last_block", keep_last_block)
        flag("overlap_gather", overlap_gather)
        if offload is not None:
            instance("offload", offload, Offload)
        flag("accumulate", accumulate)
        super().__init__(comm, params, optimizer, **of_replica)
        self.overlap_gather = overlap_gather
        self.group = comm
        self.between: Comm | None = None  # the ranks that have the same shard, one of each node
        if ranks_per_node is not None:
            self.group, self.between = grid(comm, ranks_per_node)

        gradients_of = WholeGradients if stage == 1 or accumulate else ShardedGradients
        self._gradients: dict[str, WholeGradients | ShardedGradients] = {}
        for block, counts in zip(self.block_names, self._cut(), strict=True):
            group = self._group_of(block)
            layout = FlatLayout(self._arrays(block), counts, group.rank)
            until_backward = keep_after_forward or (keep_last_block and block == self.block_names[-1])
            self._take_over(block, layout, offload, sharded=stage == 3, until_backward=until_backward)
            self._gradients[block] = gradients_of(group, layout, self.dtype)
        self._reducing: WholeGradients | ShardedGradients | None = None  # of the block that came last
        self._prefetch = Prefetch(self.block_names)

    def _cut(self) -> list[list[int]]:
        """How many elements of each block each rank owns: `[block][rank]`."""
        sizes = [sum(x.size for x in self._arrays(block).values()) for block in self.block_names]
        if self.model_parallel is None:
            return cut(sizes, self.group.size)
        ranks = [self._group_of(block).size for block in self.block_names]
        return [cut([size], number)[0] for size, number in zip(sizes, ranks, strict=True)]  # each copy is cut alike

    def begin(self, order: Sequence[str] | None = None) -> None:
        """As in `Replica`. Stage 3 gathers ahead in this order."""
        super().begin(order)
        self._prefetch.begin(order)

    def _start_gathers(self, block: str) -> None:
        self._blocks[block].weights.start_gather()
        ahead = self._prefetch.after(block, alone=len(self._in_use) == 1)
        if ahead is not None:
            self._blocks[ahead].weights.start_gather()

    def _add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        if self._reducing is not None:
            self._reducing.finish()  # sharded gradients: at most one block's are on their way; whole ones stay
        self._reducing = self._gradients[block]
        self._reducing.add(gradients, complete)
        self._blocks[block].weights.backward_done()

    def _step(self, lr: float | None) -> float | None:
        """The step. Below a line stands what rank r then has of a block of n weights, of which it owns n_r.

        W: weights, G: gradients, M: moments and masters.
        """
        gradients = [self._gradients[block].reduced() for block in self.block_names]  # [n_r] each
        # G: n_r, summed over microbatches and over the ranks that share the state (in stage 1 also n of its own)
        if self.between is not None:
            requests = [self.between.iall_reduce(shard) for shard in gradients]
            gradients = [request.wait() for request in requests]
            # G: n_r, summed over all ranks
        factor = self._decide(gradients, self.group)
        # one number, or None, the same on every rank: all ranks skip the step, or none does; `steps` has counted it
        if factor is not None:
            for of_block, gradient in zip(self._blocks.values(), gradients, strict=True):
                new = of_block.state.update(self.optimizer, gradient, factor, self.steps, lr)  # [n_r]
                # M: n_r new moments and masters, which no other rank of the group has
                of_block.weights.put(new)
                # W: n_r new ones; in stages 1 and 2 those of the other ranks are on their way
        for block, of_block in self._blocks.items():
            if not self.overlap_gather:
                of_block.weights.finish()
            # W: in stages 1 and 2 n new ones, on every rank the same bits; in stage 3 n_r
            self._gradients[block].free()
            # G: none
        self._reducing = None
        self._prefetch.begin(None)
        return factor
