"""The stages of a trainer: their weights are gathered for each action, and their gradients leave at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from parlab.arrays import Array
from parlab.nn.stage import Gradients, Stage


class GatheredStage(Stage):
    """A stage whose weights ZeRO gathers before each action that reads them.

    F, I and B read weights; a W reads none. The gradients of each piece of a pipeline stage leave as soon as they are
    made, so that those of a whole pipeline stage never exist at once.

    Args:
        stage: of the model.
        blocks: ZeRO's blocks that it reads.
        gathered: `with gathered(blocks):` the weights of the blocks are there.
        take: takes the gradients.
    """

    def __init__(
        self,
        stage: Stage,
        blocks: Sequence[str],
        gathered: Callable[[Sequence[str]], AbstractContextManager[Any]],
        take: Callable[[Gradients], None],
    ) -> None:
        self.stage, self.blocks, self.gathered, self.take = stage, blocks, gathered, take
        self.weights, self.weight_names = stage.weights, stage.weight_names

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        """See `Stage`."""
        with self.gathered(self.blocks):
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """See `Stage`."""
        with self.gathered(self.blocks):
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """See `Stage`."""
        self.take(self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """See `Stage`."""
        with self.gathered(self.blocks):
            dx, gradients = self.stage.backward(dy, cache)
        self.take(gradients)
        return dx, {}
