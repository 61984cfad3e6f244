"""A stand-in for a GPU: array-api-strict's second device, whose numbers leave it only where somebody says so.

CuPy waits for the device wherever Python looks at a number: `float(x)`, `if x:`, `range(x)`, a mask as an index. Inside
`guarded()` each of these raises here, and is noted for the case that somebody swallows the error. Arrays of two devices
never meet in one operation. `arrays.to_host` and `arrays.to_numpy` are allowed, and counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import array_api_strict
import numpy as np
import pytest

from parlab.arrays import is_array

DEVICE = array_api_strict.Device("device1")
LOOKS = (
    *("__bool__", "__int__", "__float__", "__complex__", "__index__"),
    *("__iter__", "__contains__", "__array__", "__buffer__", "__repr__", "__str__", "__format__"),
)


class ImplicitConversionError(AssertionError):
    """Somebody looked at numbers on the device without saying so."""


@dataclass
class Conversions:
    """What left the device: the places in the library that asked for it, and those that did not ask."""

    explicit: list[str] = field(default_factory=list)
    implicit: list[str] = field(default_factory=list)


@contextmanager
def guarded() -> Iterator[Conversions]:
    """Within, looking at an array on `DEVICE` raises; after it too, if the error was swallowed."""
    kind, seen = type(array_api_strict.empty(0)), Conversions()

    def look(name: str) -> Any:
        original = getattr(kind, name, None)

        def method(self: Any, *arguments: Any) -> Any:
            if self.device != DEVICE:
                return original(self, *arguments)
            seen.implicit.append(f"{name} at {_place()}")
            raise ImplicitConversionError(seen.implicit[-1])

        return method

    fetch = kind.__dlpack__

    def asked(self: Any, **options: Any) -> Any:
        seen.explicit.append(_place())
        return fetch(self, **options)

    with (
        pytest.MonkeyPatch.context() as patch,
        array_api_strict.ArrayAPIStrictFlags(boolean_indexing=False, data_dependent_shapes=False),
    ):
        for name in LOOKS:
            patch.setattr(kind, name, look(name), raising=False)
        patch.setattr(kind, "__dlpack__", asked)
        yield seen
    if seen.implicit:
        raise ImplicitConversionError(", ".join(seen.implicit))


def _place() -> str:
    """Where the library stands, that is not `parlab.arrays`."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename.endswith(("parlab/arrays.py", "array_api_strict/_array_object.py")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/parlab/')[2]}:{frame.f_lineno}"


def on_device(x: Any) -> Any:
    """NumPy's arrays, in nested tuples, lists and dicts, on the device."""
    return array_api_strict.asarray(np.ascontiguousarray(x) if x.ndim else x, device=DEVICE, copy=True)


def each_array(value: Any) -> Iterator[Any]:
    """The arrays in nested tuples, lists and dicts, by name."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, tuple | list):
        for item in value:
            yield from each_array(item)
    elif is_array(value):
        yield value


@contextmanager
def launches() -> Iterator[Callable[[], int]]:
    """Within, a function that says how many arrays have been made, views included: at most one an operation."""
    kind, made = type(array_api_strict.empty(0)), []
    new = kind._new

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(1)
        return new(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_new", staticmethod(counted))
        yield lambda: len(made)
