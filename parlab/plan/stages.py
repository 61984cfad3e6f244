"""The stages of a pipeline: how layers are dealt out, and the parameters of the ranks that can be the fullest.

Source: the Llama team 2024, "The Llama 3 herd of models", section 3.3.2 (the first and last stage have a layer less).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes


class Rank(NamedTuple):
    """A rank of a pipeline: its number, how many layers fewer it has, and its parameters without experts."""

    number: Column
    fewer: Column
    params: Column


class Stages(NamedTuple):
    """Layers and parameters of a pipeline.

    Fields:
        chunk_layers: layers of a chunk.
        fewer_first, fewer_last: how many fewer the first chunk and the last one have.
        layer_params, layer_expert_params: of a layer on a rank, without experts, and of its experts.
        params: of all ranks of a pipeline, without experts.
        ranks: the first, the second and the last one.
    """

    chunk_layers: Column
    fewer_first: Column
    fewer_last: Column
    layer_params: Column
    layer_expert_params: Column
    params: Column
    ranks: tuple[Rank, Rank, Rank]


def stages_of(model: Sizes, layout: Layout, kv_heads: Column) -> Stages:
    """The record of columns of layouts; `kv_heads` of a rank."""
    E, V, pp, tp = model.hidden_size, model.vocab_size, layout.pp, layout.tp
    chunk_layers, fewer_first, fewer_last = _dealt(model, pp, layout.chunks)
    keys = 2 * E * model.head_dim  # parameters of a key/value head; ranks that share one hold it each
    by_tp = (model.layer_cut - keys * model.kv_heads) / tp
    layer_params = by_tp + keys * kv_heads + model.layer_whole
    before = model.first_params / tp
    after = (model.last_params - E) / tp + E  # the final norm is whole on every rank
    tied = V * E / tp if model.tied else 0  # a rank with both ends holds one table
    outside = before + after - np.where(pp == 1, tied, 0)

    def rank_of(number: Column) -> Rank:
        begins, ends = number == 0, number == pp - 1
        fewer = np.where(begins, fewer_first, ends * fewer_last)
        params = chunk_layers * layout.chunks * layer_params - fewer * layer_params
        params = params + np.where(begins, before, 0) + np.where(ends, after - begins * tied, 0)
        return Rank(number, fewer, params)

    return Stages(
        chunk_layers,
        fewer_first,
        fewer_last,
        layer_params,
        layer_expert_params=model.num_experts / layout.ep * model.expert_params,
        params=model.num_layers * layer_params + outside,
        ranks=(rank_of(0), rank_of(np.minimum(1, pp - 1)), rank_of(pp - 1)),
    )


def _dealt(model: Sizes, pp: Column, chunks: Column) -> tuple[Column, Column, Column]:
    """Layers of a chunk, and how many fewer the first chunk and the last one have.

    One chunk a rank: the last stage has so many layers less that with the head it is no slower than the others, of
    which some may have a layer less. Megatron takes the number of the last stage's layers, DeepSpeed balances
    parameters, picotron gives the first stages one more. Several chunks: where pp·chunks does not divide L, the last
    chunk has one less, and maybe the first one too (Llama 3).
    """
    L = model.num_layers
    head = model.hidden_size * model.vocab_size / model.active_params  # in layers
    most, others = np.ceil(L / pp), np.maximum(pp - 1, 1)
    slowest, last = np.full_like(most, np.inf), most
    for fewer in range(5):
        tried = np.where(pp == 1, L, np.maximum(most - fewer, 0))
        time = np.maximum(np.ceil((L - tried) / others), tried + head)
        last, slowest = np.where(time < slowest, tried, last), np.minimum(time, slowest)
    uneven = np.where(pp == 1, L, np.ceil((L - last) / others))
    missing = -L % (pp * chunks)
    layers = np.where(chunks == 1, uneven, (L + missing) / (pp * chunks))
    fewer_last = np.where(chunks == 1, uneven - last, np.minimum(missing, 1))
    return layers, np.where(chunks == 1, 0, missing // 2), fewer_last
