"""A block's arrays as one flat array.

Source: Zhao et al. 2023, "PyTorch FSDP", section 3.2 (flat parameters, cut block by block).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from parlab.arrays import Array, namespace


class FlatLayout:
    """The arrays of a block, one after the other in one flat array, and this rank's part of it.

    Args:
        arrays: the block's, for their names and shapes.
        counts: elements that each rank owns.
        rank: this one.

    Attributes:
        size: elements of the block.
        own: those of this rank.
        owned: this rank's part, array by array: (name, place in the part, first element of the flat array).
    """

    def __init__(self, arrays: Mapping[str, Array], counts: Sequence[int], rank: int) -> None:
        self.shapes, self.counts = {name: tuple(x.shape) for name, x in arrays.items()}, list(counts)
        self.own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        ends = list(accumulate((x.size for x in arrays.values()), initial=0))
        self.places = {name: slice(start, end) for name, (start, end) in zip(arrays, pairwise(ends), strict=True)}
        self.size = ends[-1]
        self.owned: list[tuple[str, slice, int]] = []
        for name, place in self.places.items():
            first, last = max(place.start, self.own.start), min(place.stop, self.own.stop)
            if first < last:
                inside = slice(first - self.own.start, last - self.own.start)
                self.owned.append((name, inside, first - place.start))

    def pack(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """The arrays as one, in memory of its own: `[n]`."""
        xp = namespace(*arrays.values())
        flat = xp.empty((self.size,), dtype=dtype, device=next(iter(arrays.values())).device)  # [n]
        for name, place in self.places.items():
            flat[place] = xp.astype(xp.reshape(arrays[name], (-1,)), dtype, copy=False)
        return flat

    def pack_own(self, arrays: Mapping[str, Array], dtype: Any) -> Array:
        """This rank's part of them, in memory of its own: `[n_r]`."""
        xp = namespace(*arrays.values())
        return xp.asarray(self.pack(arrays, dtype)[self.own], copy=True)

    def unpack(self, flat: Array) -> dict[str, Array]:
        """Views of `flat`, by name and in shape."""
        xp = namespace(flat)
        return {name: xp.reshape(flat[place], self.shapes[name]) for name, place in self.places.items()}
