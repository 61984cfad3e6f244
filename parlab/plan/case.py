"""A model under columns of layouts, its data, and the habits of the software: the quantities that the bills read.

Invariant: each quantity is columns that broadcast together, so one layout and many give the same numbers to the bit.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from parlab.nn.config import Config
from parlab.pipeline.closed_forms import Column, Pipeline
from parlab.plan.layout import Layout
from parlab.plan.sharding import sharding_of
from parlab.plan.sizes import Sizes
from parlab.plan.software import OURS, Software
from parlab.plan.stages import stages_of
from parlab.zero import MIXED, StateBytes


class Exchanges(NamedTuple):
    """Tensor parallelism's exchanges in a layer: all-gathers and reduce-scatters of its input; an all-reduce is two.

    Fields:
        forward: all are waited for.
        backward_waited: those of dY, which no work hides.
        backward_beside: those of dX and of x, which may travel while dW is computed.
    """

    forward: Column
    backward_waited: Column
    backward_beside: Column

    @property
    def backward(self) -> Column:
        """All of the backward."""
        return self.backward_waited + self.backward_beside


class Case:
    """A model, columns of layouts that are possible, the data of a step, and the software.

    Attributes:
        config, model: the model, and its sizes.
        layout: the columns; whole numbers as floating ones, which never overflow.
        sequence, itemsize, wide_itemsize: tokens; bytes of an activation's element, and of one in float32 or wider.
        state, gradient_bytes: bytes of the model's state a parameter, and of a gradient that travels.
        software: its habits.
        recomputed: the part of all layers whose forward is computed again: all, or `recompute_layers` of each rank.
        flops: of a step, without recomputation.
        pipeline, stages: ranks and microbatches of a pipeline; layers and parameters of its ranks.
        sharding, exchanges: the traffic of ZeRO, and of tensor parallelism.

    Of a microbatch on a rank:
        tokens, token_ranks: its tokens, and how many ranks divide them between tensor parallelism's regions.
        input_bytes: of a layer's input, on all of these.
        kv_heads, attention_pairs: key/value heads; (query, key, head) triples.
        expert_rows: rows of a rank to experts, and at an even load from others.
        loss_columns, logit_bytes: columns over which its loss runs; bytes of all logits.
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        batch: int,
        sequence: int,
        state: StateBytes = MIXED,
        itemsize: int = 2,
        software: Software = OURS,
    ) -> None:
        self.config, self.sequence, self.software = config, sequence, software
        self.itemsize, self.wide_itemsize = itemsize, max(itemsize, 4)
        self.state, self.gradient_bytes = state, software.gradient or state.gradient
        self.model = model = Sizes(config)
        self.layout = layout = _columns(layout)
        by_layers = np.minimum(layout.recompute_layers * layout.pp / model.num_layers, 1)
        self.recomputed = np.where(layout.recompute == "full", 1.0, by_layers)
        # Fused attention computes the causal pairs, and the zigzag layout gives each rank equally many
        pairs = sequence * (sequence + 1) / 2 if model.fused_attention else sequence * sequence
        self.flops = _flops(model, batch, sequence, pairs)

        self.tokens = layout.microbatch * sequence / layout.cp
        self.token_ranks = np.where(layout.sequence_parallel, layout.tp, 1)
        self.input_bytes = itemsize * self.tokens * model.hidden_size
        self.kv_heads = np.maximum(model.kv_heads / layout.tp, 1)
        self.attention_pairs = layout.microbatch * pairs * model.heads / (layout.tp * layout.cp)
        self.expert_rows = self.tokens / self.token_ranks * model.experts_per_token
        self.loss_columns = model.vocab_size / layout.tp if software.cuts_logits else model.vocab_size
        self.logit_bytes = itemsize * self.tokens * model.vocab_size

        self.pipeline = _pipeline(layout, batch)
        self.stages = stages_of(model, layout, self.kv_heads)
        self.sharding = sharding_of(layout, self.pipeline, software)
        self.exchanges = _exchanges(model, layout, software)

    def stride(self, axis: str) -> Column:
        """How far apart the ranks of an axis are: the product of the axes inside it, in the software's order."""
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (getattr(self.layout, name) for name in inner), np.array(1.0))


def _columns(layout: Layout) -> Layout:
    """The same layouts, whole numbers as floating ones, switches as booleans."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    return Layout(**{name: x.astype(float) if x.dtype.kind in "iu" else x for name, x in of.items()})


def _flops(model: Sizes, batch: int, sequence: int, pairs: float) -> float:
    """FLOPs of a step: two a parameter that a token passes, and attention; the backward has twice as many."""
    matrices = model.num_layers * model.active_params + model.hidden_size * model.vocab_size
    attention = model.num_layers * 4 * pairs * model.heads * model.head_dim
    return 3.0 * batch * (2 * sequence * matrices + attention)


def _pipeline(layout: Layout, batch: int) -> Pipeline:
    """Ranks, microbatches of a replica, chunks, and how many microbatches pass a chunk in a row."""
    microbatches = batch / (layout.dp * layout.microbatch)
    alternates = layout.schedule == "1f1b"
    fewest = np.minimum(layout.pp, microbatches)
    group = np.where(alternates, np.where(layout.group == 0, fewest, layout.group), microbatches)
    return Pipeline(layout.pp, microbatches, layout.chunks, alternates, group)


def _exchanges(model: Sizes, layout: Layout, software: Software) -> Exchanges:
    """The exchanges of a layer's blocks that are cut: attention, and the MLP, if no experts are in its place.

        a block               forward            backward, waited for   backward, beside dW
        all-reduces           y: 2               none                   dX: 2, or 4 if gate and up sum it apart
        sequence parallel     gather x, y: 2     gather dY: 1           dX, and x if it is gathered again: 1 or 2

    Source: Shoeybi et al. 2019, "Megatron-LM"; with sequence parallelism Korthikanti et al. 2022.
    """
    blocks = 1 if model.num_experts else 2
    has_gate = model.up_columns > model.mlp_columns
    apart = 2 if has_gate and not software.joins_products else 0
    cut = layout.sequence_parallel
    beside = np.where(cut, blocks * (2 if software.gathers_again else 1), 2 * blocks + apart)
    return Exchanges(2 * blocks, np.where(cut, blocks, 0), beside)
