"""The pipeline stages of one rank, and their use of ZeRO's blocks.

A pipeline stage is a `Chain` of the model's `Stage`s: the embedding, decoder blocks, the head. ZeRO gathers weights for
one `Stage` at a time, and takes its gradients at once.

Invariant: a block is open while a `Stage` that reads it computes; and the blocks of a step are opened in
`opening_order`, in which ZeRO's stage 3 gathers them ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from parlab.arrays import Array
from parlab.nn.stage import Chain, Gradients, Stage
from parlab.pipeline import Action
from parlab.train.first_pass import first_forwards
from parlab.train.job import TrainJob
from parlab.train.own_model import Blocks, OwnModel
from parlab.zero import Zero
from parlab.zero.training import weights_of


class OwnStages(NamedTuple):
    """The pipeline stages of this rank, and how a step uses ZeRO's blocks in them."""

    chains: Mapping[int, Chain]  # a pipeline stage by its number
    first_forwards: list[Action]  # of the first pass, before the schedule's; none, if no auxiliary loss needs it
    opening_order: list[str]  # of the blocks in a step
    uses: Mapping[str, int]  # how often a step makes gradients of each block


def own_stages(job: TrainJob, own: OwnModel) -> OwnStages:
    """The stages that the schedule gives this rank, with plain weights: ZeRO is made after them, and needs `uses`."""
    rank, schedule = job.mesh.pp.rank, job.schedule
    all_chains = enumerate(own.model.stages(job.layers))
    chains = {number: chain for number, chain in all_chains if rank in schedule.holders(number)}
    forwards = first_forwards(schedule, rank) if job.settings.auxiliary else []
    opening_order, uses = uses_of_blocks([*forwards, *schedule.actions[rank]], chains, own.blocks)
    return OwnStages(chains, forwards, opening_order, uses)


def uses_of_blocks(
    actions: Iterable[Action], chains: Mapping[int, Chain], blocks: Blocks
) -> tuple[list[str], dict[str, int]]:
    """The order in which the actions open the blocks, and how often they make gradients of each."""
    opening_order: list[str] = []
    made: Counter[str] = Counter()
    for kind, pipeline_stage, _ in actions:
        stages = chains[pipeline_stage].stages
        in_turn = stages if kind == "F" else stages[::-1]
        used = [block for stage in in_turn for block in blocks_of(stage, blocks)]
        if kind != "W":  # F, I and B read weights
            opening_order += used
        if kind in ("B", "W"):  # these make gradients
            made.update(used)
    return opening_order, {block: made[block] for block in blocks}


def blocks_of(stage: Stage, blocks: Blocks) -> list[str]:
    """ZeRO's blocks whose weights a stage of the model reads."""
    block_of = {name: block for block, names in blocks.items() for name in names}
    return list(dict.fromkeys(block_of[name] for name in stage.weight_names))


def gathered_stages(plain: OwnStages, blocks: Blocks, replica: Zero, take: Callable[[Gradients], None]) -> OwnStages:
    """The same stages as a schedule runs them: `replica` gathers their weights, and `take` gets their gradients."""
    opened = partial(weights_of, replica)
    chains = {
        number: Chain([GatheredStage(stage, blocks_of(stage, blocks), opened, take) for stage in chain.stages])
        for number, chain in plain.chains.items()
    }
    return plain._replace(chains=chains)


class GatheredStage(Stage):
    """A stage whose weights ZeRO gathers before each action that reads them.

    F, I and B read weights; a W reads none. The gradients of each piece of a pipeline stage leave as soon as they are
    made, so that those of a whole pipeline stage never exist at once.

    Args:
        stage: of the model.
        blocks: ZeRO's blocks that it reads.
        opened: `with opened(blocks):` the weights of the blocks are there.
        take: takes the gradients.
    """

    def __init__(
        self,
        stage: Stage,
        blocks: Sequence[str],
        opened: Callable[[Sequence[str]], AbstractContextManager[Any]],
        take: Callable[[Gradients], None],
    ) -> None:
        self.stage, self.blocks, self.opened, self.take = stage, blocks, opened, take
        self.weights, self.weight_names = stage.weights, stage.weight_names

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        """See `Stage`."""
        with self.opened(self.blocks):
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        """See `Stage`."""
        with self.opened(self.blocks):
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """See `Stage`."""
        self.take(self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        """See `Stage`."""
        with self.opened(self.blocks):
            dx, gradients = self.stage.backward(dy, cache)
        self.take(gradients)
        return dx, {}
