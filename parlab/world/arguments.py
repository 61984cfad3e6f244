"""Checks of arguments: each returns the argument as the code wants it, or says what would be right."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from parlab.arrays import Array
from parlab.world import values


def whole(name: str, value: Any) -> int:
    """`value` as an int.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}: must be a whole number") from None


def amount(name: str, value: Any) -> None:
    """Refuse what is not an amount: negative, infinite, not a number.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name}={value!r}: must be a number, at least 0 and finite")


def text(name: str, value: Any) -> str:
    """`value`, a name that a timeline shows.

    Raises:
        ValueError: it is not a string.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.60}: must be a string")
    return value


def checked_rank(value: Any, name: str, size: int) -> int:
    """`value` as a rank of a group of `size`.

    Raises:
        ValueError: it is none.
    """
    rank = whole(name, value)
    if not 0 <= rank < size:
        raise ValueError(f"{name}={value!r}: the ranks of this group are 0 to {size - 1}")
    return rank


def checked_axis(value: Any, name: str, x: Array) -> int:
    """`value` as an axis of `x`, counted from the front.

    Raises:
        ValueError: it is none.
    """
    axis = whole(name, value)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{name}={value!r}: the array has {x.ndim} axes")
    return axis % x.ndim


def one_array(x: Any) -> Array:
    """`x`, which a collective takes: one array of numbers.

    Raises:
        ValueError: it is something else.
    """
    x = values.checked(x, "x")
    if isinstance(x, tuple | list | dict):
        raise ValueError(f"x is a {type(x).__name__}: a collective takes one array; call it once for each")
    return x
