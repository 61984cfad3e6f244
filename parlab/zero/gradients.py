"""The gradients of one block of n weights in ZeRO's stages: whole until the step, or with their owners at once.

The table of the three stages stands in `weights.py`. The reduce-scatters run beside the backward pass.

Invariant: a microbatch's gradients are in exactly one reduce-scatter of a step: whole gradients are reduced once, with
the last microbatch, sharded ones after each. `reduced()` is the sum over all ranks and microbatches.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arrays import Array
from parlab.world import Comm, Request
from parlab.zero.accounting import GRADIENTS, LEAVING
from parlab.zero.shards import FlatLayout


class WholeGradients:
    """G of stage 1, and of 2 and 3 with `accumulate`: this rank's gradients of all n weights.

    They are reduced once, with the last microbatch.

    Args:
        comm: the ranks among which the block is cut.
        layout: of the block.
        dtype: of the gradients.
    """

    def __init__(self, comm: Comm, layout: FlatLayout, dtype: Any) -> None:
        self.comm, self.layout, self.dtype = comm, layout, dtype
        self.whole: Array | None = None  # [n]
        self.request: Request | None = None

    def add(self, gradients: Mapping[str, Array], complete: bool) -> None:
        """Add one microbatch. The last one (`complete`) starts the reduction, which runs beside the backward pass."""
        flat = self.layout.pack(gradients, self.dtype)  # [n]
        if self.whole is None:
            self.whole = flat
            self.comm.hold(GRADIENTS, flat)
        else:
            self.whole += flat
        if complete:
            self.request = self.comm.ireduce_scatter(self.whole, counts=self.layout.counts)

    def finish(self) -> None:
        """Do nothing: whole gradients stay until the step."""

    def reduced(self) -> Array:
        """Wait for the sum over ranks, `[n_r]`, put it in its place among this rank's own gradients, and return it."""
        assert self.whole is not None  # `add` has been called for every microbatch
        assert self.request is not None
        self.whole[self.layout.own] = self.request.wait()
        return self.whole[self.layout.own]

    def free(self) -> None:
        """Forget the gradients, after a step."""
        self.whole = self.request = None


class ShardedGradients:
    """G of stages 2 and 3: the sum over ranks and microbatches of the n_r gradients that this rank owns."""

    def __init__(self, comm: Comm, layout: FlatLayout, dtype: Any) -> None:
        self.comm, self.layout, self.dtype = comm, layout, dtype
        self.request: Request | None = None
        self.leaving: Array | None = None  # [n], on its way to the owners
        self.sum: Array | None = None  # [n_r]

    def add(self, gradients: Mapping[str, Array], complete: bool) -> None:
        """Send one microbatch's gradients to their owners at once: no rank keeps them whole."""
        self.finish()
        self.leaving = self.layout.pack(gradients, self.dtype)  # [n]
        self.comm.hold(LEAVING, self.leaving)
        self.request = self.comm.ireduce_scatter(self.leaving, counts=self.layout.counts)

    def finish(self) -> None:
        """Wait for the reduction, free the whole gradients, and keep this rank's shard of their sum."""
        if self.request is None:
            return
        shard = self.request.wait()  # [n_r]
        self.request = self.leaving = None
        if self.sum is None:
            self.sum = shard
            self.comm.hold(GRADIENTS, shard)
        else:
            self.sum += shard

    def reduced(self) -> Array:
        """Wait for the sum over ranks and microbatches, `[n_r]`, and return it."""
        self.finish()
        return self.sum

    def free(self) -> None:
        """Forget the gradients, after a step."""
        self.sum = self.leaving = None
