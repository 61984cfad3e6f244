"""Expert parallelism in the trainer: the mixtures of a Mixtral over `mesh.ep`, and which rank has which expert.

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.

`balance.py` counts their loads and moves their biases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from parlab.experts import ExpertParallel
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.moe import asked_loads
from parlab.nn.routing import Routing
from parlab.nn.stage import Stage, Weights
from parlab.tensor import SummedOverTokens
from parlab.train.arguments import TrainSettings
from parlab.train.mesh import Mesh
from parlab.world import Comm

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


class BatchExperts(ExpertParallel):
    """`ExpertParallel` whose auxiliary loss takes the loads of the whole batch, from a first pass over it.

    `counted`, `bias` and `loss_weight` are those of every `MixtureOfExperts`.

    Attributes:
        counting: the first pass is under way: `counted` adds up the pairs of each call.
        batch_loads: pairs on each expert, of all tokens, as the pass has counted them; None: a call has all tokens.
    """

    counting = False
    batch_loads: list[int] | None = None

    def loads_together(self, routing: Routing) -> list[int]:
        """Pairs on each expert, of the whole batch; in the first pass, of this call."""
        if self.counting:
            of_call = asked_loads(routing, self.num_experts)
            self.counted = [sum(both) for both in zip(self.counted, of_call, strict=True)]
            return of_call
        return super().loads_together(routing) if self.batch_loads is None else self.batch_loads


def mixture_maker(
    mesh: Mesh, config: LlamaConfig, weights: Weights, settings: TrainSettings, mixtures: dict[int, BatchExperts]
) -> Callable[[str], Stage] | None:
    """Makes the mixture of experts of a layer from the layer's prefix, and puts it into `mixtures`, by layer; None:
    the model has none."""
    if not isinstance(config, MixtralConfig):
        return None
    sizes = config.num_local_experts, config.num_experts_per_tok
    options: dict[str, Any] = {
        "auxiliary": settings.auxiliary,
        "bias_rate": settings.bias_rate,
        "together": groups_of_tokens(mesh, settings),
    }

    def mixture(prefix: str) -> Stage:
        experts = BatchExperts(mesh.ep, weights, f"{prefix}.block_sparse_moe", *sizes, **options)
        mixtures[int(prefix.rpartition(".")[2])] = experts
        # each rank of tp then has its own tokens: the gradients are summed over tp, as a norm's are
        return SummedOverTokens(mesh.tp, experts) if settings.sequence_parallel else experts

    return mixture


def groups_of_tokens(mesh: Mesh, settings: TrainSettings) -> list[Comm]:
    """The groups over which this rank's tokens become all tokens."""
    return [mesh.data, *([mesh.tp] if settings.sequence_parallel else [])]
