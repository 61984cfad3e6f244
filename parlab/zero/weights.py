"""W, the weights of one block, of which rank r owns n_r: whole in stages 0 to 2, sharded in stage 3.

Invariant: `shard`, `[n_r]`, is always here and up to date; this rank alone updates it: the optimizer in place, if the
shard is its own master (`state.py`), and `put`.

Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world import Request
from parlab.zero.shards import FlatLayout

WEIGHTS, GATHERED = "weights", "gathered weights"  # names of memory


class WholeWeights:
    """All n weights. An all-gather brings the new ones after a step, unless this rank owns the whole block.

        here --put--> on its way --finish or open--> here

    Args:
        layout: of the block.
        params: the model's weights by name; those of this block become views of one flat array. While the block is not
            here, a `Freed` stands in their place.
        dtype: of that array.
        block: its name.
    """

    def __init__(self, layout: FlatLayout, params: dict[str, Array], dtype: Any, block: str) -> None:
        self.layout, self.params, self.block = layout, params, block
        self.whole = layout.pack(params, dtype)  # [n]
        layout.group.hold(WEIGHTS, self.whole)
        self.shard = self.whole[layout.own]  # [n_r]
        self.views = layout.unpack(self.whole)  # by name
        params.update(self.views)
        self.request: Request | None = None  # of the all-gather that fills `whole`

    def open(self) -> dict[str, Array]:
        """The weights by name, as soon as all have come."""
        self.finish()
        return self.views

    def put(self, shard: Array) -> None:
        """Put this rank's new shard in place, and start the all-gather of all new shards."""
        self.finish()
        self.shard[...] = shard
        if self.layout.is_cut:
            self.request = self.layout.group.iall_gather(self.shard, counts=self.layout.counts, out=self.whole)
            take_away(self.params, self.layout, self.block, "is being gathered after a step")

    def finish(self) -> None:
        """Wait until no gather is under way."""
        if self.request is not None:
            self.request.wait()
            self.request = None
            self.params.update(self.views)

    def start_gather(self) -> None:
        """Do nothing: whole weights are here."""

    def close(self) -> None:
        """Do nothing: whole weights stay."""

    def backward_done(self) -> None:
        """Do nothing: whole weights stay."""


class ShardedWeights:
    """The n_r weights that this rank owns, and all n from `start_gather` until they are freed.

        sharded --start_gather--> on its way --open--> here --close--> sharded

    sharded: `whole` is None; on its way: a `request` fills it; here: it has all n weights. `close` leaves them here
    while there are other `users`, or they are `pinned`: until `backward_done`. `put` frees them, for they are old.

    Args:
        layout, params, dtype, block: as for `WholeWeights`.
        keep: `open` pins the weights.
    """

    def __init__(self, layout: FlatLayout, params: dict[str, Array], dtype: Any, block: str, keep: bool) -> None:
        self.layout, self.params, self.block, self.keep = layout, params, block, keep
        self.shard = layout.pack_own(params, dtype)  # [n_r]
        layout.group.hold(WEIGHTS, self.shard)
        self.whole: Array | None = None  # [n]
        self.request: Request | None = None
        self.views: dict[str, Array] = {}  # of `whole`, by name, from the first `open` on
        self.users = 0  # how many `open` have not met their `close`
        self.pinned = False  # for a backward pass that has not come
        self._free_if_unused()

    def start_gather(self) -> None:
        """Start the all-gather, if the block is not here and not on its way."""
        if self.whole is None:
            xp = namespace(self.shard)
            self.whole = xp.empty((self.layout.size,), dtype=self.shard.dtype, device=self.shard.device)  # [n]
            self.layout.group.hold(GATHERED, self.whole)
            self.request = self.layout.group.iall_gather(self.shard, counts=self.layout.counts, out=self.whole)

    def open(self) -> dict[str, Array]:
        """The weights by name, as soon as all have come. When they are freed, the dictionary is emptied."""
        self.start_gather()
        self.finish()
        if not self.views:
            self.views = self.layout.unpack(self.whole)
            self.params.update(self.views)
        self.users += 1
        self.pinned = self.keep
        return self.views

    def close(self) -> None:
        """Free the weights after use."""
        self.users -= 1
        self._free_if_unused()

    def backward_done(self) -> None:
        """Free weights that were pinned for the backward pass."""
        self.pinned = False
        self._free_if_unused()

    def put(self, shard: Array) -> None:
        """Put this rank's new shard in place. No message is needed."""
        self.finish()
        self.backward_done()
        self.shard[...] = shard

    def finish(self) -> None:
        """Wait until no gather is under way."""
        if self.request is not None:
            self.request.wait()
            self.request = None

    def _free_if_unused(self) -> None:
        if self.users == 0 and not self.pinned and self.request is None:
            self.whole = None
            self.views.clear()
            take_away(self.params, self.layout, self.block, "is sharded, and not gathered now")


class Freed:
    """Stands in the model for a weight that is not there; an error says `text` when a program computes with it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(vars(self).get("text", "a weight that is not gathered cannot be copied"))


def take_away(params: dict[str, Any], layout: FlatLayout, block: str, why: str) -> None:
    """Put a `Freed` in the place of each weight of a block."""
    for name in layout.shapes:
        params[name] = Freed(f"{name} {why}: use it inside `with zero.weights({block!r}):`")
