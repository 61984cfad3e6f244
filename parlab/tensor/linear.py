"""Linear layers whose matrix is cut among t ranks: by columns, then by rows.

    y = f(x) W,  W = [W_1 | ... | W_t]           columns: rank r computes y_r = x W_r, its columns of y
    z = f̄(y_r V_r),  V = [V_1; ...; V_t]         rows: rank r computes y_r V_r, a partial sum of z

| layer   | forward                                | backward for the input                                   |
|---------|----------------------------------------|----------------------------------------------------------|
| columns | x ─ f: no message ─▶ x W_r = y_r       | dy_r W_rᵀ, a partial sum of dx ─ f: all-reduce ─▶ dx     |
| rows    | y_r V_r ─ f̄: all-reduce ─▶ z           | dz ─ f̄: no message ─▶ dz V_rᵀ = dy_r                     |

Invariant: between the layers rank r has exactly the columns y_r and dy_r; x, z, dx and dz are whole, and the same on
every rank.

Columns, then rows: the first layer computes what the second one reads, and nothing is sent in between. f and f̄ are the
operators copy and reduce; with sequence parallelism gather (g) and scatter (ḡ) stand in their places. Attention
and the MLP have their columns and rows inside one `ParallelRegion` (`region.py`); the head is a column layer.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from parlab.arguments import instance, text
from parlab.arrays import Array
from parlab.nn.linear import linear, linear_backward_input, linear_backward_weight
from parlab.nn.stage import Gradients, Stage, Weights
from parlab.tensor.arguments import matrix
from parlab.tensor.operators import overlapped_backward, pair
from parlab.tensor.slices import COLUMNS, ROWS, check_divides, even_slice, take
from parlab.world import Comm


class ParallelLinear(Stage):
    """The common part of both layers: a rank's slice of W, and its work on the clock.

    Args:
        comm: the tensor-parallel group.
        weights: this rank's shards.
        name: of W in `weights`.
        span: the name of its work on a timeline.
    """

    def __init__(self, comm: Comm, weights: Weights, name: str, span: str) -> None:
        instance("weights", weights, Mapping)
        text("name", name)
        self.comm, self.weights, self.name, self.weight_names, self.span = comm, weights, name, (name,), span
        self.elements = weights[name].size if name in weights else 0  # known when ZeRO has freed it, too

    @property
    def weight(self) -> Array:
        """This rank's slice of W, `[in, out]`."""
        return self.weights[self.name]

    def computes(self, x: Array, part: str = "") -> AbstractContextManager[Any]:
        """One product of the rows of x with the weight, on the clock."""
        return self.comm.compute(self.span + part, flops=2 * (x.size // x.shape[-1]) * self.elements)

    def weight_gradient(self, x: Array, dy: Array) -> Gradients:
        """dW = xᵀ dy of this rank's slice. No message: both factors are whole along the tokens."""
        with self.computes(x, ", backward for the weights"):
            return {self.name: linear_backward_weight((x, dy))}


class ColumnParallelLinear(ParallelLinear):
    """y = x W, each rank some columns of W `[in, out/t]`, and so of y: `[B, S, in]` -> `[B, S, out/t]`.

    Args:
        comm, weights, name: as for `ParallelLinear`.
        sequence_parallel: x is `[B, S/t, in]`: this rank's tokens.

    Attributes:
        enter: f, or g with sequence parallelism.

    >>> import numpy as np
    >>> from parlab import run
    >>> def program(comm, x, W):
    ...     y, cache = ColumnParallelLinear.from_full(comm, W).forward(x)
    ...     return y
    >>> x, W = np.ones((1, 2, 3)), np.arange(12.0).reshape(3, 4)
    >>> bool((np.concatenate(run(program, 2, x, W).results, axis=-1) == x @ W).all())
    True
    """

    def __init__(
        self,
        comm: Comm,
        weights: Weights,
        name: str = "weight",
        *,
        span: str = "column linear",
        sequence_parallel: bool = False,
    ) -> None:
        super().__init__(comm, weights, name, span)
        self.enter, _ = pair(sequence_parallel)

    @classmethod
    def from_full(cls, comm: Comm, weight: Array, name: str = "weight", **options: Any) -> ColumnParallelLinear:
        """From the whole weight `[in, out]`, of which this rank keeps a copy of its columns.

        Raises:
            ValueError: the columns do not divide among the ranks.
        """
        return cls(comm, {name: cut_evenly(comm, weight, COLUMNS, "the number of columns")}, name, **options)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """`(y, x)`: x is kept as it came."""
        whole = self.enter.forward(self.comm, x)  # [B, S, in]; f: no message, g: all-gather
        with self.computes(whole):
            y, _ = linear(whole, self.weight)  # [B, S, out/t]
        return y, x

    def backward_input(self, dy: Array, cache: Array) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        partial = self._partial_dx(dy)
        return self.enter.backward(self.comm, partial), (cache, dy)  # f: all-reduce, g: reduce-scatter

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradient of this rank's columns."""
        x, dy = pending
        return self.weight_gradient(self.enter.forward(self.comm, x), dy)  # g: all-gather x again

    def backward(self, dy: Array, cache: Array) -> tuple[Array, Gradients]:
        """Both parts. While dx is computed, x is gathered; while dW is computed, dx travels."""
        if self.comm.size == 1:
            return super().backward(dy, cache)
        return overlapped_backward(
            self.comm, self.enter, cache, lambda: (self._partial_dx(dy), dy), self.weight_gradient
        )

    def _partial_dx(self, dy: Array) -> Array:
        """dy_r W_rᵀ, `[B, S, in]`: dx is the sum over ranks."""
        with self.computes(dy, ", backward for the input"):
            return linear_backward_input(dy, dy, self.weight)[0]  # dy again in the place of x: dx needs no x


class RowParallelLinear(ParallelLinear):
    """y = x W, each rank some rows of W `[in/t, out]`: `[B, S, in/t]` -> `[B, S, out]`.

    Args:
        comm, weights, name: as for `ParallelLinear`.
        sequence_parallel: y is `[B, S/t, out]`: this rank's tokens.

    Attributes:
        leave: f̄, or ḡ with sequence parallelism.

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
        super().__init__(comm, weights, name, "row linear")
        _, self.leave = pair(sequence_parallel)

    @classmethod
    def from_full(cls, comm: Comm, weight: Array, name: str = "weight", **options: Any) -> RowParallelLinear:
        """From the whole weight `[in, out]`, of which this rank keeps a copy of its rows.

        Raises:
            ValueError: the rows do not divide among the ranks.
        """
        return cls(comm, {name: cut_evenly(comm, weight, ROWS, "the number of rows")}, name, **options)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """`(y, x)`."""
        with self.computes(x):
            partial, _ = linear(x, self.weight)  # [B, S, out], a partial sum of y
        return self.leave.forward(self.comm, partial), x  # f̄: all-reduce, ḡ: reduce-scatter

    def backward_input(self, dy: Array, cache: Array) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        whole = self.leave.backward(self.comm, dy)  # [B, S, out]; f̄: no message, ḡ: all-gather
        with self.computes(whole, ", backward for the input"):
            return linear_backward_input(whole, cache, self.weight)  # [B, S, in/t]

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradient of this rank's rows."""
        return self.weight_gradient(*pending)


def cut_evenly(comm: Comm, weight: Array, axis: int, name: str) -> Array:
    """A copy of this rank's slice of `weight` along `axis`.

    Args:
        name: of the length along the axis, for the error.

    Raises:
        ValueError: no matrix, or a length that does not divide among the ranks.
    """
    matrix("weight", weight)
    check_divides(name, weight.shape[axis], comm.size)
    return take(weight, even_slice(weight.shape, axis, comm.rank, comm.size))
