"""A model under columns of layouts, its data, and the habits of the software: all that the formulas read, in records.

Invariant: each record is columns that broadcast together, so one layout and many give the same numbers to the bit.
"""

from __future__ import annotations

from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from parlab.nn.config import Config
from parlab.pipeline.closed_forms import Column, Pipeline
from parlab.plan.layout import Layout
from parlab.plan.sharding import Sharding, sharding_of
from parlab.plan.sizes import Sizes
from parlab.plan.software import OURS, Software
from parlab.plan.stages import Stages, stages_of
from parlab.zero import MIXED, StateBytes


class Work(NamedTuple):
    """A microbatch on a rank.

    Fields:
        tokens: of it.
        token_ranks: how many ranks divide the tokens between tensor parallelism's regions.
        input_bytes: of a layer's input.
        kv_heads: of a rank.
        attention_pairs: (query, key, head) triples.
        expert_rows: rows of a rank to experts, and at an even load from others.
    """

    tokens: Column
    token_ranks: Column
    input_bytes: Column
    kv_heads: Column
    attention_pairs: Column
    expert_rows: Column


class Exchanges(NamedTuple):
    """The traffic of tensor parallelism. An exchange is an all-gather or a reduce-scatter of a layer's input.

    Fields:
        forward, backward: how many a layer has.
        logit_bytes: of all logits of a microbatch.
        loss_columns: over which the loss runs on a rank.
    """

    forward: Column
    backward: Column
    logit_bytes: Column
    loss_columns: Column


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
        pipeline, work, exchanges, sharding, stages: the records.
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
        self.config, self.model, self.layout = config, Sizes(config), _columns(layout)
        self.batch, self.sequence = batch, sequence
        self.itemsize, self.wide_itemsize = itemsize, max(itemsize, 4)
        self.state, self.gradient_bytes = state, software.gradient or state.gradient
        self.software = software
        some = np.minimum(self.layout.recompute_layers * self.layout.pp / self.model.num_layers, 1)
        self.recomputed = np.where(self.layout.recompute == "full", 1.0, some)
        # Fused attention computes the causal pairs, and the zigzag layout gives each rank equally many
        self._pairs = sequence * (sequence + 1) / 2 if self.model.fused_attention else sequence * sequence

    @cached_property
    def flops(self) -> float:
        """FLOPs of a step: two a parameter that a token passes, and attention; the backward has twice as many."""
        model, sequence = self.model, self.sequence
        matrices = model.num_layers * model.active_params + model.hidden_size * model.vocab_size
        attention = model.num_layers * 4 * self._pairs * model.heads * model.head_dim
        return 3.0 * self.batch * (2 * sequence * matrices + attention)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Ranks, microbatches of a replica, chunks, and how many microbatches pass a chunk in a row."""
        layout = self.layout
        microbatches = self.batch / (layout.dp * layout.microbatch)
        alternates = layout.schedule == "1f1b"
        fewest = np.minimum(layout.pp, microbatches)
        group = np.where(alternates, np.where(layout.group == 0, fewest, layout.group), microbatches)
        return Pipeline(layout.pp, microbatches, layout.chunks, alternates, group)

    @cached_property
    def work(self) -> Work:
        """A microbatch on a rank."""
        model, layout = self.model, self.layout
        tokens = layout.microbatch * self.sequence / layout.cp
        token_ranks = np.where(layout.sequence_parallel, layout.tp, 1)
        return Work(
            tokens,
            token_ranks,
            input_bytes=self.itemsize * tokens * model.hidden_size,
            kv_heads=np.maximum(model.kv_heads / layout.tp, 1),
            attention_pairs=layout.microbatch * self._pairs * model.heads / (layout.tp * layout.cp),
            expert_rows=tokens / token_ranks * model.experts_per_token,
        )

    @cached_property
    def exchanges(self) -> Exchanges:
        """Tensor parallelism's traffic: Shoeybi et al. 2019; with sequence parallelism, Korthikanti et al. 2022."""
        software, model = self.software, self.model
        # Gate and up may sum the gradient of x apart
        sums = 2 if software.joins_products or not model.fused_attention else 3
        forward, backward = 4, np.where(self.layout.sequence_parallel, 6 if software.gathers_again else 4, 2 * sums)
        if model.num_experts:  # they have none
            forward = 2
            backward = np.where(self.layout.sequence_parallel, 3 if software.gathers_again else 2, 2)
        loss_columns = model.vocab_size / self.layout.tp if software.cuts_logits else model.vocab_size
        return Exchanges(forward, backward, self.itemsize * self.work.tokens * model.vocab_size, loss_columns)

    @cached_property
    def sharding(self) -> Sharding:
        """The traffic of ZeRO."""
        return sharding_of(self.layout, self.pipeline, self.software)

    @cached_property
    def stages(self) -> Stages:
        """Layers and parameters of ranks."""
        return stages_of(self.model, self.layout, self.work.kv_heads)

    def stride(self, axis: str) -> Column:
        """How far apart the ranks of an axis are: the product of the axes inside it, in the software's order."""
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (getattr(self.layout, name) for name in inner), np.array(1.0))


def _columns(layout: Layout) -> Layout:
    """The same layouts, whole numbers as floating ones, switches as booleans."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    return Layout(**{name: x.astype(float) if x.dtype.kind in "iu" else x for name, x in of.items()})
