"""What the collectives ask of their arguments, beyond an array and a root."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from parlab.arguments import whole
from parlab.arrays import Array, is_array
from parlab.world.collectives.common import cut
from parlab.world.collectives.doubling import power_of_two_below


def check_power_of_two(algorithm: str | None, size: int) -> None:
    """Refuse recursive halving or doubling, where it takes no other number of ranks.

    Raises:
        ValueError: `size` is not a power of two.
    """
    if algorithm in ("recursive_doubling", "recursive_halving") and size != power_of_two_below(size):
        raise ValueError(f"algorithm={algorithm!r}: needs a power of two of ranks, not {size}; use ring")


def checked_ranks_per_node(value: Any, size: int) -> int:
    """`value` as the number of ranks a node.

    Raises:
        ValueError: it is missing, or does not divide the group.
    """
    if value is None or (per_node := whole("ranks_per_node", value)) < 1 or size % per_node:
        raise ValueError(
            f"ranks_per_node={value!r}: the hierarchical algorithm needs a divisor of {size}, the group's size"
        )
    return per_node


def checked_counts(
    counts: Sequence[int] | None, size: int, algorithm: str | None, own: int, rank: int
) -> list[int] | None:
    """The lengths of all ranks' arrays, for an all-gather.

    Raises:
        ValueError: not one a rank, or not this rank's length, or an algorithm that needs equal blocks.
    """
    counts = _lengths(counts, size, algorithm)
    if counts is not None and counts[rank] != own:
        raise ValueError(f"counts={counts}: rank {rank} has {own} elements along the axis, not {counts[rank]}")
    return counts


def checked_pieces(
    counts: Sequence[int] | None, size: int, algorithm: str | None, x: Array, axis: int
) -> list[int] | None:
    """The lengths of all ranks' pieces, for a reduce-scatter.

    Raises:
        ValueError: as `checked_counts`, or the lengths do not add up, or without `counts` the axis does not divide.
    """
    counts = _lengths(counts, size, algorithm)
    if counts is None:
        cut(x, axis, size, "axis")
    elif sum(counts) != x.shape[axis]:
        raise ValueError(f"counts={counts}: they add up to {sum(counts)}, but the axis has {x.shape[axis]} elements")
    return counts


def check_out(out: Any, x: Array, length: int) -> None:
    """Refuse an array that cannot take `length` numbers gathered from arrays like `x`.

    Raises:
        ValueError: more than one axis, another length or dtype, or it is read-only.
    """
    if out is None:
        return
    if x.ndim != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}: with out=, arrays of one axis are gathered")
    if not is_array(out) or tuple(out.shape) != (length,) or out.dtype != x.dtype:
        found = f"{tuple(out.shape)} {out.dtype}" if is_array(out) else type(out).__name__
        raise ValueError(f"out is {found}: an array {(length,)} of {x.dtype} is needed")
    flags = getattr(getattr(out, "_array", out), "flags", None)  # array-api-strict wraps a NumPy array
    if not getattr(flags, "writeable", True):
        raise ValueError("out is read-only: the result is written there; pass an array of your own, or a copy")


def _lengths(counts: Sequence[int] | None, size: int, algorithm: str | None) -> list[int] | None:
    if counts is None:
        return None
    try:
        lengths = [operator.index(count) for count in counts]
    except TypeError:
        lengths = []
    if len(lengths) != size or min(lengths) < 0:
        raise ValueError(f"counts={counts!r}: needs one length, at least 0, for each of the {size} ranks")
    if algorithm not in (None, "ring"):
        raise ValueError(f"counts={counts!r}: algorithm={algorithm!r} needs equal pieces; use ring")
    return lengths
