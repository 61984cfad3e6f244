"""The stage protocol, by which a pipeline owns a part of a model; and a chain of stages, which is a stage again.

    stage.forward(x) -> (y, cache)
    stage.backward_input(dy, cache) -> (dx, pending)
    stage.backward_weight(pending) -> gradients

A stage reads its weights from a dictionary that it shares with the model, by their Hugging Face names, in each call
again. So an optimizer or ZeRO-3 can replace or free an entry between two calls.

Invariant: a cache and a pending hold activations and gradients, and no weight. A pending has all that the gradients of
the weights need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arrays import Array

Weights = Mapping[str, Array]
Gradients = dict[str, Array]


class Stage(ABC):
    """A part of the model. It reads the entries `weight_names` of `weights`, and makes their gradients."""

    weights: Weights
    weight_names: tuple[str, ...]

    @abstractmethod
    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`; the cache holds activations and never weights."""

    @abstractmethod
    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`: the part of the backward for which the stage before waits."""

    @abstractmethod
    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of this stage's weights by name: the part that may come later."""

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """Both parts, one after the other: `(dx, gradients)`."""
        dx, pending = self.backward_input(dy, cache)
        return dx, self.backward_weight(pending)


class Chain(Stage):
    """Stages one after the other. The last may be a head, which takes the targets and gives the loss.

    >>> import numpy as np
    >>> from parlab.nn.layers import RMSNorm
    >>> weights = {"a": np.ones(4), "b": np.ones(4)}
    >>> chain = Chain([RMSNorm(weights, "a"), RMSNorm(weights, "b")])
    >>> y, cache = chain.forward(np.ones((2, 4)))
    >>> dx, gradients = chain.backward(np.ones((2, 4)), cache)
    >>> sorted(gradients)
    ['a', 'b']
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = list(stages)
        self.weights = self.stages[0].weights
        self.weight_names = tuple(dict.fromkeys(name for stage in self.stages for name in stage.weight_names))

    def forward(self, x: Array, targets: Array | None = None) -> tuple[Array, list[Any]]:
        """`(y, caches)`, one cache a stage; with `targets`, y is the loss."""
        caches = []
        for stage in self.stages[:-1]:
            x, cache = stage.forward(x)
            caches.append(cache)
        last = {} if targets is None else {"targets": targets}
        x, cache = self.stages[-1].forward(x, **last)
        return x, [*caches, cache]

    def backward_input(self, dy: Array, cache: list[Any]) -> tuple[Array, list[Any]]:
        """`(dx, pendings)`, one a stage."""
        pendings = []
        for stage, of_stage in zip(reversed(self.stages), reversed(cache), strict=True):
            dy, pending = stage.backward_input(dy, of_stage)
            pendings.append(pending)
        return dy, pendings[::-1]

    def backward_weight(self, pending: list[Any]) -> Gradients:
        """The gradients of all stages; the gradient of a weight that two stages share is the sum."""
        gradients: Gradients = {}
        for stage, of_stage in zip(reversed(self.stages), reversed(pending), strict=True):
            gradients = add_gradients(gradients, stage.backward_weight(of_stage))
        return gradients

    def backward(self, dy: Array, cache: list[Any]) -> tuple[Array, Gradients]:
        """Both parts, stage by stage, so that each stage's pending arrays are used and freed at once."""
        gradients: Gradients = {}
        for stage, of_stage in zip(reversed(self.stages), reversed(cache), strict=True):
            dy, of_weights = stage.backward(dy, of_stage)
            gradients = add_gradients(gradients, of_weights)
        return dy, gradients


def add_gradients(total: Gradients, more: Gradients) -> Gradients:
    """The sum, name by name, where a name may be missing on either side. Neither argument changes."""
    return total | {name: total[name] + gradient if name in total else gradient for name, gradient in more.items()}
