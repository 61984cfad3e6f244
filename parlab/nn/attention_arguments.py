"""The checks of attention's arguments, for every way to compute it."""

from __future__ import annotations

from parlab.arguments import finite
from parlab.arrays import Array, is_array, namespace
from parlab.nn.sums import accumulator_dtype


def check_inputs(q: Array, k: Array, v: Array, *, scale: float | None, same_length: bool = True) -> None:
    """Refuse what attention cannot mean, each with what would be right. `same_length`: as many queries as keys."""
    named = (("q", q), ("k", k), ("v", v))
    for name, x in named:
        if not is_array(x):
            raise TypeError(f"{name} is a {type(x).__name__}: an array [batch, heads, sequence, head size] is needed")
    xp = namespace(q, k, v)
    for name, x in named:
        if x.ndim != 4 or 0 in x.shape:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: [batch, heads, sequence, head size] is needed, none 0"
            )
        if not xp.isdtype(x.dtype, "real floating") or x.dtype != q.dtype:
            raise ValueError(f"{name} is {x.dtype} and q {q.dtype}: q, k and v need one floating-point dtype")
    if tuple(k.shape) != tuple(v.shape):
        raise ValueError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}: they must be equal")
    B, H, S, D = q.shape
    if k.shape[0] != B or k.shape[3] != D:
        raise ValueError(f"k has batch {k.shape[0]} and head size {k.shape[3]}, q has {B} and {D}: they must be equal")
    if H % k.shape[1]:
        raise ValueError(f"{H} query heads do not divide among {k.shape[1]} key/value heads: use a multiple of them")
    if same_length and k.shape[2] != S:
        raise ValueError(f"q has sequence length {S} and k {k.shape[2]}: they must be equal")
    if scale is not None:
        finite("scale", scale)


def check_backward_inputs(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    scale: float | None,
    same_length: bool = True,
) -> None:
    """As `check_inputs`, and refuse what cannot be the gradient of this attention's output, or that output."""
    check_inputs(q, k, v, scale=scale, same_length=same_length)
    wide = accumulator_dtype(q)
    expected = (("dout", dout, q.shape, q.dtype), ("out", out, q.shape, q.dtype), ("lse", lse, q.shape[:-1], wide))
    for name, x, shape, dtype in expected:
        if tuple(x.shape) != tuple(shape) or x.dtype != dtype:
            found = f"{name} has shape {tuple(x.shape)} and is {x.dtype}"
            raise ValueError(f"{found}: with this q it must have {tuple(shape)} and {dtype}")
