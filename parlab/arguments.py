"""Checks of arguments, for all rooms.

A rule is a function `rule(name, value)` that raises a ValueError with the argument's name, its value, and what would be
right. A public function calls the rules of its arguments first. Where a room has many functions with the same arguments
(`views`), it keeps a table of rules by argument name, and `@checked(RULES)` applies them:

>>> from functools import partial
>>> RULES = {"size": partial(whole, least=1), "causal": flag, "scale": optional(positive)}
>>> @checked(RULES)
... def attention(q, size, causal=False, scale=None):
...     return "attended"
>>> attention([], 2, causal="no")
Traceback (most recent call last):
ValueError: causal='no': must be True or False
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, TypeVar

from parlab.arrays import Array

Rule = Callable[[str, Any], Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def checked(rules: Mapping[str, Rule]) -> Callable[[Function], Function]:
    """A decorator: each argument that the caller gives and whose name stands in `rules` passes its rule first."""

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        relevant = {name: rule for name, rule in rules.items() if name in signature.parameters}

        @functools.wraps(function)
        def checked_function(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind_partial(*args, **kwargs).arguments  # Python names what is missing
            for name, value in given.items():  # in the order of the parameters: the first bad one is named
                if name in relevant:
                    relevant[name](name, value)
            return function(*args, **kwargs)

        return checked_function  # type: ignore[return-value]

    return decorate


def optional(rule: Rule) -> Rule:
    """The rule that accepts None too."""

    def optional_rule(name: str, value: Any) -> Any:
        return None if value is None else rule(name, value)

    return optional_rule


def whole(name: str, value: Any, least: int | None = None, otherwise: str = "") -> int:
    """`value` as an int; `otherwise` says what else there is.

    Raises:
        ValueError: it is not a whole number, or less than `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f", at least {least}"
        raise ValueError(f"{name}={value!r:.60}: must be a whole number{bound}{otherwise}")
    return number


def amount(name: str, value: Any, least: float = 0, below: float = math.inf) -> None:
    """Refuse what is no number from `least` on, finite or even less than `below`.

    Raises:
        ValueError: so it is.
    """
    if not _is_real(value) or not least <= value < below:
        bound = "finite" if below == math.inf else f"less than {below}"
        raise ValueError(f"{name}={value!r:.60}: must be a number, at least {least} and {bound}")


def positive(name: str, value: Any, *, finite: bool = False) -> None:
    """Refuse what is no number greater than 0, or not `finite` where it must be.

    Raises:
        ValueError: so it is.
    """
    if not _is_real(value) or not value > 0 or (finite and value == math.inf):
        raise ValueError(f"{name}={value!r:.60}: must be a number greater than 0{' and finite' if finite else ''}")


def finite(name: str, value: Any) -> None:
    """Refuse what is no number, or none that one can compute with.

    Raises:
        ValueError: so it is.
    """
    if not _is_real(value) or not -math.inf < value < math.inf:
        raise ValueError(f"{name}={value!r:.60}: must be a finite number")


def flag(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: a text such as "no" would count as True.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r:.60}: must be True or False")


def instance(name: str, value: Any, kind: type) -> None:
    """Refuse what is no `kind`.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ValueError(f"{name}={value!r:.60}: must be {article} {kind.__name__}")


def text(name: str, value: Any) -> str:
    """`value`, a name that a timeline shows.

    Raises:
        ValueError: it is not a string.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}={value!r:.60}: must be a string")
    return value


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a choice that there is not.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r:.60}: use one of {', '.join(choices)}")


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


def _is_real(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # an int beyond every float
        return False
    return True
