"""Counts the operations that are done to arrays: what the closed forms of FLOPs are held against.

>>> counter = Counter()
>>> y, cache = linear(counter.watch(np.ones((3, 4))), counter.watch(np.ones((4, 5))))
>>> counter.products  # 2 · 3 · 4 · 5 multiplications and additions
120
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from parlab.arrays import Array, is_array, namespace


class Counter:
    """Counts what is done to the arrays that it watches, and to all that comes out of them.

    Attributes:
        products: multiplications and additions inside products of matrices and vectors: what papers call FLOPs.
    """

    def __init__(self) -> None:
        self.products = 0

    def watch(self, x: Array) -> Counted:
        """`x`, counted from now on; it stays an array for every function that asks for `namespace(x)`."""
        return Counted(x, self)

    def count(self, name: str, arguments: list[Any], result: Any) -> None:
        """Note that the function `name` of the standard made `result`."""
        if name in PRODUCTS:
            self.products += 2 * result.size * arguments[0].shape[-1]


PRODUCTS = frozenset({"matmul", "vecdot"})


class Counted:
    """An array of any library, whose operations a `Counter` sees: what `Counter.watch` gives."""

    def __init__(self, array: Array, counter: Counter) -> None:
        self.array, self.counter = array, counter

    def __array_namespace__(self, api_version: str | None = None) -> CountedNamespace:
        return CountedNamespace(namespace(self.array), self.counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)  # shape, dtype, ndim, size, device

    def __getitem__(self, key: Any) -> Counted:
        return Counted(self.array[_plain(key)], self.counter)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[_plain(key)] = _plain(value)

    def __float__(self) -> float:
        return float(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def __bool__(self) -> bool:
        return bool(self.array)


class CountedNamespace:
    """The functions of an array library, each of them counted."""

    def __init__(self, xp: Any, counter: Counter) -> None:
        self._xp, self._counter = xp, counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        if isinstance(found, type) or not callable(found):
            return found  # a dtype or a constant
        return _counted(name, found, self._counter)


def _counted(name: str, function: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        plain = [_plain(argument) for argument in arguments]
        result = function(*plain, **{key: _plain(option) for key, option in options.items()})
        counter.count(name, plain, result)
        return Counted(result, counter) if is_array(result) else result

    return call


def _plain(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return type(x)(_plain(item) for item in x)
    return x.array if isinstance(x, Counted) else x


def _operator(name: str, function: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Counted]:
    def call(self: Counted, *other: Any) -> Counted:
        arguments = [self, *other]
        return _counted(name, function, self.counter)(*(reversed(arguments) if swapped else arguments))

    return call


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    _function = getattr(operator, _name)
    setattr(Counted, f"__{_name}__", _operator(_name, _function))
    setattr(Counted, f"__r{_name}__", _operator(_name, _function, swapped=True))
    setattr(Counted, f"__i{_name}__", _operator(_name, getattr(operator, f"i{_name}")))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs"):
    setattr(Counted, f"__{_name}__", _operator(_name, getattr(operator, _name)))
