"""Matrices that are cut among t ranks, by columns and then by rows; and the region that both are.

    y = f(x) W,  W = [W_1 | ... | W_t]           columns: rank r computes y_r = x W_r, its columns of y
    z = f̄(y_r V_r),  V = [V_1; ...; V_t]         rows: rank r computes y_r V_r, a partial sum of z

| layer   | forward                                | backward for the input                                   |
|---------|----------------------------------------|----------------------------------------------------------|
| columns | x ─ f: no message ─▶ x W_r = y_r       | dy_r W_rᵀ, a partial sum of dx ─ f: all-reduce ─▶ dx     |
| rows    | y_r V_r ─ f̄: all-reduce ─▶ z           | dz ─ f̄: no message ─▶ dz V_rᵀ = dy_r                     |

Invariant: between columns and rows rank r has exactly the columns y_r and dy_r; x, z, dx and dz are whole, and the same
on every rank.

Columns, then rows: the first layer computes what the second one reads, and nothing is sent in between. So all of it can
be one region: an operator, a serial layer on this rank's slices, an operator. f and f̄ are the operators copy and
reduce; with sequence parallelism gather (g) and scatter (ḡ) stand in their places, and x, z, dx and dz are S/t tokens.

| region                           | enter  | inside                                         | leave   |
|----------------------------------|--------|------------------------------------------------|---------|
| `ColumnParallelLinear`, the head | f or g | columns                                        | -       |
| `RowParallelLinear`              | -      | rows                                           | f̄ or ḡ  |
| `ParallelMLP`                    | f or g | gate, up: columns; silu(gate) ∘ up; down: rows | f̄ or ḡ  |
| `ParallelAttention`              | f or g | q, k, v: columns; this rank's heads; o: rows   | f̄ or ḡ  |

In between a rank must not need another rank's columns: heads and activation functions do not; a norm would. And no
nonlinearity may stand between rows and `leave`: tanh(a) + tanh(b) is not tanh(a + b).

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

from typing import Any, Protocol

from parlab.arrays import Array
from parlab.nn.layers import LinearLayer
from parlab.nn.stage import Gradients, Stage, Weights
from parlab.tensor.operators import NOTHING, Operator, pair
from parlab.tensor.slices import COLUMNS, ROWS, cut_evenly
from parlab.world import Comm


class KeepsInput(Protocol):
    """The cache and the pending of a stage inside: NamedTuples of which one field is its input."""

    @property
    def x(self) -> Array:
        """As it came to the region: with sequence parallelism this rank's tokens."""

    def _replace(self, *, x: Array) -> KeepsInput: ...


