"""Attention with the whole score matrix in memory: the plain reference that every other attention must equal.

Shapes: `B` batch, `H` query heads, `G` key/value heads (each serves H/G query heads), `S` queries, `T` keys, `D` head
size.
"""

from __future__ import annotations

from parlab.arrays import Array, namespace
from parlab.nn.attention import default_scale
from parlab.nn.attention_arguments import check_backward_inputs, check_inputs


def dense_attention(
    q: Array, k: Array, v: Array, *, causal: bool = False, scale: float | None = None, mask: Array | None = None
) -> tuple[Array, Array]:
    """softmax(scale · q kᵀ) v, and the log of the softmax's denominator ("log-sum-exp"), one a query.

    Args:
        q: `[B, H, S, D]`.
        k, v: `[B, G, T, D]`, where G divides H: query head h reads key/value head h // (H/G).
        causal: query i sees keys 0..i only.
        scale: 1/√D when None.
        mask: `[S, T]`, true where a query sees a key; instead of `causal`.

    Returns:
        out `[B, H, S, D]` and lse `[B, H, S]`. A query that sees no key gets out 0 and lse −inf.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_inputs(q, k, v, scale=scale, same_length=causal)
    xp = namespace(q, k, v)
    scores = _scores(q, k, causal, scale, mask)  # [B, H, S, T]
    largest = xp.max(scores, axis=-1, keepdims=True)  # [B, H, S, 1]
    largest = xp.where(largest == -xp.inf, 0.0, largest)  # −inf − −inf would be NaN
    weights = xp.exp(scores - largest)
    total = xp.sum(weights, axis=-1, keepdims=True)  # [B, H, S, 1]
    values = xp.repeat(v, q.shape[1] // v.shape[1], axis=1)  # [B, H, T, D]
    out = (weights / xp.where(total == 0, 1.0, total)) @ values  # [B, H, S, D]
    lse = xp.where(total == 0, -xp.inf, largest + xp.log(xp.where(total == 0, 1.0, total)))
    return out, lse[..., 0]


def dense_attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Gradients `(dq, dk, dv)` of a loss from `dout`, its gradient with respect to `out`.

    With P = softmax(scores): dV = Pᵀ dO, dP = dO Vᵀ, and through the softmax dS = P ∘ (dP − rowsum(dO ∘ O)).
    """
    check_backward_inputs(dout, q, k, v, out, lse, scale=scale, same_length=causal)
    xp = namespace(dout, q, k, v)
    B, H, S, D = q.shape
    _, G, T, _ = k.shape
    keys, values = xp.repeat(k, H // G, axis=1), xp.repeat(v, H // G, axis=1)  # [B, H, T, D]
    finite = xp.where(lse == -xp.inf, 0.0, lse)[..., None]  # a query without keys has scores −inf: its weights are 0
    weights = xp.exp(_scores(q, k, causal, scale, mask) - finite)  # [B, H, S, T]
    dweights = dout @ xp.matrix_transpose(values)  # [B, H, S, T]
    dscores = weights * (dweights - xp.sum(dout * out, axis=-1, keepdims=True))
    dscores = dscores * default_scale(scale, D)
    dq = dscores @ keys  # [B, H, S, D]
    dkeys, dvalues = xp.matrix_transpose(dscores) @ q, xp.matrix_transpose(weights) @ dout  # [B, H, T, D]
    dk = xp.sum(xp.reshape(dkeys, (B, G, H // G, T, D)), axis=2)  # a shared head gathers from all its queries
    dv = xp.sum(xp.reshape(dvalues, (B, G, H // G, T, D)), axis=2)
    return dq, dk, dv


def _scores(q: Array, k: Array, causal: bool, scale: float | None, mask: Array | None) -> Array:
    xp = namespace(q, k)
    keys = xp.repeat(k, q.shape[1] // k.shape[1], axis=1)  # [B, H, T, D]
    scores = default_scale(scale, q.shape[-1]) * (q @ xp.matrix_transpose(keys))  # [B, H, S, T]
    if causal:
        mask = xp.tril(xp.ones(scores.shape[-2:], dtype=xp.bool, device=scores.device))
    return scores if mask is None else xp.where(mask, scores, -xp.inf)
