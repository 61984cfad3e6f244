"""What plain data parallelism and ZeRO have in common: one replica of the model, on one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from parlab.arrays import Array, namespace
from parlab.nn.optimizer import AdamW
from parlab.world import Comm
from parlab.zero.arguments import (
    Params,
    check_alike,
    check_block,
    check_gradients,
    check_numbers,
    check_step,
    checked_blocks,
    dtypes,
    sums_of,
)
from parlab.zero.part import Part, StatePiece
from parlab.zero.precision import LossScale, StepGuard, StepResult


class Replica(ABC):
    """The weights, gradients and optimizer state of one rank, and all the messages that they need::

        for block in blocks:                        # forward
            with replica.weights(block) as w: ...
        for block in reversed(blocks):              # backward, of replica.loss_scale times the loss
            with replica.weights(block) as w: ...
            replica.add_gradients(block, gradients)
        replica.step()

    Gradients are averaged over ranks and microbatches: each loss is the mean over a rank's own batch.

    Attributes:
        params: as given.
        block_names: in the order of the forward pass.
    """

    _blocks: Mapping[Any, Any]  # each with its layout and weights

    def __init__(
        self,
        comm: Comm,
        params: Params,
        optimizer: AdamW,
        blocks: Mapping[str, Sequence[str]] | None,
        dtype: str | None,
        loss_scale: LossScale | None,
        max_norm: float | None,
        microbatches: int,
        part: Part | None,
    ) -> None:
        members = checked_blocks(params, blocks)
        check_numbers(optimizer, max_norm, microbatches)
        self.dtype, self.wide = dtypes(members, dtype)
        self.guard = StepGuard.of(comm.size * microbatches, max_norm, loss_scale, self.dtype)
        self.part = part
        self.parts = dict.fromkeys(members, microbatches) if part is None else part.parts
        self.comm, self.params, self.optimizer, self.microbatches = comm, params, optimizer, microbatches
        self.block_names = tuple(members)
        self._members = members
        self._in_blocks = not isinstance(params, dict) or isinstance(next(iter(params.values())), dict)
        self._added = dict.fromkeys(members, 0)  # how many microbatches' gradients have come
        self._in_use: list[Any] = []
        self._summed: dict[Any, Array] = {}  # [n_r] by block: of the last step, kept for a part alone
        self._unit = 1.0  # what makes means of them
        if part is None:  # else the trainer has looked
            weights = [x for block in members.values() for x in block.arrays.values()]
            told = optimizer, sums_of(weights)
            check_alike(comm, told, "weights or optimizer differ from rank to rank: give every rank the same")
        self._xp = namespace(*members[self.block_names[0]].arrays.values())

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss by, before its backward."""
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
    def weights(self, block: Any) -> Iterator[dict[str, Array]]:
        """A block's weights by name, for as long as the `with` lasts.

        Raises:
            ValueError: there is no such block.
        """
        check_block(block, self.block_names)
        self._in_use.append(block)
        try:
            yield self._open(block)
        finally:
            self._in_use.remove(block)
            self._blocks[block].weights.close()

    def add_gradients(self, block: Any, gradients: Mapping[str, Array]) -> None:
        """The gradients of a block's weights from one microbatch, by name; they are copied.

        Raises:
            ValueError: there is no such block, or its gradients have come already, or they do not fit the weights.
        """
        check_block(block, self.block_names)
        check_gradients(block, gradients, self._blocks[block].layout.shapes, self._added[block], self.parts[block])
        self._added[block] += 1
        with self.overflow_expected():
            self._add(block, gradients, complete=self._added[block] == self.parts[block])

    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight; `lr` instead of the optimizer's, if given.

        Raises:
            ValueError: gradients of a block are missing, a block's weights are in use, or `lr` is no learning rate.
        """
        check_step(lr, self._in_use, self._added, self.parts)
        with self.overflow_expected():
            factor = self._step(lr)
        self._added = dict.fromkeys(self.block_names, 0)
        return self.guard.result(factor)

    def begin(self, order: Sequence[Any] | None = None) -> None:
        """Forget the last step's gradients; `order`: the blocks, each time that this step will open one."""
        self._summed = {}

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, on every rank; of a replica that is a part."""
        gradients: dict[str, Array] = {}
        for block, summed in self._summed.items():
            wide = self._xp.astype(self._gathered(block, summed), self.wide, copy=False)  # [n]
            gradients |= self._blocks[block].layout.unpack(wide * self._unit)
        return gradients

    def state(self) -> list[StatePiece]:
        """What this rank keeps of the optimizer's state, weight by weight; `restore` follows when it was written."""
        return [
            StatePiece(
                name, start, of_block.state.master[place], of_block.state.mean[place], of_block.state.square[place]
            )
            for of_block in self._blocks.values()
            for name, place, start in of_block.layout.owned
        ]

    @property
    def progress(self) -> dict[str, float]:
        """What a run that goes on needs besides the state: numbers by name."""
        scale = self.guard.scale
        moved = {} if scale is None else {"loss_scale": scale.value, "good_steps": scale.good_steps}
        return {"steps": self.steps, "skipped": self.skipped, **moved}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress` with what was written into `state()`: all weights become those of the masters."""
        self.guard.steps, self.guard.skipped = int(progress["steps"]), int(progress["skipped"])
        if self.guard.scale is not None and "loss_scale" in progress:  # else it begins now: the run had none
            self.guard.scale.value, self.guard.scale.good_steps = progress["loss_scale"], int(progress["good_steps"])
        for of_block in self._blocks.values():
            self._publish(of_block, self._xp.astype(of_block.state.master, self.dtype, copy=False))
        for of_block in self._blocks.values():
            of_block.weights.settle()

    def full_weights(self) -> dict[Any, Any]:
        """Copies of all weights on every rank: by name; by block and name, if that is how they were given."""
        copies: dict[Any, dict[str, Array]] = {}
        for block in self.block_names:
            with self.weights(block) as weights:
                copies[block] = {name: namespace(x).asarray(x, copy=True) for name, x in weights.items()}
        return copies if self._in_blocks else {name: x for block in copies.values() for name, x in block.items()}

    def overflow_expected(self) -> AbstractContextManager[Any]:
        """Inside, an infinity is no warning where a loss scale will find it, and skip the step."""
        if self.guard.scale is None or not hasattr(self._xp, "errstate"):  # NumPy's alone
            return nullcontext()
        return self._xp.errstate(over="ignore", invalid="ignore")

    def _factor(self, gradients: Sequence[Array], comm: Comm | None) -> float | None:
        """What the guard decides of gradients `[n_r]`, one a block in the order of the blocks."""
        if self.part is None:
            return self.guard.factor(gradients, comm)
        self._summed = dict(zip(self.block_names, gradients, strict=True))
        self._unit = self.guard.mean / self.loss_scale
        owned = [
            (summed[place], self.part.shares[name])
            for block, summed in self._summed.items()
            for name, place, _ in self._blocks[block].layout.owned
        ]
        return self.guard.factor([x for x, _ in owned], self.part.comm, [share for _, share in owned])

    @abstractmethod
    def _gathered(self, block: Any, x: Array) -> Array:
        """All ranks' parts of a block, `[n_r]` -> `[n]`."""

    @abstractmethod
    def _publish(self, of_block: Any, x: Array) -> None:
        """Let the new weights `[n_r]` of this rank be everybody's; they are when the weights have settled."""

    @abstractmethod
    def _open(self, block: Any) -> dict[str, Array]:
        """The block's weights, from now on in use."""

    @abstractmethod
    def _add(self, block: Any, gradients: Mapping[str, Array], complete: bool) -> None:
        """Take one microbatch's gradients; `complete`: the last microbatch's."""

    @abstractmethod
    def _step(self, lr: float | None) -> float | None:
        """Update and forget the gradients; what each was multiplied by, or None: the step was skipped."""
