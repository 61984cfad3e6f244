"""The common part of plain data parallelism and ZeRO: one replica of the model, on one rank.

Invariant: weights change in `step` alone, when no block is in use and all gradients of each have come; and every rank
makes the same step, or skips it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

from parlab.arguments import amount, instance, positive, whole
from parlab.arrays import Array, namespace
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero.arguments import (
    check_alike,
    check_block,
    check_gradients,
    check_step,
    checked_blocks,
    checked_dtypes,
    sums_of,
)
from parlab.zero.precision import LossScale, StepGuard, StepResult
from parlab.zero.shards import FlatLayout
from parlab.zero.state import Offload, OptimizerShard
from parlab.zero.weights import BlockWeights


class Replica(ABC):
    """The weights, gradients and optimizer state of one rank, and all the messages that they need::

        for block in blocks:                        # forward
            with replica.weights(block) as w: ...
        for block in reversed(blocks):              # backward, of replica.loss_scale times the loss
            with replica.weights(block) as w: ...
            replica.add_gradients(block, gradients)
        replica.step()

    A caller that knows the order in which a step opens blocks, as the trainer does, calls `begin(order)` before it.

    Gradients are averaged over ranks and microbatches: each loss is the mean over a rank's own batch.

    `weights`, `add_gradients` and `step` check their arguments, and call `_start_gathers`, `_add` and `_step` of the
    subclass, which sends the messages.

    Args:
        comm: the data-parallel group.
        params: the weights by name, the same on every rank.
        optimizer: the hyperparameters; its state is kept here.
        blocks: the names of the weights that are gathered and reduced together, by block, in the order of the forward
            pass (`Llama.weight_blocks`). `params` is then taken over: its entries become views of this replica's
            memory, and in ZeRO's stage 3 are there inside `weights` only; the model need not know. None: every weight
            is a block, and `params` is copied.
        microbatches: how often gradients of each block are added before a step.
        dtype: of the weights and gradients that the model computes with, such as "float16"; None: that of `params`.
            Masters and moments have the dtype of `params`, float32 at least.
        loss_scale: where it starts and how it moves; None: `LossScale()` for float16, else none.
        max_norm: to which the mean gradient is clipped.
        model_parallel: how a replica is itself cut among ranks (`parlab.train`); None: it is whole.

    Attributes:
        block_names: in the order of the forward pass.
        group: the ranks that exchange gradients, and in ZeRO share the state.
    """

    group: Comm

    def __init__(
        self,
        comm: Comm,
        params: dict[str, Array],
        optimizer: AdamW,
        *,
        blocks: Mapping[str, Sequence[str]] | None = None,
        microbatches: int = 1,
        dtype: str | None = None,
        loss_scale: LossScale | None = None,
        max_norm: float | None = None,
        model_parallel: ModelParallel | None = None,
    ) -> None:
        instance("optimizer", optimizer, AdamW)
        if loss_scale is not None:
            instance("loss_scale", loss_scale, LossScale)
        if max_norm is not None:
            positive("max_norm", max_norm)
        whole("microbatches", microbatches, least=1)
        if model_parallel is not None:
            instance("model_parallel", model_parallel, ModelParallel)
        self._names_of = checked_blocks(params, blocks)
        self.block_names = tuple(self._names_of)
        self.dtype, self.wide = checked_dtypes(params, dtype)
        self.guard = StepGuard.of(comm.size * microbatches, max_norm, loss_scale, self.dtype)
        self.model_parallel = model_parallel
        expected = dict.fromkeys(self.block_names, microbatches)
        self.expected = expected if model_parallel is None else model_parallel.expected
        self.comm, self.params, self.optimizer, self.microbatches = comm, params, optimizer, microbatches
        self._all_weights = dict(params) if blocks is None else params  # by name, always up to date
        self._blocks: dict[str, ReplicaBlock] = {}
        self._added = dict.fromkeys(self.block_names, 0)  # how many microbatches' gradients have come
        self._in_use: list[str] = []
        self._summed: dict[str, Array] = {}  # [n_r] by block: the last step's gradients, kept if the replica is cut
        self._mean_of_sum = 1.0  # the factor that makes means of them
        self._xp = namespace(*params.values())
        if model_parallel is None:  # else the trainer has compared the ranks
            told = optimizer, sums_of(params.values())
            check_alike(comm, told, "weights or optimizer differ from rank to rank: give every rank the same")

    @property
    def loss_scale(self) -> float:
        """The factor for the loss, before its backward."""
        return self.guard.loss_scale

    @property
    def steps(self) -> int:
        """How many steps changed the weights."""
        return self.guard.steps

    @property
    def skipped(self) -> int:
        """How many steps were skipped."""
        return self.guard.skipped

    @contextmanager
    def weights(self, block: str) -> Iterator[dict[str, Array]]:
        """A block's weights by name, for as long as the `with` lasts.

        Raises:
            ValueError: there is no such block.
        """
        check_block(block, self.block_names)
        self._in_use.append(block)
        try:
            self._start_gathers(block)
            yield self._blocks[block].weights.open()
        finally:
            self._in_use.remove(block)
            self._blocks[block].weights.close()

    def add_gradients(self, block: str, gradients: Mapping[str, Array]) -> None:
        """Add the gradients of a block's weights from one microbatch, by name; they are copied.

        Raises:
            ValueError: there is no such block, or its gradients have come already, or they do not fit the weights.
        """
        check_block(block, self.block_names)
        check_gradients(block, gradients, self._blocks[block].layout.shapes, self._added[block], self.expected[block])
        self._added[block] += 1
        with self.overflow_expected():
            self._add(block, gradients, complete=self._added[block] == self.expected[block])

    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight; `lr` replaces the optimizer's, if given.

        Raises:
            ValueError: gradients of a block are missing, a block's weights are in use, or `lr` is no learning rate.
            FloatingPointError: a gradient overflows at the least loss scale; see `LossScale.update`.
        """
        if lr is not None:
            amount("lr", lr)
        check_step(self._in_use, self._added, self.expected)
        with self.overflow_expected():
            factor = self._step(lr)
        self._added = dict.fromkeys(self.block_names, 0)
        return self.guard.result(factor)

    def begin(self, order: Sequence[str] | None = None) -> None:
        """Forget the last step's gradients. `order`: the blocks in the order in which this step opens them."""
        self._summed = {}

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, on every rank; of a replica that is cut.

        Raises:
            ValueError: no step has been made; or the replica is whole, and forgets its gradients in `step()`.
        """
        if self.model_parallel is None:
            raise ValueError(
                "full_gradients(): a whole replica frees its gradients in step(); parlab.train.Trainer keeps those of "
                "its last step"
            )
        if not self._summed:
            raise ValueError("full_gradients(): there is no last step; call step() first")
        gradients: dict[str, Array] = {}
        for block, summed in self._summed.items():
            of_block = self._blocks[block]
            wide = self._xp.astype(of_block.weights.whole_of(summed), self.wide, copy=False)  # [n]
            gradients |= of_block.layout.unpack(wide * self._mean_of_sum)
        return gradients

    def state_pieces(self) -> list[StatePiece]:
        """This rank's shard of the optimizer's state, weight by weight. Call `restore` after it was written."""
        self.finish()  # a write must not meet a gather of the same memory
        return [
            StatePiece(name, start, state.master[place], state.mean[place], state.square[place])
            for layout, state in ((of_block.layout, of_block.state) for of_block in self._blocks.values())
            for name, place, start in layout.owned
        ]

    @property
    def progress(self) -> dict[str, float]:
        """The numbers, by name, that a run needs besides the state to go on."""
        scale = self.guard.scale
        moved = {} if scale is None else {"loss_scale": scale.value, "good_steps": scale.good_steps}
        return {"steps": self.steps, "skipped": self.skipped, **moved}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress` and from the state written into `state_pieces()`: all weights become the masters'."""
        self.guard.steps, self.guard.skipped = int(progress["steps"]), int(progress["skipped"])
        if self.guard.scale is not None and "loss_scale" in progress:  # else the run had no scale: it begins now
            self.guard.scale.value, self.guard.scale.good_steps = progress["loss_scale"], int(progress["good_steps"])
        for of_block in self._blocks.values():
            of_block.weights.put(self._xp.astype(of_block.state.master, self.dtype, copy=False))
        self.finish()

    def finish(self) -> None:
        """Wait for every gather of weights under way. A program needs it after a step with `overlap_gather` only."""
        for of_block in self._blocks.values():
            of_block.weights.finish()

    def full_weights(self) -> dict[str, Array]:
        """Copies of all weights by name, on every rank."""
        copies: dict[str, Array] = {}
        for block in self.block_names:
            with self.weights(block) as weights:
                copies |= {name: namespace(x).asarray(x, copy=True) for name, x in weights.items()}
        return copies

    def overflow_expected(self) -> AbstractContextManager[Any]:
        """Inside, an infinity is no warning if a loss scale will find it and skip the step."""
        if self.guard.scale is None or not hasattr(self._xp, "errstate"):  # NumPy's alone
            return nullcontext()
        return self._xp.errstate(over="ignore", invalid="ignore")

    def _group_of(self, block: str) -> Comm:
        """The ranks that exchange a block."""
        return self.group if self.model_parallel is None else self.model_parallel.groups.get(block, self.group)

    def _take_over(self, block: str, layout: FlatLayout, offload: Offload | None = None, **how: Any) -> None:
        """Put a block's weights, and the optimizer's state of this rank's shard of them, into memory of their own."""
        master = None if self.dtype == self.wide else layout.pack_own(self._arrays(block), self.wide)
        weights = BlockWeights(self._group_of(block), layout, self._all_weights, self.dtype, block, **how)
        own = weights.shard if master is None else master
        self._blocks[block] = ReplicaBlock(layout, weights, OptimizerShard(self.comm, own, self.dtype, offload))

    def _arrays(self, block: str) -> dict[str, Array]:
        """The weights of a block by name, as they are now."""
        return {name: self._all_weights[name] for name in self._names_of[block]}

    def _decide(self, gradients: Sequence[Array], comm: Comm | None) -> float | None:
        """The guard's factor for summed gradients `[n_r]`, one a block in the order of the blocks; None: skip.

        The guard counts the step: from here on `steps` or `skipped` is one more.
        """
        if self.model_parallel is None:
            return self.guard.decide(gradients, comm)
        self._summed = dict(zip(self.block_names, gradients, strict=True))
        self._mean_of_sum = self.guard.mean_factor / self.loss_scale
        owned = [
            (summed[place], self.model_parallel.in_norm[name])
            for block, summed in self._summed.items()
            for name, place, _ in self._blocks[block].layout.owned
        ]
        return self.guard.decide([x for x, _ in owned], self.model_parallel.comm, [share for _, share in owned])

    @abstractmethod
    def _start_gathers(self, block: str) -> None:
        """Where weights are sharded, start the all-gathers of the block, which is opened next, and of the one after."""

    @abstractmethod
    def _add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        """Take one microbatch's gradients; `complete`: the last microbatch's."""

    @abstractmethod
    def _step(self, lr: float | None) -> float | None:
        """Update the weights and forget the gradients; return the gradients' factor, or None: the step was skipped."""


