"""The exercises of notebook 08: a rank's memory, and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import eq, floordiv, ge, gt, truediv
from typing import Any

import numpy as np

from parlab.labs.difference import apart, brief, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.zero import MIXED

MIXED_BYTES = (MIXED.weight, MIXED.gradient, MIXED.optimizer)


def _compare(result: Any, right: float, unit: str, mistakes: Iterable[tuple[str, float]]) -> None:
    """Raise `Wrong` unless `result` is `right`, with the one of these mistakes that gives `result`, if one does."""
    if not isinstance(result, int | float | np.integer | np.floating) or isinstance(result, bool):
        raise Wrong(f"returned {brief(result)}, expected a number")
    if math.isclose(result, right, rel_tol=1e-9):
        return
    same = ((cause, math.isclose(result, value, rel_tol=1e-9)) for cause, value in mistakes)
    found, wanted = apart(float(result), right)
    raise Wrong(f"returned {found}, expected {wanted} {unit}", *likely(same))


class NamedCase:
    """A case whose fields are the answer's arguments, in their order, and are shown by name."""

    pp: int

    def __str__(self) -> str:
        shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in vars(self).items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    @property
    def size(self) -> int:
        """The number of pipeline stages."""
        return self.pp


@dataclass(frozen=True)
class MemoryCase(NamedCase):
    """A model of `params` parameters; a microbatch keeps `kept` bytes; dp replicas of pp stages of tp ranks.

    `state` is bytes a parameter: of weight, of gradient, and of optimizer state.
    """

    params: int
    kept: int
    dp: int
    pp: int
    tp: int
    m: int
    zero: int
    state: tuple[int, int, int] = MIXED_BYTES

    def nbytes(
        self,
        flight: int | None = None,
        among: int | None = None,
        cuts: Callable[[int, int], bool] = ge,
        optimizer: int | None = None,
        by: Callable[[int, int], float] = truediv,
        **cut: int,
    ) -> float:
        """Bytes of the fullest rank.

        Args:
            flight: the microbatches that it keeps; None: as many as 1F1B.
            among: the number of ranks over which ZeRO cuts; None: dp.
            cuts: says whether ZeRO stage `zero` cuts what stage 1, 2 or 3 cuts first.
            optimizer: bytes of optimizer state for each parameter; None: those of `state`.
            by: divides the bytes of a parameter among ranks.
            cut: divisors of `params` and `activations`, if they are not pp·tp.
        """
        flight = min(self.pp, self.m) if flight is None else flight
        among, whole = among or self.dp, self.pp * self.tp
        weight, gradient, least = self.state
        sizes = ((weight, 3), (gradient, 2), (least if optimizer is None else optimizer, 1))
        weights, gradients, state = (by(size, among if cuts(self.zero, stage) else 1) for size, stage in sizes)
        activations = flight * self.kept / cut.get("activations", whole)
        return self.params / cut.get("params", whole) * (weights + gradients + state) + activations

    def mistakes(self) -> list[tuple[str, float]]:
        """Well-known mistakes, each with its result."""
        d, p, t = self.dp, self.pp, self.tp
        stages = "ZeRO-1 cuts the optimizer's state, 2 the gradients too, 3 the weights too"
        replicas = "ZeRO cuts what several ranks hold alike, and these are the dp replicas"
        return [
            ("GPipe keeps all m; 1F1B goes back as soon as the first microbatch comes back", self.nbytes(self.m)),
            ("pp forwards go by before the first backward reaches the first stage", self.nbytes(1)),
            ("there are not more than m microbatches to keep", self.nbytes(p)),
            ("activations are missing", self.nbytes(0)),
            ("a parameter's bytes // dp drop a remainder: divide by /", self.nbytes(by=floordiv)),
            ("compared by ==: a ZeRO stage cuts what the stages before it cut, too", self.nbytes(cuts=eq)),
            *((stages, self.nbytes(cuts=wrong)) for wrong in (gt, lambda zero, stage: zero + 1 >= stage)),
            ("at stage 2 the weights are whole: stage 3 cuts them", self.nbytes(cuts=_weights_too_early)),
            (replicas, self.nbytes(among=d * p * t)),
            ("the optimizer keeps a float32 copy of the weights beside its two moments", self.nbytes(optimizer=8)),
            ("the sizes are those of `state`, not always 2, 2 and 12", replace(self, state=MIXED_BYTES).nbytes()),
            ("tensor parallelism cuts activations too here", self.nbytes(activations=p)),
            ("a stage keeps the activations of its own layers only", self.nbytes(activations=t)),
            ("a microbatch is one replica's: dp does not cut its activations", self.nbytes(activations=d * p * t)),
            ("tensor parallelism cuts parameters too", self.nbytes(params=p)),
            ("a stage has the parameters of its own layers only", self.nbytes(params=t)),
            *(("return bytes, not GB or GiB", self.nbytes() / unit) for unit in (1e9, 2**30)),
        ]


def _weights_too_early(zero: int, stage: int) -> bool:
    return zero >= min(stage, 2)


def _try_memory(trial: Trial, case: MemoryCase) -> list[str]:
    result = trial.called(*vars(case).values())
    _compare(result, case.nbytes(), "bytes", case.mistakes())
    return [f"{case.nbytes() / 2**30:.1f} GiB on the fullest rank"]


