"""A part of the model whose work the ranks divide: an operator, a stage on this rank's shards, an operator.

    x ──enter──▶ x, whole ──[columns, then something local, then rows]──▶ a partial sum ──leave──▶ y

The stage inside is a serial one, which learns its sizes from its weights: tensor parallelism adds the messages and
nothing else. Between columns and rows a rank must not need another rank's columns. Heads and activation functions do
not; a norm would. And no nonlinearity may stand between rows and `leave`: f(a) + f(b) is not f(a + b).

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

from typing import Any, Protocol

from parlab.arrays import Array
from parlab.nn.stage import Gradients, Stage
from parlab.tensor.operators import overlapped_backward, pair
from parlab.world import Comm


class KeepsInput(Protocol):
    """The cache and the pending of a stage inside: NamedTuples of which one field is its input."""

    @property
    def x(self) -> Array:
        """`[B, S, E]`, whole; between operators with sequence parallelism this rank's `[B, S/t, E]`."""

    def _replace(self, *, x: Array) -> KeepsInput: ...


class ParallelRegion(Stage):
    """`inside`, on this rank's shards, between two conjugate operators.

    ==================  =============================  =================================
    after               without sequence parallelism   with it
    ==================  =============================  =================================
    forward, x          whole, the same on every rank  S/t tokens
    enter               the same, no message           whole (all-gather)
    inside              a partial sum of y             a partial sum of y
    leave               y, whole (all-reduce)          S/t tokens of y (reduce-scatter)
    backward, dy        whole, the same on every rank  S/t tokens
    leave's backward    the same, no message           whole (all-gather)
    inside, input part  a partial sum of dx            a partial sum of dx
    enter's backward    dx, whole (all-reduce)         S/t tokens of dx (reduce-scatter)
    ==================  =============================  =================================

    The weight part inside then gives this rank's slices of the gradients: x (gathered again) and dy are whole.

    With sequence parallelism the cache keeps S/t tokens of x, and the backward gathers x again: one more all-gather,
    and no rank keeps all tokens. dx travels while the weight part computes, which does not need it.

    Args:
        comm: the tensor-parallel group.
        inside: a stage whose weights are this rank's shards, and whose cache and pending are `KeepsInput`.
        name: of its work on a timeline.
        sequence_parallel: gather and scatter along the sequence instead of copy and reduce.

    Attributes:
        enter, leave: the operators. Set one to `NOTHING` to see what a forgotten operator breaks.
    """

    def __init__(self, comm: Comm, inside: Stage, name: str, *, sequence_parallel: bool = False) -> None:
        self.comm, self.inside, self.name = comm, inside, name
        self.weights, self.weight_names = inside.weights, inside.weight_names
        self.enter, self.leave = pair(sequence_parallel)
        held = [self.weights[weight] for weight in self.weight_names if weight in self.weights]
        self.elements = sum(x.size for x in held if x.ndim == 2)  # known when ZeRO has freed them, too

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        entered = self.enter.forward(self.comm, x)  # [B, S, E]
        with self.comm.compute(self.name, flops=self.product_flops(entered) + self.core_flops(entered)):
            partial, cache = self.inside.forward(entered)  # [B, S, E], a partial sum
        return self.leave.forward(self.comm, partial), cache._replace(x=x)  # S/t tokens with sequence parallelism

    def backward_input(self, dy: Array, cache: KeepsInput) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        dx, pending = self._input_part(self.leave.backward(self.comm, dy), cache)
        return self.enter.backward(self.comm, dx), pending

    def backward_weight(self, pending: KeepsInput) -> Gradients:
        """The gradients of this rank's slices. With sequence parallelism x is gathered again here."""
        return self._weight_part(self.enter.forward(self.comm, pending.x), pending)

    def backward(self, dy: Array, cache: KeepsInput) -> tuple[Array, Gradients]:
        """Both parts. While they compute, x is gathered, and dx travels."""
        if self.comm.size == 1:
            return super().backward(dy, cache)
        dpartial = self.leave.backward(self.comm, dy)
        return overlapped_backward(
            self.comm, self.enter, cache.x, lambda: self._input_part(dpartial, cache), self._weight_part
        )

    def _input_part(self, dpartial: Array, cache: KeepsInput) -> tuple[Array, Any]:
        """`(this rank's partial sum of dx, pending)`."""
        work = self.product_flops(dpartial) + self.core_flops(dpartial, backward=True)
        with self.comm.compute(f"{self.name}, backward for the input", flops=work):
            return self.inside.backward_input(dpartial, cache)

    def _weight_part(self, entered: Array, pending: KeepsInput) -> Gradients:
        """The gradients of this rank's slices, from the whole x."""
        with self.comm.compute(f"{self.name}, backward for the weights", flops=self.product_flops(entered)):
            return self.inside.backward_weight(pending._replace(x=entered))

    def product_flops(self, x: Array) -> int:
        """Multiplications and additions of one pass through the matrices, for the rows of x."""
        return 2 * (x.size // x.shape[-1]) * self.elements

    def core_flops(self, x: Array, *, backward: bool = False) -> int:
        """The same of the work inside that has no weights, such as attention's products."""
        return 0
