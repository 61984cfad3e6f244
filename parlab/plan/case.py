"""A case: all that the bills read beside the machine. A model under columns of layouts, its data, and the software.

What was asked: the `model` (`sizes`), the `layout`, the `sequence` and the `software`. What follows: the `share` of a
rank in a microbatch, the `pipeline` with its microbatches, and its `stages` with their layers and parameters.

Invariant: each quantity is columns that broadcast together, so one layout and many give the same numbers to the bit.
All ranks of a stage have equal shares, because every axis cuts evenly.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from parlab.nn.config import Config
from parlab.pipeline.closed_forms import Column, Pipeline
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes
from parlab.plan.software import OURS, Software
from parlab.plan.stages import stages_of
from parlab.zero import MIXED, StateBytes


class Itemsizes(NamedTuple):
    """Bytes of one number.

    Fields:
        activation: an element.
        wide: an element that is in float32 or wider: of dK and dV, and of the loss.
        state: of a parameter, its weight, its gradient and its optimizer's state, as they are held.
        sent_gradient: a gradient that travels.
    """

    activation: int
    wide: int
    state: StateBytes
    sent_gradient: int


class Share(NamedTuple):
    """Of one microbatch, on one rank.

    Fields:
        tokens: those of the rank's place on cp. In attention and the MLP, the regions whose matrices are cut, each rank
            of tp has all of these.
        token_ranks: the ranks that divide these tokens between regions, at norms and residuals: tp with sequence
            parallelism, else 1.
        input_bytes: of a layer's input, on all of `token_ranks`.
        kv_heads: key/value heads. Where tp is more than the model has, ranks share a head and hold it each.
        attention_pairs: (query, key, head) triples that attention computes.
        expert_rows: rows that it sends to experts, and at an even load gets from others.
        loss_columns: columns of the logits over which its loss runs.
    """

    tokens: Column
    token_ranks: Column
    input_bytes: Column
    kv_heads: Column
    attention_pairs: Column
    expert_rows: Column
    loss_columns: Column

    @property
    def own_tokens(self) -> Column:
        """Tokens that it has between regions, and so at a router."""
        return self.tokens / self.token_ranks

    @property
    def own_input_bytes(self) -> Column:
        """Bytes of a layer's input that it holds there."""
        return self.input_bytes / self.token_ranks


class Case:
    """A model, columns of layouts that are possible, the data of a step, and the software.

    Attributes:
        config, model: the model, and its sizes.
        given: the layouts of the caller.
        layout: the same in columns, whole numbers as floating ones, which never overflow.
        sequence: tokens.
        software: its habits.
        itemsize: bytes of one number, of each sort.
        flops: of a step, without recomputation.
        recomputed: the part of all layers whose forward is computed again: all, or `recompute_layers` of each rank.
        share: of a rank in a microbatch.
        pipeline, stages: its ranks and microbatches; their layers and parameters.
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
        self.config, self.given, self.sequence, self.software = config, layout, sequence, software
        self.itemsize = Itemsizes(itemsize, max(itemsize, 4), state, software.gradient or state.gradient)
        self.model = model = Sizes(config)
        self.layout = layout = layout.columns(float)
        self.flops = _flops(model, batch, sequence)
        by_layers = np.minimum(layout.recompute_layers * layout.pp / model.num_layers, 1)
        self.recomputed = np.where(layout.recompute == "full", 1.0, by_layers)
        self.share = _share(model, layout, sequence, itemsize, software)
        self.pipeline = _pipeline(layout, batch)
        self.stages = stages_of(model, layout, self.share.kv_heads)

    @property
    def group_passes(self) -> Column:
        """How often in a step a microbatch passes a tensor-parallel group of a stage: m times in each of dp · cp."""
        return self.pipeline.microbatches * self.layout.dp * self.layout.cp

    @property
    def holders_of_kv_head(self) -> Column:
        """How many ranks of tp hold the same key/value head: 1, or more where tp is more than there are heads."""
        return self.layout.tp * self.share.kv_heads / self.model.kv_heads

    def stride(self, axis: str) -> Column:
        """How far apart the ranks of an axis are: the product of the axes inside it, in the software's order."""
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (getattr(self.layout, name) for name in inner), np.array(1.0))


def _flops(model: Sizes, batch: int, sequence: int) -> float:
    """FLOPs of a step: two a parameter that a token passes, and attention; the backward has twice as many."""
    matrices = model.num_layers * model.active_params + model.hidden_size * model.vocab_size
    attention = model.num_layers * 4 * model.pairs(sequence) * model.heads * model.head_dim
    return 3.0 * batch * (2 * sequence * matrices + attention)


def _share(model: Sizes, layout: Layout, sequence: int, itemsize: int, software: Software) -> Share:
    """The share of a rank, of each layout; `itemsize` of an activation's element."""
    tokens = layout.microbatch * sequence / layout.cp
    token_ranks = np.where(layout.sequence_parallel, layout.tp, 1)
    return Share(
        tokens=tokens,
        token_ranks=token_ranks,
        input_bytes=itemsize * tokens * model.hidden_size,
        kv_heads=np.maximum(model.kv_heads / layout.tp, 1),
        # The zigzag layout gives each rank of cp equally many
        attention_pairs=layout.microbatch * model.pairs(sequence) * model.heads / (layout.tp * layout.cp),
        expert_rows=tokens / token_ranks * model.experts_per_token,
        loss_columns=model.vocab_size / layout.tp if software.cuts_logits else model.vocab_size,
    )


def _pipeline(layout: Layout, batch: int) -> Pipeline:
    """The pipeline of each layout, for a step of `batch` sequences."""
    microbatches = batch / (layout.dp * layout.microbatch)
    alternates = layout.schedule == "1f1b"
    group = np.where(alternates, np.minimum(layout.pp, microbatches), microbatches)
    return Pipeline(layout.pp, microbatches, layout.chunks, alternates, group)
