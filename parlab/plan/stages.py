"""The stages of a pipeline: how layers are dealt out, and the parameters of the ranks that can be the fullest.

Invariant: three ranks stand for all. Those between the first and the last have as many layers, and the earliest of them
has the most microbatches in flight; so the fullest rank is the first, the second, or the last. Where layers do not
divide, each rank between is charged the most that one of them has.

Source: the Llama team 2024, "The Llama 3 herd of models", section 3.3.2 (the first and last stage have a layer less).
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes

MOST_FEWER = 4  # layers that the last stage may have less, because it has the head; more are not tried


class Rank(NamedTuple):
    """A rank of a pipeline: its number, its layers, and its parameters without experts."""

    number: Column
    layers: Column
    params: Column


class Stages(NamedTuple):
    """Layers and parameters of a pipeline.

    Fields:
        chunk_layers, first_layers, last_layers: of a chunk; of the very first one, and of the very last one.
        layer_params, layer_expert_params: of a layer on a rank, without experts, and of its experts.
        params: of all ranks of a pipeline, without experts.
        ranks: the first, the second and the last one.
        most_params, most_expert_params: of any rank.
    """

    chunk_layers: Column
    first_layers: Column
    last_layers: Column
    layer_params: Column
    layer_expert_params: Column
    params: Column
    ranks: tuple[Rank, Rank, Rank]
    most_params: Column
    most_expert_params: Column


def stages_of(model: Sizes, layout: Layout, kv_heads: Column) -> Stages:
    """The stages of each layout; `kv_heads` of a rank."""
    pp, tp, chunks = layout.pp, layout.tp, layout.chunks
    chunk_layers, first_layers, last_layers = _layers_of_chunks(model, pp, chunks)
    of_kv_head = 2 * model.hidden_size * model.head_dim  # parameters; ranks that share a head hold it each
    by_tp = (model.layer_cut - of_kv_head * model.kv_heads) / tp
    layer_params = by_tp + of_kv_head * kv_heads + model.layer_whole
    layer_expert_params = model.num_experts / layout.ep * model.expert_params
    before = model.first_params / tp
    norm = model.hidden_size  # the final one is whole on every rank
    after = (model.last_params - norm) / tp + norm
    tied = model.tied_params / tp  # a rank with both ends holds one table

    def rank_of(number: Column) -> Rank:
        begins, ends = number == 0, number == pp - 1
        layers = chunk_layers * chunks - begins * (chunk_layers - first_layers) - ends * (chunk_layers - last_layers)
        outside = np.where(begins, before, 0) + np.where(ends, after - begins * tied, 0)
        return Rank(number, layers, layers * layer_params + outside)

    ranks = rank_of(0), rank_of(np.minimum(1, pp - 1)), rank_of(pp - 1)
    return Stages(
        chunk_layers=chunk_layers,
        first_layers=first_layers,
        last_layers=last_layers,
        layer_params=layer_params,
        layer_expert_params=layer_expert_params,
        params=model.num_layers * layer_params + (before + after - np.where(pp == 1, tied, 0)),
        ranks=ranks,
        most_params=reduce(np.maximum, (rank.params for rank in ranks)),
        most_expert_params=chunk_layers * chunks * layer_expert_params,
    )


def _layers_of_chunks(model: Sizes, pp: Column, chunks: Column) -> tuple[Column, Column, Column]:
    """Layers of a chunk, of the first chunk and of the last one.

    One chunk a rank: the last has so many that with the head it is no slower than the others, of which some may have a
    layer less. Megatron takes the number of the last stage's layers, DeepSpeed balances parameters, picotron gives the
    first stages one more. Several chunks: where pp·chunks does not divide L, the last chunk has one less, and maybe the
    first one too (Llama 3).
    """
    layers = model.num_layers
    head = model.hidden_size * model.vocab_size / model.active_params  # in layers
    # One chunk a rank
    last_stage = last_stage_layers(layers, pp, head)
    other_stage = np.where(pp == 1, layers, _most_before_last(layers, pp, last_stage))
    # Several chunks
    missing = -layers % (pp * chunks)  # chunks with a layer less: none, the last, or the first too
    chunk = (layers + missing) / (pp * chunks)
    first, last = chunk - missing // 2, chunk - np.minimum(missing, 1)
    one = chunks == 1
    return np.where(one, other_stage, chunk), np.where(one, other_stage, first), np.where(one, last_stage, last)


def last_stage_layers(layers: int, pp: Column, head: float) -> Column:
    """Layers of the last of pp stages, so that the slowest stage is as quick as it can be.

    Args:
        layers: of the model.
        pp: stages.
        head: the work of the head, which is on the last stage, in layers.

    >>> last_stage_layers(32, np.array(4.0), head=2.4).item()  # 6 + 2.4, beside 9, 9 and 8; 7 + 2.4 would be slower
    6.0
    """
    most = np.ceil(layers / pp)
    tried = [np.where(pp == 1, layers, np.maximum(most - fewer, 0)) for fewer in range(MOST_FEWER + 1)]
    slowest = [np.maximum(_most_before_last(layers, pp, last), last + head) for last in tried]
    return np.choose(np.argmin(slowest, axis=0), tried)


def _most_before_last(layers: int, pp: Column, last: Column) -> Column:
    """The most layers of a stage before the last one."""
    return np.ceil((layers - last) / np.maximum(pp - 1, 1))
