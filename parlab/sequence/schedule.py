"""Who sends what to whom in ring attention, and which part of each arriving block is work.

A mask is never made for a block: in all three layouts what a rank's queries see of an arriving block is either a
rectangle or a triangle, and this file says which.

Source: Liu et al. 2023, "Ring Attention", algorithm 1; Brandon et al. 2023, "Striped Attention", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlab.nn.attention import CAUSAL, STRICT
from parlab.sequence.layouts import check_layout


@dataclass(frozen=True)
class RingStep:
    """One hop: what a rank holds goes to `send_to`; what comes from `recv_from` is the K/V of rank `kv_source`."""

    step: int
    send_to: int
    recv_from: int
    kv_source: int


@dataclass(frozen=True)
class Block:
    """The part of a block that is work: the first and last of the shard's queries and keys, and how they are masked.

    `diagonal` None: each of these queries sees each of these keys; else query i sees keys 0..i + diagonal.
    """

    queries: slice
    keys: slice
    diagonal: int | None = None

    @property
    def mask(self) -> str:
        """full, causal (query i sees keys 0..i) or strict (keys 0..i−1)."""
        return {None: "full", CAUSAL: "causal", STRICT: "strict"}[self.diagonal]

    @property
    def pairs(self) -> int:
        """How many (query, key) pairs are unmasked.

        >>> Block(slice(0, 4), slice(0, 4), CAUSAL).pairs, Block(slice(0, 4), slice(0, 4), STRICT).pairs
        (10, 6)
        """
        queries, keys = self.queries.stop - self.queries.start, self.keys.stop - self.keys.start
        return queries * keys if self.diagonal is None else queries * (queries + 1) // 2 + self.diagonal * queries


class RingSchedule:
    """What rank `rank` of `size` does: `size − 1` hops, for its own K/V need not travel to it.

    Raises:
        ValueError: no such rank.

    >>> [step.kv_source for step in RingSchedule(rank=0, size=4).steps]
    [3, 2, 1]
    >>> [RingSchedule(rank=2, size=4).mask(source) for source in range(4)]
    ['full', 'full', 'causal', 'none']
    """

    def __init__(self, rank: int, size: int):
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank}: a ring of {size} has ranks 0 to {size - 1}")
        self.rank = rank
        self.size = size
        right, left = (rank + 1) % size, (rank - 1) % size
        self.steps = [RingStep(step, right, left, kv_source=(rank - step - 1) % size) for step in range(size - 1)]

    def block(self, source: int, length: int, layout: str = "contiguous", *, causal: bool = True) -> Block | None:
        """The work of this rank on the K/V of rank `source`; None when its queries see none of it.

        Args:
            source: the rank whose shard the K/V is.
            length: tokens in a shard, S/P.
            layout: contiguous, zigzag or striped.
            causal: False: every query sees every key.

        Raises:
            ValueError: no such rank or layout, or an odd shard in zigzag.
        """
        check_layout(length * self.size, self.size, layout)
        if not 0 <= source < self.size:
            raise ValueError(f"source={source}: a ring of {self.size} has ranks 0 to {self.size - 1}")
        everything, half = slice(0, length), length // 2
        if not causal:
            return Block(everything, everything)
        if source == self.rank:
            return Block(everything, everything, CAUSAL)  # in every layout a shard's tokens stand in their order
        earlier = source < self.rank
        if layout == "striped":  # query i is token i·P + rank, key i is token i·P + source
            return Block(everything, everything, CAUSAL if earlier else STRICT)
        if (
            layout == "zigzag"
        ):  # earlier: only its early chunk lies before ours; later: both its chunks before our late one
            return Block(everything, slice(0, half)) if earlier else Block(slice(half, length), everything)
        return Block(everything, everything) if earlier else None

    def mask(self, source: int, layout: str = "contiguous", *, causal: bool = True) -> str:
        """full, causal, strict or none: the mask on what `block` selects (in zigzag, half of the queries or keys).

        Raises:
            ValueError: no such rank or layout.
        """
        block = self.block(source, 2, layout, causal=causal)
        return "none" if block is None else block.mask
