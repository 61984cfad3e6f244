"""Five levels of memory that a block keeps for its backward, when its sequence is spread over ranks.

Under context parallelism a forward that runs again sends its messages again. So between "keep all" and "keep the input
alone" stands a level that computes all products again, but keeps the result of attention.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; to keep attention's output and lse: Li et al.
2023, "DistFlashAttn", section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, cast

from parlab.arguments import one_of, whole
from parlab.arrays import Array, asarray, namespace, nbytes, to_numpy
from parlab.nn.activation import swiglu
from parlab.nn.config import LlamaConfig
from parlab.nn.counting import arrays_in
from parlab.nn.formulas import block_kept_bytes
from parlab.nn.layers import Block, Core, SelfAttention, split_heads
from parlab.nn.stage import Gradients, Stage
from parlab.sequence.layouts import checked_documents
from parlab.world import Comm, Link

KEPT = "kept activations"
SHARED = "tables"  # of attention's cache: the rotary tables, which all blocks share: always kept, never counted
AGAIN = "again"  # the name of computations that are repeated because their result was not kept
PCIE = Link(latency=10e-6, bandwidth=25e9)  # to host memory: PCIe 4.0 with 16 lanes, as measured


MEMORY_LEVELS: dict[str, Callable[[str], bool]] = {  # whether a level keeps an array, by its place in the block's cache
    "none": lambda place: True,
    "low": lambda place: place not in ("attention.x", "mlp.x", "mlp.hidden"),  # made again without a product
    "medium": lambda place: place in ("attention_norm.x", "attention.merged", "attention.lse"),
    "high": lambda place: place == "attention_norm.x",  # attention too is computed again, with its messages
    "extreme": lambda place: False,  # the input is moved to the host
}


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
            self._move(x)
            return y, to_numpy(x).copy()
        kept = {part: _thinned(arrays, part, MEMORY_LEVELS[self.level]) for part, arrays in cache.items()}
        self._hold(kept)
        return y, kept

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`. First computes again what was not kept."""
        if self.level != "none":
            cache = self._again(cache, dy)
            self._hold(cache)
        with self.comm.compute("block backward: input", flops=self._flops(dy)):
            return self.block.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """The block's gradients."""
        with self.comm.compute("block backward: weights", flops=self._flops(pending["mlp"].x)):
            return self.block.backward_weight(pending)

    def _again(self, kept: Any, dy: Array) -> dict[str, Any]:
        """The whole cache."""
        if self.level == "low":
            return self._norms_again(kept)
        if self.level == "medium":
            return self._all_but_attention_again(kept)
        if self.level == "extreme":
            x = asarray(kept, namespace(dy), device=dy.device)
            self._move(x)
        else:
            x = kept["attention_norm"].x
        with self.comm.compute(AGAIN, flops=self._flops(x)):
            return self.block.forward(x)[1]

    def _norms_again(self, kept: dict[str, Any]) -> dict[str, Any]:
        """The whole cache, without a product: both norms' results, and the MLP's gated columns."""
        with self.comm.compute(AGAIN):
            parts, attention, mlp = self.block.parts, kept["attention"], kept["mlp"]
            attention_x, mlp_x = (parts[name].forward(kept[name].x)[0] for name in ("attention_norm", "mlp_norm"))
            mlp = mlp._replace(x=mlp_x, hidden=swiglu(mlp.gate, mlp.up)[0])
            return kept | {"attention": attention._replace(x=attention_x), "mlp": mlp}

    def _all_but_attention_again(self, kept: dict[str, Any]) -> dict[str, Any]:
        """The whole cache, by a forward in whose place of attention stands the result that was kept."""
        x, merged, lse = kept["attention_norm"].x, kept["attention"].merged, kept["attention"].lse
        block, attention = copy(self.block), cast(SelfAttention, copy(self.block.attention))
        out = split_heads(merged, attention.head_dim)
        attention.core = Core(lambda q, k, v: (out, lse), attention.core.backward)
        block.attention = attention
        with self.comm.compute(AGAIN, flops=self._flops(x)):
            cache = block.forward(x)[1]
        return cache | {"attention": cache["attention"]._replace(merged=merged)}

    def _move(self, x: Array) -> None:
        self.comm.compute("to or from the host", seconds=PCIE.picoseconds(nbytes(x)) / 1e12)

    def _hold(self, kept: dict[str, Any]) -> None:
        """Hold all of it but what is `SHARED`."""
        own = kept["attention"]._replace(**{SHARED: None})
        self.comm.hold(KEPT, *arrays_in(kept | {"attention": own}))

    def _flops(self, x: Array) -> int:
        """Of the seven projections of `x [B, S/P, E]`: forward, or either part of the backward."""
        matrices = [self.weights[name] for name in self.weight_names if self.weights[name].ndim == 2]
        return sum(2 * x.shape[0] * x.shape[1] * matrix.shape[0] * matrix.shape[1] for matrix in matrices)


def _thinned(arrays: Any, part: str, keeps: Callable[[str], bool]) -> Any:
    """The cache of one part of the block, with None for each array that is not kept. What is `SHARED` stays."""
    dropped = [name for name in arrays._fields if name != SHARED and not keeps(f"{part}.{name}")]
    return arrays._replace(**dict.fromkeys(dropped))


def level_bytes(config: LlamaConfig, B: int, S: int, size: int, level: str, itemsize: int = 4) -> int:
    """Bytes that one block keeps on each rank from its forward to its backward, with S/P tokens a rank.

    In a step of L blocks the peak is the peak of level none less L − 1 times the saving of one block: the block whose
    backward runs has computed all of its cache again.

    >>> config = LlamaConfig(vocab_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    ...                      num_attention_heads=4)
    >>> [level_bytes(config, 1, 64, 4, level) for level in MEMORY_LEVELS]
    [57728, 41344, 8448, 4096, 0]
    """
    whole("B", B, least=1)
    whole("S", S)
    whole("size", size)
    whole("itemsize", itemsize, least=1)
    one_of("level", level, tuple(MEMORY_LEVELS))
    checked_documents(None, S, size)
    items, keeps = block_kept_bytes(config, B, S // size, itemsize).items(), MEMORY_LEVELS[level]
    return sum(nbytes for place, nbytes in items if keeps(place))
