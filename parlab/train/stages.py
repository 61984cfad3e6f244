"""The pipeline stages of one rank, and their use of ZeRO's blocks.

A pipeline stage is a `Chain` of the model's `Stage`s: the embedding, decoder blocks, the head. For each of these ZeRO
gathers weights, and takes gradients, alone: those of a whole pipeline stage never exist at once.

    action                  its weights                   its gradients
    F, forward              are gathered while it runs    -
    I, backward_input       are gathered while it runs    -
    W, backward_weight      are not read                  go to ZeRO
    B, I and W in one       are gathered while it runs    go to ZeRO

The gradients of a block that several ranks of pp hold wait, and go to ZeRO at the end of the step, summed over these
ranks. So `run_schedule`, which would return them, gets none.

Invariant: a block is open while a `Stage` that reads it computes. A step opens the blocks in `opening_order`, in which
ZeRO's stage 3 gathers them ahead, and brings gradients of each as often as `expected_calls` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from parlab.arrays import Array
from parlab.nn.stage import Chain, Gradients, Stage, add_gradients
from parlab.pipeline import Action
from parlab.train.job import TrainJob
from parlab.train.parts import TrainParts
from parlab.train.rank_model import RankModel
from parlab.world import Comm
from parlab.zero.training import open_blocks


def pipeline_stages(job: TrainJob, model: RankModel) -> dict[int, Chain]:
    """The pipeline stages that the schedule gives this rank, by their numbers."""
    of_all = enumerate(model.llama.stages(job.layers))
    return {number: chain for number, chain in of_all if job.mesh.pp.rank in job.schedule.holders(number)}


# The use of blocks in a step, which ZeRO has to know before it begins


def uses_of_blocks(model: RankModel, stages: Mapping[int, Chain], actions: Iterable[Action]) -> list[tuple[str, str]]:
    """Each use of a block by these actions, one after the other: the kind of the action, and the block.

    A tied model of one layer, on one rank, with one microbatch: F uses embedding, layers.0, norm and embedding; B uses
    norm, embedding, layers.0 and embedding. So they open eight blocks, and gradients of the embedding come twice.
    """
    uses = []
    for kind, number, _ in actions:
        in_order = stages[number].stages
        for stage in in_order if kind == "F" else reversed(in_order):
            uses += [(kind, block) for block in model.blocks_of(stage)]
    return uses


def opening_order(uses: Iterable[tuple[str, str]]) -> list[str]:
    """The blocks, as these uses open them one after the other."""
    return [block for kind, block in uses if kind != "W"]


def expected_calls(uses: Iterable[tuple[str, str]], blocks: Iterable[str], shared: Collection[str]) -> dict[str, int]:
    """How often these uses bring ZeRO gradients of each block: of a shared one once, when all are summed."""
    made = Counter(block for kind, block in uses if kind in ("B", "W"))
    return {block: 1 if block in shared else made[block] for block in blocks}


def shared_blocks(pp: Comm, model: RankModel) -> dict[str, Any]:
    """The blocks here that several ranks of `pp` hold, each with their group. Every rank of `pp` calls this."""
    several = sorted({ranks for ranks in model.pp_ranks.values() if len(ranks) > 1})
    groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
    ranks_of = {block: model.pp_ranks[names[0]] for block, names in model.blocks.items()}
    return {block: groups[ranks] for block, ranks in ranks_of.items() if ranks in groups}


# A step's stages


def stages_with_zero(parts: TrainParts) -> dict[int, Chain]:
    """The pipeline stages of this rank, with ZeRO at each action."""
    return {
        number: Chain([StageWithZero(parts, stage) for stage in chain.stages]) for number, chain in parts.stages.items()
    }


class StageWithZero(Stage):
    """A `Stage` of the model whose weights and gradients ZeRO has: each method does what the table above says."""

    def __init__(self, parts: TrainParts, stage: Stage) -> None:
        self.parts, self.stage, self.blocks = parts, stage, parts.model.blocks_of(stage)
        self.weights, self.weight_names = stage.weights, stage.weight_names

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        """F."""
        with open_blocks(self.parts.replica, self.blocks):
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """I."""
        with open_blocks(self.parts.replica, self.blocks):
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """W."""
        take_gradients(self.parts, self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """B."""
        with open_blocks(self.parts.replica, self.blocks):
            dx, gradients = self.stage.backward(dy, cache)
        take_gradients(self.parts, gradients)
        return dx, {}


def take_gradients(parts: TrainParts, gradients: Gradients) -> None:
    """Give new gradients to ZeRO; those of shared blocks wait until all microbatches are done."""
    comm, waiting = parts.job.mesh.comm, parts.waiting
    comm.hold("new gradients", gradients)
    for block, names in parts.model.blocks.items():
        found = {name: gradients[name] for name in names if name in gradients}
        if found and block in parts.shared:
            waiting[block] = add_gradients(waiting.get(block, {}), found)
            comm.hold("gradients", waiting[block])
        elif found:
            parts.replica.add_gradients(block, found)
