"""Expert parallelism in the trainer: the mixtures of a Mixtral over `mesh.ep`, and which rank has which expert.

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.

The load is that of all tokens, whatever rank they are on. The auxiliary loss counts it over the tokens of a microbatch
on all replicas, its probabilities over this rank's tokens. The bias counts it over all microbatches of the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parlab.arrays import Array, to_host
from parlab.experts import ExpertParallel
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.stage import Stage, Weights
from parlab.tensor import SequenceParallelNorm
from parlab.train.mesh import Mesh
from parlab.world import Comm

if TYPE_CHECKING:
    from parlab.train.trainer import Trainer

EXPERT = re.compile(r"\.experts\.(\d+)\.")  # in the names of an expert's weights


def is_expert(name: str) -> bool:
    """Whether a weight is an expert's, by its name."""
    return EXPERT.search(name) is not None


def owner_in_copy(mesh: Mesh, config: LlamaConfig, name: str) -> int | None:
    """The rank of ep that has this weight; None: they all have it."""
    found = EXPERT.search(name)
    if found is None or not isinstance(config, MixtralConfig):
        return None
    return int(found[1]) // (config.num_local_experts // mesh.ep.size)


def mixtures(trainer: Trainer, weights: Weights) -> Callable[[str], Stage] | None:
    """Makes the mixture of experts of a layer from the layer's prefix; None: the model has none."""
    mesh, config = trainer.mesh, trainer.config
    if not isinstance(config, MixtralConfig):
        return None
    sizes = config.num_local_experts, config.num_experts_per_tok
    options: dict[str, Any] = {**trainer.balance, "together": groups_of_tokens(trainer)}

    def mixture(prefix: str) -> Stage:
        experts = ExpertParallel(mesh.ep, weights, f"{prefix}.block_sparse_moe", *sizes, **options)
        trainer.mixtures[int(prefix.rpartition(".")[2])] = experts
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SequenceParallelNorm(mesh.tp, experts) if trainer.sequence_parallel else experts

    return mixture


def groups_of_tokens(trainer: Trainer) -> list[Comm]:
    """The groups over which this rank's tokens become all tokens."""
    return [trainer.mesh.data, *([trainer.mesh.tp] if trainer.sequence_parallel else [])]


def set_loss_weight(trainer: Trainer) -> None:
    """A rank's gradients are those of its mean over its tokens, a share of a microbatch, times the loss scale."""
    shares = trainer.schedule.num_microbatches * (trainer.mesh.tp.size if trainer.sequence_parallel else 1)
    for mixture in trainer.mixtures.values():
        mixture.loss_weight = trainer.replica.loss_scale / shares


def rebalance(trainer: Trainer, skipped: bool) -> None:
    """Move the biases of all layers by the loads of the whole batch, if the step is not skipped. All ranks call it."""
    if not trainer.balance["bias_rate"]:
        return
    xp = trainer.xp
    own = [trainer.mixtures[layer].counted for layer in sorted(trainer.mixtures)]
    loads = xp.asarray(own, dtype=xp.int64, device=trainer.device)  # [L, N]; 0 for the layers of other ranks
    for group in (*groups_of_tokens(trainer), trainer.mesh.pp):
        loads = group.all_reduce(loads)
    trainer.loads = to_host(loads)
    for layer, of_layer in enumerate(trainer.loads):
        mixture = trainer.mixtures[layer]
        if skipped:
            mixture.counted = [0] * len(of_layer)
        else:
            mixture.rebalance(of_layer)


def rows_to_experts(trainer: Trainer, tokens: Array) -> list[list[list[int]]]:
    """As `Trainer.rows_to_experts`."""
    mesh, rows = trainer.mesh, tokens.shape[0]
    if not trainer.mixtures or trainer.zero == 3 or max(mesh.pp.size, mesh.cp.size, mesh.tp.size) > 1:
        raise ValueError(
            f"rows_to_experts: needs a Mixtral on dp and ep alone, with zero=0, 1 or 2; this is {trainer.config!r:.40} "
            f"on pp={mesh.pp.size}, cp={mesh.cp.size}, tp={mesh.tp.size}, with zero={trainer.zero}"
        )
    if rows % mesh.dp.size:
        raise ValueError(f"tokens: {rows} rows do not divide among {mesh.dp.size} ranks of dp")
    own = rows // mesh.dp.size
    model: Any = trainer.model
    hidden, _ = model.embedding.forward(tokens[mesh.dp.rank * own : (mesh.dp.rank + 1) * own, :])
    tables = []
    for block in model.blocks:
        hidden, cache = block.forward(hidden)
        tables.append(cache["mlp"].mixed.plan.counts)
    return tables
