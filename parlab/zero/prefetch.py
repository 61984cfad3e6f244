"""Which block stage 3 of ZeRO gathers ahead, while another is in use.

Invariant: where a step's order is told, the block ahead is the next one in it. Where none is told, it is a guess: the
neighbour in the direction of the pass, and a wrong guess costs a gather and its memory, never a wrong weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any


class Prefetch:
    """The order of a step's blocks, told or guessed, and how far it has come.

    Args:
        blocks: the names, in the order of the forward pass.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.blocks = blocks
        self.index, self.direction = -1, 1  # of the block opened last; forward: 1, backward: -1
        self.order: deque[Any] | None = None  # the blocks that this step will open, the next one first; None: unknown

    def begin(self, order: Sequence[Any] | None) -> None:
        """Begin a step that opens blocks in this order; None: the order is guessed."""
        self.order = None if order is None else deque(order)

    def after(self, block: Any, *, alone: bool) -> Any:
        """The block to gather now that `block` is opened, or None.

        Args:
            alone: no other block is in use. A block used beside another, as a tied table is, does not tell the
                direction.

        Raises:
            ValueError: an order was given, and another block is next in it.
        """
        if self.order is not None:
            expected = self.order.popleft() if self.order else None
            if expected != block:
                raise ValueError(f"block={block!r}: opened where the order given for this step has {expected!r}")
            return self.order[0] if self.order else None
        return self._in_direction(self.blocks.index(block)) if alone else None

    def _in_direction(self, index: int) -> Any:
        """The next block: up in the forward pass, down in the backward. A block opened twice in a row ends one pass and
        begins the other.
        """
        if index == self.index:
            self.direction = -self.direction
        elif self.index >= 0:
            self.direction = 1 if index > self.index else -1
        self.index = index
        ahead = index + self.direction
        return self.blocks[ahead] if 0 <= ahead < len(self.blocks) else None
