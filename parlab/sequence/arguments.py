"""Checks of arguments that several files of this room share. All others stand at the door of their function."""

from __future__ import annotations

from typing import Any

from parlab.arguments import whole
from parlab.arrays import is_array
from parlab.world.units import several


def list_like(name: str, value: Any) -> Any:
    """`value`, a list, tuple, range or array.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) or not (hasattr(value, "__len__") or is_array(value)):
        raise ValueError(f"{name}={value!r:.60}: must be a list")
    return value


def checked_group(name: str, ranks: int, size: int) -> int:
    """`ranks`, the argument called `name`, if so many of `size` ranks can form a group; else a ValueError."""
    if whole(name, ranks) < 1 or size % ranks:
        divisors = [number for number in range(1, size + 1) if size % number == 0]
        raise ValueError(f"{name}={ranks}: must divide the {several(size, 'rank')}: use one of {divisors}")
    return ranks
