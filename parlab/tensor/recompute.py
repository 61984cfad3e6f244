"""Keep less in the forward pass, and compute it again in the backward pass.

*Full* recomputation keeps a block's input, and runs its whole forward again: a third more work, and its messages once
more. *Selective* recomputation drops only the S × S weights of attention: they are large, and cheap to compute.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; Korthikanti et al. 2022, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.nn.gpt import SoftmaxAttention, SoftmaxAttentionCache
from parlab.nn.stage import Gradients, Stage


class RecomputeCache(NamedTuple):
    """The arrays that full recomputation keeps."""

    x: Array
    states: list[Any]  # of the generators: a few numbers, not an array


class Recompute(Stage):
    """A stage that keeps its input alone.

    Args:
        stage: its forward is run again.
        generators: the random generators that its forward draws from, set back for the second run, so that it drops
            what the first one dropped.
    """

    def __init__(self, stage: Stage, generators: Sequence[Any] = ()) -> None:
        self.stage, self.generators = stage, list(generators)
        self.weights, self.weight_names = stage.weights, stage.weight_names

    def forward(self, x: Array) -> tuple[Array, RecomputeCache]:
        """`(y, cache)`."""
        states = states_of(self.generators)
        return self.stage.forward(x)[0], RecomputeCache(x, states)

    def backward_input(self, dy: Array, cache: RecomputeCache) -> tuple[Array, Any]:
        """`(dx, pending)`, after the forward again."""
        return self.stage.backward_input(dy, self._again(cache))

    def backward_weight(self, pending: Any) -> Gradients:
        """The stage's gradients."""
        return self.stage.backward_weight(pending)

    def backward(self, dy: Array, cache: RecomputeCache) -> tuple[Array, Gradients]:
        """The stage's own, after the forward again."""
        return self.stage.backward(dy, self._again(cache))

    def _again(self, cache: RecomputeCache) -> Any:
        with set_back(self.generators, cache.states):
            return self.stage.forward(cache.x)[1]


class SelectiveCache(NamedTuple):
    """The arrays that selective recomputation keeps: no softmax, and no mask of it."""

    attention: SoftmaxAttentionCache
    states: list[Any]


class SelectiveAttention(SoftmaxAttention):
    """Attention that keeps q, k and v, and computes its weights `[B, H, S, S]` again."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        states = states_of([self.dropout.draw])
        y, cache = super().forward(x)
        return y, SelectiveCache(cache._replace(softmax=None, dropped=None, keep=None), states)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, dict[str, Any]]:
        """`(dx, pending)`."""
        kept, states = cache
        with set_back([self.dropout.draw], states):
            softmax, dropped, keep = self.weigh(kept.q, kept.k)
        return super().backward_input(dy, kept._replace(softmax=softmax, dropped=dropped, keep=keep))


def states_of(generators: Sequence[Any]) -> list[Any]:
    """The state of each generator."""
    return [generator.bit_generator.state for generator in generators]


@contextmanager
def set_back(generators: Sequence[Any], states: Sequence[Any]) -> Iterator[None]:
    """Let the generators draw again from `states` on; afterwards they have the state that they had before."""
    now = states_of(generators)
    for generator, state in zip(generators, states, strict=True):
        generator.bit_generator.state = state
    try:
        yield
    finally:
        for generator, state in zip(generators, now, strict=True):
            generator.bit_generator.state = state
