"""The mixtures of experts on the mesh, and which rank of ep has an expert.

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.
"""

from __future__ import annotations

import re

from parlab.experts import ExpertParallel
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.stage import Weights
from parlab.train.job import TrainJob
from parlab.train.mesh import Mesh

EXPERT = re.compile(r"\.experts\.(\d+)\.")  # in the names of an expert's weights


def is_expert(name: str) -> bool:
    """Whether a weight is an expert's, by its name."""
    return EXPERT.search(name) is not None


def owner_in_ep(mesh: Mesh, config: LlamaConfig, name: str) -> int | None:
    """The rank of ep that has this weight; None: they all have it."""
    found = EXPERT.search(name)
    if found is None or not isinstance(config, MixtralConfig):
        return None
    return int(found[1]) // (config.num_local_experts // mesh.ep.size)


def mixtures_by_layer(job: TrainJob, weights: Weights) -> dict[int, ExpertParallel]:
    """The mixture of each layer of a Mixtral, also of layers whose weights are not here; none, if it is dense."""
    config, settings = job.config, job.settings
    if not isinstance(config, MixtralConfig):
        return {}
    return {
        layer: ExpertParallel(
            job.mesh.ep,
            weights,
            f"model.layers.{layer}.block_sparse_moe",
            config.num_local_experts,
            config.num_experts_per_tok,
            auxiliary=settings.auxiliary,
            bias_rate=settings.bias_rate,
            together=job.groups_of_tokens,
        )
        for layer in range(config.num_hidden_layers)
    }
