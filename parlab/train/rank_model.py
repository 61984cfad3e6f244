"""The model of one rank: its slices of the weights of its pipeline stages, in ZeRO's blocks.

Invariant: every weight of this rank is in one block; and a weight is here if, on every axis of the mesh, this rank is
one of those that have it: over pp by the stages that read it, over ep by the expert, over tp a slice of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from parlab.arrays import Array
from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.llama import Llama
from parlab.nn.router import Router
from parlab.nn.stage import Stage
from parlab.tensor import ParallelLlama, Recompute, SummedOverTokens, shard_weights
from parlab.train.attention import attention_core
from parlab.train.job import TrainJob
from parlab.train.mixture import is_expert, mixtures_by_layer, owner_in_ep

Blocks = dict[str, tuple[str, ...]]  # the names of weights, by ZeRO's block


@dataclass
class RankModel:
    """The model of one rank, and where its weights are beside it."""

    llama: ParallelLlama  # with copies of this rank's slices of the weights here, until ZeRO takes them over
    pp_ranks: dict[str, tuple[int, ...]]  # of every weight of the whole model: the ranks of pp that have it
    blocks: Blocks  # of the weights here
    routers: Mapping[int, Router]  # of mixtures, by layer: of all layers, also those that are not here; {}: dense

    def blocks_of(self, stage: Stage) -> list[str]:
        """The blocks whose weights a stage of the model reads."""
        return list(dict.fromkeys(self.block_of[name] for name in stage.weight_names))

    @cached_property
    def block_of(self) -> dict[str, str]:
        """The block of each weight here."""
        return {name: block for block, names in self.blocks.items() for name in names}


def rank_model(job: TrainJob, serial: Llama) -> RankModel:
    """This rank's model, from the serial one."""
    mesh, pp_ranks = job.mesh, ranks_of_weights(job, serial)
    here = [
        name
        for name, ranks in pp_ranks.items()
        if mesh.pp.rank in ranks and owner_in_ep(mesh, job.config, name) in (None, mesh.ep.rank)
    ]
    llama, routers = parallel_llama(job, serial, here)
    return RankModel(llama, pp_ranks, blocks_of_zero(llama, here), routers)


def ranks_of_weights(job: TrainJob, serial: Llama) -> dict[str, tuple[int, ...]]:
    """The ranks of pp that have each weight: several, if pipeline stages share it, or if ranks share a stage."""
    ranks: dict[str, set[int]] = {name: set() for name in serial.weights}
    for stage, chain in enumerate(serial.stages(job.layers)):
        for name in chain.weight_names:
            ranks[name].update(job.schedule.holders(stage))
    return {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}


def parallel_llama(job: TrainJob, serial: Llama, here: Collection[str]) -> tuple[ParallelLlama, dict[int, Router]]:
    """The tensor-parallel model with copies of this rank's slices of the weights `here`; and its routers by layer."""
    mesh, config, settings = job.mesh, job.config, job.settings
    weights = shard_weights(config, {name: serial.weights[name] for name in here}, mesh.tp.rank, mesh.tp.size)
    mixtures = mixtures_by_layer(job, weights)

    def mixture(prefix: str) -> Stage:
        of_layer = mixtures[int(prefix.rpartition(".")[2])]
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SummedOverTokens(mesh.tp, of_layer) if settings.sequence_parallel else of_layer

    llama = ParallelLlama(
        mesh.tp,
        config,
        weights,
        names=here,
        mlp=mixture if mixtures else None,
        core=attention_core(mesh.cp, settings.attention, settings.layout),
        sequence_parallel=settings.sequence_parallel,
        positions=job.positions,
    )
    if settings.recompute == "full":
        llama.blocks = [Recompute(block) for block in llama.blocks]
    return llama, {layer: of_layer.router for layer, of_layer in mixtures.items()}


def blocks_of_zero(llama: ParallelLlama, here: Collection[str]) -> Blocks:
    """The names of the weights `here`, by ZeRO's block.

    The experts of a layer are a block of their own, because ZeRO shards them over other ranks.
    The last norm is replicated over tp, and the head is cut there. In a block of its own, ZeRO cuts the norm at the
    same places on each rank of tp, so its copies stay equal to the bit.
    """
    blocks = {}
    for block, names in llama.weight_blocks.items():
        blocks[block] = tuple(name for name in names if not is_expert(name))
        if experts := tuple(name for name in names if is_expert(name)):
            blocks[f"{block}.experts"] = experts
    blocks.pop("head")
    blocks["norm"] = (FINAL_NORM,)
    if not llama.config.tie_word_embeddings:
        blocks["head"] = (HEAD,)
    return {block: names for block, names in blocks.items() if names[0] in here}  # a block is here whole, or not at all


def whole_model(job: TrainJob, model: RankModel, slices: Mapping[str, Array]) -> dict[str, Array]:
    """All weights of the whole model by name, or gradients, on every rank, from this rank's slices of those here.

    Slices are gathered over tp. An expert's weights are broadcast over ep from the rank that owns it. Then the first
    rank of pp that has a weight broadcasts it over pp.
    """
    mesh, dtype = job.mesh, next(iter(slices.values())).dtype
    gathered = model.llama.whole(slices)
    found = {}
    for name, shape in job.config.weight_shapes.items():
        x = gathered[name] if name in gathered else job.xp.empty(shape, dtype=dtype, device=job.device)
        owner, first = owner_in_ep(mesh, job.config, name), model.pp_ranks[name][0]
        if owner is not None and mesh.pp.rank == first:
            x = mesh.ep.broadcast(x, owner)
        found[name] = mesh.pp.broadcast(x, first)
    return found
