"""A case: all that the bills read beside the machine. A model under columns of layouts, its data, and the software.

Most of it are records, a subject each: the `model` (`sizes`), the `layout`, the `software`, the `pipeline`, and of the
file of the same name the `share`, the `stages`, the `exchanges` and the `sharding`.

Invariant: each quantity is columns that broadcast together, so one layout and many give the same numbers to the bit.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from parlab.nn.config import Config
from parlab.pipeline.closed_forms import Column, Pipeline
from parlab.plan.exchanges import exchanges_of
from parlab.plan.layout import Layout
from parlab.plan.sharding import sharding_of
from parlab.plan.share import share_of
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


class Case:
    """A model, columns of layouts that are possible, the data of a step, and the software.

    Attributes:
        config, model: the model, and its sizes.
        layout: the columns; whole numbers as floating ones, which never overflow.
        sequence: tokens.
        software: its habits.
        itemsize: bytes of one number, of each sort.
        flops: of a step, without recomputation.
        recomputed: the part of all layers whose forward is computed again: all, or `recompute_layers` of each rank.
        share: of a rank in a microbatch.
        pipeline, stages: its ranks and microbatches; their layers and parameters.
        exchanges, sharding: the traffic of tensor parallelism, and of ZeRO.
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
        self.itemsize = Itemsizes(itemsize, max(itemsize, 4), state, software.gradient or state.gradient)
        self.model = model = Sizes(config)
        self.layout = layout = _columns(layout)
        self.flops = _flops(model, batch, sequence)
        by_layers = np.minimum(layout.recompute_layers * layout.pp / model.num_layers, 1)
        self.recomputed = np.where(layout.recompute == "full", 1.0, by_layers)
        self.share = share_of(model, layout, sequence, itemsize, software)
        self.pipeline = _pipeline(layout, batch)
        self.stages = stages_of(model, layout, self.share.kv_heads)
        self.exchanges = exchanges_of(model, layout, software)
        self.sharding = sharding_of(layout, self.pipeline, software)

    def stride(self, axis: str) -> Column:
        """How far apart the ranks of an axis are: the product of the axes inside it, in the software's order."""
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (getattr(self.layout, name) for name in inner), np.array(1.0))


def _columns(layout: Layout) -> Layout:
    """The same layouts, whole numbers as floating ones, switches as booleans."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    return Layout(**{name: x.astype(float) if x.dtype.kind in "iu" else x for name, x in of.items()})


def _flops(model: Sizes, batch: int, sequence: int) -> float:
    """FLOPs of a step: two a parameter that a token passes, and attention; the backward has twice as many."""
    matrices = model.num_layers * model.active_params + model.hidden_size * model.vocab_size
    attention = model.num_layers * 4 * model.pairs(sequence) * model.heads * model.head_dim
    return 3.0 * batch * (2 * sequence * matrices + attention)


def _pipeline(layout: Layout, batch: int) -> Pipeline:
    """Ranks, microbatches of a replica, chunks, and how many microbatches pass a chunk in a row."""
    microbatches = batch / (layout.dp * layout.microbatch)
    alternates = layout.schedule == "1f1b"
    fewest = np.minimum(layout.pp, microbatches)
    group = np.where(alternates, np.where(layout.group == 0, fewest, layout.group), microbatches)
    return Pipeline(layout.pp, microbatches, layout.chunks, alternates, group)
