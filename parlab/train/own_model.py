"""The model of one rank: its slices of the weights of its pipeline stages, in ZeRO's blocks.

Invariant: every weight of this rank is in one block; and a weight is here if, on every axis of the mesh, this rank is
one of those that have it: over pp by the stages that read it, over ep by the expert, over tp a slice of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.llama import Llama
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.router import Router
from parlab.nn.stage import Stage
from parlab.tensor import ParallelLlama, Recompute, SummedOverTokens, shard_weights
from parlab.train.attention import attention_core
from parlab.train.job import TrainJob
from parlab.train.mixture import expert_parallel, is_expert, owner_in_ep

Blocks = dict[str, tuple[str, ...]]  # the names of weights, by ZeRO's block


class OwnModel(NamedTuple):
    """The model of one rank, and where its weights are beside it."""

    model: ParallelLlama  # with copies of this rank's slices, until ZeRO takes them over
    pp_ranks: dict[str, tuple[int, ...]]  # of every weight of the whole model: the ranks of pp that have it
    blocks: Blocks  # of the weights here
    routers: Mapping[int, Router]  # of mixtures of experts, by layer; none in a dense model

    def pp_ranks_of(self, block: str) -> tuple[int, ...]:
        """The ranks of pp that have a block."""
        return self.pp_ranks[self.blocks[block][0]]


def own_model(job: TrainJob, serial: Llama) -> OwnModel:
    """This rank's model, from the serial one."""
    pp_ranks = ranks_of_weights(job, serial)
    here = [name for name, ranks in pp_ranks.items() if job.mesh.pp.rank in ranks]
    model, routers = make_model(job, serial, here)
    return OwnModel(model, pp_ranks, blocks_of_zero(model, here), routers)


def ranks_of_weights(job: TrainJob, serial: Llama) -> dict[str, tuple[int, ...]]:
    """The ranks of pp that have each weight: several, if pipeline stages share it, or if ranks share a stage."""
    ranks: dict[str, set[int]] = {name: set() for name in serial.weights}
    for stage, chain in enumerate(serial.stages(job.layers)):
        for name in chain.weight_names:
            ranks[name].update(job.schedule.holders(stage))
    return {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}


def make_model(job: TrainJob, serial: Llama, here: Iterable[str]) -> tuple[ParallelLlama, dict[int, Router]]:
    """The tensor-parallel model with copies of this rank's slices of the weights `here`; and its routers by layer."""
    mesh, config, settings = job.mesh, job.config, job.settings
    own = {name: serial.weights[name] for name in here if owner_in_ep(mesh, config, name) in (None, mesh.ep.rank)}
    weights = shard_weights(config, own, mesh.tp.rank, mesh.tp.size)
    routers: dict[int, Router] = {}

    def mixture(prefix: str) -> Stage:
        made = expert_parallel(job, weights, prefix)
        routers[int(prefix.rpartition(".")[2])] = made.router
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SummedOverTokens(mesh.tp, made) if settings.sequence_parallel else made

    model = ParallelLlama(
        mesh.tp,
        config,
        weights,
        names=own,
        mlp=mixture if isinstance(config, MixtralConfig) else None,
        core=attention_core(mesh.cp, settings.attention, settings.layout),
        sequence_parallel=settings.sequence_parallel,
        positions=job.positions,
    )
    if settings.recompute == "full":
        model.blocks = [Recompute(block) for block in model.blocks]
    return model, routers


def blocks_of_zero(model: ParallelLlama, here: Iterable[str]) -> Blocks:
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
    return {block: names for block, names in blocks.items() if names[0] in here}  # a block is here whole, or not at all