class ParallelRegion(Stage):
    """`inside`, on this rank's slices of the weights, between two operators.

    With sequence parallelism the cache keeps S/t tokens of x, and the backward gathers x again: one more all-gather,
    and no rank keeps all tokens.

    Args:
        comm: the tensor-parallel group.
        inside: a serial stage, which learns its sizes from its weights; its cache and pending are `KeepsInput`.
        name: of its work on a timeline.
        enter: in front of columns; without columns nothing.
        leave: behind rows; without rows nothing.
    """

    def __init__(
        self,
        comm: Comm,
        inside: Stage,
        name: str,
        *,
        enter: Operator = NOTHING,
        leave: Operator = NOTHING,
    ) -> None:
        self.comm, self.inside, self.name, self.enter, self.leave = comm, inside, name, enter, leave
        self.weights, self.weight_names = inside.weights, inside.weight_names
        held = [self.weights[weight] for weight in self.weight_names if weight in self.weights]
        self.elements = sum(x.size for x in held if x.ndim == 2)  # known when ZeRO has freed them, too

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        entered = self.enter.forward(self.comm, x)  # f: no message, g: all-gather
        with self.comm.compute(self.name, flops=self.product_flops(entered) + self.core_flops(entered)):
            y, cache = self.inside.forward(entered)  # behind rows a partial sum
        cache = cache._replace(x=x)  # as it came: the x that was gathered is not kept
        return self.leave.forward(self.comm, y), cache  # f̄: all-reduce, ḡ: reduce-scatter

    def backward_input(self, dy: Array, cache: KeepsInput) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        left = self.leave.backward(self.comm, dy)  # f̄: no message, ḡ: all-gather
        dx, pending = self._input_part(left, cache)  # in front of columns a partial sum
        return self.enter.backward(self.comm, dx), pending  # f: all-reduce, g: reduce-scatter

    def backward_weight(self, pending: KeepsInput) -> Gradients:
        """The gradients of this rank's slices, from x, which is gathered again, and dy."""
        return self._weight_part(self.enter.forward(self.comm, pending.x), pending)  # f: no message, g: all-gather

    def backward(self, dy: Array, cache: KeepsInput) -> tuple[Array, Gradients]:
        """Both parts. While dx is computed, x is gathered; while the gradients are, dx travels."""
        if self.comm.size == 1:
            return super().backward(dy, cache)
        left = self.leave.backward(self.comm, dy)
        x_arrives = self.enter.start_forward(self.comm, cache.x)
        dx, pending = self._input_part(left, cache)
        dx_arrives = self.enter.start_backward(self.comm, dx)
        gradients = self._weight_part(x_arrives(), pending)
        return dx_arrives(), gradients

    # The work of `inside`, on the clock

    def _input_part(self, dy: Array, cache: KeepsInput) -> tuple[Array, Any]:
        work = self.product_flops(dy) + self.core_flops(dy, backward=True)
        with self.comm.compute(f"{self.name}, backward for the input", flops=work):
            return self.inside.backward_input(dy, cache)

    def _weight_part(self, x: Array, pending: KeepsInput) -> Gradients:
        with self.comm.compute(f"{self.name}, backward for the weights", flops=self.product_flops(x)):
            return self.inside.backward_weight(pending._replace(x=x))

    def product_flops(self, x: Array) -> int:
        """Multiplications and additions of one pass through the matrices, for the rows of x."""
        return 2 * (x.size // x.shape[-1]) * self.elements

    def core_flops(self, x: Array, *, backward: bool = False) -> int:
        """The same of the work inside that has no weights, such as attention's products."""
        return 0


class ColumnParallelLinear(ParallelRegion):
    """y = x W, each rank some columns of W `[in, out/t]`, and so of y: `[B, S, in]` -> `[B, S, out/t]`.

    Args:
        comm: the tensor-parallel group.
        weights: this rank's slices.
        name: of W in `weights`.
        sequence_parallel: x is `[B, S/t, in]`: this rank's tokens.

    >>> import numpy as np
    >>> from parlab import run
    >>> def program(comm, x, W):
    ...     y, cache = ColumnParallelLinear.from_full(comm, W).forward(x)
    ...     return y
    >>> x, W = np.ones((1, 2, 3)), np.arange(12.0).reshape(3, 4)
    >>> bool((np.concatenate(run(program, 2, x, W).results, axis=-1) == x @ W).all())
    True
    """

    def __init__(self, comm: Comm, weights: Weights, name: str = "weight", *, sequence_parallel: bool = False) -> None:
        enter, _ = pair(sequence_parallel)
        super().__init__(comm, LinearLayer(weights, name), "column linear", enter=enter)

    @classmethod
    def from_full(cls, comm: Comm, weight: Array, name: str = "weight", **options: Any) -> ColumnParallelLinear:
        """From the whole weight `[in, out]`, of which this rank keeps a copy of its columns.

        Raises:
            ValueError: the columns do not divide among the ranks.
        """
        return cls(comm, {name: cut_evenly(comm, weight, COLUMNS, "the number of columns")}, name, **options)


class RowParallelLinear(ParallelRegion):
    """y = x W, each rank some rows of W `[in/t, out]`: `[B, S, in/t]` -> `[B, S, out]`.

    Args:
        comm, weights, name: as for `ColumnParallelLinear`.
        sequence_parallel: y is `[B, S/t, out]`: this rank's tokens.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> def program(comm, x, W):
    ...     y, cache = RowParallelLinear.from_full(comm, W).forward(x)
    ...     return y
    >>> x, W = np.ones((1, 2, 4)), np.arange(12.0).reshape(4, 3)
    >>> bool((run(program, 2, per_rank([x[..., :2], x[..., 2:]]), W).results[1] == x @ W).all())
    True
    """

    def __init__(self, comm: Comm, weights: Weights, name: str = "weight", *, sequence_parallel: bool = False) -> None:
        _, leave = pair(sequence_parallel)
        super().__init__(comm, LinearLayer(weights, name), "row linear", leave=leave)

    @classmethod
    def from_full(cls, comm: Comm, weight: Array, name: str = "weight", **options: Any) -> RowParallelLinear:
        """From the whole weight `[in, out]`, of which this rank keeps a copy of its rows.

        Raises:
            ValueError: the rows do not divide among the ranks.
        """
        return cls(comm, {name: cut_evenly(comm, weight, ROWS, "the number of rows")}, name, **options)
