"""Mixed precision: the decision of each step before it changes a weight, so that no overflow reaches the model.

The largest number of float16 is 65 504, the smallest 6e-8: small gradients would become zero. So the loss, and with it
every gradient, is multiplied by a scale, and the step divides by it in float32. If a gradient overflows, all ranks skip
the step and halve the scale. After many good steps they double it.

Source: Micikevicius et al. 2018, "Mixed precision training", section 3.2; the numbers are PyTorch's `GradScaler`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from parlab.arguments import amount, positive, whole
from parlab.arrays import Array, itemsize, to_host
from parlab.nn.optimizer import clip_factor

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

    Invariant: the counts, the scale and the factor are the same on every rank. They follow from one number, the sum of
    squares, and nothing else that a rank alone knows.

    Args:
        terms: of each summed gradient: ranks · microbatches.
        max_norm: the mean gradient is clipped to this norm; None: it is not clipped.
        scale: of the loss; None: always 1.
        xp: the gradients' library.
    """

    terms: int
    max_norm: float | None
    scale: LossScale | None
    xp: Any
    norm: float | None = field(default=None, init=False)
    steps: int = field(default=0, init=False)
    skipped: int = field(default=0, init=False)

    @classmethod
    def of(cls, terms: int, max_norm: float | None, scale: LossScale | None, dtype: Any, xp: Any) -> StepGuard:
        """The guard of a mean of so many terms. It copies the scale, which ranks may share; float16 always has one."""
        if scale is None and itemsize(dtype) == 2:
            scale = LossScale()
        return cls(terms, max_norm, None if scale is None else copy(scale), xp)

    @property
    def loss_scale(self) -> float:
        """The factor by which the next loss is multiplied."""
        return 1.0 if self.scale is None else self.scale.value

    @property
    def factor_to_mean(self) -> float:
        """The factor that makes the mean gradient of summed ones, which have the loss scale."""
        return 1 / self.terms / self.loss_scale

    @property
    def needs_norm(self) -> bool:
        """Whether clipping or a loss scale asks for it."""
        return self.max_norm is not None or self.scale is not None

    def overflow_expected(self) -> AbstractContextManager[Any]:
        """Inside, an infinity is no warning if a loss scale will find it and skip the step."""
        if self.scale is None or not hasattr(self.xp, "errstate"):  # NumPy's alone
            return nullcontext()
        return self.xp.errstate(over="ignore", invalid="ignore")

    def decide(self, squares: Array | None) -> float | None:
        """Return the factor for summed gradients, or None: skip. Count the step, and move the loss scale.

        Args:
            squares: the sum of the squares of all summed gradients, the same on every rank. An infinity or a NaN in
                any of them makes it infinite or NaN. None: the norm is not needed.
        """
        factor = self.factor_to_mean  # before the scale moves
        if squares is None:
            self.steps += 1
            return factor
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

    @property
    def progress(self) -> dict[str, float]:
        """The numbers, by name, that a run needs besides the optimizer's state to go on."""
        moved = {} if self.scale is None else {"loss_scale": self.scale.value, "good_steps": self.scale.good_steps}
        return {"steps": self.steps, "skipped": self.skipped, **moved}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress`."""
        self.steps, self.skipped = int(progress["steps"]), int(progress["skipped"])
        if self.scale is not None and "loss_scale" in progress:  # else the run had no scale: it begins now
            self.scale.value, self.scale.good_steps = progress["loss_scale"], int(progress["good_steps"])
