"""The exercise 02.hidden_from: from how many tokens a rank on the messages hide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from parlab.labs.difference import apart, brief, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.sequence import hidden_from


@dataclass(frozen=True)
class BoundCase:
    """An attention of `size` heads: operations of a pair, bytes of a token in a hop, operations and bytes a second."""

    size: int
    flops: int
    nbytes: int
    F: float
    W: float

    @property
    def given(self) -> tuple[int, int, float, float]:
        """The arguments of the answer: ranks and heads do not matter."""
        return self.flops, self.nbytes, self.F, self.W

    def __str__(self) -> str:
        return ", ".join(
            f"{name}={value:g}" for name, value in zip(("flops", "nbytes", "F", "W"), self.given, strict=True)
        )

    def mistakes(self, tokens: float) -> list[tuple[str, float]]:
        """Well-known mistakes, each with its result, where `tokens` are right."""
        seconds = "a tile takes operations / F seconds, a hop bytes / W"
        sooner = "more operations a pair hide the messages sooner: divide by `flops`"
        later = "more bytes a token hide the messages later: multiply by `nbytes`"
        upside = "upside down: more bytes need more tokens, a faster port fewer"
        return [
            ("a full tile: zigzag attends half of each, c²/2 pairs, but all of its K/V travel", tokens / 2),
            ("half of the work needs twice the tokens of a full tile, not half of them", tokens / 4),
            ("half of a tile is c²/2 pairs, not (c/2)²", 2 * tokens),
            ("`nbytes` holds K and V of a token already: they are counted twice", 2 * tokens),
            ("c² on one side and c on the other: divide by c, and take no root", math.sqrt(tokens)),
            *((upside, factor / tokens) for factor in (1, 2, 4)),
            (seconds, 2 * self.nbytes * self.W / (self.flops * self.F)),
            (seconds, 2 * self.nbytes * self.F * self.W / self.flops),
            *((sooner, factor * self.nbytes * self.flops * self.F / self.W) for factor in (0.5, 1, 2)),
            *((later, factor * self.F / (self.nbytes * self.flops * self.W)) for factor in (0.5, 1, 2)),
            ("`flops` are of a pair, and there are c²/2; `nbytes` of a token, and there are c", _swapped(self)),
            ("rounded down: with so many tokens a hop still takes longer than half a tile", math.floor(tokens)),
        ]


def _swapped(case: BoundCase) -> float:
    return 2 * case.flops * case.F / (case.nbytes * case.W)


def _try_bound(trial: Trial, case: BoundCase) -> list[str]:
    result = trial.called(*case.given)
    if not isinstance(result, int | float | np.integer | np.floating) or isinstance(result, bool):
        raise Wrong(f"returned {brief(result)}, expected a number of tokens")
    tokens = hidden_from(*case.given)
    if not any(math.isclose(result, right, rel_tol=1e-9) for right in (tokens, math.ceil(tokens))):
        found, wanted = apart(float(result), tokens)
        same = ((cause, math.isclose(result, wrong, rel_tol=1e-9)) for cause, wrong in case.mistakes(tokens))
        raise Wrong(f"returned {found}, expected {wanted} tokens", *possible(same))
    work, hop = case.flops * tokens**2 / 2 / case.F, case.nbytes * tokens / case.W
    return [f"with {tokens:g} tokens a rank half a tile takes {work * 1e3:.3g} ms, a hop {hop * 1e3:.3g} ms"]


def _draw_bound(random: np.random.Generator, size: int) -> BoundCase:
    H, D = size, 8 * int(random.integers(1, 17))
    F, W = (float(random.integers(1, 1000)) * unit for unit in (1e12, 1e9))
    return BoundCase(H, 4 * H * D, 2 * D * 2 * int(random.integers(1, H + 1)), F, W)


BOUND = Exercise(
    "02.hidden_from",
    "hidden_from(flops, nbytes, F, W)",
    [
        BoundCase(2, 64, 256, 1e12, 50e9),
        BoundCase(4, 128, 256, 1e12, 50e9),
        BoundCase(4, 128, 64, 3e12, 70e9),
        BoundCase(32, 40_960, 12_288, 400e12, 25e9),
    ],
    _try_bound,
    _draw_bound,
    solved_by=("parlab.sequence.costs.hidden_from", "parlab.sequence.costs.overlap_tokens"),
)

EXERCISES = (BOUND,)
