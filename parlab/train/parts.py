"""The parts of a trainer: its tensor-parallel model, ZeRO's blocks, and its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Stage
from parlab.pipeline import Schedule
from parlab.tensor import ParallelLlama, Recompute, shard_weights
from parlab.train.attention import attention_core
from parlab.train.mixture import is_expert, mixtures, owner_in_copy
from parlab.zero import Replica, replica_of
from parlab.zero.part import Part

if TYPE_CHECKING:
    from parlab.train.trainer import Trainer


def weight_holders(model: Llama, layers: Sequence[range], schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """The ranks of the pipeline that hold each weight: several, if stages share it, or if ranks share a stage."""
    ranks: dict[str, set[int]] = {name: set() for name in model.weights}
    for number, stage in enumerate(model.stages(layers)):
        for name in stage.weight_names:
            ranks[name].update(schedule.holders(number))
    return {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}


def own_model(trainer: Trainer, model: Llama) -> ParallelLlama:
    """The tensor-parallel model with copies of this rank's slices of its stages' weights."""
    mesh, config = trainer.mesh, trainer.config
    own = {
        name: model.weights[name]
        for name, ranks in trainer.holders.items()
        if mesh.pp.rank in ranks and owner_in_copy(mesh, config, name) in (None, mesh.ep.rank)
    }
    weights = shard_weights(config, own, mesh.tp.rank, mesh.tp.size)
    parallel = ParallelLlama(
        mesh.tp,
        config,
        weights,
        names=own,
        mlp=mixtures(trainer, weights),
        core=attention_core(mesh.cp, trainer.attention, trainer.layout),
        sequence_parallel=trainer.sequence_parallel,
        positions=trainer.positions,
    )
    if trainer.recompute == "full":
        parallel.blocks = [Recompute(block) for block in parallel.blocks]
    return parallel


def zero_blocks(trainer: Trainer) -> dict[str, tuple[str, ...]]:
    """The names of this rank's weights by ZeRO's block.

    The experts of a layer are a block of their own, because ZeRO shards them over other ranks.
    The last norm is replicated over tp, and the head is cut there. In a block of its own, ZeRO cuts the norm at the
    same places on each rank of tp, so its copies stay equal to the bit.
    """
    blocks = {}
    for block, names in trainer.model.weight_blocks.items():
        blocks[block] = tuple(name for name in names if not is_expert(name))
        if experts := tuple(name for name in names if is_expert(name)):
            blocks[f"{block}.experts"] = experts
    blocks.pop("head")
    blocks["norm"] = (FINAL_NORM,)
    if not trainer.config.tie_word_embeddings:
        blocks["head"] = (HEAD,)
    return {block: names for block, names in blocks.items() if trainer.mesh.pp.rank in trainer.holders[names[0]]}


def shared_blocks(trainer: Trainer) -> dict[str, Any]:
    """Of each block that several ranks of pp hold: the group of these ranks."""
    pp = trainer.mesh.pp
    several = sorted({ranks for ranks in trainer.holders.values() if len(ranks) > 1})
    groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
    holders = {block: trainer.holders[names[0]] for block, names in trainer.blocks.items()}
    return {block: groups[ranks] for block, ranks in holders.items() if ranks in groups}


def blocks_of(trainer: Trainer, stage: Stage) -> list[str]:
    """ZeRO's blocks whose weights a stage of the model reads."""
    block_of = {name: block for block, names in trainer.blocks.items() for name in names}
    return list(dict.fromkeys(block_of[name] for name in stage.weight_names))


def uses_of_blocks(trainer: Trainer, own_stages: Mapping[int, Sequence[Stage]]) -> tuple[list[str], Counter[str]]:
    """The blocks in the order in which a step opens them; and how often it makes gradients of each."""
    opened: list[str] = []
    made: Counter[str] = Counter()
    for kind, number, _ in trainer.schedule.actions[trainer.mesh.pp.rank]:
        stages = own_stages[number] if kind == "F" else own_stages[number][::-1]
        blocks = [block for stage in stages for block in blocks_of(trainer, stage)]
        if kind != "W":
            opened += blocks
        if kind in ("B", "W"):
            made.update(blocks)
    return opened, made


def zero_replica(trainer: Trainer, optimizer: AdamW, made: Mapping[str, int], options: dict[str, Any]) -> Replica:
    """ZeRO over dp × cp, and for experts over edp, which takes over the weights of `trainer.model`.

    The gradient of an expert already holds the tokens of all ranks of ep. Its sum over edp is the sum over dp × cp, and
    is divided by dp · cp, as the others are. Divided by edp it would be ep times too large.

    Args:
        trainer: whose parts above are there.
        optimizer: the hyperparameters.
        made: how often a step makes gradients of each block.
        options: dtype, loss_scale and max_norm.
    """
    mesh, model = trainer.mesh, trainer.model
    copies = {name: model.slices[name].owners * len(trainer.holders[name]) for name in model.weights}
    if trainer.zero == 0:  # the norm is summed over a replica, whose ranks of ep repeat all but the experts
        copies = {name: n if is_expert(name) else n * mesh.ep.size for name, n in copies.items()}
    experts = [block for block, names in trainer.blocks.items() if is_expert(names[0])]
    part = Part(
        comm=mesh.model if trainer.zero == 0 else mesh.comm,
        shares={name: 1 / number for name, number in copies.items()},
        parts={block: 1 if block in trainer.shared else made[block] for block in trainer.blocks},
        groups=dict.fromkeys(experts, mesh.edp),
        per_node=dict.fromkeys(experts, mesh.edp_per_node),
    )
    options["ranks_per_node"] = mesh.data_per_node
    if trainer.zero == 0:
        options["bucket_bytes"] = 1  # a bucket a block: every copy of a weight is summed in the same order
    else:
        options["accumulate"] = trainer.reduce == "accumulate"
        options |= {"overlap_gather": trainer.overlap_gather, "keep_last_block": trainer.keep_last_block}
    return replica_of(mesh.data, model, trainer.zero, optimizer, blocks=trainer.blocks, part=part, **options)
