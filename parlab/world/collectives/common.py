"""Helpers of the algorithms: cutting an array into pieces, labels, some ranks of a group, and costs.

The pieces of a flat array are slices of it: where they stand. The pieces of an all-to-all, a scatter or a gather are
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world.cluster import Link

Combine = Callable[[Array, Array], Array]


OPERATIONS = ("sum", "prod", "max", "min")


def combiner(op: str, x: Array) -> Combine:
    """The function of two arrays that `op` names, from the library of `x`; a ValueError, where its dtype has none."""
    xp = namespace(x)
    if op not in OPERATIONS:
        raise ValueError(f"op={op!r}: the operations are {', '.join(OPERATIONS)}")
    if xp.isdtype(x.dtype, "bool"):
        raise ValueError(f"op={op!r}: x is an array of booleans; combine integers, x.astype(int)")
    if op in ("max", "min") and xp.isdtype(x.dtype, "complex floating"):
        raise ValueError(f"op={op!r}: complex numbers have no order; use sum or prod")
    return {"sum": xp.add, "prod": xp.multiply, "max": xp.maximum, "min": xp.minimum}[op]


def piece_sizes(length: int, parts: int) -> list[int]:
    """How `length` elements are cut into `parts` pieces: the first (length mod parts) hold one more.

    >>> piece_sizes(10, 3)
    [4, 3, 3]
    """
    return [length // parts + (part < length % parts) for part in range(parts)]


def pieces_of(sizes: Sequence[int]) -> list[slice]:
    """Consecutive pieces of these sizes."""
    return [slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def power_of_two_below(size: int) -> int:
    """The largest power of two that is at most `size`."""
    return 1 << (size.bit_length() - 1)


def joined(flat: Array, pieces: Sequence[slice]) -> Array:
    """A copy of these pieces of `flat`, one after the other."""
    return namespace(flat).concat([flat[piece] for piece in pieces])


def of_joined(pieces: Sequence[slice]) -> list[slice]:
    """The same pieces of the `joined` array."""
    return pieces_of([piece.stop - piece.start for piece in pieces])


def label_of(how: str, first: int, count: int, parts: int) -> str:
    """The label of a message of `count` pieces, from `first` on around the end of all `parts`. Figures read it.

    >>> label_of("add", 2, 1, 4), label_of("take", 3, 2, 4)
    ('add piece 2', 'take pieces 3-0')
    """
    return f"{how} piece {first}" if count == 1 else f"{how} pieces {first}-{(first + count - 1) % parts}"


def read_label(label: str | None, parts: int) -> tuple[str, list[int]] | None:
    """The way and the pieces of a message that `label_of` labelled, in ascending order; None for another label.

    >>> read_label("take pieces 3-0", 4)
    ('take', [0, 3])
    """
    ways = [(how, first, count) for how in ("add", "take") for first in range(parts) for count in range(1, parts + 1)]
    labels = {label_of(how, first, count, parts): (how, first, count) for how, first, count in ways}
    if label not in labels:
        return None
    how, first, count = labels[label]
    return how, sorted((first + number) % parts for number in range(count))


def labels_of(how: str, parts: int, count: int, *, sent: int, received: int) -> dict[str, str]:
    """The labels of the two messages of an exchange, each of `count` pieces: from piece `sent` and `received` on."""
    return {"label": label_of(how, sent, count, parts), "expected": label_of(how, received, count, parts)}


def flat_copy(x: Array) -> Array:
    """The elements of `x` in C order, in memory of their own."""  # [n]
    xp = namespace(x)
    return xp.reshape(xp.asarray(x, copy=True), (-1,))


def equal_lengths(x: Array, axis: int, parts: int, name: str, otherwise: str = "") -> list[int]:
    """The lengths of `parts` equal pieces of `x` along `axis`, the argument called `name`.

    Raises:
        ValueError: it does not divide; `otherwise` says what else would help.
    """
    length = x.shape[axis]
    if length % parts:
        raise ValueError(
            f"{name}={axis}: {length} elements along this axis do not divide among {parts} ranks; use a multiple of "
            f"{parts}, or pad{otherwise}"
        )
    return [length // parts] * parts


def cut(x: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """Pieces of `x` of these sizes along `axis`."""
    return [x[(slice(None),) * axis + (piece, ...)] for piece in pieces_of(sizes)]


class Subset:
    """Some ranks of a group, renumbered 0, 1, ...: the same messages under other numbers."""

    def __init__(self, comm: Any, members: Sequence[int]):
        self.comm = comm
        self.members = members
        self.rank = members.index(comm.rank)
        self.size = len(members)
        self.left = (self.rank - 1) % self.size
        self.right = (self.rank + 1) % self.size

    def sendrecv(self, x: Array, dst: int, src: int, like: Array | None = None, **labels: str) -> Array:
        """As `Comm.sendrecv`, between ranks of the subset."""
        return self.comm.sendrecv(x, self.members[dst], self.members[src], like, **labels)


@dataclass(frozen=True)
class Cost:
    """The closed form of one collective.

    Attributes:
        messages: how many messages each rank sends.
        nbytes: how many bytes each rank sends.
        picoseconds: from the moment when all ranks enter together to the moment when all have the result, on links of
            equal speed with one port each way.
    """

    messages: list[int]
    nbytes: list[int]
    picoseconds: int

    def __add__(self, then: Cost) -> Cost:
        """The cost of one collective and of another after it."""
        return Cost(
            [a + b for a, b in zip(self.messages, then.messages, strict=True)],
            [a + b for a, b in zip(self.nbytes, then.nbytes, strict=True)],
            self.picoseconds + then.picoseconds,
        )


def cost_of_steps(size: int, nbytes: Sequence[int], link: Link) -> Cost:
    """The cost of messages of these sizes, one after the other, from each of `size` ranks."""
    return cost_of_uneven_steps(size, [[of_step] * size for of_step in nbytes], link)


def cost_of_uneven_steps(size: int, nbytes: Sequence[Sequence[int]], link: Link) -> Cost:
    """The cost of steps in which rank r sends one message, of `nbytes[step][r]`; the longest sets the step's pace."""
    sent = [sum(of_step[rank] for of_step in nbytes) for rank in range(size)]
    return Cost([len(nbytes)] * size, sent, sum(link.picoseconds(max(of_step)) for of_step in nbytes))
