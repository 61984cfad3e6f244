"""What this room asks of its arguments, beside what all rooms do."""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array
from parlab.world import values


def one_array(x: Any) -> Array:
    """`x`, which a collective takes: one array of numbers.

    Raises:
        ValueError: it is something else.
    """
    x = values.checked(x, "x")
    if isinstance(x, tuple | list | dict):
        raise ValueError(f"x is a {type(x).__name__}: a collective takes one array; call it once for each")
    return x
