"""A right mesh and the six silent bugs on forty models: how far each check is off. Computed before."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from parlab.labs.silent_bugs import NONE, PRICES, Suspect

MODELS = 40
STORED = "checked_models.json"
DIGITS = 4  # significant ones, of each stored number but the losses
ARITHMETICS = ("float64", "float32", "bf16")
MESH_GUESSES = {  # the usual wrong guesses of lesson 07, and the reasoning that leads there
    "curve": (3, "it learns fastest"),
    "norm": (16, "every rank has norms"),
    "lower": (0, "a wrong gradient makes training worse"),
}
SEVEN = (
    "norms not summed",
    "copies counted",
    "ends not summed",
    "mean of means",
    NONE,
    "K/V heads not summed",
    "extra mean",
)


class ManyModels(NamedTuple):
    """Differences of checks by arithmetic, bug, check and model; last losses by bug and model; losses of one model."""

    differences: dict[str, dict[str, dict[str, list[float]]]]  # 0.0 is right; the first "bug" is "none"
    ends: dict[str, list[float]]  # the tenth loss, as a share of the right one, less 1
    losses: dict[str, list[float]]  # of ten steps: "one rank", "none", and the bugs


@cache
def many_models() -> ManyModels:
    """Each check on a right mesh and on each bug, on 40 models with a batch each; clipping is that of the exercise.

    What has no arithmetic is in float64. The numbers have four digits, and were computed before, in half an hour, by
    `python -m tools.check_models`.

    >>> many_models().differences["float64"]["extra mean"]["norm"][:3]
    [0.5, 0.5, 0.5]
    """
    return ManyModels(**json.loads((files("parlab.labs") / STORED).read_text(encoding="utf-8")))


def seven_trainers() -> dict[int, Suspect]:
    """Seven trainers by number, one with each bug and one that is right."""
    return {number: Suspect(bug) for number, bug in enumerate(SEVEN, start=1)}


def seven_losses() -> dict[str, list[float]]:
    """Ten losses of each of the seven, by number."""
    losses = many_models().losses
    return {str(number): losses[bug] for number, bug in enumerate(SEVEN, start=1)}


def right_number() -> int:
    """The number of the right one of the seven."""
    return 1 + SEVEN.index(NONE)


def ends_lower(bug: str = "ends not summed") -> int:
    """On how many of the 40 models the tenth loss with a bug is below the right one."""
    return sum(end < 0 for end in many_models().ends[bug])


def checked(bug: str, seed: int) -> tuple[dict[str, float], float]:
    """The differences of the checks on one model, and by how much its last loss differs; computed now."""
    patient = Suspect(bug, seed)
    losses = patient.losses
    end = losses["eight ranks"][-1] / losses["one rank"][-1] - 1
    return {check: _rounded(patient.difference(check)) for check in PRICES}, _rounded(round(end, 12))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
