"""The weights of one block: whole on every rank (stages 1 and 2), or a shard that is gathered for use (stage 3)."""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array, namespace
from parlab.world import Comm, Request
from parlab.zero.accounting import GATHERED, WEIGHTS
from parlab.zero.shards import Layout


class WholeWeights:
    """All n weights of a block, on every rank and all the time.

    Args:
        comm: the ranks among which the block is cut.
        layout: of the block.
        params: the model's weights by name; those of this block become views of one flat array.
        dtype: of that array.

    Attributes:
        shard: `[n_r]`, the part that this rank updates.
    """

    def __init__(self, comm: Comm, layout: Layout, params: dict[str, Array], dtype: Any) -> None:
        self.comm, self.layout = comm, layout
        self.whole = layout.pack({name: params[name] for name in layout.shapes}, dtype)  # [n]
        comm.hold(WEIGHTS, self.whole)
        self.shard = self.whole[layout.own]  # [n_r]
        self.views = layout.unpack(self.whole)
        params.update(self.views)
        self.request: Request | None = None

    def start(self) -> None:
        """Nothing: they are here."""

    def open(self) -> dict[str, Array]:
        """The block's weights by name."""
        return self.views

    def close(self) -> None:
        """Nothing: they stay."""

    def gradients_came(self) -> None:
        """Nothing: they stay."""

    def publish(self, shard: Array) -> None:
        """Start to send this rank's new part to all, and get theirs."""
        self.shard[...] = shard
        self.request = self.comm.iall_gather(self.shard, counts=self.layout.counts, out=self.whole)

    def settle(self) -> None:
        """Return when all parts are new."""
        if self.request is not None:
            self.request.wait()
            self.request = None


class ShardedWeights:
    """The n_r weights of a block that this rank owns; between `open` and `close` also all n.

    Args:
        comm, layout, params, dtype: as for `WholeWeights`; outside `open` ... `close`, what stands in `params` says how
            to open.
        block: its name.
        keep: whether `close` leaves them whole, until `gradients_came`.
    """

    def __init__(
        self, comm: Comm, layout: Layout, params: dict[str, Array], dtype: Any, *, block: Any, keep: bool
    ) -> None:
        self.comm, self.layout, self.params, self.block, self.keep = comm, layout, params, block, keep
        self.shard = layout.pack_own({name: params[name] for name in layout.shapes}, dtype)  # [n_r]
        comm.hold(WEIGHTS, self.shard)
        self.whole: Array | None = None
        self.views: dict[str, Array] = {}
        self.request: Request | None = None
        self.users = 0
        self.wanted = False  # by a backward that has not come
        self._mark_freed()

    def start(self) -> None:
        """Start to gather, unless that has been done."""
        if self.whole is None:
            xp = namespace(self.shard)
            self.whole = xp.empty((self.layout.size,), dtype=self.shard.dtype, device=self.shard.device)  # [n]
            self.comm.hold(GATHERED, self.whole)
            self.request = self.comm.iall_gather(self.shard, counts=self.layout.counts, out=self.whole)

    def open(self) -> dict[str, Array]:
        """The block's weights by name, as soon as they are here; emptied when they go."""
        self.start()
        self.settle()
        if not self.views:
            self.views = self.layout.unpack(self.whole)
            self.params.update(self.views)
        self.users += 1
        self.wanted = self.keep
        return self.views

    def close(self) -> None:
        """They are no longer in use here."""
        self.users -= 1
        self._free_if_unused()

    def gradients_came(self) -> None:
        """The backward pass is through with this block."""
        self.wanted = False
        self._free_if_unused()

    def publish(self, shard: Array) -> None:
        """Take this rank's new part. What was gathered before is out of date."""
        self.settle()
        self.wanted = False
        self._free_if_unused()
        self.shard[...] = shard

    def settle(self) -> None:
        """Return when no gather is under way."""
        if self.request is not None:
            self.request.wait()
            self.request = None

    def _free_if_unused(self) -> None:
        if self.users == 0 and not self.wanted and self.request is None:
            self.whole = None
            self.views.clear()
            self._mark_freed()

    def _mark_freed(self) -> None:
        for name in self.layout.shapes:
            self.params[name] = Freed(name, self.block)


class Freed:
    """Stands in the model for a weight that is not gathered, and says so when somebody computes with it."""

    def __init__(self, name: str, block: Any) -> None:
        self.text = f"{name} is sharded, and not gathered now: use it inside `with zero.weights({block!r}):`"

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(vars(self).get("text", "a weight that is not gathered cannot be copied"))
