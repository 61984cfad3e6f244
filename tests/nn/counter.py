"""Counts the products that are made of arrays: what the closed forms of FLOPs are held against.

>>> counter = Counter()
>>> y, cache = linear(counter.watch(np.ones((3, 4))), counter.watch(np.ones((4, 5))))
>>> counter.products  # 2 · 3 · 4 · 5 multiplications and additions
120
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Counter:
    """Counts what is done to the arrays that it watches, and to all that comes out of them.

    Attributes:
        products: multiplications and additions inside products of matrices and vectors: what papers call FLOPs.
    """

    def __init__(self) -> None:
        self.products = 0
        self._kind = type("Counted", (Counted,), {"counter": self})

    def watch(self, x: np.ndarray) -> Counted:
        """`x`, counted from now on."""
        return x.view(self._kind)

    def count(self, name: str, arguments: list[Any], result: Any) -> None:
        """Note that NumPy's function `name` made `result`."""
        if name in ("matmul", "vecdot"):
            self.products += 2 * result.size * arguments[0].shape[-1]


class Counted(np.ndarray):
    """An array whose operations `counter` sees, and those of the arrays that NumPy makes of it."""

    counter: Counter

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *arguments: Any, out: Any = (), **options: Any) -> Any:
        plain = [_plain(x) for x in arguments]
        if out:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*plain, **options)
        self.counter.count(ufunc.__name__, plain, result)
        return self._watched(result)

    def __array_function__(self, *call: Any) -> Any:
        return self._watched(super().__array_function__(*call))

    def _watched(self, result: Any) -> Any:
        return self.counter.watch(result) if isinstance(result, np.ndarray) else result


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Counted) else x
