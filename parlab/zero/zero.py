"""`Zero`: data parallelism whose ranks share the model's state instead of repeating it: `zero_1`, block by block.

A block of n weights is cut at the same places for its weights W, its gradients G, and M, the moments and masters that
the optimizer keeps. Rank r owns n_r of each. So many of them a rank has, and so much a call sends:

| stage       | W   | G (1) | M   | `weights()`                        | `add_gradients()` (2)    | `step()` (3) |
|-------------|-----|-------|-----|------------------------------------|--------------------------|--------------|
| 0           | n   | n     | n   |                                    | last: all-reduce G       |              |
| 1, P_os     | n   | n     | n_r |                                    | last: reduce-scatter G   | all-gather W |
| 2, P_os+g   | n   | n_r   | n_r |                                    | each: reduce-scatter G   | all-gather W |
| 3, P_os+g+p | n_r | n_r   | n_r | all-gather W: n, until it is left  | each: reduce-scatter G   |              |

(1) Until `step` ends. (2) With the last microbatch, or with each; `accumulate` makes G of stages 2 and 3 as that of 1.
(3) Or beside the next forward: `overlap_gather`.

Stage 0 is plain data parallelism: every rank owns all, so n_r is n. An all-reduce is a reduce-scatter and then an
all-gather; ZeRO puts the optimizer between the two. So with one microbatch, stages 1 and 2 send as much as stage 0.
Stage 3 gathers the weights for each forward pass and again for each backward pass, at most two blocks at a time: the
one in use, and the next.

Invariant: a rank updates what it owns and nothing else, from gradients summed over all ranks; so weights that several
ranks have are equal to the bit. They change in `step` alone, when no block is in use and all gradients have come; and
every rank makes the same step, or skips it.

To trust this file, open `weights.py`, the two kinds of W, and `gradients.py`, two kinds of G. The third, of stage 0, is
in `buckets.py`; M is in `state.py`.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from parlab.arguments import amount, instance
from parlab.arrays import Array, namespace
from parlab.nn.optimizer import AdamW, sum_of_squares
from parlab.world import Comm, grid
from parlab.zero import arguments
from parlab.zero.buckets import BucketedGradients
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.precision import StepGuard, StepResult
from parlab.zero.prefetch import Prefetch
from parlab.zero.shards import FlatLayout, cut_blocks
from parlab.zero.state import OptimizerShard
from parlab.zero.weights import ShardedWeights, WholeWeights


class Zero:
    """One replica of the model, on one rank: its weights, gradients and optimizer, and all the messages they need.

    Gradients are averaged over ranks and microbatches: each loss is the mean over a rank's own batch.

    Args:
        comm: the data-parallel group.
        params: the weights by name, the same on every rank.
        stage: 0 to 3.
        optimizer: the hyperparameters; its state is kept here.
        options: see `Options`, such as `blocks`, `microbatches` or `dtype`.

    Raises:
        ValueError: an argument that cannot be used.
        MismatchError: weights or an optimizer that are not the same on every rank.

    >>> import numpy as np
    >>> from parlab import run
    >>> def program(comm, w):
    ...     zero = Zero(comm, {"w": w}, stage=3, optimizer=AdamW(lr=0.5, weight_decay=0.0))
    ...     with zero.weights("w") as weights:  # so for each block, forward; and then for each, backward
    ...         gradient = weights["w"] + comm.rank  # of zero.loss_scale times the loss
    ...     zero.add_gradients("w", {"w": gradient})
    ...     zero.step()
    ...     return zero.full_weights()["w"].round(6)
    >>> run(program, 2, np.ones(3)).results[1]
    array([0.5, 0.5, 0.5])
    """

    def __init__(self, comm: Comm, params: dict[str, Array], stage: int, optimizer: AdamW, **options: Any) -> None:
        arguments.check_stage(stage)
        instance("optimizer", optimizer, AdamW)
        how = arguments.Options(**options)
        names_of = arguments.checked_blocks(params, how.blocks)  # of weights, by block
        self.dtype, self.master_dtype = arguments.checked_dtypes(params, how.dtype)
        if how.model_parallel is None:  # else the trainer has compared the ranks
            arguments.check_same_model(comm, params, optimizer)
        self.comm, self.stage, self.optimizer, self.options = comm, stage, optimizer, how
        self.params = dict(params) if how.blocks is None else params  # by name, always up to date
        self.block_names = tuple(names_of)  # in the order of the forward pass
        terms, xp = comm.size * how.microbatches, namespace(*params.values())
        self.guard = StepGuard.of(terms, how.max_norm, how.loss_scale, self.dtype, xp)
        self.prefetch = Prefetch(self.block_names)

        # The ranks that share a block
        self.group = comm
        self.between: Comm | None = None  # the ranks that own the same shards, one of each node
        if how.ranks_per_node is not None:
            self.group, self.between = grid(comm, how.ranks_per_node)
        groups = dict.fromkeys(self.block_names, self.group)
        microbatches: Mapping[str, int] = dict.fromkeys(self.block_names, how.microbatches)
        self.model_parallel = how.model_parallel
        if self.model_parallel is not None:
            groups |= self.model_parallel.groups
            microbatches = self.model_parallel.expected
        # Of a model that is cut among ranks: the last step's summed gradients, and the factor that makes them the mean
        self.kept: tuple[dict[str, Array], float] | None = None

        # The cut of each block
        shapes = {block: {name: tuple(params[name].shape) for name in names} for block, names in names_of.items()}
        if stage == 0:
            cut = "whole"
        elif self.model_parallel is None:
            cut = "together"
        else:
            cut = "apart"
        self.layouts = cut_blocks(shapes, groups, cut)
        self.calls = arguments.Calls(self.layouts, microbatches)

        # G, W and M
        self.G: BucketedGradients | WholeGradients | ShardedGradients
        if stage == 0:
            self.G = BucketedGradients(self.layouts, self.dtype, how.bucket_bytes)
        elif stage == 1 or how.accumulate:
            self.G = WholeGradients(self.layouts, self.dtype)
        else:
            self.G = ShardedGradients(self.layouts, self.dtype)
        self.W: dict[str, WholeWeights | ShardedWeights] = {}
        self.M: dict[str, OptimizerShard] = {}
        for block, layout in self.layouts.items():
            if self.dtype == self.master_dtype:
                self.W[block] = self._take_weights(block, layout)
                master = self.W[block].shard  # one memory: the optimizer updates W in place
            else:
                master = layout.pack_own(self.params, self.master_dtype)  # before W is narrow
                self.W[block] = self._take_weights(block, layout)
            self.M[block] = OptimizerShard(comm, master, self.dtype, how.offload)

    def _take_weights(self, block: str, layout: FlatLayout) -> WholeWeights | ShardedWeights:
        """W of a block, taken over from `params`."""
        if self.stage < 3:
            return WholeWeights(layout, self.params, self.dtype, block)
        last = block == self.block_names[-1]
        keep = self.options.keep_after_forward or (self.options.keep_last_block and last)
        return ShardedWeights(layout, self.params, self.dtype, block, keep)

    @property
    def loss_scale(self) -> float:
        """The factor for the loss, before its backward."""
        return self.guard.loss_scale

    def begin(self, order: Sequence[str] | None = None) -> None:
        """Begin a step that opens blocks in this order, in which stage 3 gathers ahead; else it guesses."""
        self.kept = None
        self.prefetch.begin(order)

    @contextmanager
    def weights(self, block: str) -> Iterator[dict[str, Array]]:
        """A block's weights by name, for as long as the `with` lasts.

        Raises:
            ValueError: there is no such block; or it is not the next one in the order that `begin` was told.
        """
        self.calls.check_block(block)
        self.W[block].start_gather()  # stage 3: an all-gather, if the block is not here yet
        ahead = self.prefetch.after(block, alone=not self.calls.in_use)
        if ahead is not None:
            self.W[ahead].start_gather()  # which travels beside the work on this block
        weights = self.W[block].open()
        self.calls.in_use.append(block)
        try:
            yield weights
        finally:
            self.calls.in_use.remove(block)
            self.W[block].close()

    def add_gradients(self, block: str, gradients: Mapping[str, Array]) -> None:
        """Add the gradients of a block's weights from one microbatch, by name; they are copied.

        Raises:
            ValueError: there is no such block, or its gradients have come already, or they do not fit the weights.
        """
        complete = self.calls.add(block, gradients)  # the block's last ones before a step
        with self.guard.overflow_expected():
            self.G.add(block, gradients, complete)  # starts their reduce-scatter, or all-reduce; see the table
        self.W[block].backward_done()

    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight; `lr` replaces the optimizer's, if given.

        Raises:
            ValueError: gradients of a block are missing, a block's weights are in use, or `lr` is no learning rate.
            FloatingPointError: a gradient overflows at the least loss scale; see `LossScale.update`.
        """
        if lr is not None:
            amount("lr", lr)
        self.calls.check_step()
        with self.guard.overflow_expected():
            gradients = self.G.reduced()  # [n_r] by block, when the reduce-scatters are done
            # G: n_r, summed over microbatches and over the ranks that share a block (stage 1: beside its other n − n_r)
            if self.between is not None:
                requests = {block: self.between.iall_reduce(shard) for block, shard in gradients.items()}
                gradients = {block: request.wait() for block, request in requests.items()}
                # G: n_r, summed over all nodes, too
            if self.model_parallel is not None:  # its trainer may ask for the mean
                self.kept = gradients, self.guard.factor_to_mean
            factor = self.guard.decide(self._sum_of_squares(gradients))
            # one number, or None: all ranks skip the step, or none does; `guard` has counted it
            if factor is not None:
                for block, gradient in gradients.items():
                    new = self.M[block].update(self.optimizer, gradient, factor, self.guard.steps, lr)  # [n_r]
                    # M: n_r new moments and masters; from stage 1 on no other rank of the group has them
                    self.W[block].put(new)  # stages 1 and 2: starts an all-gather
                    # W: n_r new ones; in stages 1 and 2 those of the other ranks are on their way
            if not self.options.overlap_gather:
                self.finish()
                # W: in stages 1 and 2 n new ones, on every rank the same bits; in stage 3 n_r
            self.G.free()
            # G: none
        self.calls.begin()
        self.prefetch.begin(None)
        return self.guard.result(factor)

    def _sum_of_squares(self, gradients: Mapping[str, Array]) -> Array | None:
        """Of all weights' gradients, each once; the same number on every rank. None: the guard does not need it."""
        if self.model_parallel is not None:
            own = sum(
                self.model_parallel.in_norm[name] * sum_of_squares(gradients[block][place])
                for block, layout in self.layouts.items()
                for name, place, _ in layout.in_shard
            )
            # One number from all ranks of a mesh: recursive doubling needs log₂P steps, a ring 2(P − 1)
            return self.model_parallel.holders.all_reduce(own, algorithm="recursive_doubling")
        if not self.guard.needs_norm:
            return None
        own = sum(sum_of_squares(gradients[block]) for block in self.block_names)
        return own if self.stage == 0 else self.group.all_reduce(own)

    def finish(self) -> None:
        """Wait for every gather of weights under way. A program needs it after a step with `overlap_gather` only."""
        for block in self.block_names:
            self.W[block].finish()

    def full_weights(self) -> dict[str, Array]:
        """Copies of all weights by name, on every rank."""
        copies: dict[str, Array] = {}
        for block in self.block_names:
            with self.weights(block) as weights:
                copies |= {name: namespace(x).asarray(x, copy=True) for name, x in weights.items()}
        return copies
