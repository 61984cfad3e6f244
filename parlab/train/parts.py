"""What a rank has of the model: which weights, opened when, and how its queries meet keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from parlab.arrays import Array
from parlab.nn.layers import CAUSAL_ATTENTION, Core
from parlab.nn.stage import Gradients, Stage
from parlab.pipeline import Schedule
from parlab.sequence import (
    allgather_attention,
    allgather_attention_backward,
    allgather_cost,
    ring_attention,
    ring_attention_backward,
    ring_cost,
    ulysses_attention,
    ulysses_attention_backward,
    ulysses_cost,
)
from parlab.world import Comm
from parlab.zero import Replica

METHODS: dict[str, tuple[Any, Any, Any]] = {  # forward, backward, what they send
    "ring": (ring_attention, ring_attention_backward, ring_cost),
    "ulysses": (ulysses_attention, ulysses_attention_backward, ulysses_cost),
    "allgather": (allgather_attention, allgather_attention_backward, allgather_cost),
}


class Opened(Stage):
    """A piece of the model whose weights ZeRO opens for each action that reads them; a W reads none.

    Its gradients are taken as soon as they are made: those of a whole stage are never there at once.
    """

    def __init__(
        self, stage: Stage, replica: Replica, blocks: Sequence[str], take: Callable[[Gradients], None]
    ) -> None:
        self.stage, self.replica, self.blocks, self.take = stage, replica, blocks, take
        self.weights, self.weight_names = stage.weights, stage.weight_names

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        with self._open():
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        with self._open():
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """Nothing: the gradients have been handed on."""
        self.take(self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """`(dx, {})`: the gradients have been handed on."""
        with self._open():
            dx, gradients = self.stage.backward(dy, cache)
        self.take(gradients)
        return dx, {}

    def _open(self) -> ExitStack:
        stack = ExitStack()
        for block in self.blocks:
            stack.enter_context(self.replica.weights(block))
        return stack


def holders_of(
    schedule: Schedule, of_stage: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Which ranks of the pipeline hold each weight; a tied table is at both ends."""
    return {
        name: tuple(sorted({rank for s, found in enumerate(of_stage) if name in found for rank in schedule.holders(s)}))
        for name in names
    }


def attention_core(cp: Comm, attention: str, layout: str) -> Core:
    """How queries meet keys on the ranks of `cp`: serial attention where there is one."""
    if cp.size == 1:
        return CAUSAL_ATTENTION
    forward, backward, _ = METHODS[attention]
    how = how_dealt(attention, layout)
    return Core(partial(forward, cp, **how), partial(backward, cp, **how))


def how_dealt(attention: str, layout: str) -> dict[str, Any]:
    """Causal, in this layout; Ulysses takes none."""
    return {"causal": True} | ({} if attention == "ulysses" else {"layout": layout})
