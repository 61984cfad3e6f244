"""Expert parallelism in the trainer: the mixtures of a Mixtral over `mesh.ep`, and which rank has which expert.

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.

The load is that of all tokens, whatever rank they are on. The auxiliary loss counts it over the tokens of a microbatch
on all replicas, its probabilities over this rank's tokens. The bias counts it over all microbatches of the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parlab.arrays import Array, namespace, to_host
from parlab.experts import ExpertParallel
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.stage import Stage, Weights
from parlab.tensor import SequenceParallelNorm
from parlab.train.arguments import Choices
from parlab.train.mesh import Mesh
from parlab.world import Comm

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


def mixture_maker(
    mesh: Mesh, config: LlamaConfig, weights: Weights, settings: Choices, made: dict[int, ExpertParallel]
) -> Callable[[str], Stage] | None:
    """Makes the mixture of experts of a layer from the layer's prefix, and puts it into `made`, by layer; None: the
    model has none."""
    if not isinstance(config, MixtralConfig):
        return None
    sizes = config.num_local_experts, config.num_experts_per_tok
    options: dict[str, Any] = {
        "auxiliary": settings.auxiliary,
        "bias_rate": settings.bias_rate,
        "together": groups_of_tokens(mesh, settings),
    }

    def mixture(prefix: str) -> Stage:
        experts = ExpertParallel(mesh.ep, weights, f"{prefix}.block_sparse_moe", *sizes, **options)
        made[int(prefix.rpartition(".")[2])] = experts
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SequenceParallelNorm(mesh.tp, experts) if settings.sequence_parallel else experts

    return mixture


def groups_of_tokens(mesh: Mesh, settings: Choices) -> list[Comm]:
    """The groups over which this rank's tokens become all tokens."""
    return [mesh.data, *([mesh.tp] if settings.sequence_parallel else [])]


def rebalance(
    mixtures: Mapping[int, ExpertParallel], groups: Sequence[Comm], like: Array, skipped: bool
) -> list[list[int]]:
    """Move the biases of all layers by the loads of the whole batch, if the step is not skipped. All ranks call it.

    Args:
        mixtures: this rank's, by layer.
        groups: over which this rank's tokens and layers become all.
        like: an array of the library and on the device of the model.
    """
    own = [mixtures[layer].counted for layer in sorted(mixtures)]
    xp = namespace(like)
    counts = xp.asarray(own, dtype=xp.int64, device=like.device)  # [L, N]; 0 for the layers of other ranks
    for group in groups:
        counts = group.all_reduce(counts)
    loads: list[list[int]] = to_host(counts)
    for layer, of_layer in enumerate(loads):
        if skipped:
            mixtures[layer].counted = [0] * len(of_layer)
        else:
            mixtures[layer].rebalance(of_layer)
    return loads
