"""Stage 3 gathers ahead: which blocks come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Prefetch:
    """Says which blocks to gather ahead of the one that is opened now.

    Args:
        blocks: the names, in the order of the forward pass.
        depth: how many blocks are gathered ahead.
    """

    def __init__(self, blocks: Sequence[Any], depth: int) -> None:
        self.blocks, self.depth = blocks, depth
        self.index, self.direction = -1, 1  # of the block opened last; forward: 1, backward: -1
        self.order: list[Any] | None = None  # the blocks that this step will open, the next one last; None: unknown

    def begin(self, order: Sequence[Any] | None) -> None:
        """Begin a step that opens blocks in this order; None: the order is guessed."""
        self.order = None if order is None else list(reversed(order))

    def after(self, block: Any, *, alone: bool) -> list[Any]:
        """The blocks to gather now that `block` is opened.

        Args:
            alone: no other block is in use. A block used beside another, as a tied table is, does not tell the
                direction.

        Raises:
            ValueError: an order was given, and another block is next in it.
        """
        if self.order is not None:
            expected = self.order.pop() if self.order else None
            if expected != block:
                raise ValueError(f"block={block!r}: opened where the order given for this step has {expected!r}")
            return self.order[: -self.depth - 1 : -1]
        return self._in_direction(self.blocks.index(block)) if alone else []

    def _in_direction(self, index: int) -> list[Any]:
        """The next blocks: up in the forward pass, down in the backward. A block opened twice in a row is the turn."""
        if index == self.index:
            self.direction = -self.direction
        elif self.index >= 0:
            self.direction = 1 if index > self.index else -1
        self.index = index
        left = index if self.direction < 0 else len(self.blocks) - 1 - index
        return [self.blocks[index + self.direction * ahead] for ahead in range(1, min(self.depth, left) + 1)]
