"""How a result differs from what was expected, in words."""

from __future__ import annotations

from typing import Any

import numpy as np

SHOWN = 8  # elements of an array that are printed


def difference(result: Any, expected: Any) -> str:
    """The end of a sentence that begins with the rank; "" where there is no difference, or nothing is expected.

    Equal means: to 16 units of rounding, so that the order of a sum is free.

    >>> difference(np.ones(2), np.zeros(2))
    'returned [1, 1], expected [0, 0]'
    >>> difference(np.ones(2), None)
    ''
    """
    if expected is None:
        return ""
    if isinstance(expected, tuple):
        return _difference_of_tuples(result, expected)
    if not isinstance(result, np.ndarray | np.generic):
        return f"returned {'None' if result is None else type(result).__name__}, expected {_form(expected)}"
    result = np.asarray(result)
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"returned {_form(result)}, expected {_form(expected)}"
    tolerance = 16 * float(np.finfo(expected.dtype).eps)
    wrong = np.argwhere(~np.isclose(result, expected, rtol=tolerance, atol=0))
    if not len(wrong):
        return ""
    if expected.size <= SHOWN:
        return f"returned {_shown(result)}, expected {_shown(expected)}"
    place = tuple(map(int, wrong[0]))
    index = ", ".join(map(str, place))
    many = f"{len(wrong)} of {expected.size} elements differ"
    return f"returned {result[place]:g} at [{index}], expected {expected[place]:g}; {many}"


def _difference_of_tuples(result: Any, expected: tuple[Any, ...]) -> str:
    if not isinstance(result, tuple | list) or len(result) != len(expected):
        return f"returned {type(result).__name__}, expected a tuple of {len(expected)} arrays"
    for number, (one, other) in enumerate(zip(result, expected, strict=True)):
        if found := difference(one, other):
            return f"{found} (item {number} of the tuple)"
    return ""


def _form(x: Any) -> str:
    return f"{x.dtype}[{', '.join(map(str, x.shape))}]"


def _shown(x: Any) -> str:
    text = np.array2string(x, separator=", ", formatter={"float_kind": lambda value: f"{value:g}"})
    return " ".join(text.split())
