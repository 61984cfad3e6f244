"""A GPT block, as the papers on parallel training count it: layer norm, softmax attention, GELU, and dropout.

It is the `Block` of `parlab.nn.layers`, made of other parts. Attention keeps its whole softmax, as it did in the models
for which the paper counts 34 s b h + 5 a s² b bytes a layer. So the formula can be counted on real arrays.

Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section 4.1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parlab.arguments import amount
from parlab.arrays import Array, asarray, generator, namespace
from parlab.nn.activation import dropout, dropout_backward, gelu, gelu_backward, softmax
from parlab.nn.layers import Block, merge_heads, split_heads
from parlab.nn.linear import as_rows, linear, linear_backward_input, linear_backward_weight
from parlab.nn.norm import layer_norm, layer_norm_backward_input, layer_norm_backward_weight
from parlab.nn.stage import Chain, Gradients, Stage, Weights


class Dropout(Stage):
    """Sets a share `rate` of the entries to 0 and scales up the rest. It keeps its mask, a byte an entry.

    Each forward draws a new mask from one generator with a seed, so a run can be repeated.

    Attributes:
        draw: the generator. Its state before a forward gives the same mask again.
    """

    def __init__(self, rate: float, seed: int = 0) -> None:
        amount("rate", rate, below=1)
        self.rate, self.draw = rate, generator(seed)
        self.weights: Weights = {}
        self.weight_names = ()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`; the cache is the mask, or None where the rate is 0."""
        if self.rate == 0:
            return x, None
        keep = asarray(self.mask(x.shape), namespace(x), device=x.device)
        y, _ = dropout(x, keep, self.rate)
        return y, keep

    def mask(self, shape: tuple[int, ...]) -> Any:
        """The next mask: booleans, true where an entry stays."""
        return self.draw.random(shape) >= self.rate

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, None]:
        """`(dx, None)`."""
        return (dy if cache is None else dropout_backward(dy, (cache, self.rate))), None

    def backward_weight(self, pending: None) -> Gradients:
        """No gradients, because there are no weights."""
        return {}


class LayerNorm(Stage):
    """`[B, S, E]` -> the same."""

    def __init__(self, weights: Weights, prefix: str, eps: float = 1e-5) -> None:
        self.weights, self.eps = weights, eps
        self.weight_names = f"{prefix}.weight", f"{prefix}.bias"

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        weight, bias = (self.weights[name] for name in self.weight_names)
        return layer_norm(x, weight, bias, self.eps)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        return layer_norm_backward_input(dy, cache, self.weights[self.weight_names[0]])

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of weight and bias."""
        return dict(zip(self.weight_names, layer_norm_backward_weight(pending), strict=True))


class AffineStage(Stage):
    """The common part of attention and MLP: projections `x W + b`, by their short names."""

    def __init__(self, weights: Weights, prefix: str, names: tuple[str, ...]) -> None:
        self.weights, self.prefix, self.names = weights, prefix, names
        self.weight_names = tuple(f"{prefix}.{name}.{kind}" for name in names for kind in ("weight", "bias"))

    def project(self, x: Array, name: str) -> Array:
        """y = x W + b: `[..., in]` -> `[..., out]`."""
        y, _ = linear(x, self.weights[f"{self.prefix}.{name}.weight"])
        y += self.weights[f"{self.prefix}.{name}.bias"]
        return y

    def project_backward(self, dy: Array, x: Array, name: str) -> tuple[Array, Any]:
        """`(dx, pending)`."""
        return linear_backward_input(dy, x, self.weights[f"{self.prefix}.{name}.weight"])

    def backward_weight(self, pending: dict[str, Any]) -> Gradients:
        """The gradients of all projections: dW = xᵀ dy, and db is the sum of dy over the rows."""
        gradients: Gradients = {}
        for name, (x, dy) in pending.items():
            gradients[f"{self.prefix}.{name}.weight"] = linear_backward_weight((x, dy))
            gradients[f"{self.prefix}.{name}.bias"] = namespace(dy).sum(as_rows(dy), axis=0)
        return gradients


class SoftmaxAttentionCache(NamedTuple):
    """The arrays that softmax attention keeps; `dropped` and `keep` only with dropout."""

    x: Array  # [B, S, E]
    q: Array  # [B, H, S, D], as k and v
    k: Array
    v: Array
    softmax: Array  # [B, H, S, S]
    dropped: Array | None  # [B, H, S, S]
    keep: Array | None  # [B, H, S, S], a byte an entry
    merged: Array  # [B, S, E]


class SoftmaxAttention(AffineStage):
    """Causal attention that keeps its whole softmax: `[B, S, E]` -> the same, over H heads.

    The weights may be a shard of H/t heads, because the sizes are taken from the arrays.
    """

    def __init__(self, weights: Weights, prefix: str, head_dim: int, attention_dropout: Dropout) -> None:
        super().__init__(weights, prefix, ("q_proj", "k_proj", "v_proj", "o_proj"))
        self.head_dim, self.dropout = head_dim, attention_dropout

    def forward(self, x: Array) -> tuple[Array, SoftmaxAttentionCache]:
        """`(y, cache)`."""
        q, k, v = (split_heads(self.project(x, name), self.head_dim) for name in self.names[:3])  # [B, H, S, D]
        weights, dropped, keep = self.weigh(q, k)
        merged = merge_heads(dropped @ v)  # [B, S, E]
        kept = SoftmaxAttentionCache(x, q, k, v, weights, None if keep is None else dropped, keep, merged)
        return self.project(merged, "o_proj"), kept

    def weigh(self, q: Array, k: Array) -> tuple[Array, Array, Array | None]:
        """The softmax of the scores, the same after dropout, and the dropout's mask. All `[B, H, S, S]`."""
        xp = namespace(q)
        scores = (q @ xp.matrix_transpose(k)) * (1 / math.sqrt(self.head_dim))  # [B, H, S, S]
        seen = xp.tril(xp.ones(scores.shape[-2:], dtype=xp.bool, device=scores.device))
        weights = softmax(xp.where(seen, scores, -xp.inf))
        return weights, *self.dropout.forward(weights)

    def backward_input(self, dy: Array, cache: SoftmaxAttentionCache) -> tuple[Array, dict[str, Any]]:
        """`(dx, pending)`."""
        x, q, k, v, softmax, dropped, keep, merged = cache
        xp = namespace(dy)
        pending = {}
        dmerged, pending["o_proj"] = self.project_backward(dy, merged, "o_proj")
        dout = split_heads(dmerged, self.head_dim)  # [B, H, S, D]
        dv = xp.matrix_transpose(softmax if dropped is None else dropped) @ dout  # [B, H, S, D]
        dsoftmax, _ = self.dropout.backward_input(dout @ xp.matrix_transpose(v), keep)  # [B, H, S, S]
        dscores = softmax * (dsoftmax - xp.sum(dsoftmax * softmax, axis=-1, keepdims=True))  # [B, H, S, S]
        dscores *= 1 / math.sqrt(self.head_dim)
        dq, dk = dscores @ k, xp.matrix_transpose(dscores) @ q  # [B, H, S, D]
        dx: Array = 0
        for name, d in zip(self.names[:3], (dq, dk, dv), strict=True):
            more, pending[name] = self.project_backward(merge_heads(d), x, name)
            dx = more + dx
        return dx, pending