def _draw_held(random: np.random.Generator, size: int) -> MemoryCase:
    d, t, m = (int(random.integers(2, 9)) for _ in range(3))
    scale = d * size * t * 1000
    params, kept = (scale * int(random.integers(1, 99)) for _ in range(2))
    state = (2, 4, 12) if random.integers(2) else (4, 2, 8)
    return MemoryCase(params, kept, d, size, t, m, int(m % 4), state)


MEMORY = Exercise(
    "08.memory",
    "memory(params, kept, dp, pp, tp, m, zero, state)",
    [
        MemoryCase(1200, 600, 1, 2, 1, 3, 0),
        MemoryCase(1000, 400, 1, 1, 1, 1, 0),
        MemoryCase(1200, 600, 4, 1, 1, 4, 1),  # 4 replicas: with 2 or 3, two mistakes have the same result
        MemoryCase(1200, 600, 3, 2, 1, 5, 2),
        MemoryCase(1200, 600, 3, 1, 2, 4, 3),
        MemoryCase(1200, 600, 3, 1, 1, 4, 2, (2, 4, 12)),  # equal bytes would hide which of the two is cut
        MemoryCase(1200, 600, 3, 2, 1, 4, 2, (4, 2, 12)),
        MemoryCase(2400, 4800, 2, 4, 3, 2, 1),
        MemoryCase(2400, 4800, 3, 4, 2, 8, 2),
        MemoryCase(405_853_388_800, 537_474_760_704, 128, 16, 8, 16, 1),
    ],
    _try_memory,
    _draw_held,
    solved_by=("parlab.plan.estimate.estimate",),
)


@dataclass(frozen=True)
class StepTimeCase(NamedCase):
    """A microbatch that takes `work` seconds on one device and sends `nbytes` by tensor parallelism, and a layout."""

    work: float
    nbytes: float
    speed: float
    dp: int
    pp: int
    tp: int
    chunks: int
    batch: int

    def seconds(self, work: float | None = None, traffic: float | None = None, **part: float) -> float:
        """Seconds of a step; `part` replaces the number of microbatches, of waits at both ends, and of stages."""
        t, m = self.tp, part.get("m", self.batch / self.dp)
        work = self.work / t if work is None else work
        traffic = (t - 1) / t * self.nbytes / self.speed if traffic is None else traffic
        return (work + traffic) / part.get("p", self.pp) * (m + part.get("ends", (self.pp - 1) / self.chunks))

    def mistakes(self) -> list[tuple[str, float]]:
        """Well-known mistakes, each with its result."""
        p, t, v, turn = self.pp, self.tp, self.chunks, self.nbytes / self.speed
        ring = "a turn around tp ranks is tp - 1 hops of 1/tp of the bytes"
        shared = "tp ranks share it already: the bytes are of one rank's turns"
        missing = "the bubble is missing: stages that wait for the first and after the last microbatch"
        bubble = self.work / t / p * (p - 1) / v
        return [
            (missing, self.seconds(ends=0)),
            ("chunks make what is waited for so many times shorter", self.seconds(ends=p - 1)),
            ("beside a stage's own work there are pp - 1 others'", self.seconds(ends=p / v)),
            ("each of dp replicas has batch / dp of the microbatches", self.seconds(m=self.batch)),
            ("tensor-parallel traffic is missing", self.seconds(traffic=0)),
            (ring, self.seconds(traffic=turn)),
            (ring, self.seconds(traffic=turn / 2)),
            ("tp ranks share the work", self.seconds(work=self.work)),
            ("a stage has 1/pp of the layers", self.seconds(p=1)),
            (
                "a stage waits for the turns of its own layers, 1/pp of them",
                self.seconds(traffic=p * (t - 1) / t * turn),
            ),
            ("a stage waits for its traffic in the bubble too", self.seconds(ends=0) + bubble),
            ("nothing hides the traffic here", self.seconds(max(0, self.work / t - (t - 1) / t * turn))),
            (shared, self.seconds(traffic=(t - 1) / t**2 * turn)),
        ]


def _try_step_time(trial: Trial, case: StepTimeCase) -> list[str]:
    result = trial.called(*vars(case).values())
    _compare(result, case.seconds(), "seconds", case.mistakes())
    ideal = case.batch * case.work / (case.dp * case.pp * case.tp)
    return [f"{case.seconds():.3f} s; {ideal:.3f} s if nobody waited"]


def _draw_timed(random: np.random.Generator, size: int) -> StepTimeCase:
    d, t, v, m = (int(random.integers(2, 7)) for _ in range(4))
    work, turn = random.uniform(1, 9, 2).round(2)
    return StepTimeCase(float(work), float(turn) * 1e9, 4e9, d, size, t, v, d * size * m)


STEP_TIME = Exercise(
    "08.step_time",
    "step_time(work, nbytes, speed, dp, pp, tp, chunks, batch)",
    [
        StepTimeCase(3.0, 0.0, 1.0, 1, 2, 1, 1, 4),
        StepTimeCase(3.0, 8.0, 2.0, 1, 1, 4, 1, 2),
        StepTimeCase(3.0, 0.0, 1.0, 2, 3, 1, 1, 12),
        StepTimeCase(3.0, 8.0, 2.0, 2, 3, 4, 1, 12),
        StepTimeCase(3.0, 8.0, 4.0, 3, 4, 2, 5, 24),
        StepTimeCase(37.35, 2.03e11, 3.51e11, 128, 16, 8, 8, 2048),
    ],
    _try_step_time,
    _draw_timed,
    solved_by=("parlab.plan.estimate.estimate",),
)


EXERCISES = (MEMORY, STEP_TIME)
