"""A number, or a list of numbers: one for each stage or each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from parlab.arguments import amount

Amount = float | Sequence[float]


def without_arrays(given: Any) -> Any:
    """`given`; an array as a list, and a number of an array as a number of Python."""
    return given.tolist() if hasattr(given, "tolist") else given


def finite_amounts(name: str, given: Any) -> None:
    """Refuse anything but a number that is finite and at least 0, or a list of at least one of them.

    Raises:
        ValueError: so it is.
    """
    for value in _listed(name, given):
        amount(name, value)


def amounts(name: str, given: Any) -> None:
    """As `finite_amounts`, but infinity is allowed.

    Raises:
        ValueError: so it is.
    """
    for value in _listed(name, given):
        if value != math.inf:
            amount(name, value)


def _listed(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, Sequence):
        return [given]
    if not given:
        raise ValueError(f"{name}={given!r}: an empty list; give a number, or a list of numbers")
    return given
