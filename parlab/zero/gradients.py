"""The gradients of one block: kept whole until the step (stage 1), or only as a shard of their sum (stages 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arrays import Array
from parlab.world import Comm, Request
from parlab.zero.accounting import GRADIENTS, LEAVING
from parlab.zero.shards import Layout


class WholeGradients:
    """This rank's own gradients of all n weights, summed over microbatches; then reduced, all at once.

    Args:
        comm: the ranks among which the block is cut.
        layout: of the block.
        dtype: of the gradients.
    """

    def __init__(self, comm: Comm, layout: Layout, dtype: Any) -> None:
        self.comm, self.layout, self.dtype = comm, layout, dtype
        self.free()

    def free(self) -> None:
        """Drop them, after a step."""
        self.whole: Array | None = None  # [n]
        self.request: Request | None = None

    def add(self, gradients: Mapping[str, Array], complete: bool) -> None:
        """One microbatch's. The last one starts the reduction, which runs beside the rest of the backward."""
        flat = self.layout.pack(gradients, self.dtype)  # [n]
        if self.whole is None:
            self.whole = flat
            self.comm.hold(GRADIENTS, flat)
        else:
            self.whole += flat
        if complete:
            self.request = self.comm.ireduce_scatter(self.whole, counts=self.layout.counts)

    def settle(self) -> None:
        """Nothing: whole gradients stay until the step."""

    def shard(self) -> Array:
        """The sum over ranks, `[n_r]`, in its place among this rank's own gradients, which are all still there."""
        assert self.whole is not None  # `add` has been called for every microbatch
        assert self.request is not None
        self.whole[self.layout.own] = self.request.wait()
        return self.whole[self.layout.own]


class ShardedGradients:
    """The sum over ranks and microbatches of the n_r gradients that this rank owns; arguments as `WholeGradients`."""

    def __init__(self, comm: Comm, layout: Layout, dtype: Any) -> None:
        self.comm, self.layout, self.dtype = comm, layout, dtype
        self.request: Request | None = None
        self.free()

    def free(self) -> None:
        """Drop them, after a step."""
        self.sum: Array | None = None  # [n_r]
        self.leaving: Array | None = None  # [n], on its way to the owners

    def add(self, gradients: Mapping[str, Array], complete: bool) -> None:
        """One microbatch's: they start for their owners at once, since there is no place to collect them whole."""
        self.settle()
        self.leaving = self.layout.pack(gradients, self.dtype)  # [n]
        self.comm.hold(LEAVING, self.leaving)
        self.request = self.comm.ireduce_scatter(self.leaving, counts=self.layout.counts)

    def settle(self) -> None:
        """Return when what was added has been reduced, and the whole of it is freed."""
        if self.request is None:
            return
        part = self.request.wait()  # [n_r]
        self.request = self.leaving = None
        if self.sum is None:
            self.sum = part
            self.comm.hold(GRADIENTS, part)
        else:
            self.sum += part

    def shard(self) -> Array:
        """The sum, `[n_r]`."""
        self.settle()
        return self.sum
