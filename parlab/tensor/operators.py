"""Megatron's four conjugate operators. They stand where the ranks' work divides, and where it comes together.

| operator | forward        | backward       | in front of it              | behind it                          |
|----------|----------------|----------------|-----------------------------|------------------------------------|
| copy     | nothing        | all-reduce     | x, whole on every rank      | x, read by each rank's columns     |
| reduce   | all-reduce     | nothing        | a partial sum on each rank  | their sum, whole on every rank     |
| gather   | all-gather     | reduce-scatter | S/t tokens on each rank     | all S, read by each rank's columns |
| scatter  | reduce-scatter | all-gather     | a partial sum on each rank  | S/t tokens of their sum            |

gather and scatter say what happens to the sequence: Megatron-LM's `gather_from_` and `reduce_scatter_to_` its
`sequence_parallel_region`. reduce, gather and scatter of `Comm` are others: collectives with a root.

copy and reduce (f and f̄ in the paper) are a pair: each one's backward is the other's forward. So are gather and scatter
(g and ḡ), which stand in their places under sequence parallelism, and send as many bytes: a ring all-reduce *is* a
reduce-scatter and an all-gather.

Invariant: outside a pair of operators an activation, or its gradient, is the same on every rank, to the bit, or cut
into S/t tokens a rank. It is a partial sum only just before reduce or scatter, and backward just before copy or gather.

Why copy must all-reduce backward: each rank's columns read the same x, so the loss depends on x along t ways, and the
gradient is the sum over them. Why reduce sends nothing backward: ∂(a + b)/∂a = 1, on every rank.

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing activation recomputation in
large transformer models", section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from parlab.arguments import flag
from parlab.arrays import Array
from parlab.nn.stage import Gradients
from parlab.tensor.slices import check_divides
from parlab.world import Comm

SEQUENCE = 1  # the axis of [B, S, E] that sequence parallelism cuts

Move = Callable[[Comm, Array], Array]
StartMove = Callable[[Comm, Array], Callable[[], Array]]  # starts the move; what it returns waits for the result


def copy(comm: Comm, x: Array) -> Array:
    """`[B, S, E]`, the same on every rank -> itself. No message."""
    return x


def copy_backward(comm: Comm, dy: Array) -> Array:
    """The sum over ranks of their partial sums of dx, `[B, S, E]`."""
    return comm.all_reduce(dy)


def reduce(comm: Comm, x: Array) -> Array:
    """The sum over ranks of their partial sums, `[B, S, E]`; every rank gets the same, to the bit."""
    return comm.all_reduce(x)


def reduce_backward(comm: Comm, dy: Array) -> Array:
    """`[B, S, E]`, the same on every rank -> itself. No message."""
    return dy


def gather(comm: Comm, x: Array) -> Array:
    """All tokens: `[B, S/t, E]` -> `[B, S, E]`."""
    return comm.all_gather(x, axis=SEQUENCE)


def gather_backward(comm: Comm, dy: Array) -> Array:
    """The sum over ranks of their partial sums of dx, this rank's tokens of it: `[B, S, E]` -> `[B, S/t, E]`."""
    return comm.reduce_scatter(dy, axis=SEQUENCE)


def scatter(comm: Comm, x: Array) -> Array:
    """The sum over ranks of their partial sums, this rank's tokens of it: `[B, S, E]` -> `[B, S/t, E]`.

    Raises:
        ValueError: the sequence does not divide among the ranks.
    """
    check_divides("sequence length", x.shape[SEQUENCE], comm.size)
    return comm.reduce_scatter(x, axis=SEQUENCE)


def scatter_backward(comm: Comm, dy: Array) -> Array:
    """dy of all tokens: `[B, S/t, E]` -> `[B, S, E]`."""
    return comm.all_gather(dy, axis=SEQUENCE)


class ExitOperator(NamedTuple):
    """reduce or scatter, which stand behind the rows; a rank waits for either way."""

    forward: Move
    backward: Move


class EntryOperator(NamedTuple):
    """copy or gather, which stand in front of the columns: both ways can also be started, while a rank computes."""

    forward: Move
    backward: Move
    start_forward: StartMove
    start_backward: StartMove


def _nothing(comm: Comm, x: Array) -> Array:
    return x


def _start_nothing(comm: Comm, x: Array) -> Callable[[], Array]:
    return lambda: x


def _start_all_reduce(comm: Comm, x: Array) -> Callable[[], Array]:
    return comm.iall_reduce(x).wait


def _start_all_gather(comm: Comm, x: Array) -> Callable[[], Array]:
    return comm.iall_gather(x, SEQUENCE).wait


def _start_reduce_scatter(comm: Comm, x: Array) -> Callable[[], Array]:
    return comm.ireduce_scatter(x, SEQUENCE).wait


NOTHING = EntryOperator(_nothing, _nothing, _start_nothing, _start_nothing)  # in the place of a forgotten one
COPY = EntryOperator(copy, copy_backward, _start_nothing, _start_all_reduce)
REDUCE = ExitOperator(reduce, reduce_backward)
GATHER = EntryOperator(gather, gather_backward, _start_all_gather, _start_reduce_scatter)
SCATTER = ExitOperator(scatter, scatter_backward)


def pair(sequence_parallel: bool) -> tuple[EntryOperator, ExitOperator]:
    """The operator in front of a column layer, and the operator behind the row layer that follows it."""
    flag("sequence_parallel", sequence_parallel)
    return (GATHER, SCATTER) if sequence_parallel else (COPY, REDUCE)


def overlapped_backward(
    comm: Comm,
    enter: EntryOperator,
    x: Array,
    input_part: Callable[[], tuple[Array, Any]],
    weight_part: Callable[[Array, Any], Gradients],
) -> tuple[Array, Gradients]:
    """`(dx, gradients)` of what stands behind `enter`. While dx is computed, x is gathered; while dW is, dx travels.

    Args:
        x: as it came to `enter`.
        input_part: computes `(this rank's partial sum of dx, pending)`.
        weight_part: computes the gradients from the whole x and pending.
    """
    gathering = enter.start_forward(comm, x)
    partial, pending = input_part()
    reducing = enter.start_backward(comm, partial)
    gradients = weight_part(gathering(), pending)
    return reducing(), gradients
