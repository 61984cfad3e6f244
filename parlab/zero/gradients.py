"""G, the gradients of all blocks: whole until the step, or with their owners at once; sent beside the backward pass.

Invariant: a microbatch's gradients are in exactly one reduce-scatter of a step: whole gradients are reduced once, with
the last microbatch, sharded ones after each. `reduced()` is the sum over all ranks and microbatches.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.world import Request
from parlab.zero.shards import FlatLayout

GRADIENTS, LEAVING = "gradients", "gradients on their way"  # names of memory


class WholeGradients:
    """Stage 1, and 2 and 3 with `accumulate`: this rank's gradients of all n weights of a block, until the step.

    Args:
        layouts: of the blocks.
        dtype: of the gradients.
    """

    def __init__(self, layouts: Mapping[str, FlatLayout], dtype: Any) -> None:
        self.layouts, self.dtype = layouts, dtype
        self.whole: dict[str, Array] = {}  # [n] by block
        self.requests: dict[str, Request] = {}

    def add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        """Add one microbatch. The last one, `complete`, starts the reduction."""
        layout = self.layouts[block]
        flat = layout.pack(gradients, self.dtype)  # [n]
        if block in self.whole:
            self.whole[block] += flat
        else:
            self.whole[block] = flat
            layout.group.hold(GRADIENTS, flat)
        if complete:
            self.requests[block] = layout.group.ireduce_scatter(self.whole[block], counts=layout.counts)

    def reduced(self) -> dict[str, Array]:
        """The sums over ranks, `[n_r]` by block: each in its place among this rank's own gradients."""
        sums = {}
        for block, layout in self.layouts.items():
            sums[block] = self.whole[block][layout.own]  # a view
            sums[block][...] = self.requests[block].wait()
        return sums

    def free(self) -> None:
        """Forget the gradients."""
        self.whole, self.requests = {}, {}


class Leaving(NamedTuple):
    """Gradients on their way to their owners."""

    block: str
    gradients: Array  # [n]
    request: Request


class ShardedGradients:
    """Stages 2 and 3: the sums over ranks and microbatches of the n_r gradients of a block that this rank owns.

    Args:
        layouts, dtype: as for `WholeGradients`.
    """

    def __init__(self, layouts: Mapping[str, FlatLayout], dtype: Any) -> None:
        self.layouts, self.dtype = layouts, dtype
        self.sums: dict[str, Array] = {}  # [n_r] by block
        self.leaving: Leaving | None = None

    def add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        """Send one microbatch's gradients to their owners at once: no rank keeps them whole."""
        self._finish()  # so those of at most one block are on their way
        layout = self.layouts[block]
        flat = layout.pack(gradients, self.dtype)  # [n]
        layout.group.hold(LEAVING, flat)
        self.leaving = Leaving(block, flat, layout.group.ireduce_scatter(flat, counts=layout.counts))

    def _finish(self) -> None:
        """Wait for the reduction, free the whole gradients, and keep this rank's shard of their sum."""
        if self.leaving is None:
            return
        block, shard = self.leaving.block, self.leaving.request.wait()  # [n_r]
        self.leaving = None
        if block in self.sums:
            self.sums[block] += shard
        else:
            self.sums[block] = shard
            self.layouts[block].group.hold(GRADIENTS, shard)

    def reduced(self) -> dict[str, Array]:
        """The sums over ranks and microbatches, `[n_r]` by block."""
        self._finish()
        return {block: self.sums[block] for block in self.layouts}

    def free(self) -> None:
        """Forget the gradients."""
        self.sums = {}
