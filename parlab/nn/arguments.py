"""The array library that a model or a text is asked for."""

from __future__ import annotations

from typing import Any

from parlab.arrays import default_namespace


def library(xp: Any) -> Any:
    """`xp`, or `parlab.arrays.default_namespace()` where it is None.

    Raises:
        ValueError: it is no array library.
    """
    if xp is not None and not hasattr(xp, "int64"):
        raise ValueError(f"xp={xp!r:.60}: an array library such as numpy is needed, or None")
    return xp or default_namespace()
