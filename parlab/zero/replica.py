"""What plain data parallelism and ZeRO have in common: one replica of the model, on one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world import Comm
from parlab.zero.precision import StepGuard, StepResult


class Replica(ABC):
    """The weights, gradients and optimizer state of one rank, and all the messages that they need.

        for block in blocks:                        # forward
            with replica.weights(block) as w: ...
        for block in reversed(blocks):              # backward, of replica.loss_scale times the loss
            with replica.weights(block) as w: ...
            replica.add_gradients(block, gradients)
        replica.step()

    Gradients are averaged over ranks and microbatches: each loss is the mean over a rank's own batch.
    """

    comm: Comm
    guard: StepGuard
    given_in_blocks: bool

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

    @property
    @abstractmethod
    def block_names(self) -> Iterable[str]:
        """In the order of the forward pass."""

    @abstractmethod
    def weights(self, block: str) -> AbstractContextManager[dict[str, Array]]:
        """A block's weights by name, for as long as the `with` lasts.

        Raises:
            ValueError: there is no such block.
        """

    @abstractmethod
    def add_gradients(self, block: str, gradients: Mapping[str, Array]) -> None:
        """The gradients of a block's weights from one microbatch, by name; they are copied.

        Raises:
            ValueError: there is no such block, or its gradients have come already, or they do not fit the weights.
        """

    @abstractmethod
    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight; `lr` instead of the optimizer's, if given.

        Raises:
            ValueError: gradients of a block are missing.
        """

    def full_weights(self) -> dict[Any, Any]:
        """Copies of all weights on every rank: by name; by block and name, if that is how they were given."""
        copies: dict[Any, dict[str, Array]] = {}
        for block in self.block_names:
            with self.weights(block) as weights:
                copies[block] = {name: namespace(x).asarray(x, copy=True) for name, x in weights.items()}
        return copies if self.given_in_blocks else {name: x for block in copies.values() for name, x in block.items()}
