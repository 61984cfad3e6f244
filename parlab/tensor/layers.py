"""Attention and the MLP of a tensor-parallel Llama: each is one region, of columns and the rows that read them.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import instance, whole
from parlab.arrays import Array
from parlab.nn.layers import CAUSAL_ATTENTION, Core, GatedMLP, SelfAttention
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Gradients, Stage, Weights
from parlab.tensor.arguments import check_names, heads_of
from parlab.tensor.linear import KeepsInput, ParallelRegion
from parlab.tensor.operators import pair
from parlab.tensor.slices import COLUMNS, ROWS, check_heads, cut_evenly, even_slice, kv_shared_by, take
from parlab.world import Comm


class ParallelAttention(ParallelRegion):
    """Attention over this rank's heads: q, k and v are columns, o rows, and no head needs another one.

    Query head h reads key/value head h // (H/G). With G ≥ t a rank owns G/t of them and the H/t query heads that read
    them. With G < t its query heads all read one, which t/G ranks own; each of these has the gradient of its own query
    heads' reading, and their sum is everybody's.

    Args:
        comm: the tensor-parallel group.
        weights: this rank's shards, by their names in the model.
        prefix: `model.layers.0.self_attn`, for example.
        head_dim, rotary, core: as for the serial `SelfAttention`.
        sharers: the ranks that own this rank's key/value heads, when there are several.
        sequence_parallel: x and y are `[B, S/t, E]`: this rank's tokens.
    """

    def __init__(
        self,
        comm: Comm,
        weights: Weights,
        prefix: str,
        head_dim: int,
        rotary: Rotary,
        core: Core = CAUSAL_ATTENTION,
        *,
        sharers: Comm | None = None,
        sequence_parallel: bool = False,
    ) -> None:
        self.inside: SelfAttention
        enter, leave = pair(sequence_parallel)
        inside = SelfAttention(weights, prefix, head_dim, rotary, core)
        super().__init__(comm, inside, "attention", enter=enter, leave=leave)
        self.sharers = sharers
        of_output = self.weight_names[3]
        self.heads = weights[of_output].shape[0] // head_dim if of_output in weights else 0  # H/t

    @classmethod
    def from_full(
        cls,
        comm: Comm,
        weights: Mapping[str, Array],
        prefix: str,
        head_dim: int,
        rotary: Rotary,
        core: Core = CAUSAL_ATTENTION,
        **options: Any,
    ) -> ParallelAttention:
        """From the whole weights; every rank of `comm` calls this (with G < t it makes the groups of `sharers`).

        Raises:
            ValueError: the heads do not divide among the ranks.
        """
        instance("weights", weights, Mapping)
        whole("head_dim", head_dim, 1)
        q, k, v, o = names = tuple(f"{prefix}.{name}_proj.weight" for name in "qkvo")
        check_names(weights, names)
        H, G = (heads_of(weights[name], head_dim) for name in (q, k))
        check_heads(H, G, comm.size)
        of_kv = COLUMNS, kv_shared_by(G, comm.size)
        cuts = {q: (COLUMNS, 1), k: of_kv, v: of_kv, o: (ROWS, 1)}
        own = {
            name: take(weights[name], even_slice(weights[name].shape, axis, comm.rank, comm.size, shared_by))
            for name, (axis, shared_by) in cuts.items()
        }
        sharers = kv_sharers(comm, G)
        return cls(comm, own, prefix, head_dim, rotary, core, sharers=sharers, **options)

    def _weight_part(self, x: Array, pending: KeepsInput) -> Gradients:
        return sum_over_sharers(super()._weight_part(x, pending), self.weight_names, self.sharers)

    def core_flops(self, x: Array, *, backward: bool = False) -> int:
        """The FLOPs that the core reports; 0 if the core tells the clock itself."""
        if self.inside.core.flops is None:
            return 0
        B, S, _ = x.shape
        flops = self.inside.core.flops(B, self.heads, S, self.inside.head_dim)
        return flops.backward_input if backward else flops.forward


class ParallelMLP(ParallelRegion):
    """SwiGLU over this rank's columns: gate and up are columns, down rows; silu(gate) ∘ up works element by element.

    Args:
        comm: the tensor-parallel group.
        weights: this rank's shards, by their names in the model.
        prefix: `model.layers.0.mlp`, for example.
        sequence_parallel: x and y are `[B, S/t, E]`: this rank's tokens.

    >>> import numpy as np
    >>> from parlab import run
    >>> full = {f"mlp.{name}_proj.weight": np.ones(shape) for name, shape in
    ...         {"gate": (2, 4), "up": (2, 4), "down": (4, 2)}.items()}
    >>> def program(comm, x):
    ...     mlp = ParallelMLP.from_full(comm, full, "mlp")
    ...     y, cache = mlp.forward(x)
    ...     dx, gradients = mlp.backward(np.ones_like(y), cache)
    ...     return y, dx, gradients["mlp.up_proj.weight"].shape
    >>> x = np.ones((1, 3, 2))
    >>> y, dx, shape = run(program, 2, x).results[0]
    >>> bool(np.allclose(y, GatedMLP(full, "mlp").forward(x)[0])), shape
    (True, (2, 2))
    """

    def __init__(self, comm: Comm, weights: Weights, prefix: str, *, sequence_parallel: bool = False) -> None:
        enter, leave = pair(sequence_parallel)
        super().__init__(comm, GatedMLP(weights, prefix), "mlp", enter=enter, leave=leave)

    @classmethod
    def from_full(cls, comm: Comm, weights: Mapping[str, Array], prefix: str, **options: Any) -> ParallelMLP:
        """From the whole weights.

        Raises:
            ValueError: the intermediate size does not divide among the ranks.
        """
        instance("weights", weights, Mapping)
        gate, up, down = names = tuple(f"{prefix}.{name}_proj.weight" for name in ("gate", "up", "down"))
        check_names(weights, names)
        axes = {gate: COLUMNS, up: COLUMNS, down: ROWS}
        own = {name: cut_evenly(comm, weights[name], axis, "intermediate_size") for name, axis in axes.items()}
        return cls(comm, own, prefix, **options)


class SummedOverTokens(Stage):
    """A stage that each rank runs on its own S/t tokens, with whole weights: their gradients sum over all tokens.

    Such are the norms under sequence parallelism. Without it every rank norms all tokens, has the same gradient, and
    needs no message. Only then is "norms need no synchronisation" true.
    """

    def __init__(self, comm: Comm, inside: Stage) -> None:
        self.comm, self.inside = comm, inside
        self.weights, self.weight_names = inside.weights, inside.weight_names

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`, `[B, S/t, E]`."""
        return self.inside.forward(x)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`: a row's gradient needs its own row only."""
        return self.inside.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients over the tokens of all ranks."""
        return {name: self.comm.all_reduce(gradient) for name, gradient in self.inside.backward_weight(pending).items()}


def kv_sharers(comm: Comm, num_key_value_heads: int) -> Comm | None:
    """The ranks that own the same key/value heads as this one, or None if no other rank does. All ranks call this."""
    shared_by = kv_shared_by(num_key_value_heads, comm.size)
    return comm.split(comm.rank // shared_by) if shared_by > 1 else None


def sum_over_sharers(gradients: Gradients, weight_names: tuple[str, ...], sharers: Comm | None) -> Gradients:
    """The gradients of attention's q, k, v and o, those of k and v summed over `sharers`, which own the same heads.

    Each sharer has the share of its own query heads. None: nobody shares.
    """
    if sharers is not None:
        for name in weight_names[1:3]:  # k and v
            gradients[name] = sharers.all_reduce(gradients[name])
    return gradients
