"""The result of each check on each silent bug, at several limits of clipping: computed before, as it takes a minute."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from parlab.labs.silent_bugs import BUGS, PRICES, Suspect

LIMITS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
STORED = "limits.json"
DIGITS = 4  # significant ones, of each stored number


class Checked(NamedTuple):
    """The results of the checks on one trainer, and its norms."""

    differences: dict[str, float]  # by check: how far it is from right; 0.0 is right
    right_norms: list[float]  # of ten steps on one rank
    norms: list[float]  # of the same steps on eight ranks


@cache
def checks_by_limit() -> dict[float, dict[str, Checked]]:
    """The result of each check on each of the six bugs, by limit of clipping and by bug.

    The numbers were computed before, by `python -m parlab.labs.limits`, and have four digits.

    >>> round(checks_by_limit()[0.1]["extra mean"].differences["norm"], 1)
    0.5
    """
    rows = json.loads((files("parlab.labs") / STORED).read_text(encoding="utf-8"))
    return {limit: {bug: Checked(*rows[f"{limit:g}"][bug]) for bug in BUGS} for limit in LIMITS}


def checked(bug: str, limit: float, seed: int = 0) -> Checked:
    """The same, computed now."""
    suspect = Suspect(bug, seed, max_norm=limit)
    norms = ([_rounded(norm) for norm in norms] for norms in suspect.norms.values())
    return Checked({check: _rounded(suspect.difference(check)) for check in PRICES}, *norms)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


if __name__ == "__main__":
    lines = []
    for limit in LIMITS:
        rows = [f'  "{bug}": {json.dumps(checked(bug, limit))}' for bug in BUGS]
        lines.append(f' "{limit:g}": {{\n' + ",\n".join(rows) + "\n }")
    with open(str(files("parlab.labs") / STORED), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
