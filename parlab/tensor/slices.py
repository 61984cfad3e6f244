"""Each rank's slice of each weight.

A column layer (q, k, v, gate, up, head) is cut along its outputs, `W[:, a:b]`: every rank makes some columns of y. A
row layer (o, down) along its inputs, `W[a:b, :]`: every rank makes a partial sum of y. Columns, then rows: what
the first makes is what the second reads, so nothing is sent in between. The embedding's table is cut along the
vocabulary; norms are whole on every rank.

Heads are never cut. Where there are fewer key/value heads than ranks (G < t), each of them is owned by t/G ranks: their
query heads read the same one.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from parlab.arguments import checked_rank, instance, whole
from parlab.arrays import Array, namespace
from parlab.nn.config import EMBEDDING, HEAD, LlamaConfig
from parlab.tensor.arguments import matrix
from parlab.world import Comm
from parlab.world.collectives import piece_sizes, pieces_of

COLUMNS, ROWS = 1, 0  # the axis of a matrix [in, out] that is cut


class WeightSlice(NamedTuple):
    """A rank's slice of one weight.

    Attributes:
        axis: that is cut; None for a weight that is whole on every rank.
        start, stop: along that axis.
        shared_by: so many consecutive ranks own this same slice.
    """

    axis: int | None
    start: int
    stop: int
    shared_by: int


def weight_slices(config: LlamaConfig, rank: int, size: int) -> dict[str, WeightSlice]:
    """The slice of each weight of the model that `rank` of `size` owns, by name.

    Raises:
        ValueError: no such rank; heads or columns do not divide among the ranks, see `check_sizes`.

    >>> config = LlamaConfig(vocab_size=10, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                      num_attention_heads=8, num_key_value_heads=2)
    >>> owned = weight_slices(config, rank=3, size=4)
    >>> owned["model.layers.0.self_attn.q_proj.weight"]  # 2 of 8 heads of size 2
    WeightSlice(axis=1, start=12, stop=16, shared_by=1)
    >>> owned["model.layers.0.self_attn.k_proj.weight"]  # the second of 2 heads, as rank 2
    WeightSlice(axis=1, start=2, stop=4, shared_by=2)
    """
    instance("config", config, LlamaConfig)
    check_sizes(config, size)
    checked_rank(rank, "rank", size)
    return {name: _slice(config, name, shape, rank, size) for name, shape in config.weight_shapes.items()}


def _slice(config: LlamaConfig, name: str, shape: tuple[int, ...], rank: int, size: int) -> WeightSlice:
    layer = name.split(".")[-2]
    if layer in ("q_proj", "gate_proj", "up_proj"):
        return even_slice(shape, COLUMNS, rank, size)
    if layer in ("k_proj", "v_proj"):
        return even_slice(shape, COLUMNS, rank, size, kv_shared_by(config.num_key_value_heads, size))
    if layer in ("o_proj", "down_proj"):
        return even_slice(shape, ROWS, rank, size)
    if name in (EMBEDDING, HEAD):
        owned = owned_tokens(config.vocab_size, rank, size)
        return WeightSlice(ROWS if name == EMBEDDING else COLUMNS, owned.start, owned.stop, 1)
    return WeightSlice(None, 0, shape[0], size)


def even_slice(shape: tuple[int, ...], axis: int, rank: int, size: int, shared_by: int = 1) -> WeightSlice:
    """Of equal slices, the one of `rank`; each belongs to `shared_by` neighbouring ranks."""
    length = shape[axis] * shared_by // size
    start = rank // shared_by * length
    return WeightSlice(axis, start, start + length, shared_by)


def kv_shared_by(num_key_value_heads: int, size: int) -> int:
    """How many ranks own one and the same key/value head: 1, or t/G where there are fewer heads than ranks."""
    return max(1, size // num_key_value_heads)


def owned_tokens(vocab_size: int, rank: int, size: int) -> slice:
    """The tokens whose rows and logits `rank` owns; the first (V mod t) ranks own one more.

    >>> owned_tokens(10, 0, 4), owned_tokens(10, 3, 4)
    (slice(0, 3, None), slice(8, 10, None))
    """
    return pieces_of(piece_sizes(vocab_size, size))[rank]


def take(x: Array, own: WeightSlice) -> Array:
    """A copy of the slice of `x`."""
    if own.axis is not None:
        x = x[(slice(None),) * own.axis + (slice(own.start, own.stop), ...)]
    return namespace(x).asarray(x, copy=True)


def cut_evenly(comm: Comm, weight: Array, axis: int, name: str) -> Array:
    """A copy of this rank's slice of `weight` along `axis`.

    Args:
        name: of the length along the axis, for the error.

    Raises:
        ValueError: no matrix, or a length that does not divide among the ranks.
    """
    matrix("weight", weight)
    check_divides(name, weight.shape[axis], comm.size)
    return take(weight, even_slice(weight.shape, axis, comm.rank, comm.size))


def shard_weights(config: LlamaConfig, weights: Mapping[str, Array], rank: int, size: int) -> dict[str, Array]:
    """The slices of `weights`, all or some of the model's (or of their gradients), that `rank` owns."""
    instance("weights", weights, Mapping)
    owned = weight_slices(config, rank, size)
    return {name: take(weight, owned[name]) for name, weight in weights.items()}


