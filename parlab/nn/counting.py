"""The arrays that a piece keeps, found in its cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parlab.arrays import Array, is_array


def arrays_in(cache: Any) -> Iterator[Array]:
    """The arrays in nested tuples, lists and dictionaries, which may hold anything else as well.

    >>> import numpy as np
    >>> [x.size for x in arrays_in({"x": np.ones(4), "more": (np.ones(2), None)})]
    [4, 2]
    """
    if is_array(cache):
        yield cache
    elif isinstance(cache, tuple | list | dict):
        for item in cache.values() if isinstance(cache, dict) else cache:
            yield from arrays_in(item)
