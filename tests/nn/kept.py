"""The bytes that a piece keeps for its backward, counted in its cache: what the closed forms are held against."""

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
    for place, x in arrays_by_place(cache):
        buffer = owning_buffer(x)
        if id(buffer) not in seen:
            seen.add(id(buffer))
            items[place] = nbytes(buffer)
    return items


def arrays_by_place(cache: Any, place: str = "") -> Iterator[tuple[str, Array]]:
    """Each array in nested tuples, lists and dictionaries, with its place: names and numbers joined by dots."""
    if is_array(cache):
        yield place, cache
    if isinstance(cache, tuple | list):
        cache = dict(zip(getattr(cache, "_fields", range(len(cache))), cache, strict=True))
    if isinstance(cache, dict):
        for name, item in cache.items():
            yield from arrays_by_place(item, f"{place}.{name}" if place else str(name))
