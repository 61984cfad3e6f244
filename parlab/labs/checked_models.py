"""The six silent bugs on forty models: how far each check is off, and where ten losses end. Computed before."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from parlab.labs.silent_bugs import BUGS, NONE, PRICES, Suspect

MODELS = 40
STORED = "checked_models.json"
DIGITS = 4  # significant ones, of each stored number but the losses
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
    """Differences of checks by bug, check and model; last losses by bug and model; all losses of the first model."""

    differences: dict[str, dict[str, list[float]]]  # 0.0 is right
    ends: dict[str, list[float]]  # the tenth loss, as a share of the right one, less 1
    losses: dict[str, list[float]]  # of ten steps: "one rank", "none", and the bugs


@cache
def many_models() -> ManyModels:
    """Each check on each of the six bugs, on 40 models with a batch each; clipping is that of the exercise.

    The numbers were computed before, by `python -m parlab.labs.checked_models` in six minutes, and have four digits.

    >>> many_models().differences["extra mean"]["norm"][:3]
    [0.5, 0.5, 0.5]
    """
    return ManyModels(**json.loads((files("parlab.labs") / STORED).read_text(encoding="utf-8")))


def seven_trainers() -> dict[int, Suspect]:
    """Seven trainers by number, one with each bug and one that is right."""
    return {number: Suspect(bug) for number, bug in enumerate(SEVEN, start=1)}


def seven_losses(named: bool = False) -> dict[str, list[float]]:
    """Ten losses of each of the seven, by number; `named`: first those of one rank, then each by number and bug."""
    losses = many_models().losses
    if not named:
        return {str(number): losses[bug] for number, bug in enumerate(SEVEN, start=1)}
    said = {number: "right" if bug == NONE else bug for number, bug in enumerate(SEVEN, start=1)}
    names = {f"{number}: {said[number]}": losses[bug] for number, bug in enumerate(SEVEN, start=1)}
    return {"one rank": losses["one rank"]} | names


def right_number() -> int:
    """The number of the right one of the seven."""
    return 1 + SEVEN.index(NONE)


def checked(bug: str, seed: int) -> tuple[dict[str, float], float]:
    """The differences of the checks on one model, and by how much its last loss differs; computed now."""
    patient = Suspect(bug, seed)
    losses = patient.losses
    end = losses["eight ranks"][-1] / losses["one rank"][-1] - 1
    return {check: _rounded(patient.difference(check)) for check in PRICES}, _rounded(round(end, 12))


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


if __name__ == "__main__":
    of_bugs = {bug: [checked(bug, seed) for seed in range(MODELS)] for bug in BUGS}
    found = ManyModels(
        {bug: {check: [each[check] for each, _ in of_bug] for check in PRICES} for bug, of_bug in of_bugs.items()},
        {bug: [end for _, end in of_bug] for bug, of_bug in of_bugs.items()},
        {"one rank": Suspect(NONE).losses["one rank"]}
        | {bug: Suspect(bug).losses["eight ranks"] for bug in (NONE, *BUGS)},
    )
    with open(str(files("parlab.labs") / STORED), "w", encoding="utf-8") as file:
        file.write(json.dumps(found._asdict()).replace("], ", "],\n ") + "\n")
