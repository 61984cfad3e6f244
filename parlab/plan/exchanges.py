"""Tensor parallelism's exchanges: how often a layer's input travels between the ranks of a group, and who waits.

        a block that is cut   forward            backward, waited for   backward, beside dW
        all-reduces           y: 2               none                   dX: 2, or 4 if gate and up sum it apart
        sequence parallel     gather x, y: 2     gather dY: 1           dX, and x if it is gathered again: 1 or 2

Invariant: one exchange is an all-gather or a reduce-scatter of a layer's input; an all-reduce is two.

Source: Shoeybi et al. 2019, "Megatron-LM"; with sequence parallelism Korthikanti et al. 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.layout import Layout
from parlab.plan.sizes import Sizes
from parlab.plan.software import Software


class Exchanges(NamedTuple):
    """How many exchanges a layer has.

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


def exchanges_of(model: Sizes, layout: Layout, software: Software) -> Exchanges:
    """The record of columns of layouts. Two blocks are cut: attention, and the MLP, if no experts are in its place."""
    blocks = 1 if model.num_experts else 2
    has_gate = model.up_columns > model.mlp_columns
    apart = 2 if has_gate and not software.joins_products else 0
    cut = layout.sequence_parallel
    beside = np.where(cut, blocks * (2 if software.gathers_again else 1), 2 * blocks + apart)
    return Exchanges(2 * blocks, np.where(cut, blocks, 0), beside)
