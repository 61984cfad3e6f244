"""The accident of notebook 05: the K/V projection is whole on several ranks, and its part of dx is not summed.

In multi-query attention all query heads read one key/value head, so every rank has all of its projection. Each rank's
dk and dv come from its own query heads. The projection's gradients were summed over the ranks, its part of dx was not.

Source: bigcode-project/Megatron-LM, issue 35 and pull requests 36, 37 and 39, March 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.arrays import Array
from parlab.nn.layers import Block
from parlab.nn.linear import linear_backward_input
from parlab.nn.llama import Llama
from parlab.nn.stage import Gradients, Stage
from parlab.tensor import ParallelAttention, ParallelLlama, weight_slices
from parlab.world import Comm, run


def forget_kv_sum(model: ParallelLlama) -> None:
    """In each block of `model` a rank keeps its own part of dx that comes through K and V; that through Q is summed."""
    for block in model.blocks:
        assert isinstance(block, Block)
        assert isinstance(block.attention, ParallelAttention)
        block.attention = KvKept(block.attention)


def forgotten_place() -> int:
    """The place of the forgotten sum in `views.film_of_block`: 2, on the way back, in front of attention's columns."""
    return 2


def copies_alike(
    model: Llama, tokens: Array, targets: Array, change: Callable[[ParallelLlama], object], **options: Any
) -> dict[str, bool]:
    """For each weight of which two ranks hold copies: has it the same gradient on both, to the last bit?

    Args:
        model: the serial one.
        tokens, targets: `[B, S]`, on both ranks.
        change: makes a mistake in the parallel model, on both ranks.
        options: as for `ParallelLlama`.
    """

    def gradients(comm: Comm) -> Gradients:
        parallel = ParallelLlama.from_full(comm, model, **options)
        change(parallel)
        return parallel.loss_and_gradients(tokens, targets)[1]

    first, second = run(gradients, 2).results
    copied = [name for name, piece in weight_slices(model.config, 0, 2).items() if piece.shared_by == 2]
    return {name: bool((first[name] == second[name]).all()) for name in copied}


class KvKept(Stage):
    """Attention whose dx holds the sum over the ranks of what came through Q, and this rank's own of K and V."""

    def __init__(self, inside: ParallelAttention) -> None:
        self.inside = inside
        self.weights, self.weight_names = inside.weights, inside.weight_names

    def forward(self, x: Array) -> tuple[Array, Any]:
        """As `inside`."""
        return self.inside.forward(x)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`: the right dx, with the sum over the ranks of the K/V part replaced by the rank's own."""
        dx, pending = self.inside.backward_input(dy, cache)
        _, dk, dv = pending.dys
        k, v = (self.weights[name] for name in self.weight_names[1:3])
        own = sum(linear_backward_input(d, pending.x, weight)[0] for d, weight in ((dk, k), (dv, v)))
        return dx - self.inside.comm.all_reduce(own) + own, pending

    def backward_weight(self, pending: Any) -> Gradients:
        """As `inside`: those of K and V are summed over the ranks."""
        return self.inside.backward_weight(pending)
