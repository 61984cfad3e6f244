"""The GPT block of the older papers, tensor-parallel: so that their bytes can be counted.

Its dropout draws the masks of the whole activation, as the serial block does, and keeps this rank's slice: the parallel
block then drops what the serial one drops, and can be held against it. (Megatron seeds each rank differently instead,
and spares itself the drawing.)

Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import checked
from parlab.arrays import Array
from parlab.nn.gpt import AffineStage, Dropout, GeluMLP, LayerNorm, SoftmaxAttention
from parlab.nn.layers import Block
from parlab.nn.linear import linear
from parlab.nn.stage import Chain, Stage
from parlab.tensor.arguments import RULES, check_names, heads_of
from parlab.tensor.layers import SequenceParallelNorm
from parlab.tensor.operators import SEQUENCE
from parlab.tensor.recompute import Recompute, SelectiveAttention
from parlab.tensor.region import ParallelRegion
from parlab.tensor.slices import COLUMNS, ROWS, WeightSlice, check_divides, even_slice, take
from parlab.world import Comm

HEADS = 1  # the axis of [B, H, S, S]


class ShardedDropout(Dropout):
    """Dropout of an activation that is cut along `axis`: the serial mask's slice."""

    def __init__(self, rate: float, seed: int, comm: Comm, axis: int) -> None:
        super().__init__(rate, seed)
        self.comm, self.axis = comm, axis

    def mask(self, shape: tuple[int, ...]) -> Any:
        """The next one: booleans, true where an entry stays."""
        whole = tuple(n * self.comm.size if axis == self.axis else n for axis, n in enumerate(shape))
        return take(super().mask(whole), even_slice(whole, self.axis, self.comm.rank, self.comm.size))


class PartialSums(AffineStage):
    """Mixed into a stage whose last projection is a row layer: its partial sums come without the bias.

    Added by every rank, the bias would count t times. The region adds it once, to the sum.
    """

    def project(self, x: Array, name: str) -> Array:
        """x W + b, or x W."""
        if name == self.names[-1]:
            return linear(x, self.weights[f"{self.prefix}.{name}.weight"])[0]
        return super().project(x, name)


class PartialAttention(PartialSums, SoftmaxAttention):
    """Attention over this rank's heads, whose sum over ranks lacks the bias."""


class PartialSelectiveAttention(PartialSums, SelectiveAttention):
    """The same with selective recomputation."""


class PartialMLP(PartialSums, GeluMLP):
    """The MLP over this rank's columns, whose sum over ranks lacks the bias."""


class BiasedRegion(ParallelRegion):
    """A region whose row layer has a bias, whole on every rank and added after `leave`.

    Its gradient needs no message: the row layer's dy is whole on every rank.
    """

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(y, cache)`."""
        y, cache = super().forward(x)
        return y + self.weights[self.weight_names[-1]], cache


class AttentionRegion(BiasedRegion):
    """With the S × S products of attention."""

    def core_flops(self, x: Array, *, backward: bool = False) -> int:
        """Two products forward, four backward: nothing is skipped, and nothing made again."""
        B, S, _ = x.shape
        columns = self.weights[self.weight_names[0]].shape[1]  # H/t · D
        return (8 if backward else 4) * B * S * S * columns


@checked(RULES)
def parallel_gpt_block(
    comm: Comm,
    weights: Mapping[str, Array],
    prefix: str,
    head_dim: int,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> Stage:
    """The tensor-parallel form of `parlab.nn.gpt.gpt_block`, from the whole weights.

    Args:
        comm: the tensor-parallel group.
        weights: as `gpt_weight_shapes` lists them; this rank keeps copies of its slices (`.weights`).
        prefix, head_dim, dropout_rate, seed: as for `gpt_block`.
        sequence_parallel: x and y are `[B, S/t, E]`.
        recompute: none, selective or full; see `parlab.tensor.recompute`.

    Raises:
        ValueError: an argument that cannot be used, or heads or columns that do not divide among the ranks.
    """
    own = shard_gpt_block(weights, prefix, head_dim, comm.rank, comm.size)
    of_weights = ShardedDropout(dropout_rate, 3 * seed, comm, HEADS)
    after_attention, after_mlp = (
        ShardedDropout(dropout_rate, 3 * seed + i, comm, SEQUENCE)
        if sequence_parallel
        else Dropout(dropout_rate, 3 * seed + i)
        for i in (1, 2)
    )
    attention_class = PartialSelectiveAttention if recompute == "selective" else PartialAttention
    attention = attention_class(own, f"{prefix}.attention", head_dim, of_weights)
    norms: list[Stage] = [LayerNorm(own, f"{prefix}.{name}_norm") for name in ("attention", "mlp")]
    if sequence_parallel:
        norms = [SequenceParallelNorm(comm, norm) for norm in norms]
    mlp = PartialMLP(own, f"{prefix}.mlp")
    block = Block(
        norms[0],
        Chain([AttentionRegion(comm, attention, "attention", sequence_parallel=sequence_parallel), after_attention]),
        norms[1],
        Chain([BiasedRegion(comm, mlp, "mlp", sequence_parallel=sequence_parallel), after_mlp]),
    )
    if recompute == "full":
        return Recompute(block, [dropout.draw for dropout in (of_weights, after_attention, after_mlp)])
    return block


def shard_gpt_block(weights: Mapping[str, Array], prefix: str, head_dim: int, rank: int, size: int) -> dict[str, Array]:
    """The slices that `rank` owns: of a column layer's weight and bias, of a row layer's weight.

    Raises:
        ValueError: heads or columns do not divide among the ranks.
    """
    query, up = f"{prefix}.attention.q_proj.weight", f"{prefix}.mlp.up_proj.weight"
    check_names(weights, (query, up))
    check_divides("num_attention_heads", heads_of(weights[query], head_dim), size)
    check_divides("intermediate_size", weights[up].shape[1], size)
    own = {}
    for name, x in weights.items():
        layer, kind = name.split(".")[-2:]
        if layer in ("q_proj", "k_proj", "v_proj", "up_proj"):
            own[name] = take(x, even_slice(x.shape, COLUMNS if kind == "weight" else 0, rank, size))
        elif layer in ("o_proj", "down_proj") and kind == "weight":
            own[name] = take(x, even_slice(x.shape, ROWS, rank, size))
        else:
            own[name] = take(x, WeightSlice(None, 0, x.shape[0], size))
    return own
