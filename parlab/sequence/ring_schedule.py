"""The hops of one rank of a ring as data, with the tile and the mask of each: for lessons and drawings.

Source: Liu et al. 2023, "Ring Attention", algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlab.arguments import whole
from parlab.sequence.tiles import Tile, sharded_mask, tiles_between


@dataclass(frozen=True)
class RingStep:
    """One hop: the rank sends the K/V that it holds to `send_to`, and takes those of `kv_source` from `recv_from`."""

    step: int
    send_to: int
    recv_from: int
    kv_source: int


class RingSchedule:
    """The hops of rank `rank` of `size`: P − 1, for its own K/V need not travel to it; and the tiles that it attends.

    >>> [step.kv_source for step in RingSchedule(rank=0, size=4).steps]
    [3, 2, 1]
    >>> [RingSchedule(rank=2, size=4).mask(source) for source in range(4)]
    ['full', 'full', 'causal', 'none']
    """

    def __init__(self, rank: int, size: int):
        if not 0 <= whole("rank", rank) < whole("size", size):
            raise ValueError(f"rank={rank}: a ring of {size} has ranks 0 to {size - 1}")
        self.rank, self.size = rank, size
        right, left = (rank + 1) % size, (rank - 1) % size
        self.steps = [RingStep(step, right, left, kv_source=(rank - step - 1) % size) for step in range(size - 1)]

    def tile(self, source: int, length: int, layout: str = "contiguous", *, causal: bool = True) -> Tile | None:
        """The tile that this rank attends of the K/V of rank `source`; None when no query sees any of them."""
        if not 0 <= source < self.size:
            raise ValueError(f"source={source}: a ring of {self.size} has ranks 0 to {self.size - 1}")
        return next(iter(tiles_between(self.rank, source, sharded_mask(self.size, length, causal, layout))), None)

    def mask(self, source: int, layout: str = "contiguous", *, causal: bool = True) -> str:
        """full, causal, strict or none: the mask on what `tile` selects (in zigzag, half of the queries or keys)."""
        tile = self.tile(source, 2, layout, causal=causal)  # shards of two tokens: the mask is the same for all
        return "none" if tile is None else tile.mask
