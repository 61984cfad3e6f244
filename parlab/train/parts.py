"""The parts of a rank's training: its tensor-parallel model, ZeRO's blocks, and the stages that it runs.

Invariant: every weight of this rank is in one block of ZeRO, and a step brings ZeRO the gradients of each block as
often as `part_of_replica` said: with every backward of a stage that reads it, or once, summed over the ranks of pp
that share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from parlab.arrays import Array, asarray, namespace
from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.embedding import number_of_targets
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Chain, Gradients, Stage, add_gradients
from parlab.pipeline import Action, Schedule
from parlab.tensor import ParallelLlama, Recompute, shard_weights
from parlab.train.arguments import TrainSettings
from parlab.train.attention import attention_core, own_positions
from parlab.train.mesh import Mesh
from parlab.train.mixture import BatchExperts, is_expert, mixture_maker, owner_in_ep
from parlab.train.stages import GatheredStage
from parlab.world import Comm
from parlab.zero import Replica, replica_of
from parlab.zero.replica import ModelParallel
from parlab.zero.shards import NodeGroup
from parlab.zero.training import weights_of


class Parts:
    """All that a training step of one rank works with.

    Attributes:
        ranks_of_weight: the ranks of pp that have a weight, by name.
        own_model: the tensor-parallel model with copies of this rank's slices of its stages' weights.
        mixtures: of experts, by layer.
        blocks: the names of this rank's weights, by ZeRO's block.
        shared: of each block that several ranks of pp hold, the group of these ranks.
        waiting: gradients of shared blocks, until all microbatches are done.
        first_pass: the forwards that count the loads of a batch of several microbatches, if there is an auxiliary loss.
        opening_order: of the blocks in a step: ZeRO's stage 3 gathers them in this order.
        replica: ZeRO's, which took over the weights of `own_model`.
        stages: of this rank, by their number in the pipeline.
        loads: of each layer's experts in the last step, if there is a bias_rate.
        samples: rows of all batches so far: the number of the next sample.
    """

    def __init__(
        self,
        mesh: Mesh,
        model: Llama,
        optimizer: AdamW,
        schedule: Schedule,
        layers: Sequence[range],
        settings: TrainSettings,
        **precision: Any,
    ) -> None:
        """From the serial model to the stages that this rank runs; each line needs those above it alone."""
        self.mesh, self.config, self.schedule, self.settings = mesh, model.config, schedule, settings
        self.xp, self.device = namespace(model.weights[FINAL_NORM]), model.weights[FINAL_NORM].device
        self.waiting: dict[str, Gradients] = {}
        self.loads: list[list[int]] = []
        self.samples = 0

        # The weights of this rank, in a model of its own, and in ZeRO's blocks
        self.ranks_of_weight = holders_of_weights(model, layers, schedule)
        here = [name for name, ranks in self.ranks_of_weight.items() if mesh.pp.rank in ranks]
        self.own_model, self.mixtures = make_own_model(mesh, model, here, settings, self.positions)
        self.blocks = blocks_of_zero(self.own_model, here)
        self.shared = groups_of_shared_blocks(mesh.pp, self.ranks_of_weight, self.blocks)
        # The actions of a step on its stages: in which order they open the blocks, and how often each has gradients
        stages = stages_here(self.own_model, layers, schedule, mesh.pp.rank)
        self.first_pass = first_pass(schedule, mesh.pp.rank) if settings.auxiliary else []
        actions = [*self.first_pass, *schedule.actions[mesh.pp.rank]]
        self.opening_order, expected = uses_of_blocks(actions, stages, self.blocks, self.shared)
        # ZeRO takes the weights over, and the stages ask it for them
        part = part_of_replica(mesh, self.own_model, self.ranks_of_weight, self.blocks, settings.zero, expected)
        self.replica = zero_replica(mesh, self.own_model, self.blocks, part, settings, optimizer, precision)
        self.stages = gathered_stages(stages, self.blocks, self.replica, self.take_gradients)

    def positions(self, length: int) -> Array:
        """The positions of this rank's tokens in the whole sequence: `[S/cp]`."""
        return asarray(own_positions(self.mesh.cp, length, self.settings.layout), self.xp, device=self.device)

    def activation(self, tokens: Array) -> Array:
        """An array like the one that a stage passes to the next for a microbatch of tokens `[b, S/cp]`: `[b, s, E]`."""
        b, s = tokens.shape
        if self.settings.sequence_parallel:
            s //= self.mesh.tp.size
        return self.xp.empty((b, s, self.config.hidden_size), dtype=self.replica.dtype, device=self.device)

    def target_tokens_a_rank(self, targets: Array) -> float:
        """The number of target tokens that a rank has on average, T/N, from the whole batch's targets.

        A rank divides the losses of its own target tokens by it. The mean over ranks, which ZeRO takes last, is then
        the sum of all losses / T: the mean over tokens. A mean of the ranks' own means would count each token of a rank
        with few targets more than the others. Every rank has the whole batch, and counts T without a message.
        """
        return number_of_targets(targets) / self.mesh.data.size

    def take_gradients(self, gradients: Gradients) -> None:
        """Give new gradients to ZeRO; those of shared blocks wait until all microbatches are done."""
        comm, waiting = self.mesh.comm, self.waiting
        comm.hold("new gradients", gradients)
        for block, names in self.blocks.items():
            found = {name: gradients[name] for name in names if name in gradients}
            if found and block in self.shared:
                waiting[block] = add_gradients(waiting.get(block, {}), found)
                comm.hold("gradients", waiting[block])
            elif found:
                self.replica.add_gradients(block, found)


