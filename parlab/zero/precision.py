"""Mixed precision: the decision of each step before it changes a weight, so that no overflow reaches the model.

The largest number of float16 is 65 504, the smallest 6e-8: small gradients would become zero. So the loss, and with it
every gradient, is multiplied by a scale, and the step divides by it in float32. If a gradient overflows, all ranks skip
the step and halve the scale. After many good steps they double it.

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

LEAST_SCALE = 2.0**-14  # float16's smallest normal number: the backward begins with the scale, in float16


@dataclass
class LossScale:
    """The factor on the loss, and how it moves.

    Args:
        value: the factor now.
        growth: the factor is multiplied by this after `interval` good steps in a row.
        backoff: the factor is multiplied by this after an overflow, down to 2⁻¹⁴.
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
        """Change the factor after a step.

        Raises:
            FloatingPointError: an overflow at the least scale: no smaller one will help.
        """
        if overflow and self.value <= LEAST_SCALE:
            raise FloatingPointError(
                f"loss scale {self.value:g}: a gradient overflows still, and no scale below {LEAST_SCALE:g} is tried; "
                "the loss is not finite, or the run diverges: use a lower learning rate, or clip gradients (max_norm)"
            )
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.value = max(self.value * self.backoff, LEAST_SCALE)
        elif self.good_steps == self.interval:
            self.good_steps = 0
            if self.value * self.growth < math.inf:  # else it stays: from infinity it could never come back
                self.value *= self.growth


@dataclass(frozen=True)
class StepResult:
    """The result of `step()`.

    Attributes:
        skipped: the norm was infinite or not a number, so no weight changed, on any rank.
        norm: of the mean gradient, all weights together, before clipping; None: nothing needs it.
        loss_scale: the factor that the next loss needs.
    """

    skipped: bool
    norm: float | None
    loss_scale: float


@dataclass
class StepGuard:
    """Decides the factor for every gradient, or that the step is skipped.

    Invariant: the counts, the scale and the factor are the same on every rank. They follow from one number, which is
    all-reduced, and nothing else that a rank alone knows.

    Args:
        mean_factor: 1 / (ranks · microbatches), which turns summed gradients into their mean.
        max_norm: the mean gradient is clipped to this norm; None: it is not clipped.
        scale: of the loss; None: always 1.
    """

    mean_factor: float
    max_norm: float | None
    scale: LossScale | None
    norm: float | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    skipped: int = field(default=0, init=False)

    @classmethod
    def of(cls, terms: int, max_norm: float | None, scale: LossScale | None, dtype: Any) -> StepGuard:
        """The guard of a mean of so many terms. It copies the scale, which ranks may share; float16 always has one."""
        if scale is None and itemsize(dtype) == 2:
            scale = LossScale()
        return cls(1 / terms, max_norm, None if scale is None else copy(scale))

    @property
    def loss_scale(self) -> float:
        """The factor by which the next loss is multiplied."""
        return 1.0 if self.scale is None else self.scale.value

    def decide(
        self, gradients: Sequence[Array], comm: Comm | None, in_norm: Sequence[float] | None = None
    ) -> float | None:
        """Return the factor for summed gradients, or None: skip. Count the step, and move the loss scale.

        If clipping or a loss scale needs the norm, one number is all-reduced. An infinity or a NaN in any shard makes
        the sum of squares infinite or NaN on every rank.

        Args:
            gradients: this rank's shards.
            comm: the ranks that hold the other shards; None: the gradients are whole.
            in_norm: how much each counts in the norm, which is then always computed; None: 1.
        """
        factor = self.mean_factor / self.loss_scale  # makes the mean gradient of their sum
        if self.max_norm is None and self.scale is None and in_norm is None:
            self.steps += 1
            return factor
        # One number from all ranks of a mesh: recursive doubling needs log₂P steps, a ring 2(P − 1)
        algorithm = None if in_norm is None else "recursive_doubling"
        in_norm = [1.0] * len(gradients) if in_norm is None else in_norm
        squares = sum(share * sum_of_squares(x) for share, x in zip(in_norm, gradients, strict=True))
        if comm is not None:
            squares = comm.all_reduce(squares, algorithm=algorithm)
        self.norm = math.sqrt(to_host(squares)) * factor
        overflow = not math.isfinite(self.norm)
        if self.scale is not None:
            self.scale.update(overflow)
        if overflow:
            self.skipped += 1
            return None
        self.steps += 1
        return factor if self.max_norm is None else factor * clip_factor(self.norm, self.max_norm)

    def result(self, factor: float | None) -> StepResult:
        """The result of the step that used `factor`."""
        return StepResult(factor is None, self.norm, self.loss_scale)
