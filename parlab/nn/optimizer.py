"""AdamW, clipping by the norm of the gradients, and the usual schedule of the learning rate.

Sources: Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2; Pascanu, Mikolov and Bengio
2013 (clipping); Loshchilov and Hutter 2017, "SGDR" (cosine).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parlab.arguments import amount, positive, whole
from parlab.arrays import Array, is_array, namespace, on_host, to_host
from parlab.nn.stage import Gradients
from parlab.nn.sums import widened

PIECE = 65536  # numbers updated at once on the host: weight, gradient and moments of a piece stay in a core's cache


@dataclass
class AdamW:
    """Adam with decoupled weight decay. The defaults are PyTorch's.

    Every operation is elementwise. So a shard of the weights, with its shard of the moments, gets bitwise the same
    numbers as the whole. ZeRO depends on this.

    >>> import numpy as np
    >>> weights, optimizer = {"w": np.array([1.0, -1.0])}, AdamW(lr=0.1, weight_decay=0.0)
    >>> optimizer.step(weights, {"w": np.array([0.5, -3.0])})
    >>> [round(float(value), 4) for value in weights["w"]]  # the first step is lr against the gradient's sign
    [0.9, -0.9]

    Raises:
        ValueError: a hyperparameter out of its range.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    steps: int = field(default=0, init=False)
    moments: dict[str, tuple[Array, Array]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay"):
            amount(name, getattr(self, name))
        if not isinstance(self.betas, Sequence) or len(self.betas) != 2:
            raise ValueError(f"betas={self.betas!r:.60}: two numbers are needed")
        for beta in self.betas:
            amount("betas", beta, below=1)

    def step(self, weights: Mapping[str, Array], gradients: Mapping[str, Array], lr: float | None = None) -> None:
        """Change every weight in place, by the gradient of the same name. `lr`, if given, replaces the optimizer's.

        Raises:
            ValueError: no floating arrays; the names, or the shapes under a name, differ; `lr` is no learning rate.
        """
        _check_alike(weights, gradients)
        amount("lr", self.lr if lr is None else lr)
        self.steps += 1
        for name, weight in weights.items():
            if name not in self.moments:
                xp = namespace(weight)
                self.moments[name] = xp.zeros_like(weight), xp.zeros_like(weight)
            self.update(weight, gradients[name], *self.moments[name], step=self.steps, lr=lr)

    def update(
        self, weight: Array, gradient: Array, mean: Array, square: Array, *, step: int, lr: float | None = None
    ) -> None:
        """One update of a weight, or of a shard of it, and of its two moments, in place. `step` counts from 1.

        Raises:
            ValueError: `step` is less than 1, or `lr` is no learning rate.
        """
        whole("step", step, 1)
        lr = self.lr if lr is None else lr
        amount("lr", lr)
        flat = [namespace(x).reshape(x, (-1,), copy=False) for x in (weight, gradient, mean, square)]
        piece = PIECE if on_host(weight) else max(weight.size, 1)
        for start in range(0, weight.size, piece):
            w, g, m, v = (x[start : min(start + piece, weight.size)] for x in flat)
            w[...], m[...], v[...] = adamw(w, g, m, v, step, lr, self.betas, self.eps, self.weight_decay)


def adamw(
    w: Array, g: Array, m: Array, v: Array, step: int, lr: float, betas: tuple[float, float], eps: float, decay: float
) -> tuple[Array, Array, Array]:
    """The new weight, mean of the gradients, and mean of their squares: algorithm 2, on arrays of one shape."""
    xp = namespace(w, g)
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * (g * g)
    unbiased_m = m / (1 - betas[0] ** step)  # both begin at 0, and are too small in the first steps
    unbiased_v = v / (1 - betas[1] ** step)
    w = w * (1 - lr * decay)  # not through the gradient: decoupled
    return w - lr * unbiased_m / (xp.sqrt(unbiased_v) + eps), m, v


def gradient_norm(gradients: Mapping[str, Array]) -> float:
    """The norm of all gradients together: the root of the sum of all squares."""
    return math.sqrt(to_host(sum(sum_of_squares(gradient) for gradient in gradients.values())))


def sum_of_squares(x: Array) -> Array:
    """The sum of the squares of x, in float64 without axes. The products are in x's dtype or float32.

    The sums of the shards of a gradient add up to the square of its norm. The result stays on x's device, so the host
    waits only once, for the sum over all gradients.
    """
    xp = namespace(x)
    x = widened(xp.reshape(x, (-1,)))
    return xp.astype(xp.asarray(xp.vecdot(x, x)), xp.float64)


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor that makes the norm of the gradients at most `max_norm`; 1 if it already is.

    Raises:
        ValueError: `max_norm` is not positive.
    """
    positive("max_norm", max_norm)
    return min(1.0, max_norm / norm) if norm > 0 else 1.0


def clip_gradients(gradients: Mapping[str, Array], max_norm: float) -> tuple[Gradients, float]:
    """The gradients, all multiplied by one factor if their common norm is above `max_norm`; and the norm before.

    >>> import numpy as np
    >>> clipped, norm = clip_gradients({"a": np.array([3.0]), "b": np.array([4.0])}, max_norm=1.0)
    >>> norm, round(float(clipped["b"][0]), 3)
    (5.0, 0.8)

    Raises:
        ValueError: no floating arrays by name, or `max_norm` is not positive.
    """
    _check_arrays("gradients", gradients)
    norm = gradient_norm(gradients)
    factor = clip_factor(norm, max_norm)
    return ({name: gradient * factor for name, gradient in gradients.items()} if factor < 1 else dict(gradients)), norm


def warmup_cosine(step: int, *, peak: float, warmup_steps: int, total_steps: int, floor: float = 0.0) -> float:
    """The learning rate of `step`, counted from 0: linear up to `peak`, then half a cosine down to `floor`.

    >>> [round(warmup_cosine(step, peak=1.0, warmup_steps=2, total_steps=6), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]

    Raises:
        ValueError: a number that is negative, or a warm-up that is not shorter than the whole.
    """
    whole("step", step, 0)
    amount("peak", peak)
    whole("warmup_steps", warmup_steps, 0)
    whole("total_steps", total_steps, 1)
    amount("floor", floor)
    if warmup_steps >= total_steps:
        raise ValueError(
            f"warmup_steps={warmup_steps!r}: 0 or more are needed, and fewer than total_steps={total_steps}"
        )
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min((step - warmup_steps) / (total_steps - warmup_steps), 1.0)
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def _check_arrays(name: str, arrays: Any) -> None:
    if not isinstance(arrays, Mapping):
        raise ValueError(f"{name}={arrays!r:.60}: arrays by name are needed")
    for key, x in arrays.items():
        if not is_array(x) or not namespace(x).isdtype(x.dtype, "real floating"):
            raise ValueError(f"{name}[{key!r}]={x!r:.60}: an array of a floating dtype is needed")


def _check_alike(weights: Any, gradients: Any) -> None:
    _check_arrays("weights", weights)
    _check_arrays("gradients", gradients)
    if weights.keys() != gradients.keys():
        odd = sorted(weights.keys() ^ gradients.keys())
        raise ValueError(f"weights and gradients have different names: {', '.join(odd[:3])} on one side only")
    for name, weight in weights.items():
        if tuple(weight.shape) != tuple(gradients[name].shape):
            raise ValueError(
                f"{name}: the weight has shape {tuple(weight.shape)}, its gradient {tuple(gradients[name].shape)}"
            )
