"""The values of messages: an array, or nested tuples, lists and dicts (string keys, sorted) of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parlab import arrays

Value = Any  # an array, or a tuple, list or dict of Values

NUMBERS = frozenset("biufc")  # NumPy's kinds of boolean, integer, unsigned, float and complex


def checked(value: Value, argument: str) -> Value:
    """`value` itself, if a message can carry it. A NumPy scalar becomes an array without axes, and a memory map, as any
    array of a subclass, becomes a plain array.

    Raises:
        ValueError: it holds anything but arrays of numbers in this machine's byte order.
    """
    if type(value) is np.ndarray and value.dtype.kind in NUMBERS and value.dtype.isnative:
        return value
    if isinstance(value, tuple | list):
        return rebuilt(value, [checked(item, f"{argument}[{i}]") for i, item in enumerate(value)])
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{argument} has the key {key!r}: the keys of a message are strings")
        return {key: checked(value[key], f"{argument}[{key!r}]") for key in sorted(value)}
    if not arrays.is_array(value):
        raise ValueError(
            f"{argument} is {value!r:.60} ({type(value).__name__}): a message carries arrays, or tuples, lists and "
            "dicts of arrays; wrap numbers in an array"
        )
    if not isinstance(value, np.ndarray | np.generic):
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{argument} is a masked array: a message carries no mask; fill it, or send data and mask")
    if value.dtype.kind not in NUMBERS:
        raise ValueError(f"{argument} has dtype {value.dtype}: a message carries numbers")
    if not value.dtype.isnative:
        raise ValueError(
            f"{argument} has dtype {value.dtype.str}: a message carries numbers in this machine's byte order; use "
            "x.astype(x.dtype.newbyteorder('='))"
        )
    return np.asarray(value)


def one_array(x: Any) -> arrays.Array:
    """`x`, if a collective can take it: one array."""
    x = checked(x, "x")
    if isinstance(x, tuple | list | dict):
        raise ValueError(f"x is a {type(x).__name__}: a collective takes one array; call it once for each")
    return x


def rebuilt(value: Any, items: list[Any]) -> Any:
    """A tuple or list of the type of `value`, which may be a named tuple."""
    return value._make(items) if hasattr(value, "_make") else type(value)(items)


def leaves(value: Value) -> Iterator[Any]:
    """The arrays in `value`, in the order in which they travel."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def nbytes(value: Value) -> int:
    """Bytes of all arrays in `value`."""
    if type(value) is np.ndarray:
        return value.nbytes
    return sum(arrays.nbytes(leaf) for leaf in leaves(value))


def mapped(function: Callable[[Any], Any], value: Value) -> Value:
    """`value` with `function(array)` in the place of every array."""
    if isinstance(value, tuple | list):
        return rebuilt(value, [mapped(function, item) for item in value])
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return function(value)


def copied(value: Value) -> Value:
    """`value` with every array copied into C order."""
    return value.copy() if type(value) is np.ndarray else mapped(_copy, value)


def _copy(x: Any) -> Any:
    return x.copy() if hasattr(x, "copy") else arrays.namespace(x).asarray(x, copy=True)


class Template:
    """Shape and dtype of an expected array. It does not refer to the array, which may die."""

    __slots__ = ("dtype", "shape")

    def __init__(self, x: Any):
        self.shape = x.shape
        self.dtype = x.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * arrays.itemsize(self.dtype)


def template(value: Value) -> Value:
    """`value` with a `Template` in the place of every array."""
    return Template(value) if type(value) is np.ndarray else mapped(Template, value)


def same_form(value: Value, like: Value) -> bool:
    """Whether `value` has the nesting, shapes and dtypes of `like`."""
    if type(value) is np.ndarray and type(like) in (np.ndarray, Template):
        return value.shape == like.shape and value.dtype == like.dtype
    if isinstance(value, dict):
        return (
            isinstance(like, dict) and value.keys() == like.keys() and all(same_form(value[k], like[k]) for k in value)
        )
    if isinstance(value, tuple | list):
        return type(value) is type(like) and len(value) == len(like) and all(map(same_form, value, like))
    return not isinstance(like, dict | tuple | list) and value.shape == like.shape and value.dtype == like.dtype


def form(value: Value, shape: tuple[Any, ...] | None = None) -> str:
    """Nesting, dtypes and shapes as text: `float32[4, 8]`, `(int64[3], {'k': float64[]})`, `Pair(int64[], int64[])`;
    `shape` to show another.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {form(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, tuple | list):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        named = "" if type(value) in (tuple, list) else type(value).__name__
        return named + opening + ", ".join(form(item) for item in value) + closing
    return f"{str(value.dtype).rpartition('.')[2]}[{', '.join(map(str, value.shape if shape is None else shape))}]"
