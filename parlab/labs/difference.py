"""The difference between a result and the expected one, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from parlab.arrays import Array
from parlab.labs.results import Foreign

SHOWN = 8  # elements of an array that are printed


def difference(result: Any, expected: Any, rtol: float | None = None, atol: float = 0.0) -> str:
    """The second half of a sentence that begins with a rank; "" if nothing differs, or nothing is expected.

    Equal arrays have the same shape and dtype, and differ by 16 units of rounding at most, or by `rtol` and `atol`: the
    order of a sum is free.

    >>> difference(np.ones(2), np.zeros(2))
    'returned [1, 1], expected [0, 0]'
    >>> difference(np.ones(2), None)
    ''
    """
    if expected is None:
        return ""
    if isinstance(expected, tuple):
        return _difference_of_tuples(result, expected, rtol, atol)
    if not isinstance(result, np.ndarray | np.generic):
        return f"returned {kind(result)}, expected {_form(expected)}"
    result = np.asarray(result)
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"returned {_form(result)}, expected {_form(expected)}"
    rtol = 16 * float(np.finfo(expected.dtype).eps) if rtol is None else rtol
    wrong = np.argwhere(~np.isclose(result, expected, rtol=rtol, atol=atol))
    if not len(wrong):
        return ""
    place = tuple(map(int, wrong[0]))
    if expected.size <= SHOWN:
        digits = _digits(result[place], expected[place])
        return f"returned {_shown(result, digits)}, expected {_shown(expected, digits)}"
    one, other = apart(result[place], expected[place])
    index = ", ".join(map(str, place))
    return f"returned {one} at [{index}], expected {other}; {len(wrong)} of {expected.size} elements differ"


def apart(found: Any, expected: Any) -> tuple[str, str]:
    """Two different numbers as text, with enough digits to show the difference.

    >>> apart(10200.04, 10200.0)
    ('10200.04', '10200')
    """
    digits = _digits(found, expected)
    return f"{found:.{digits}g}", f"{expected:.{digits}g}"


def _digits(found: Any, expected: Any) -> int:
    """The number of significant digits that shows the difference of two numbers: 6 at least, 17 at most."""
    return next((n for n in range(6, 17) if f"{found:.{n}g}" != f"{expected:.{n}g}"), 17)


def _difference_of_tuples(result: Any, expected: tuple[Any, ...], rtol: float | None, atol: float) -> str:
    if not isinstance(result, tuple | list) or len(result) != len(expected):
        return f"returned {kind(result)}, expected a tuple of {len(expected)} arrays"
    for number, (one, other) in enumerate(zip(result, expected, strict=True)):
        if found := difference(one, other, rtol, atol):
            return f"{found} (item {number} of the tuple)"
    return ""


def likely(causes: Iterable[tuple[str, bool]]) -> list[str]:
    """The line with the first cause that explains the result; none if no cause does."""
    return next(([f"likely cause: {cause}"] for cause, explains in causes if explains), [])


def possible(causes: Iterable[tuple[str, bool]]) -> list[str]:
    """A line with each cause that explains the result: two mistakes may give the same numbers, and both are named.

    >>> possible([("it is doubled", True), ("it is halved", False), ("it is added to itself", True)])
    ['likely cause: it is doubled', 'or: it is added to itself']
    """
    found = dict.fromkeys(cause for cause, explains in causes if explains)
    return [f"{'or' if number else 'likely cause'}: {cause}" for number, cause in enumerate(found)]


def kind(result: Any) -> str:
    """The name of a result's type, as it is shown."""
    return "None" if result is None else result.kind if isinstance(result, Foreign) else type(result).__name__


def brief(result: Any) -> str:
    """A short text for a result of a wrong kind."""
    return "None" if result is None else f"{kind(result)} {result!r:.60}"


def _form(x: Any) -> str:
    return f"{x.dtype}[{', '.join(map(str, x.shape))}]"


def _shown(x: Any, digits: int) -> str:
    text = np.array2string(x, separator=", ", formatter={"float_kind": lambda value: f"{value:.{digits}g}"})
    return " ".join(text.split())


def wrong_arrays(found: Mapping[str, Array], right: Mapping[str, Array]) -> int:
    """Of how many arrays the gradient is wrong by more than 1e-12 of its largest entry.

    >>> import numpy as np
    >>> wrong_arrays({"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones(2), "b": np.array([1, 1 + 1e-9])})
    1
    """
    return sum(not bool(abs(found[name] - one).max() <= 1e-12 * abs(one).max()) for name, one in right.items())
