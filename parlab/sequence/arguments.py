"""A check of arguments that several files of this room share. All others stand at the door of their function."""

from __future__ import annotations

from typing import Any

from parlab.arrays import is_array


def list_like(name: str, value: Any) -> Any:
    """`value`, a list, tuple, range or array.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str) or not (hasattr(value, "__len__") or is_array(value)):
        raise ValueError(f"{name}={value!r:.60}: must be a list")
    return value
