"""The gradients of all ranks together, to compare with the serial ones: lesson 05 makes a mistake, and looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.arguments import whole
from parlab.arrays import Array
from parlab.nn.llama import Llama
from parlab.nn.stage import Gradients
from parlab.tensor.llama import ParallelLlama
from parlab.tensor.slices import unshard_weights
from parlab.world import Comm, run


def gradients_of_ranks(
    model: Llama,
    tokens: Array,
    targets: Array,
    size: int,
    change: Callable[[ParallelLlama], object] = lambda parallel: None,
    **options: Any,
) -> tuple[Array, Gradients]:
    """The loss and all gradients, whole, as `size` ranks compute them, to compare with the serial ones.

    Args:
        model: the serial one.
        tokens, targets: `[B, S]`, on every rank.
        size: t, the ranks.
        change: changes the parallel model on every rank before it computes; makes a mistake, for example.
        options: as for `ParallelLlama`.

    Raises:
        ValueError: heads or columns do not divide among the ranks.
    """
    whole("size", size, 1)
    if not callable(change):
        raise ValueError(f"change={change!r:.60}: must be a function")

    def program(comm: Comm) -> tuple[Array, Gradients]:
        parallel = ParallelLlama.from_full(comm, model, **options)
        change(parallel)
        return parallel.loss_and_gradients(tokens, targets)

    results = run(program, size).results
    return results[0][0], unshard_weights(model.config, [gradients for _, gradients in results])
