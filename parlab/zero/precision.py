"""Mixed precision: what a step decides before it changes a weight, so that no overflow reaches the model.

float16 ends at 65 504, and below 6e-8 there is nothing: small gradients would vanish. So the loss, and with it every
gradient, is multiplied by a scale, which is divided out in float32. Where a gradient overflows, the step is skipped on
all ranks and the scale halved; after many good steps it doubles.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2; the numbers are PyTorch's `GradScaler`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from parlab.arguments import amount, positive, whole
from parlab.arrays import Array, itemsize, to_host
from parlab.nn.optimizer import clip_factor, sum_of_squares
from parlab.world import Comm


@dataclass
class LossScale:
    """The factor on the loss, and how it moves.

    Args:
        value: the factor now.
        growth: what multiplies it after `interval` good steps in a row.
        backoff: what multiplies it after an overflow.
        interval: good steps before it grows.

    Raises:
        ValueError: a factor that is not positive and finite, growth below 1, backoff not between 0 and 1, no interval.

    >>> scale = LossScale(interval=2)
    >>> for overflow in (True, False, False):
    ...     scale.update(overflow)
    ...     print(scale.value)
    32768.0
    32768.0
    65536.0
    """

    value: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good_steps: int = field(default=0, init=False)  # in a row

    def __post_init__(self) -> None:
        positive("value", self.value, finite=True)
        amount("growth", self.growth, least=1)
        positive("backoff", self.backoff)
        amount("backoff", self.backoff, below=1)
        whole("interval", self.interval, 1)

    def update(self, overflow: bool) -> None:
        """Move the factor by what a step found."""
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self._multiply(self.backoff)
        elif self.good_steps == self.interval:
            self._multiply(self.growth)
            self.good_steps = 0

    def _multiply(self, factor: float) -> None:
        if 0 < self.value * factor < math.inf:  # at either end it stays: it could never come back
            self.value *= factor


@dataclass(frozen=True)
class StepResult:
    """The result of `step()`.

    Attributes:
        skipped: where the norm is asked for, it was infinite or not a number: no weight changed, on any rank.
        norm: of the mean gradient, all weights together, before clipping; None where nothing asked for it.
        loss_scale: the factor that the next loss needs.
    """

    skipped: bool
    norm: float | None
    loss_scale: float


@dataclass
class StepGuard:
    """Decides what every gradient is multiplied by, or that the step is skipped: the same on all ranks.

    Args:
        mean: what makes the mean gradient of the summed one: 1 / (ranks · microbatches).
        max_norm: to which the mean gradient is clipped; None: it is not.
        scale: of the loss; None: 1, for ever.
    """

    mean: float
    max_norm: float | None
    scale: LossScale | None
    norm: float | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    skipped: int = field(default=0, init=False)

    @classmethod
    def of(cls, parts: int, max_norm: float | None, scale: LossScale | None, dtype: Any) -> StepGuard:
        """For a mean over so many parts. A scale is copied, since ranks may be given the same one; float16 has one."""
        if scale is None and itemsize(dtype) == 2:
            scale = LossScale()
        return cls(1 / parts, max_norm, None if scale is None else copy(scale))

    @property
    def loss_scale(self) -> float:
        """The factor by which the next loss is multiplied."""
        return 1.0 if self.scale is None else self.scale.value

    def factor(
        self, gradients: Sequence[Array], comm: Comm | None, shares: Sequence[float] | None = None
    ) -> float | None:
        """The factor for summed gradients, or None: skip.

        One number is all-reduced where clipping or a loss scale asks for it: an infinity or a NaN in any shard makes
        the sum of squares of all of them no number.

        Args:
            gradients: what this rank has of them.
            comm: the ranks that hold the other shards; None: the gradients are whole.
            shares: what each counts in the norm, which is then always asked for; None: 1.
        """
        mean = self.mean / self.loss_scale
        if self.max_norm is None and self.scale is None and shares is None:
            self.steps += 1
            return mean
        # A part's ranks are all of a mesh, and one number needs no ring: log₂N steps instead of 2(N − 1)
        algorithm = None if shares is None else "recursive_doubling"
        shares = [1.0] * len(gradients) if shares is None else shares
        squares = sum(share * sum_of_squares(x) for share, x in zip(shares, gradients, strict=True))
        if comm is not None:
            squares = comm.all_reduce(squares, algorithm=algorithm)
        self.norm = math.sqrt(to_host(squares)) * mean
        overflow = not math.isfinite(self.norm)
        if self.scale is not None:
            self.scale.update(overflow)
        if overflow:
            self.skipped += 1
            return None
        self.steps += 1
        return mean if self.max_norm is None else mean * clip_factor(self.norm, self.max_norm)

    def result(self, factor: float | None) -> StepResult:
        """The result of the step that used `factor`."""
        return StepResult(factor is None, self.norm, self.loss_scale)