class GeluMLPCache(NamedTuple):
    """The arrays that the MLP keeps."""

    x: Array  # [B, S, E]
    before_gelu: Array  # [B, S, 4E]
    after_gelu: Array  # [B, S, 4E]


class GeluMLP(AffineStage):
    """y = gelu(x W_up + b) W_down + b: `[B, S, E]` -> the same, with 4E columns in between."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        super().__init__(weights, prefix, ("up_proj", "down_proj"))

    def forward(self, x: Array) -> tuple[Array, GeluMLPCache]:
        """`(y, cache)`."""
        before_gelu = self.project(x, "up_proj")
        after_gelu, _ = gelu(before_gelu)
        return self.project(after_gelu, "down_proj"), GeluMLPCache(x, before_gelu, after_gelu)

    def backward_input(self, dy: Array, cache: GeluMLPCache) -> tuple[Array, dict[str, Any]]:
        """`(dx, pending)`."""
        pending = {}
        dafter, pending["down_proj"] = self.project_backward(dy, cache.after_gelu, "down_proj")  # [B, S, 4E]
        dbefore = gelu_backward(dafter, cache.before_gelu)
        dx, pending["up_proj"] = self.project_backward(dbefore, cache.x, "up_proj")
        return dx, pending


def gpt_block(weights: Weights, prefix: str, head_dim: int, *, dropout_rate: float = 0.0, seed: int = 0) -> Block:
    """x + dropout(attention(norm(x))), then y + dropout(mlp(norm(y))). The softmax inside attention has dropout too.

    Args:
        weights: as `gpt_weight_shapes` lists them.
        prefix: of their names.
        head_dim: D.
        dropout_rate: of all three; at 0 no mask is kept.
        seed: of the masks.
    """
    of_weights, after_attention, after_mlp = (Dropout(dropout_rate, 3 * seed + i) for i in range(3))
    return Block(
        LayerNorm(weights, f"{prefix}.attention_norm"),
        Chain([SoftmaxAttention(weights, f"{prefix}.attention", head_dim, of_weights), after_attention]),
        LayerNorm(weights, f"{prefix}.mlp_norm"),
        Chain([GeluMLP(weights, f"{prefix}.mlp"), after_mlp]),
    )


def gpt_weight_shapes(prefix: str, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of a block, by name; matrices are `[in, out]`."""
    E = hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for norm in ("attention_norm", "mlp_norm"):
        shapes |= {f"{prefix}.{norm}.weight": (E,), f"{prefix}.{norm}.bias": (E,)}
    matrices = {f"attention.{name}_proj": (E, E) for name in "qkvo"}
    for name, shape in {**matrices, "mlp.up_proj": (E, 4 * E), "mlp.down_proj": (4 * E, E)}.items():
        shapes |= {f"{prefix}.{name}.weight": shape, f"{prefix}.{name}.bias": shape[1:]}
    return shapes
