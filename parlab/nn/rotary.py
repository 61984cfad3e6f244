"""Rotary positions: each pair of coordinates of a query or key is turned by an angle that grows with its position.

The product of a turned query and a turned key depends on the distance between them alone. The two coordinates of a pair
are D/2 apart, as in Hugging Face's Llama (the paper takes neighbours; the weights are permuted to match).

Source: Su et al. 2021, "RoFormer", section 3.2.2; for `llama3`, Meta's Llama 3.1 release.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from parlab.arguments import one_of, positive
from parlab.arrays import Array, is_array, namespace

Tables = tuple[Array, Array]  # cos and signed sin: [S, D], or [B, 1, S, D] where the rows of a batch differ


def rotate(x: Array, tables: Tables) -> tuple[Array, Tables]:
    """Turn every pair `(x[i], x[i + D/2])` by its angle: `[B, H, S, D]` -> the same.

    The pair becomes `(x[i] cos − x[i + D/2] sin, x[i + D/2] cos + x[i] sin)`. That is x times cos, plus x with its
    halves swapped times a sine whose first half is negative.

    >>> import numpy as np
    >>> tables = rotary_tables(np.asarray([0, 1]), head_dim=2)
    >>> y, cache = rotate(np.ones((1, 1, 2, 2)), tables)
    >>> bool(np.allclose(y[0, 0, 1], [np.cos(1) - np.sin(1), np.cos(1) + np.sin(1)]))  # the second token, by 1 radian
    True
    """
    cos, signed_sin = tables
    half = x.shape[-1] // 2
    swapped = namespace(x).concat([x[..., half:], x[..., :half]], axis=-1)  # [B, H, S, D]
    return swapped * signed_sin + x * cos, tables


def rotate_backward(dy: Array, cache: Tables) -> Array:
    """Turn every pair back. dx is the transposed rotation of dy, which is the inverse rotation."""
    cos, signed_sin = cache
    return rotate(dy, (cos, -signed_sin))[0]


def rotary_tables(
    positions: Array,
    head_dim: int,
    theta: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    dtype: Any = None,
) -> Tables:
    """The cosines and the signed sines of the angles, computed in float64.

    Args:
        positions: of each token: `[S]`, or `[B, S]` where the rows of a batch differ. They need not be a range: with
            the zigzag layout a rank holds two parts of the sequence.
        head_dim: D, even.
        theta: the base; pair i turns by theta^(−2i/D) radians a token.
        scaling: None, or Hugging Face's `rope_scaling`, of type `linear` or `llama3`.
        dtype: of the tables; float64 when None.
    """
    xp = namespace(positions)
    frequencies = inverse_frequencies(xp, head_dim, theta, scaling, positions.device)
    angles = xp.astype(positions, xp.float64)[..., None] * frequencies  # [S, D/2]
    if angles.ndim == 3:
        angles = angles[:, None, :, :]  # [B, 1, S, D/2]
    cos, sin = xp.cos(angles), xp.sin(angles)
    tables = xp.concat([cos, cos], axis=-1), xp.concat([-sin, sin], axis=-1)
    return tables if dtype is None else tuple(xp.astype(table, dtype) for table in tables)


class Rotary:
    """The tables of one model, made once for all its layers, and again only when the sequence's length changes.

    Args:
        positions: of the tokens, `[S]` or `[B, S]`, or a function of S that gives them. None: 0, 1, 2, ...
        head_dim, theta, scaling: as for `rotary_tables`.

    Raises:
        ValueError: positions that are no array of numbers.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        scaling: Mapping[str, Any] | None = None,
        positions: Array | Callable[[int], Array] | None = None,
    ) -> None:
        if positions is not None and not callable(positions):
            _check_positions(positions)
        self.head_dim, self.theta, self.scaling, self.positions = head_dim, theta, scaling, positions
        self._made: tuple[Any, Tables] | None = None
        self._making = threading.Lock()  # ranks that share a model share one pair of tables

    def __reduce__(self) -> Any:
        """A copy makes its own tables, because a lock cannot be copied."""
        return type(self), (self.head_dim, self.theta, self.scaling, self.positions)

    def tables(self, x: Array) -> Tables:
        """cos and sin for activations `x [B, S, E]`, in its dtype.

        Raises:
            ValueError: there are not as many positions as tokens.
        """
        xp, S = namespace(x), x.shape[1]
        key = (S, x.dtype, x.device)
        with self._making:
            if self._made is None or self._made[0] != key:
                positions = xp.arange(S, device=x.device) if self.positions is None else self.positions
                positions = positions(S) if callable(positions) else positions
                if positions.shape[-1] != S:
                    raise ValueError(f"{positions.shape[-1]} positions for {S} tokens: give one to each token")
                self._made = key, rotary_tables(positions, self.head_dim, self.theta, self.scaling, x.dtype)
            return self._made[1]


def _check_positions(positions: Any) -> None:
    numbers = is_array(positions) and namespace(positions).isdtype(positions.dtype, ("integral", "real floating"))
    if not numbers or positions.ndim not in (1, 2):
        raise ValueError(f"positions={positions!r:.60}: an array of numbers, [S] or [B, S], is needed")


def inverse_frequencies(
    xp: Any, head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None, device: Any = None
) -> Array:
    """The angle by which each pair turns from one token to the next, in radians: `[D/2]`.

    The type `linear` divides all angles by `factor`. The type `llama3` looks at how often a pair turns within the
    context of the first training. It divides the angles of pairs with fewer turns than `low_freq_factor`, leaves those
    with more turns than `high_freq_factor`, and interpolates between the two.
    """
    frequencies = theta ** (-2 * xp.arange(head_dim // 2, dtype=xp.float64, device=device) / head_dim)
    kind = rotary_type(scaling)
    if kind == "default" or scaling is None:
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = xp.clip((turns - low) / (high - low), 0.0, 1.0)  # 1: fast pairs, as they are; 0: slow ones, stretched
    return frequencies * (kept + (1 - kept) / scaling["factor"])


NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rotary_type(scaling: Mapping[str, Any] | None) -> str:
    """The type that `rope_scaling` names: default, linear or llama3.

    Raises:
        ValueError: another type, or a value that the type needs is missing or out of its range.
    """
    scaling = {} if scaling is None else scaling
    if not isinstance(scaling, Mapping):
        raise ValueError(f"rope_scaling={scaling!r}: an object with a type is needed")
    kind = scaling.get("rope_type", scaling.get("type", "default"))  # "type" in older files
    one_of("rope_scaling: type", kind, tuple(NEEDED))
    for name in NEEDED[kind]:
        positive(f"rope_scaling of type {kind!r}: {name}", scaling.get(name), finite=True)
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise ValueError(
            f"rope_scaling has low_freq_factor={scaling['low_freq_factor']!r} and "
            f"high_freq_factor={scaling['high_freq_factor']!r}: the first must be smaller"
        )
    return kind