class ReplicaBlock(NamedTuple):
    """A block's weights and optimizer state, and how they lie in one flat array. Gradients come and go elsewhere."""

    layout: FlatLayout
    weights: BlockWeights
    state: OptimizerShard


class StatePiece(NamedTuple):
    """Consecutive elements of a flat weight, with their optimizer state: views, which may be written.

    Attributes:
        name: of the weight.
        start: of the first element in the flat weight, as this rank's cut of the replica has it.
        master, mean, square: `[n]`.
    """

    name: str
    start: int
    master: Array
    mean: Array
    square: Array


class ModelParallel(NamedTuple):
    """How a replica is cut among ranks by tensor, pipeline and expert parallelism, as ZeRO on one of them has to know.

    Several ranks of a replica may have a copy of one weight. Every block is cut at the same places on each of them, so
    that copies are summed in the same order, and stay equal to the bit.

    Attributes:
        comm: the ranks that hold all shards of a replica's weights; the squares of the gradients are summed over it.
        in_norm: how much this rank's copy of each weight counts in the norm, by name: 1 / copies.
        expected: how many calls of `add_gradients` bring gradients of each block before a step. The sum over these
            calls is this rank's mean gradient.
        groups: the blocks that another group of ranks holds than the replica's `comm` (experts), each with that group.
            Their summed gradients are still divided by the size of `comm`.
    """

    comm: Comm
    in_norm: Mapping[str, float]
    expected: Mapping[Any, int]
    groups: Mapping[Any, Comm] = MappingProxyType({})
