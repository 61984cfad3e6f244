"""What all formulas read: the knobs of one layout or of many as float64 arrays, and what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from parlab.plan.layout import Layout
from parlab.plan.models import Config, sizes
from parlab.zero import StateBytes

Column = Any  # a float64 array (or a boolean one, where it is a question), an entry a layout

MIXED = StateBytes()


class Case:
    """A model, its data, and columns of layouts that are possible for it.

    Attributes:
        sizes, sequence, state, item: the model; tokens of a sequence; bytes a parameter; bytes of an activation.
        d, p, c, t, v, b, zero: ranks for data, pipeline, context, tensors; chunks; microbatch; stage of ZeRO.
        m: microbatches of a replica. n: tokens of a microbatch on a rank. kv: its key/value heads, at least one.
        between: among how many ranks the tokens between tensor-parallel regions are cut. data: ZeRO's ranks, d·c.
        pairs: (query, key, head) triples of a microbatch on a rank; of fused attention only causal ones, which zigzag
            deals out evenly.
        in_turn: microbatches go forward and backward in turn (1F1B), not all through a chunk before the next.
        layers: of a chunk. fewer_first, fewer_last: layers that the very first and the very last chunk have less.
    """

    def __init__(self, config: Config, layout: Layout, batch: int, sequence: int, state: StateBytes, item: int) -> None:
        self.config, self.sizes, self.state, self.item = config, sizes(config), state, item
        self.batch, self.sequence = batch, sequence
        of = layout.arrays
        self.d, self.p, self.c, self.t, self.v, self.b, self.zero = (
            of[name].astype(float) for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch", "zero")
        )
        self.sequence_parallel, self.offload = of["sequence_parallel"].astype(bool), of["offload"].astype(bool)
        self.in_turn, self.recompute = of["schedule"] == "1f1b", of["recompute"]
        self.m, self.n, self.data = batch / (self.d * self.b), self.b * sequence / self.c, self.d * self.c
        self.kv = np.maximum(self.sizes.G / self.t, 1)
        self.between = np.where(self.sequence_parallel, self.t, 1)
        each = sequence * (sequence + 1) / 2 if self.sizes.fused else sequence * sequence
        self.pairs = self.b * each * self.sizes.H / (self.t * self.c)
        # Where p·v does not divide L, the last stage has a layer less, then the first too (Llama 3, section 3.3.2)
        missing = -self.sizes.L % (self.p * self.v)
        self.layers = (self.sizes.L + missing) / (self.p * self.v)
        self.fewer_first, self.fewer_last = missing // 2, np.minimum(missing, 1)

    @property
    def passes(self) -> Column:
        """How often a step's gradients travel: with each microbatch where whole ones are not kept (stages 2 and 3), but
        breadth-first stage 2 has all microbatches of a chunk one after the other, and keeps that chunk's whole."""
        return np.where((self.zero == 3) | ((self.zero == 2) & self.in_turn), self.m, 1)

    @property
    def layer_params(self) -> Column:
        """Parameters of a layer that a rank holds: heads that several ranks share are held by each."""
        E, G, D = self.sizes.E, self.sizes.G, self.sizes.D
        return (self.sizes.layer_cut - 2 * E * G * D) / self.t + 2 * E * self.kv * D + self.sizes.layer_whole

    @property
    def stage_params(self) -> tuple[Column, Column, Column]:
        """Parameters that a rank of the first, a middle and the last stage holds."""
        middle = self.layers * self.v * self.layer_params
        alone, E = self.p == 1, self.sizes.E
        before = self.sizes.first / self.t
        after = (self.sizes.last - E) / self.t + E  # the final norm is whole on every rank
        tied = 0 if self.sizes.fused else self.sizes.V * E / self.t  # one table where one rank has both ends
        first = middle - self.fewer_first * self.layer_params + before + np.where(alone, after - tied, 0)
        last = np.where(alone, first, middle - self.fewer_last * self.layer_params + after)
        return first, np.where(self.p > 2, middle, first), last
