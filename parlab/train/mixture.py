"""Expert parallelism in the trainer: the mixtures of a Mixtral over `mesh.ep`, and which rank has which expert.

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from parlab.experts import ExpertParallel
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.stage import Stage, Weights
from parlab.tensor import SequenceParallelNorm
from parlab.train.mesh import Mesh

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

    def mixture(prefix: str) -> Stage:
        experts = ExpertParallel(mesh.ep, weights, f"{prefix}.block_sparse_moe", *sizes)
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SequenceParallelNorm(mesh.tp, experts) if trainer.sequence_parallel else experts

    return mixture
