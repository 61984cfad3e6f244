"""The check of an array library, which models and texts share."""

from __future__ import annotations

from typing import Any


def check_library(xp: Any) -> None:
    """Refuse anything but an array library, or None for the usual one."""
    if xp is not None and not hasattr(xp, "int64"):
        raise ValueError(f"xp={xp!r:.60}: an array library such as numpy is needed, or None")
