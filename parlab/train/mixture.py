"""The mixtures of experts in the trainer, and the path of their loads.

    count            each mixture counts the pairs on each expert, call by call: `counted`, of this rank's tokens
    sum              over all ranks and microbatches: the loads of the batch, `Mixtures.all_reduce_loads`
    auxiliary loss   weighs each expert by its load: the counting runs before the first forward, in the first pass
    bias             moves by the load: the counting runs in the backwards, and the bias moves after the step

Invariant: a load is that of the whole batch, whatever rank a token is on and whatever microbatch it is in; after each
sum the mixtures count from 0.

The gradient of the auxiliary loss goes through the router into all layers below. So the first backward needs the loads
of the last forward, and no correction afterwards can mend it: a step of several microbatches begins with a first pass,
forward alone, that counts (`first_pass.py`). With one microbatch a forward has all tokens of its rank, and sums at once
(`together` of `ExpertParallel`).

Tensor parallelism does not cut an expert. Its ranks have the same tokens, run the same experts on them, and get the
same gradients. Under sequence parallelism each runs them on its own tokens, and the gradients are summed over tp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from parlab.arrays import Array, to_host
from parlab.experts import ExpertParallel
from parlab.experts.all_to_all import AllToAllCache
from parlab.nn.config import LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.moe import MoECache
from parlab.nn.router import Router
from parlab.nn.routing import Routing
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


def expert_parallel(job: TrainJob, weights: Weights, prefix: str) -> ExpertParallel:
    """The mixture of a Mixtral's layer with this prefix, `model.layers.0` for example."""
    config, settings = job.config, job.settings
    assert isinstance(config, MixtralConfig)
    return ExpertParallel(
        job.mesh.ep,
        weights,
        f"{prefix}.block_sparse_moe",
        config.num_local_experts,
        config.num_experts_per_tok,
        auxiliary=settings.auxiliary,
        bias_rate=settings.bias_rate,
        together=job.groups_of_tokens,
    )


class Mixtures:
    """The routers of all layers' mixtures; none, if the model is dense. A router's `counted` is used twice in a step:

        first pass         each forward counts     the sum is what `loads_of` gives to the auxiliary loss
        all of the step    each backward counts    the sum moves the bias

    Args:
        job: the trainer's.
        of_layer: a router by its layer's number. Those of other ranks of pp have no weights here, and never run.

    Attributes:
        loads: pairs on each expert in the last step, `[L][N]`, if there is a bias_rate.
    """

    def __init__(self, job: TrainJob, of_layer: Mapping[int, Router]) -> None:
        self.job, self.of_layer = job, of_layer
        self.loads: list[list[int]] = []

    def weigh_losses(self, loss_scale: float) -> None:
        """Tell the mixtures the factor of their auxiliary losses in the step's gradient: loss scale / calls.

        Such a loss is a mean over the tokens of one call. Each microbatch makes one call, or under sequence parallelism
        one on each rank of tp, whose gradients are summed; their mean has 1/calls of each.
        """
        ranks_of_tokens = self.job.mesh.tp.size if self.job.settings.sequence_parallel else 1
        calls = self.job.schedule.num_microbatches * ranks_of_tokens
        for router in self.of_layer.values():
            router.loss_weight = loss_scale / calls

    def begin_first_pass(self) -> None:
        """From here on every forward counts."""
        for router in self.of_layer.values():
            router.loads_of = router.count

    def end_first_pass(self) -> None:
        """All-reduce the loads that the pass has counted: the auxiliary losses take them."""
        loads = self.all_reduce_loads()
        for layer, router in self.of_layer.items():
            router.loads_of = partial(same_for_each_call, loads[layer])

    def move_biases(self, skipped: bool) -> None:
        """If there is a bias_rate: all-reduce the loads of the batch, and move each expert's bias by its own. A skipped
        step moves none.
        """
        if not self.job.settings.bias_rate:
            return
        self.loads = self.all_reduce_loads()
        if not skipped:
            for layer, loads in enumerate(self.loads):
                self.of_layer[layer].rebalance(loads)

    def all_reduce_loads(self) -> list[list[int]]:
        """The pairs on each expert that all ranks have counted, `[L][N]` on every rank; the mixtures count anew."""
        job, routers = self.job, self.of_layer  # those of other ranks of pp have counted nothing here: rows of 0
        own = [routers[layer].counted for layer in sorted(routers)]
        counts = job.xp.asarray(own, dtype=job.xp.int64, device=job.device)  # [L, N]
        for group in (*job.groups_of_tokens, job.mesh.pp):  # all tokens, then all layers
            counts = group.all_reduce(counts)
        for router in routers.values():
            router.counted = [0] * router.num_experts
        loads: list[list[int]] = to_host(counts)
        return loads


def same_for_each_call(loads: list[int], routing: Routing) -> list[int]:
    """The loads of the whole batch, whatever tokens a call has."""
    return loads


def rows_to_experts(job: TrainJob, model: Any, tokens: Array) -> list[list[list[int]]]:
    """See `Trainer.rows_to_experts`; `model`: this rank's."""
    mesh, rows, zero = job.mesh, tokens.shape[0], job.settings.zero
    if not isinstance(job.config, MixtralConfig) or zero == 3 or max(mesh.pp.size, mesh.cp.size, mesh.tp.size) > 1:
        raise ValueError(
            f"rows_to_experts: needs a Mixtral on dp and ep alone, with zero=0, 1 or 2; this is "
            f"{job.config!r:.40} on pp={mesh.pp.size}, cp={mesh.cp.size}, tp={mesh.tp.size}, with zero={zero}"
        )
    if rows % mesh.dp.size:
        raise ValueError(f"tokens: {rows} rows do not divide among {mesh.dp.size} ranks of dp")
    own = rows // mesh.dp.size
    hidden, _ = model.embedding.forward(tokens[mesh.dp.rank * own : (mesh.dp.rank + 1) * own, :])
    tables = []
    for block in model.blocks:
        hidden, cache = block.forward(hidden)
        tables.append(rows_in_cache(cache))
    return tables


def rows_in_cache(cache_of_block: Any) -> list[list[int]]:
    """The rows that each rank of ep sent to each expert, `[P][N]`, from the cache of a block's forward.

    The block keeps the cache of its `ExpertParallel` under "mlp"; the plan of its dispatch has the counts of all ranks.
    """
    of_experts: MoECache = cache_of_block["mlp"]
    dispatched: AllToAllCache = of_experts.mix
    return dispatched.plan.counts
