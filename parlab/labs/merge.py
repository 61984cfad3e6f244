"""The exercise 02.merge: two partial outputs become one, by their log-sum-exps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.difference import brief, difference, likely
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong


@dataclass(frozen=True)
class MergeCase:
    """Two partial outputs `[size, D]`, log-sum-exps around `level`; `empty`: how many sides have a row without keys.

    `apart`: by how much the log-sum-exps of every second row are larger.
    """

    size: int
    level: float = 0.0
    empty: str = "no"
    D: int = 3
    seed: int = 0
    apart: float = 0.0

    def __str__(self) -> str:
        of = {"no": "", "one": ", one side without keys", "both": ", both sides without keys"}[self.empty]
        rows = f" and, in every second row, around {self.level + self.apart:g}" if self.apart else ""
        return f"{self.size} rows, lse around {self.level:g}{rows}{of}"


def _try_merge(trial: Trial, case: MergeCase) -> list[str]:
    random = np.random.default_rng([case.seed, case.size, round(abs(case.level))])
    outs = random.standard_normal((2, case.size, case.D))  # [side, rows, D]
    lses = case.level + random.standard_normal((2, case.size)) + case.apart * (np.arange(case.size) % 2)
    empty = {"no": [], "one": [(0, 0), (1, -1)], "both": [(0, 0), (1, 0)]}[case.empty]
    for side, row in empty:
        outs[side, row], lses[side, row] = 0.0, -np.inf
    result = trial.called(outs[0], lses[0], outs[1], lses[1])
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(f"returned {brief(result)}, expected (out, lse)")
    mistakes = _mistakes(outs, lses)
    # exp(lse − merged lse) cannot be more exact than lse is: half a unit in its last place
    rtol = 16 * np.finfo(np.float64).eps * max(1.0, abs(case.level), abs(case.level + case.apart))
    for name, mine, right in zip(("out", "lse"), result, _exactly_merged(outs, lses), strict=True):
        wrong = difference(mine, right, rtol, atol=rtol)  # an lse near 0 is the sum of larger ones
        if wrong and isinstance(mine, np.ndarray) and mine.dtype == right.dtype and np.isnan(mine).any():
            raise Wrong(f"{name} holds NaN: {_nan_from(mine, lses)}")
        if wrong:
            same = ((cause, not difference(np.asarray(mine), array, rtol, rtol)) for cause, array in mistakes.items())
            raise Wrong(f"{name}: {wrong}", *likely(same))
    return ["out and lse equal those over all keys at once"]


ONE_MAXIMUM = "one maximum is subtracted in all rows; each row needs its own, the larger lse of its two sides"


def _nan_from(mine: Any, lses: Any) -> str:
    """The cause of NaN in `mine`, an out [rows, D] or an lse [rows]."""
    rows = np.isnan(mine).reshape(len(mine), -1).any(axis=1) & np.isfinite(lses).all(axis=0)
    if rows.any() and lses[:, rows].max() < lses.max() - 700:  # exp of it is 0
        return f"0/0 in a row: {ONE_MAXIMUM}"
    if rows.any():
        return f"exp(lse) is 0 or ∞ at an lse of {lses[0, rows][0]:.0f}; subtract the larger of both first"
    return "−inf − (−inf), 0/0 or ∞/∞; what weight has a side without keys?"


def _mistakes(outs: Any, lses: Any) -> dict[str, Any]:
    """The out or the lse that well-known mistakes give."""
    with np.errstate(all="ignore"):
        lse = np.logaddexp(*lses)  # [rows]
        weights = np.exp(lses - lse)[..., None]  # [side, rows, 1]
        inverted = np.exp(lse - lses)[..., None]  # [side, rows, 1]
        unscaled = np.exp(lses - lses.max(axis=0))[..., None]
        larger = np.where((lses[0] >= lses[1])[:, None], *outs)
        exponents = np.where(np.isneginf(lse), lses, lses - lse)[..., None]  # [side, rows, 1]
        of_other = np.exp(lses - np.where(np.isneginf(lses), 0.0, lses)[::-1])[..., None]  # [side, rows, 1]
        return {
            "the two are added without their weights exp(lse − merged lse)": outs[0] + outs[1],
            "the exponent has the wrong sign: a side has the weight exp(its lse − merged lse), at most 1": (
                (inverted * outs).sum(axis=0)
            ),
            "the weights changed places: exp(lse_a − merged lse) belongs to out_a": (weights[::-1] * outs).sum(axis=0),
            "the weights do not add up to 1: divide by their sum": (unscaled * outs).sum(axis=0),
            "exp is missing: lse − merged lse is the logarithm of a weight": (exponents * outs).sum(axis=0),
            "exp(lse_a − lse_b) is not yet the weight of a: subtract the merged lse": of_other[0] * outs[0] + outs[1],
            "a plain mean: the side with more weight must count more": (outs[0] + outs[1]) / 2,
            ONE_MAXIMUM: np.where((lse > lses.max() - 700)[:, None], (weights * outs).sum(axis=0), 0.0),
            "the side with the larger lse alone: both count, by their weights": larger,
            "log-sum-exps are not added: exp(lse) is": lses[0] + lses[1],
            "the larger lse alone: add exp(lse) of both": lses.max(axis=0),
            "a row without keys has the lse −∞, the log of an empty sum": np.where(np.isneginf(lse), 0.0, lse),
            "exp(lse) is 0 or ∞ at such an lse: subtract the larger of both first": np.log(np.exp(lses).sum(axis=0)),
        }


def _exactly_merged(outs: Any, lses: Any) -> tuple[Any, Any]:
    """(out, lse), nearly exact: computed in the longest floats, from differences of lse, which are exact."""
    outs, lses = outs.astype(np.longdouble), lses.astype(np.longdouble)
    top = lses.max(axis=0)  # [rows]
    shift = np.where(np.isneginf(top), 0, top)
    weights = np.exp(lses - shift)  # [side, rows]
    total = weights.sum(axis=0)
    out = (weights[..., None] * outs).sum(axis=0) / np.where(total == 0, 1, total)[:, None]
    with np.errstate(divide="ignore"):
        return out.astype(np.float64), (shift + np.log(total)).astype(np.float64)


def _draw_rows(random: np.random.Generator, size: int) -> MergeCase:
    level = float(random.choice([0, 800, -800, 1e4, -1e4]))
    return MergeCase(
        size, level, str(random.choice(["no", "one", "both"])), size, apart=float(random.choice([0, 2000]))
    )


MERGE = Exercise(
    "02.merge",
    "merge_two(out_a, lse_a, out_b, lse_b)",
    [
        MergeCase(2),
        MergeCase(4, empty="one"),
        MergeCase(4, empty="both"),
        MergeCase(8, level=1e4),
        MergeCase(8, level=-1e4, empty="one"),
        MergeCase(8, apart=2000),
    ],
    _try_merge,
    _draw_rows,
    solved_by=("parlab.nn.attention.merge",),
)

EXERCISES = (MERGE,)
