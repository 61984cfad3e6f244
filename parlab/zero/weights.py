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

from collections import deque
from collections.abc import Sequence
from typing import Any

from parlab.arrays import Array, namespace
from parlab.world import Comm, Request
from parlab.zero.accounting import GATHERED, WEIGHTS
from parlab.zero.shards import FlatLayout


class BlockWeights:
    """W of one block: all n weights, or, in stage 3, the n_r that this rank owns, and all n between `open` and `close`.

    The block is in one of three states; a call leads from one to the next:

        stages 1 and 2    here --put--> on its way --finish or open--> here
        stage 3           sharded --start_gather--> on its way --open--> here --close--> sharded

    sharded: `whole` is None; on its way: a `request` fills it; here: it has all n weights. In stage 3 `close` leaves a
    block here while it has other `users`, or is `pinned` until `backward_done`; `put` frees it, for it is old.

    Args:
        comm: the ranks among which the block is cut.
        layout: of the block.
        params: the model's weights by name; those of this block become views of one flat array. Where the block is not
            here, a `Freed` stands in their place.
        dtype: of that array.
        block: its name.
        sharded: as in stage 3.
        until_backward: `open` pins the block, so that sharded weights stay here until `backward_done`.

    Attributes:
        shard: `[n_r]`, which this rank alone updates.
    """

    def __init__(
        self,
        comm: Comm,
        layout: FlatLayout,
        params: dict[str, Array],
        dtype: Any,
        block: Any,
        *,
        sharded: bool = False,
        until_backward: bool = False,
    ) -> None:
        self.comm, self.layout, self.params, self.block = comm, layout, params, block
        self.sharded, self.until_backward = sharded, until_backward
        self.whole: Array | None = None  # [n]
        self.views: dict[str, Array] = {}  # of `whole`, by name, from the first `open` on
        self.request: Request | None = None  # of the all-gather that fills `whole`
        self.users = 0  # how many `open` have not met their `close`
        self.pinned = False  # for a backward pass that has not come
        pack = layout.pack_own if sharded else layout.pack
        flat = pack({name: params[name] for name in layout.shapes}, dtype)
        self.comm.hold(WEIGHTS, flat)
        self.shard = flat if sharded else flat[layout.own]  # [n_r]
        if sharded:
            self._take_away("is sharded, and not gathered now")
        else:
            self.whole = flat
            self._show()

    def start_gather(self) -> None:
        """Start the all-gather of a block that is not here and not on its way."""
        if self.whole is None:
            xp = namespace(self.shard)
            self.whole = xp.empty((self.layout.size,), dtype=self.shard.dtype, device=self.shard.device)  # [n]
            self.comm.hold(GATHERED, self.whole)
            self._gather()

    def open(self) -> dict[str, Array]:
        """The block's weights by name, as soon as all have come. Where they are freed, the dictionary is emptied."""
        self.start_gather()
        self.finish()
        if not self.views:
            self._show()
        self.users += 1
        self.pinned = self.until_backward
        return self.views

    def close(self) -> None:
        """Free sharded weights after use."""
        self.users -= 1
        self._free_if_unused()

    def backward_done(self) -> None:
        """Free weights that were pinned for the backward pass."""
        self.pinned = False
        self._free_if_unused()

    def put(self, shard: Array) -> None:
        """Put this rank's new shard in place. Sharded weights that were gathered before are old, and are freed, without
        a message; for whole ones the all-gather of all new shards starts, unless this rank owns the whole block.
        """
        self.finish()
        self.backward_done()
        self.shard[...] = shard
        if not self.sharded and self.layout.is_cut:
            self._gather()
            self._take_away("is being gathered after a step")

    def finish(self) -> None:
        """Wait until no gather is under way."""
        if self.request is not None:
            self.request.wait()
            self.request = None
            self.params.update(self.views)  # none yet of sharded weights that were gathered ahead

    def whole_of(self, shard: Array) -> Array:
        """A block's array, such as its gradient, from the shards of all ranks: `[n_r]` -> `[n]`."""
        return self.comm.all_gather(shard, counts=self.layout.counts) if self.layout.is_cut else shard

    def _gather(self) -> None:
        self.request = self.comm.iall_gather(self.shard, counts=self.layout.counts, out=self.whole)

    def _show(self) -> None:
        self.views = self.layout.unpack(self.whole)
        self.params.update(self.views)

    def _free_if_unused(self) -> None:
        if self.sharded and self.users == 0 and not self.pinned and self.request is None:
            self.whole = None
            self.views.clear()
            self._take_away("is sharded, and not gathered now")

    def _take_away(self, why: str) -> None:
        for name in self.layout.shapes:
            self.params[name] = Freed(f"{name} {why}: use it inside `with zero.weights({self.block!r}):`")


class Freed:
    """Stands in the model for a weight that is not there; an error says `text` when a program computes with it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(vars(self).get("text", "a weight that is not gathered cannot be copied"))


class Prefetch:
    """Says which block to gather ahead, while the one that is opened now is in use.

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
