"""The state of one block of `Zero`, part by part."""

from __future__ import annotations

from typing import NamedTuple

from parlab.zero.flat import FlatLayout
from parlab.zero.gradients import ShardedGradients, WholeGradients
from parlab.zero.stages import ShardedWeights, WholeWeights
from parlab.zero.state import OptimizerShard


class ShardedBlock(NamedTuple):
    """The parts of a block's state. The stage says which of them are whole."""

    layout: FlatLayout
    weights: WholeWeights | ShardedWeights
    gradients: WholeGradients | ShardedGradients
    state: OptimizerShard