def unshard_weights(config: LlamaConfig, shards: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The whole arrays again, from those of all ranks, in order. The inverse of `shard_weights`.

    >>> import numpy as np
    >>> from parlab.nn.llama import Llama
    >>> config = LlamaConfig(vocab_size=10, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> whole = Llama.random(config, xp=np).weights
    >>> again = unshard_weights(config, [shard_weights(config, whole, rank, 4) for rank in range(4)])
    >>> all((again[name] == x).all() for name, x in whole.items())
    True
    """
    if not isinstance(shards, Sequence) or not shards or not all(isinstance(of_rank, Mapping) for of_rank in shards):
        raise ValueError(f"shards={shards!r:.60}: must be a list with a dictionary of arrays for each rank")
    xp = namespace(shards[0][EMBEDDING])
    joined = {}
    for name, first in weight_slices(config, 0, len(shards)).items():
        owned = [of_rank[name] for of_rank in shards[:: first.shared_by]]  # of those that share one, the first's
        joined[name] = owned[0] if first.axis is None else xp.concat(owned, axis=first.axis)
    return joined


def check_sizes(config: LlamaConfig, size: int) -> None:
    """Refuse a model whose heads or columns do not divide among `size` ranks.

    Raises:
        ValueError: with the size that does not divide.
    """
    whole("size", size, 1)
    check_heads(config.num_attention_heads, config.num_key_value_heads, size)
    if "mlp.gate_proj" in config.mlp_shapes:  # an expert is whole on every rank
        check_divides("intermediate_size", config.intermediate_size, size)
    if config.vocab_size < size:
        raise ValueError(
            f"vocab_size {config.vocab_size} does not reach for {size} tensor-parallel ranks: use {size} or more"
        )


def check_heads(num_attention_heads: int, num_key_value_heads: int, size: int) -> None:
    """Refuse heads that `size` ranks cannot share: t must divide H, and t divide G or G divide t.

    Raises:
        ValueError: with the number of heads.
    """
    H, G = num_attention_heads, num_key_value_heads
    check_divides("num_attention_heads", H, size)
    if G % size and size % G:
        raise ValueError(f"num_key_value_heads {G} and {size} tensor-parallel ranks: one must divide the other")


def check_divides(name: str, length: int, size: int) -> None:
    """Refuse a `length` called `name` that `size` ranks cannot share evenly.

    Raises:
        ValueError: with the length.

    >>> check_divides("intermediate_size", 10, 4)
    Traceback (most recent call last):
    ...
    ValueError: intermediate_size 10 does not divide among 4 tensor-parallel ranks: use a multiple of 4
    """
    if length % size:
        verb = "do" if name.endswith("heads") else "does"
        raise ValueError(
            f"{name} {length} {verb} not divide among {size} tensor-parallel ranks: use a multiple of {size}"
        )
