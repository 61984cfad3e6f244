"""ZeRO's three stages: one block of n weights, of which rank r owns the flat shard n_r. Here W is kept and gathered.

    W weights (this file)    G gradients (`gradients.py`)    M moments and masters, the optimizer's state (`state.py`)

| stage       | W       | G       | M       | before and after use of W | after a backward pass     | step (*)     |
|-------------|---------|---------|---------|---------------------------|---------------------------|--------------|
| 1, P_os     | whole   | whole   | sharded |                           | last: reduce-scatter G    | all-gather W |
| 2, P_os+g   | whole   | sharded | sharded |                           | each: reduce-scatter G    | all-gather W |
| 3, P_os+g+p | sharded | sharded | sharded | all-gather W, free it     | each: reduce-scatter G    |              |

An all-reduce is a reduce-scatter and then an all-gather. ZeRO puts the optimizer between the two. So with one
microbatch, stages 1 and 2 send as much as plain data parallelism. Stage 3 gathers the weights for each microbatch's
forward pass and again for its backward pass.

(*) The step starts the all-gathers of stages 1 and 2. It waits for them; with `overlap_gather`, the next forward pass
does, block by block, while it computes with the blocks before (Megatron-LM's `--overlap-param-gather`).

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world import Comm, Request
from parlab.zero.accounting import GATHERED, WEIGHTS
from parlab.zero.flat import FlatLayout
from parlab.zero.freed import Freed


class WholeWeights:
    """W of stages 1 and 2: all n weights, on every rank and all the time.

    Args:
        comm: the ranks among which the block is cut.
        layout: of the block.
        params: the model's weights by name; those of this block become views of one flat array. While an all-gather is
            under way, each of them is a `Freed`.
        dtype: of that array.
        block: its name.
        per_node: so many consecutive ranks of `comm` share a node: weights are gathered in two levels. None: in a ring.

    Attributes:
        shard: `[n_r]`, the part that this rank updates.
    """

    def __init__(
        self, comm: Comm, layout: FlatLayout, params: dict[str, Array], dtype: Any, block: Any, per_node: int | None
    ) -> None:
        self.comm, self.layout, self.params, self.block, self.per_node = comm, layout, params, block, per_node
        self.whole = layout.pack({name: params[name] for name in layout.shapes}, dtype)  # [n]
        comm.hold(WEIGHTS, self.whole)
        self.shard = self.whole[layout.own]  # [n_r]
        self.views = layout.unpack(self.whole)
        params.update(self.views)
        self.request: Request | None = None

    def start_gather(self) -> None:
        """Do nothing: the weights are here, or `update` has started their all-gather."""

    def open(self) -> dict[str, Array]:
        """The block's weights by name, as soon as all parts are new."""
        self.finish()
        return self.views

    def close(self) -> None:
        """Do nothing: the weights stay."""

    def backward_done(self) -> None:
        """Do nothing: the weights stay."""

    def update(self, shard: Array) -> None:
        """Put this rank's new part in place, and start the all-gather of all new parts."""
        self.shard[...] = shard
        self.request = self.comm.iall_gather(
            self.shard, counts=self.layout.counts, out=self.whole, ranks_per_node=self.per_node
        )
        for name in self.layout.shapes:
            self.params[name] = Freed(name, self.block, "is being gathered after a step")

    def finish(self) -> None:
        """Wait until all parts are new."""
        if self.request is not None:
            self.request.wait()
            self.request = None
            self.params.update(self.views)


class ShardedWeights:
    """W of stage 3: the n_r weights that this rank owns; between `open` and `close` also all n, gathered.

    Args:
        comm, layout, params, dtype, block, per_node: as for `WholeWeights`. While the block is not gathered, each of
            its weights in `params` is a `Freed`, which says how to open it.
        keep: whether `close` leaves the weights gathered until `backward_done`.
    """

    def __init__(
        self,
        comm: Comm,
        layout: FlatLayout,
        params: dict[str, Array],
        dtype: Any,
        block: Any,
        per_node: int | None,
        *,
        keep: bool,
    ) -> None:
        self.comm, self.layout, self.params, self.block, self.per_node = comm, layout, params, block, per_node
        self.keep = keep
        self.shard = layout.pack_own({name: params[name] for name in layout.shapes}, dtype)  # [n_r]
        comm.hold(WEIGHTS, self.shard)
        self.whole: Array | None = None
        self.views: dict[str, Array] = {}
        self.request: Request | None = None
        self.users = 0
        self.kept = False  # for a backward pass that has not come
        self._mark_freed()

    def start_gather(self) -> None:
        """Start the all-gather, unless it has been started."""
        if self.whole is None:
            xp = namespace(self.shard)
            self.whole = xp.empty((self.layout.size,), dtype=self.shard.dtype, device=self.shard.device)  # [n]
            self.comm.hold(GATHERED, self.whole)
            self.request = self.comm.iall_gather(
                self.shard, counts=self.layout.counts, out=self.whole, ranks_per_node=self.per_node
            )

    def open(self) -> dict[str, Array]:
        """Gather before use: the block's weights by name. The dictionary is emptied when they are freed."""
        self.start_gather()
        self.finish()
        if not self.views:
            self.views = self.layout.unpack(self.whole)
            self.params.update(self.views)
        self.users += 1
        self.kept = self.keep
        return self.views

    def close(self) -> None:
        """Free after use."""
        self.users -= 1
        self._free_if_unused()

    def backward_done(self) -> None:
        """Free weights that were kept for the backward pass."""
        self.kept = False
        self._free_if_unused()

    def update(self, shard: Array) -> None:
        """Put this rank's new part in place. No message; weights that were gathered before are old, and are freed."""
        self.finish()
        self.kept = False
        self._free_if_unused()
        self.shard[...] = shard

    def finish(self) -> None:
        """Wait until no gather is under way."""
        if self.request is not None:
            self.request.wait()
            self.request = None

    def _free_if_unused(self) -> None:
        if self.users == 0 and not self.kept and self.request is None:
            self.whole = None
            self.views.clear()
            self._mark_freed()

    def _mark_freed(self) -> None:
        for name in self.layout.shapes:
            self.params[name] = Freed(name, self.block)


def weights_in_stage(stage: int, keep: bool, *of_block: Any) -> WholeWeights | ShardedWeights:
    """W of a block in `stage`; `of_block`: the arguments of `WholeWeights`."""
    return WholeWeights(*of_block) if stage < 3 else ShardedWeights(*of_block, keep=keep)
