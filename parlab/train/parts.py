"""The parts with which one rank trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from parlab.nn.stage import Chain, Gradients
from parlab.train.job import TrainJob
from parlab.train.rank_model import RankModel
from parlab.world import Comm
from parlab.zero import Zero


class TrainParts(NamedTuple):
    """All that a trainer has, and a step works with.

    The record stays. A step changes the content of `replica`, of `waiting`, and of the routers in `model`.
    """

    job: TrainJob  # the arguments, checked: model, ranks and how to train
    model: RankModel  # this rank's slices of the weights, in ZeRO's blocks
    stages: Mapping[int, Chain]  # the pipeline stages of this rank, by their numbers
    opening_order: list[str]  # the blocks, as a step opens them one after the other
    shared: dict[str, Comm]  # the blocks here that several ranks of pp hold, each with the group of these ranks
    waiting: dict[str, Gradients]  # of shared blocks, from the microbatches so far; empty between steps
    replica: Zero  # ZeRO's, which has taken over the weights of `model`
