"""What all formulas read: the knobs of one layout or of many as float64 arrays, and what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from parlab.plan.layout import Layout
from parlab.plan.models import Config, Sizes
from parlab.zero import StateBytes

Column = Any  # a float64 array (or a boolean one, where it is a question), an entry a layout


class Case(Sizes):
    """A model, its data, and columns of layouts that are possible for it.

    Attributes:
        batch, sequence, state, item: sequences; tokens of each; bytes a parameter; bytes of an activation.
        d, p, c, t, v, b, zero: ranks for data, pipeline, context, tensors; chunks; microbatch; stage of ZeRO.
        m: microbatches of a replica. n: tokens of a microbatch on a rank. kv: its key/value heads, at least one.
        between: among how many ranks the tokens between tensor-parallel regions are cut. data: ZeRO's ranks, d·c.
        pairs: (query, key, head) triples of a microbatch on a rank; of fused attention only causal ones, which zigzag
            deals out evenly.
        in_turn: microbatches go forward and backward in turn (1F1B), not all through a chunk before the next.
        passes: how often a step's gradients travel.
        layers: of a chunk. fewer_first, fewer_last: layers that the very first and the very last chunk have less.
        layer_params: parameters of a layer that a rank holds.
        stages: of the first, the second and the last rank of a pipeline: its number, the layers that it has less, the
            parameters that it holds; where two ranks are all, the first stands for the second.
    """

    def __init__(self, config: Config, layout: Layout, batch: int, sequence: int, state: StateBytes, item: int) -> None:
        super().__init__(config)
        self.batch, self.sequence, self.state, self.item = batch, sequence, state, item
        of = layout.arrays
        self.d, self.p, self.c, self.t, self.v, self.b, self.zero = (
            of[name].astype(float) for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch", "zero")
        )
        self.sequence_parallel, self.offload = of["sequence_parallel"].astype(bool), of["offload"].astype(bool)
        self.in_turn, self.recompute = of["schedule"] == "1f1b", of["recompute"]
        self.m, self.n, self.data = batch / (self.d * self.b), self.b * sequence / self.c, self.d * self.c
        self.kv = np.maximum(self.G / self.t, 1)
        self.between = np.where(self.sequence_parallel, self.t, 1)
        each = sequence * (sequence + 1) / 2 if self.fused else sequence * sequence
        self.pairs = self.b * each * self.H / (self.t * self.c)
        # With each microbatch where whole gradients are not kept (stages 2 and 3), but breadth-first stage 2 has all
        # microbatches of a chunk one after the other, and keeps that chunk's whole
        self.passes = np.where((self.zero == 3) | ((self.zero == 2) & self.in_turn), self.m, 1)
        # Where p·v does not divide L, the last stage has a layer less, then the first too (Llama 3, section 3.3.2)
        missing = -self.L % (self.p * self.v)
        self.layers = (self.L + missing) / (self.p * self.v)
        self.fewer_first, self.fewer_last = missing // 2, np.minimum(missing, 1)
        keys = 2 * self.E * self.D  # heads that several ranks share are held by each
        self.layer_params = (self.layer_cut - keys * self.G) / self.t + keys * self.kv + self.layer_whole
        middle = self.layers * self.v * self.layer_params
        after = (self.last - self.E) / self.t + self.E  # the final norm is whole on every rank
        tied = 0 if self.fused else self.V * self.E / self.t  # one table where one rank has both ends
        alone, several = self.p == 1, self.p > 2
        first = middle - self.fewer_first * self.layer_params + self.first / self.t + np.where(alone, after - tied, 0)
        last = np.where(alone, first, middle - self.fewer_last * self.layer_params + after)
        self.stages = (
            (0, self.fewer_first, first),
            (np.where(several, 1, 0), np.where(several, 0, self.fewer_first), np.where(several, middle, first)),
            (self.p - 1, self.fewer_last, last),
        )