def first_pass(schedule: Schedule, rank: int) -> list[Action]:
    """The forwards of a rank in a pass over all microbatches, one after the other; none where there is one alone."""
    if schedule.num_microbatches == 1:
        return []
    every = product(range(schedule.num_microbatches), range(schedule.num_stages))
    return [Action("F", stage, number) for number, stage in every if schedule.rank_of(stage, number) == rank]


def holders_of_weights(model: Llama, layers: Sequence[range], schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """The ranks of the pipeline that hold each weight: several, if stages share it, or if ranks share a stage."""
    ranks: dict[str, set[int]] = {name: set() for name in model.weights}
    for number, stage in enumerate(model.stages(layers)):
        for name in stage.weight_names:
            ranks[name].update(schedule.holders(number))
    return {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}


def make_own_model(
    mesh: Mesh, model: Llama, here: Iterable[str], settings: TrainSettings, positions: Callable[[int], Array]
) -> tuple[ParallelLlama, dict[int, BatchExperts]]:
    """The model with copies of this rank's slices of the weights `here`, and its mixtures of experts by layer."""
    config = model.config
    mixtures: dict[int, BatchExperts] = {}  # `mixture_maker` puts each in, while the model is made
    own = {name: model.weights[name] for name in here if owner_in_ep(mesh, config, name) in (None, mesh.ep.rank)}
    weights = shard_weights(config, own, mesh.tp.rank, mesh.tp.size)
    parallel = ParallelLlama(
        mesh.tp,
        config,
        weights,
        names=own,
        mlp=mixture_maker(mesh, config, weights, settings, mixtures),
        core=attention_core(mesh.cp, settings.attention, settings.layout),
        sequence_parallel=settings.sequence_parallel,
        positions=positions,
    )
    if settings.recompute == "full":
        parallel.blocks = [Recompute(block) for block in parallel.blocks]
    return parallel, mixtures


def blocks_of_zero(model: ParallelLlama, here: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of the weights `here`, by ZeRO's block.

    The experts of a layer are a block of their own, because ZeRO shards them over other ranks.
    The last norm is replicated over tp, and the head is cut there. In a block of its own, ZeRO cuts the norm at the
    same places on each rank of tp, so its copies stay equal to the bit.
    """
    blocks = {}
    for block, names in model.weight_blocks.items():
        blocks[block] = tuple(name for name in names if not is_expert(name))
        if experts := tuple(name for name in names if is_expert(name)):
            blocks[f"{block}.experts"] = experts
    blocks.pop("head")
    blocks["norm"] = (FINAL_NORM,)
    if not model.config.tie_word_embeddings:
        blocks["head"] = (HEAD,)
    here = set(here)
    return {block: names for block, names in blocks.items() if names[0] in here}


def groups_of_shared_blocks(
    pp: Comm, ranks_of_weight: Mapping[str, tuple[int, ...]], blocks: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Of each block that several ranks of `pp` hold, their group. Every rank of `pp` takes part in making each."""
    several = sorted({ranks for ranks in ranks_of_weight.values() if len(ranks) > 1})
    groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
    ranks_of_block = {block: ranks_of_weight[names[0]] for block, names in blocks.items()}
    return {block: groups[ranks] for block, ranks in ranks_of_block.items() if ranks in groups}


def stages_here(
    model: ParallelLlama, layers: Sequence[range], schedule: Schedule, rank: int
) -> dict[int, Sequence[Stage]]:
    """The stages of the model, `Stage`, that make up each pipeline stage of a rank, by the pipeline stage's number."""
    return {
        number: chain.stages for number, chain in enumerate(model.stages(layers)) if rank in schedule.holders(number)
    }


def blocks_of(stage: Stage, blocks: Mapping[str, Sequence[str]]) -> list[str]:
    """ZeRO's blocks whose weights a stage of the model reads."""
    block_of = {name: block for block, names in blocks.items() for name in names}
    return list(dict.fromkeys(block_of[name] for name in stage.weight_names))


class Uses(NamedTuple):
    """The blocks in the order in which a step opens them; and how often ZeRO gets gradients of each."""

    opening_order: list[str]
    gradients: dict[str, int]


def uses_of_blocks(
    actions: Iterable[Action],
    stages_of: Mapping[int, Sequence[Stage]],
    blocks: Mapping[str, Sequence[str]],
    shared: Container[str],
) -> Uses:
    """The uses of a step of these actions; ZeRO gets the gradients of a shared block once, after all of them."""
    opening_order: list[str] = []
    gradients_of: Counter[str] = Counter()
    for kind, number, _ in actions:
        stages = stages_of[number] if kind == "F" else stages_of[number][::-1]
        used = [block for stage in stages for block in blocks_of(stage, blocks)]
        if kind != "W":  # F, I and B read weights
            opening_order += used
        if kind in ("B", "W"):  # these have gradients
            gradients_of.update(used)
    return Uses(opening_order, {block: 1 if block in shared else gradients_of[block] for block in blocks})


def part_of_replica(
    mesh: Mesh,
    model: ParallelLlama,
    ranks_of_weight: Mapping[str, tuple[int, ...]],
    blocks: Mapping[str, Sequence[str]],
    zero: int,
    expected: Mapping[str, int],
) -> ModelParallel:
    """The facts that ZeRO needs of the ranks beside this one. `expected`: see `Uses.gradients`.

    The gradient of an expert already holds the tokens of all ranks of ep. Its sum over edp is the sum over dp × cp, and
    is divided by dp · cp, as the others are. Divided by edp it would be ep times too large.
    """
    copies = {name: model.slices[name].shared_by * len(ranks_of_weight[name]) for name in model.weights}
    if zero == 0:  # the norm is summed over a replica, whose ranks of ep repeat all but the experts
        copies = {name: n if is_expert(name) else n * mesh.ep.size for name, n in copies.items()}
    experts = [block for block, names in blocks.items() if is_expert(names[0])]
    return ModelParallel(
        comm=mesh.model if zero == 0 else mesh.comm,
        in_norm={name: 1 / number for name, number in copies.items()},
        expected=expected,
        groups=dict.fromkeys(experts, NodeGroup(mesh.edp, mesh.edp_per_node)),
    )


def zero_replica(
    mesh: Mesh,
    model: ParallelLlama,
    blocks: Mapping[str, Sequence[str]],
    part: ModelParallel,
    settings: TrainSettings,
    optimizer: AdamW,
    precision: Mapping[str, Any],
) -> Replica:
    """ZeRO over dp × cp, and for experts over edp, which takes over the weights of `model`.

    Args:
        precision: dtype, loss_scale and max_norm.
    """
    options: dict[str, Any] = {**precision, "ranks_per_node": mesh.data_per_node}
    if settings.zero == 0:
        options["bucket_bytes"] = 1  # a bucket a block: every copy of a weight is summed in the same order
    else:
        options["accumulate"] = settings.reduce == "accumulate"
        options |= {"overlap_gather": settings.overlap_gather, "keep_last_block": settings.keep_last_block}
    return replica_of(mesh.data, model, settings.zero, optimizer, blocks=blocks, model_parallel=part, **options)


def gathered_stages(
    stages_of: Mapping[int, Sequence[Stage]],
    blocks: Mapping[str, Sequence[str]],
    replica: Replica,
    take: Callable[[Gradients], None],
) -> dict[int, Any]:
    """The pipeline stages as a schedule runs them: ZeRO gathers the weights for each action; `take` gets gradients."""
    gathered = partial(weights_of, replica)
    return {
        number: Chain([GatheredStage(stage, blocks_of(stage, blocks), gathered, take) for stage in stages])
        for number, stages in stages_of.items()
    }
