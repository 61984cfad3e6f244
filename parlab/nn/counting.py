"""The arrays that a piece keeps, found in its cache: how many bytes they are is counted, not computed.

>>> import numpy as np
>>> from parlab.nn.linear import linear
>>> y, cache = linear(np.ones((3, 4)), np.ones((4, 5)))
>>> itemize({"x": cache})  # 12 numbers of 8 bytes
{'x': 96}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from parlab.arrays import Array, is_array, nbytes, owning_buffer


def itemize(cache: Any) -> dict[str, int]:
    """The bytes of each array of a cache, by its place there (`mlp.gate`); a shared array counts where it comes first.

    A view counts as the whole array that it looks into, because it keeps all of its memory alive.
    """
    items: dict[str, int] = {}
    seen: set[int] = set()
    for place, x in _arrays(cache, ""):
        buffer = owning_buffer(x)
        if id(buffer) not in seen:
            seen.add(id(buffer))
            items[place] = nbytes(buffer)
    return items


def arrays_in(cache: Any) -> Iterator[Array]:
    """The arrays in a cache, which may hold anything else as well."""
    return (x for _, x in _arrays(cache, ""))


def _arrays(cache: Any, place: str) -> Iterator[tuple[str, Array]]:
    """Each array in nested tuples, lists and dictionaries, with its place: names and numbers joined by dots."""
    if is_array(cache):
        yield place, cache
        return
    if isinstance(cache, tuple | list):
        cache = dict(zip(getattr(cache, "_fields", range(len(cache))), cache, strict=True))
    if isinstance(cache, dict):
        for name, item in cache.items():
            yield from _arrays(item, f"{place}.{name}" if place else str(name))
