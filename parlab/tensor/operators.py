"""Megatron's four conjugate operators. They stand where the ranks' work divides, and where it comes together.

| operator |   | forward        | backward       | in front of it             | behind it                          |
|----------|---|----------------|----------------|----------------------------|------------------------------------|
| copy     | f | nothing        | all-reduce     | x, whole on every rank     | x, read by each rank's columns     |
| reduce   | f̄ | all-reduce     | nothing        | a partial sum on each rank | their sum, whole on every rank     |
| gather   | g | all-gather     | reduce-scatter | S/t tokens on each rank    | all S, read by each rank's columns |
| scatter  | ḡ | reduce-scatter | all-gather     | a partial sum on each rank | S/t tokens of their sum            |

In Megatron-LM copy is `copy_to_tensor_model_parallel_region`, reduce `reduce_from_tensor_model_parallel_region`, gather
`gather_from_sequence_parallel_region`; scatter, which sums what it scatters,
`reduce_scatter_to_sequence_parallel_region`. reduce, gather and scatter of `Comm` are others: collectives with a root.

copy and reduce are a pair: each one's backward is the other's forward. So are gather and scatter, which stand in their
places under sequence parallelism, and send as many bytes: a ring all-reduce *is* a reduce-scatter and an all-gather.

Invariant: outside a pair of operators an activation, or its gradient, is the same on every rank, to the bit, or cut
into S/t tokens a rank. It is a partial sum only just before reduce or scatter, and backward just before copy or gather.

Why copy must all-reduce backward: each rank's columns read the same x, so the loss depends on x along t ways, and the
gradient is the sum over them. Why reduce sends nothing backward: ∂(a + b)/∂a = 1, on every rank.

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing activation recomputation in
large transformer models", section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parlab.arguments import flag
from parlab.arrays import Array
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


class Operator(NamedTuple):
    """Both ways; and both *started*, so that a rank computes until it needs the result."""

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


NOTHING = Operator(_nothing, _nothing, _start_nothing, _start_nothing)  # where none is needed; or one is forgotten
COPY = Operator(copy, copy_backward, _start_nothing, _start_all_reduce)
REDUCE = Operator(reduce, reduce_backward, _start_all_reduce, _start_nothing)
GATHER = Operator(gather, gather_backward, _start_all_gather, _start_reduce_scatter)
SCATTER = Operator(scatter, scatter_backward, _start_reduce_scatter, _start_all_gather)


def pair(sequence_parallel: bool) -> tuple[Operator, Operator]:
    """The operator in front of columns, and the one behind the rows that follow them."""
    flag("sequence_parallel", sequence_parallel)
    return (GATHER, SCATTER) if sequence_parallel else (COPY, REDUCE)
