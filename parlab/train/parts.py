"""How a rank's queries meet keys, and how its stages find weights and hand on gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from parlab import sequence
from parlab.arrays import Array
from parlab.nn.layers import CAUSAL_ATTENTION, Core
from parlab.nn.stage import Gradients, Stage
from parlab.world import Comm
from parlab.zero import Replica
from parlab.zero.training import weights_of

METHODS: dict[str, tuple[Any, Any, Any]] = {  # forward, backward, what they send
    "ring": (sequence.ring_attention, sequence.ring_attention_backward, sequence.ring_cost),
    "ulysses": (sequence.ulysses_attention, sequence.ulysses_attention_backward, sequence.ulysses_cost),
    "allgather": (sequence.allgather_attention, sequence.allgather_attention_backward, sequence.allgather_cost),
}


def attention_core(cp: Comm, attention: str, layout: str) -> Core:
    """How queries meet keys on the ranks of `cp`: serial attention where there is one."""
    if cp.size == 1:
        return CAUSAL_ATTENTION
    forward, backward, _ = METHODS[attention]
    how = {"causal": True} | ({} if attention == "ulysses" else {"layout": layout})
    return Core(partial(forward, cp, **how), partial(backward, cp, **how))


class Opened(Stage):
    """A piece of the model whose weights ZeRO opens for each action that reads them; a W reads none.

    Its gradients are taken as soon as they are made: those of a whole stage are never there at once.
    """

    def __init__(
        self, stage: Stage, replica: Replica, block_of: Mapping[str, str], take: Callable[[Gradients], None]
    ) -> None:
        self.stage, self.take = stage, take
        self.weights, self.weight_names = stage.weights, stage.weight_names
        self.blocks = tuple(dict.fromkeys(block_of[name] for name in stage.weight_names))
        self.open = partial(weights_of, replica, self.blocks)

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        with self.open():
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        with self.open():
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """Nothing: the gradients have been handed on."""
        self.take(self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """`(dx, {})`: the gradients have been handed on."""
        with self.open():
            dx, gradients = self.stage.backward(dy, cache)
        self.take(gradients)
        return dx, {}
