"""A decoder block that keeps a part of its cache, one of the five `memory` levels, and computes the rest again."""

from __future__ import annotations

from copy import copy
from typing import Any, cast

from parlab.arguments import one_of
from parlab.arrays import Array, asarray, namespace, nbytes, to_numpy
from parlab.nn.activation import swiglu
from parlab.nn.counting import arrays_in
from parlab.nn.layers import Block, Core, SelfAttention, split_heads
from parlab.nn.stage import Gradients, Stage
from parlab.sequence.memory import MEMORY_LEVELS
from parlab.world import Comm, Link

KEPT = "kept activations"
SHARED = "tables"  # of attention's cache: the rotary tables, which all blocks share: always kept, never counted
AGAIN = "again"  # the name of computations that are repeated because their result was not kept
PCIE = Link(latency=10e-6, bandwidth=25e9)  # to host memory: PCIe 4.0 with 16 lanes, as measured


class CheckpointedBlock(Stage):
    """A decoder block that keeps as much as its `level` says, one of `MEMORY_LEVELS`. Its core may be a ring.

    The gradients are the same to the bit on every level. The flops of the projections are noted on `comm` ("block",
    and `AGAIN` for repeated ones), and what is kept is held there. Level extreme moves its input to
    the host's memory and back over `PCIE`.
    """

    def __init__(self, comm: Comm, block: Block, level: str = "none") -> None:
        one_of("level", level, tuple(MEMORY_LEVELS))
        self.comm, self.block, self.level = comm, block, level
        self.weights, self.weight_names = block.weights, block.weight_names

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, kept)`: `[B, S/P, E]` -> the same. `kept` is the block's cache, with None for arrays that the level does
        not keep; at level extreme it is the input alone, on the host.
        """
        with self.comm.compute("block", flops=self._flops(x)):
            y, cache = self.block.forward(x)
        if self.level == "extreme":
            self._note_travel(x)
            return y, to_numpy(x).copy()
        kept = thinned(cache, self.level)
        self._hold(kept)
        return y, kept

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`. First computes again what was not kept."""
        if self.level != "none":
            cache = self._whole(cache, dy)
            self._hold(cache)
        with self.comm.compute("block backward: input", flops=self._flops(dy)):
            return self.block.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """The block's gradients."""
        with self.comm.compute("block backward: weights", flops=self._flops(pending["mlp"].x)):
            return self.block.backward_weight(pending)

    def _whole(self, kept: Any, dy: Array) -> dict[str, Any]:
        """The whole cache, from what `forward` kept."""
        if self.level == "low":
            with self.comm.compute(AGAIN):
                return without_products(self.block, kept)
        if self.level == "extreme":
            x = asarray(kept, namespace(dy), device=dy.device)
            self._note_travel(x)
        else:
            x = kept["attention_norm"].x
        with self.comm.compute(AGAIN, flops=self._flops(x)):
            if self.level == "medium":
                return without_attention(self.block, kept)
            return self.block.forward(x)[1]

    def _note_travel(self, x: Array) -> None:
        """The time of x on its way to the host, or back."""
        self.comm.compute("to or from the host", seconds=PCIE.picoseconds(nbytes(x)) / 1e12)

    def _hold(self, kept: dict[str, Any]) -> None:
        """Hold all of it but what is `SHARED`."""
        own = kept["attention"]._replace(**{SHARED: None})
        self.comm.hold(KEPT, *arrays_in(kept | {"attention": own}))

    def _flops(self, x: Array) -> int:
        """Of the seven projections of `x [B, S/P, E]`: forward, or either part of the backward."""
        matrices = [self.weights[name] for name in self.weight_names if self.weights[name].ndim == 2]
        return sum(2 * x.shape[0] * x.shape[1] * matrix.shape[0] * matrix.shape[1] for matrix in matrices)


def thinned(cache: dict[str, Any], level: str) -> dict[str, Any]:
    """The cache of a block, with None for each array that the level does not keep. What is `SHARED` stays."""
    kept, keeps = {}, MEMORY_LEVELS[level]
    for part, arrays in cache.items():
        dropped = [name for name in arrays._fields if name != SHARED and not keeps(f"{part}.{name}")]
        kept[part] = arrays._replace(**dict.fromkeys(dropped))
    return kept


def without_products(block: Block, kept: dict[str, Any]) -> dict[str, Any]:
    """The whole cache from that of level low: both norms' results, and the MLP's gated columns, are made again."""
    parts, attention, mlp = block.parts, kept["attention"], kept["mlp"]
    attention_x, mlp_x = (parts[name].forward(kept[name].x)[0] for name in ("attention_norm", "mlp_norm"))
    mlp = mlp._replace(x=mlp_x, hidden=swiglu(mlp.gate, mlp.up)[0])
    return kept | {"attention": attention._replace(x=attention_x), "mlp": mlp}


def without_attention(block: Block, kept: dict[str, Any]) -> dict[str, Any]:
    """The whole cache from that of level medium: a forward in which attention answers with the result that was kept."""
    x, merged, lse = kept["attention_norm"].x, kept["attention"].merged, kept["attention"].lse
    block, attention = copy(block), cast(SelfAttention, copy(block.attention))
    out = split_heads(merged, attention.head_dim)
    attention.core = Core(lambda q, k, v: (out, lse), attention.core.backward)
    block.attention = attention
    cache = block.forward(x)[1]
    return cache | {"attention": cache["attention"]._replace(merged=merged)}
