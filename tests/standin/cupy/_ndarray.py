"""An array that refuses what CuPy's refuses, and functions of NumPy that take and return such arrays."""

from __future__ import annotations

import operator
import sys
from functools import reduce
from typing import Any

import numpy

NOT_METHODS = {"__contains__", "__imatmul__", "__index__", "ctypes", "resize", "setflags", "to_device", "view"}


class ndarray:  # noqa: N801
    """See `cupy.ndarray`."""

    __slots__ = ("__weakref__", "_array")
    __array_priority__ = 100

    def __init__(self, array: numpy.ndarray):
        self._array = array

    def __reduce__(self) -> Any:
        return ndarray, (self._array,)

    def get(self) -> numpy.ndarray:
        """See `cupy.ndarray.get`."""
        return self._array.copy()

    @property
    def device(self) -> Any:
        """The only one."""
        return sys.modules["cupy"].cuda.Device()

    @property
    def shape(self) -> tuple[int, ...]:
        """It may be set."""
        return self._array.shape

    @shape.setter
    def shape(self, shape: tuple[int, ...]) -> None:
        self._array = self._array.reshape(shape, copy=False)

    def view(self, dtype: Any = None) -> ndarray:
        """See `cupy.ndarray.view`."""
        return ndarray(self._array.view() if dtype is None else self._array.view(dtype))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(getattr(sys.modules["cupy"], ufunc.__name__), method)(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        try:
            module = reduce(getattr, function.__module__.split(".")[1:], sys.modules["cupy"])
            return getattr(module, function.__name__)(*arguments, **options)
        except AttributeError:
            return NotImplemented

    def __iter__(self) -> Any:
        return (ndarray(numpy.asarray(item)) for item in self._array)

    def __setitem__(self, place: Any, value: Any) -> None:
        self._array[bare(place)] = bare(value)

    def __getattr__(self, name: str) -> Any:
        if name in NOT_METHODS or name.startswith("__array"):
            raise AttributeError(f"'ndarray' object has no attribute {name!r}")
        found = getattr(self._array, name)
        return Covered(found) if callable(found) else dressed(found)


def bare(value: Any) -> Any:
    """What NumPy gets."""
    if isinstance(value, ndarray):
        return value._array
    if isinstance(value, numpy.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(map(bare, value))
    return value


def dressed(value: Any) -> Any:
    """What the caller gets."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        return ndarray(numpy.asarray(value))
    if isinstance(value, tuple | list):
        parts = map(dressed, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


class Covered:
    """A function or ufunc of NumPy, between bare arguments and dressed results."""

    def __init__(self, function: Any):
        self._function = function
        self.__name__ = getattr(function, "__name__", "")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        out = options.get("out")
        options = {name: bare(value) for name, value in options.items()}
        result = self._function(*map(bare, arguments), **options)
        return dressed(result) if out is None else out

    def __getattr__(self, name: str) -> Any:  # of a ufunc: reduce, at
        return Covered(getattr(self._function, name))


def _method(name: str) -> Any:
    def method(self: ndarray, *arguments: Any) -> Any:
        result = getattr(self._array, name)(*map(bare, arguments))
        if name.startswith("__i") and name not in ("__invert__", "__int__"):
            return self
        return dressed(result) if name not in LOOKS else result

    return method


LOOKS = ("__bool__", "__int__", "__float__", "__complex__", "__len__", "__repr__", "__str__", "__format__")
for _name in dir(numpy.ndarray):
    turned = _name.startswith("__r") and f"__{_name[3:]}" in vars(operator)  # radd, of add
    if _name in LOOKS or turned or (_name in vars(operator) and _name not in vars(ndarray).keys() | NOT_METHODS):
        setattr(ndarray, _name, _method(_name))
ndarray.__hash__ = None  # type: ignore[assignment]
