"""The checks that several files share; a layout's rules, in columns, are in `parlab.plan.rules`."""

from __future__ import annotations

from typing import Any

from parlab.arguments import whole

MOST_RANKS = 2**20  # a search tries every way to multiply to this
MOST_TOKENS = 10**12  # of a sequence, and sequences of a step: beyond, products of whole numbers overflow


def count(name: str, value: Any, most: int) -> None:
    """Refuse a number that is not whole, or not from 1 to `most`."""
    if whole(name, value, 1) > most:
        raise ValueError(f"{name}={value!r:.60}: must be at most {most}")


def float_itemsize(name: str, value: Any) -> None:
    """Refuse a size that no floating dtype has."""
    if whole(name, value) not in (1, 2, 4, 8):
        raise ValueError(f"{name}={value!r}: an element of a floating dtype has 1, 2, 4 or 8 bytes")
