"""The balance of experts in a step: their loads, for an auxiliary loss or for a bias. A dense model has none of it.

    first pass       all microbatches forward: each forward counts the pairs (token, slot) on each expert
    auxiliary loss   its gradient weighs each expert by its load, the sum of these counts
    backward         counts again, for the bias
    bias             moves by the sum of these counts, after the step

Invariant: a load is that of the whole batch, whatever rank a token is on and whatever microbatch it is in; after each
sum the routers count from 0.

A first pass, because the gradient of the auxiliary loss goes through the router into all layers below. So the first
backward needs the loads of the last forward, and no correction afterwards can mend it. With one microbatch there is no
such pass: a forward has all tokens of its rank, and sums at once (`together` of `ExpertParallel`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from parlab.arrays import Array, to_host
from parlab.nn.routing import Routing
from parlab.nn.stage import Chain
from parlab.pipeline import Action
from parlab.train.job import TrainJob
from parlab.train.parts import TrainParts


def prepare_auxiliary_losses(
    parts: TrainParts, stages: Mapping[int, Chain], tokens: Sequence[Array], targets: Sequence[Array], like: Array
) -> None:
    """Tell each router what its auxiliary loss needs: its factor in the step's gradient, and the loads of the batch.

    Such a loss is a mean over the tokens of one call. Each microbatch makes one call, or under sequence parallelism one
    on each rank of tp, whose gradients are summed; their mean has 1/calls of each.

    Args:
        stages, tokens, targets, like: those with which `run_schedule` is called next.
    """
    job, routers = parts.job, parts.model.routers
    calls = job.schedule.num_microbatches * (job.mesh.tp.size if job.settings.sequence_parallel else 1)
    for router in routers.values():
        router.loss_weight = parts.replica.loss_scale / calls
    if forwards := first_forwards(job):
        for router in routers.values():
            router.loads_of = router.count  # a forward adds its pairs to `counted`; the pass itself needs no loads
        run_first_pass(job, forwards, stages, tokens, targets, like)
        loads = sum_loads(parts)
        for layer, router in routers.items():
            router.loads_of = partial(same_for_each_call, loads[layer])  # for the gradient of the auxiliary loss


def same_for_each_call(loads: list[int], routing: Routing) -> list[int]:
    """The loads of the whole batch, whatever tokens a call has."""
    return loads


def move_biases(parts: TrainParts, skipped: bool) -> None:
    """Move each expert's bias by its load in the batch; of a skipped step the loads are forgotten."""
    loads = sum_loads(parts)
    if not skipped:
        for layer, router in parts.model.routers.items():
            router.rebalance(loads[layer])


def sum_loads(parts: TrainParts) -> list[list[int]]:
    """The pairs on each expert that all ranks have counted, `[L][N]` on every rank; the routers count anew."""
    job, routers = parts.job, parts.model.routers  # those of other ranks of pp have counted nothing here: rows of 0
    own = [routers[layer].counted for layer in sorted(routers)]
    counts = job.xp.asarray(own, dtype=job.xp.int64, device=job.device)  # [L, N]
    for group in (*job.groups_of_tokens, job.mesh.pp):  # all tokens, then all layers
        counts = group.all_reduce(counts)
    for router in routers.values():
        router.counted = [0] * router.num_experts
    loads: list[list[int]] = to_host(counts)
    return loads


# The first pass: microbatch after microbatch, stage after stage, so one activation is held at a time; nothing is kept


def first_forwards(job: TrainJob) -> list[Action]:
    """The forwards of this rank in the first pass; none, if the step needs no such pass."""
    schedule = job.schedule
    if not job.settings.auxiliary or schedule.num_microbatches == 1:
        return []
    every = product(range(schedule.num_microbatches), range(schedule.num_stages))
    return [Action("F", stage, m) for m, stage in every if schedule.rank_of(stage, m) == job.mesh.pp.rank]


def run_first_pass(
    job: TrainJob,
    forwards: Sequence[Action],
    stages: Mapping[int, Chain],
    tokens: Sequence[Array],
    targets: Sequence[Array],
    like: Array,
) -> None:
    """Run this rank's forwards."""
    pp, schedule = job.mesh.pp, job.schedule
    for _, stage, m in forwards:
        if stage == 0:
            x = tokens[m]
        elif (source := schedule.rank_of(stage - 1, m)) != pp.rank:
            x = pp.recv(source, like)
        # else x is there: the action before was this microbatch's on the stage before
        if stage == schedule.num_stages - 1:
            stages[stage].forward(x, targets[m])
            continue
        x, _ = stages[stage].forward(x)
        if (after := schedule.rank_of(stage + 1, m)) != pp.rank:
            pp.send(x, after)
