"""The layers of a Llama as stages: the pieces of this package together with their weights.

A layer takes its sizes from its weights. Given a shard of the weights (some heads, some columns) it computes that
shard, so tensor parallelism only adds the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from parlab.arguments import instance, text
from parlab.arrays import Array, namespace
from parlab.nn.activation import swiglu, swiglu_backward
from parlab.nn.attention import attention, attention_backward
from parlab.nn.cross_entropy import cross_entropy, cross_entropy_backward
from parlab.nn.embedding import embedding, embedding_backward
from parlab.nn.formulas import Flops, causal_attention_flops
from parlab.nn.linear import Pending, linear, linear_backward_input, linear_backward_weight
from parlab.nn.norm import rms_norm, rms_norm_backward_input, rms_norm_backward_weight
from parlab.nn.rotary import Rotary, Tables, rotate, rotate_backward
from parlab.nn.stage import Gradients, Stage, Weights


class Core(NamedTuple):
    """The function by which queries attend to keys, and its backward. Context parallelism replaces them.

    `forward(q, k, v) -> (out, lse)` and `backward(dout, q, k, v, out, lse) -> (dq, dk, dv)`, on `q [B, H, S, D]` and
    `k, v [B, G, S, D]`, to which the rotary positions have been applied. With S/P tokens on each rank, for example,
    `Core(partial(ring_attention, comm, causal=True), partial(ring_attention_backward, comm, causal=True))`.

    `flops(B, H, S, D)`: the FLOPs of both. None: the functions tell the clock themselves, as those do that send.
    """

    forward: Callable[..., tuple[Array, Array]]
    backward: Callable[..., tuple[Array, Array, Array]]
    flops: Callable[[int, int, int, int], Flops] | None = None


CAUSAL_ATTENTION = Core(
    partial(attention, causal=True), partial(attention_backward, causal=True), causal_attention_flops
)


class Embedding(Stage):
    """Tokens `[B, S]` -> their rows of the table, `[B, S, E]`. The backward's dx is None: tokens have no gradient."""

    def __init__(self, weights: Weights, name: str) -> None:
        self.weights, self.name, self.weight_names = weights, name, (name,)
        self.vocab_size = weights[name].shape[0]  # read now: ZeRO-3 may have freed the table in the weight part

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(rows, cache)`."""
        return embedding(x, self.weights[self.name])

    def backward_input(self, dy: Array, cache: Any) -> tuple[None, Any]:
        """`(None, pending)`."""
        return None, (dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """The table's gradient."""
        dy, tokens = pending
        return {self.name: embedding_backward(dy, tokens, self.vocab_size)}


class LinearCache(NamedTuple):
    """The array that a linear layer keeps."""

    x: Array  # [B, S, in]


class LinearPending(NamedTuple):
    """The arrays from which the gradient of its weight follows."""

    x: Array  # [B, S, in]
    dy: Array  # [B, S, out]


class LinearLayer(Stage):
    """y = x W: `[B, S, in]` -> `[B, S, out]`. W is the weight of this name, `[in, out]`."""

    def __init__(self, weights: Weights, name: str) -> None:
        instance("weights", weights, Mapping)
        text("name", name)
        self.weights, self.name, self.weight_names = weights, name, (name,)

    @property
    def weight(self) -> Array:
        """`[in, out]`."""
        return self.weights[self.name]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        return linear(x, self.weight)[0], LinearCache(x)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        dx, _ = linear_backward_input(dy, cache.x, self.weight)
        return dx, LinearPending(cache.x, dy)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradient of W."""
        return {self.name: linear_backward_weight(pending)}


class RMSNorm(Stage):
    """`[B, S, E]` -> the same."""

    def __init__(self, weights: Weights, name: str, eps: float = 1e-6) -> None:
        self.weights, self.name, self.weight_names, self.eps = weights, name, (name,), eps

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        return rms_norm(x, self.weights[self.name], self.eps)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`. Pending is the weight's gradient itself: it is small, and what makes it is not."""
        dx, pending = rms_norm_backward_input(dy, cache, self.weights[self.name])
        return dx, rms_norm_backward_weight(pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The weight's gradient."""
        return {self.name: pending}


class AttentionCache(NamedTuple):
    """The arrays that attention keeps: no scores, only `lse`, the log of each softmax's denominator."""

    x: Array  # [B, S, E]
    tables: Tables
    q: Array  # [B, H, S, D]
    k: Array  # [B, G, S, D], as v
    v: Array
    merged: Array  # [B, S, H·D]
    lse: Array  # [B, H, S]


class SelfAttention(Stage):
    """Projections to q, k and v, rotary positions, the core, and the projection back: `[B, S, E]` -> the same.

    The weights are `q_proj [E, H·D]`, `k_proj` and `v_proj [E, G·D]`, `o_proj [H·D, E]`; H and G follow from them.
    """

    def __init__(
        self, weights: Weights, prefix: str, head_dim: int, rotary: Rotary, core: Core = CAUSAL_ATTENTION
    ) -> None:
        self.weights, self.head_dim, self.rotary, self.core = weights, head_dim, rotary, core
        self.weight_names = tuple(f"{prefix}.{name}_proj.weight" for name in "qkvo")

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        *to_heads, from_heads = (self.weights[name] for name in self.weight_names)
        q, k, v = (split_heads(linear(x, weight)[0], self.head_dim) for weight in to_heads)  # [B, H or G, S, D]
        tables = self.rotary.tables(x)
        q, k = rotate(q, tables)[0], rotate(k, tables)[0]
        out, lse = self.core.forward(q, k, v)  # [B, H, S, D], [B, H, S]
        merged = merge_heads(out)  # [B, S, H·D]
        y, _ = linear(merged, from_heads)
        return y, AttentionCache(x, tables, q, k, v, merged, lse)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        *to_heads, from_heads = (self.weights[name] for name in self.weight_names)
        x, tables, q, k, v, merged, lse = cache
        dmerged, pending = linear_backward_input(dy, merged, from_heads)  # [B, S, H·D]
        dout, out = split_heads(dmerged, self.head_dim), split_heads(merged, self.head_dim)  # [B, H, S, D]
        dq, dk, dv = self.core.backward(dout, q, k, v, out, lse)  # [B, H, S, D], [B, G, S, D]
        dq, dk = rotate_backward(dq, tables), rotate_backward(dk, tables)
        return _projections_backward_input([merge_heads(d) for d in (dq, dk, dv)], x, to_heads, pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the four projections."""
        return _projections_backward_weight(self.weight_names, pending)


class MLPCache(NamedTuple):
    """The arrays that the gated MLP keeps."""

    x: Array  # [B, S, E]
    gate: Array  # [B, S, M], as up and hidden
    up: Array
    hidden: Array


class GatedMLP(Stage):
    """y = (silu(x W_gate) ∘ x W_up) W_down: `[B, S, E]` -> the same, with M columns in between."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.weights = weights
        self.weight_names = tuple(f"{prefix}.{name}_proj.weight" for name in ("gate", "up", "down"))

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        to_gate, to_up, down = (self.weights[name] for name in self.weight_names)
        gate, up = linear(x, to_gate)[0], linear(x, to_up)[0]  # [B, S, M]
        hidden, _ = swiglu(gate, up)  # [B, S, M]
        y, _ = linear(hidden, down)
        return y, MLPCache(x, gate, up, hidden)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        to_gate, to_up, down = (self.weights[name] for name in self.weight_names)
        x, gate, up, hidden = cache
        dhidden, pending = linear_backward_input(dy, hidden, down)  # [B, S, M]
        dgate, dup = swiglu_backward(dhidden, (gate, up))
        return _projections_backward_input((dgate, dup), x, (to_gate, to_up), pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the three projections."""
        return _projections_backward_weight(self.weight_names, pending)


class ProjectionsPending(NamedTuple):
    """The arrays from which the gradients of a part's projections follow."""

    x: Array  # that all projections but the last one read
    dys: Sequence[Array]  # of each of these
    last: Pending  # of the last projection


def _projections_backward_input(
    dys: Sequence[Array], x: Array, weights: Sequence[Array], last: Pending
) -> tuple[Array, ProjectionsPending]:
    """`(dx, pending)` of several projections of the same x: dx is their sum. `last`: pending of the last projection."""
    parts = [linear_backward_input(dy, x, weight)[0] for dy, weight in zip(dys, weights, strict=True)]
    dx = parts[0]
    for more in parts[1:]:
        dx += more
    return dx, ProjectionsPending(x, dys, last)


def _projections_backward_weight(names: tuple[str, ...], pending: ProjectionsPending) -> Gradients:
    """The gradient of each projection by its name."""
    of_each = [*((pending.x, dy) for dy in pending.dys), pending.last]
    return {name: linear_backward_weight(of_one) for name, of_one in zip(names, of_each, strict=True)}


class Block(Stage):
    """One layer of the decoder, made of four stages: x + attention(norm(x)), then the sum y + mlp(norm(y))."""

    def __init__(self, attention_norm: Stage, attention: Stage, mlp_norm: Stage, mlp: Stage) -> None:
        self.attention_norm, self.attention, self.mlp_norm, self.mlp = attention_norm, attention, mlp_norm, mlp
        self.weights = attention.weights
        self.parts = {"attention_norm": attention_norm, "attention": attention, "mlp_norm": mlp_norm, "mlp": mlp}
        self.weight_names = tuple(name for part in self.parts.values() for name in part.weight_names)

    def forward(self, x: Array) -> tuple[Array, dict[str, Any]]:
        """`(y, cache)`: the caches of the four parts by their names."""
        cache = {}
        y, cache["attention_norm"] = self.attention_norm.forward(x)
        y, cache["attention"] = self.attention.forward(y)
        x = x + y
        y, cache["mlp_norm"] = self.mlp_norm.forward(x)
        y, cache["mlp"] = self.mlp.forward(y)
        return x + y, cache

    def backward_input(self, dy: Array, cache: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        """`(dx, pending)`. At each sum of the forward the gradient passes to both summands, which add up before it."""
        pending = {}
        dx, pending["mlp"] = self.mlp.backward_input(dy, cache["mlp"])
        dx, pending["mlp_norm"] = self.mlp_norm.backward_input(dx, cache["mlp_norm"])
        dy = dy + dx
        dx, pending["attention"] = self.attention.backward_input(dy, cache["attention"])
        dx, pending["attention_norm"] = self.attention_norm.backward_input(dx, cache["attention_norm"])
        return dy + dx, pending

    def backward_weight(self, pending: dict[str, Any]) -> Gradients:
        """The gradients of all four parts."""
        gradients: Gradients = {}
        for name, part in self.parts.items():
            gradients |= part.backward_weight(pending[name])
        return gradients

    def backward(self, dy: Array, cache: dict[str, Any]) -> tuple[Array, Gradients]:
        """`(dx, gradients)`, part by part, so that a part that sends dx can compute its gradients meanwhile."""
        dx, of_mlp = self.mlp.backward(dy, cache["mlp"])
        dx, of_mlp_norm = self.mlp_norm.backward(dx, cache["mlp_norm"])
        dy = dy + dx
        dx, of_attention = self.attention.backward(dy, cache["attention"])
        dx, of_attention_norm = self.attention_norm.backward(dx, cache["attention_norm"])
        return dy + dx, of_attention_norm | of_attention | of_mlp_norm | of_mlp


class Head(Stage):
    """The final norm, the projection to the vocabulary and, with targets, the loss.

    If `tied`, `projection` is the name of the embedding's table `[V, E]`. The head uses it transposed, and its gradient
    here is one of two that add up.
    """

    def __init__(self, norm: Stage, weights: Weights, projection: str, *, tied: bool) -> None:
        self.norm, self.weights, self.projection, self.tied = norm, weights, projection, tied
        self.weight_names = (*norm.weight_names, projection)

    def forward(self, x: Array, targets: Array | None = None) -> tuple[Array, Any]:
        """`(logits [B, S, V], cache)`; with `targets [B, S]`, `(loss, cache)`."""
        normed, norm_cache = self.norm.forward(x)
        y, _ = linear(normed, self._turned(self.weights[self.projection]))
        loss_cache = None
        if targets is not None:
            y, loss_cache = cross_entropy(y, targets)
        return y, (norm_cache, normed, loss_cache)

    def backward_input(self, dy: Any, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`; dy is dlogits or, after a forward with targets, the number by which the loss is weighted."""
        norm_cache, normed, loss_cache = cache
        if loss_cache is not None:
            dy = cross_entropy_backward(dy, loss_cache)
        dnormed, pending = linear_backward_input(dy, normed, self._turned(self.weights[self.projection]))
        dx, norm_pending = self.norm.backward_input(dnormed, norm_cache)
        return dx, (norm_pending, pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the norm and the projection."""
        norm_pending, of_projection = pending
        dweight = self._turned(linear_backward_weight(of_projection))
        return self.norm.backward_weight(norm_pending) | {self.projection: dweight}

    def _turned(self, weight: Array) -> Array:
        return namespace(weight).matrix_transpose(weight) if self.tied else weight


def split_heads(x: Array, head_dim: int) -> Array:
    """`[B, S, H·D]` -> `[B, H, S, D]`, a view if the library can make one."""
    xp = namespace(x)
    B, S, columns = x.shape
    return xp.permute_dims(xp.reshape(x, (B, S, columns // head_dim, head_dim)), (0, 2, 1, 3))


def merge_heads(x: Array) -> Array:
    """`[B, H, S, D]` -> `[B, S, H·D]`."""
    xp = namespace(x)
    B, H, S, D = x.shape
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (B, S, H * D))
