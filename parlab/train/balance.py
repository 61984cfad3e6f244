"""The mixtures in a step: their loads are counted before the first backward, and their biases move after the step.

The load is that of the whole batch, whatever rank a token is on and whatever microbatch it is in.

The auxiliary loss weighs each expert by its load in the batch, and its gradient goes through the router into all layers
below. So the first backward needs the loads of the last forward, and no correction afterwards can mend it: a step of
several microbatches begins with a first pass, forward alone, that counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arrays import Array, to_host
from parlab.train.mixture import groups_of_tokens
from parlab.train.parts import Parts


def begin_mixtures(parts: Parts, inputs: Sequence[Array], targets: Sequence[Array]) -> None:
    """Tell the mixtures their weight in the gradient and, if an auxiliary loss asks for it, the loads of the batch."""
    # An auxiliary loss is a mean over the tokens of one call. The mean over a rank's tokens is that of so many calls:
    calls = parts.schedule.num_microbatches * (parts.mesh.tp.size if parts.settings.sequence_parallel else 1)
    for mixture in parts.mixtures.values():
        mixture.loss_weight = parts.replica.loss_scale / calls
    if parts.first_pass:
        count_loads(parts, inputs, targets)


def count_loads(parts: Parts, inputs: Sequence[Array], targets: Sequence[Array]) -> None:
    """All microbatches run forward once, and nothing is kept of it but the pairs on each expert."""
    pp, schedule, like = parts.mesh.pp, parts.schedule, parts.activation(inputs[0])
    for mixture in parts.mixtures.values():
        mixture.counting = True
    for _, stage, number in parts.first_pass:
        if stage == 0:
            x = inputs[number]
        elif (source := schedule.rank_of(stage - 1, number)) != pp.rank:
            x = pp.recv(source, like)
        # else x is there: the action before was this microbatch's on the stage before
        if stage == schedule.num_stages - 1:
            parts.stages[stage].forward(x, targets[number])
            continue
        x, _ = parts.stages[stage].forward(x)
        if (after := schedule.rank_of(stage + 1, number)) != pp.rank:
            pp.send(x, after)
    loads = loads_of_batch(parts)
    for layer, mixture in parts.mixtures.items():
        mixture.counting, mixture.batch_loads = False, loads[layer]


def move_biases(parts: Parts, skipped: bool) -> None:
    """Move the bias of each expert by the loads of the batch, if there is a bias_rate; a skipped step moves none."""
    if not parts.settings.bias_rate:
        return
    parts.loads = loads_of_batch(parts)
    if not skipped:
        for layer, loads in enumerate(parts.loads):
            parts.mixtures[layer].rebalance(loads)


def loads_of_batch(parts: Parts) -> list[list[int]]:
    """The pairs on each expert that the mixtures of all ranks have counted, `[L][N]` on every rank; they count anew."""
    mixtures, xp = parts.mixtures, parts.xp  # those of other ranks of the pipeline have counted nothing here
    own = [mixtures[layer].counted for layer in sorted(mixtures)]
    counts = xp.asarray(own, dtype=xp.int64, device=parts.device)  # [L, N]
    for group in (*groups_of_tokens(parts.mesh, parts.settings), parts.mesh.pp):  # all tokens, then all layers
        counts = group.all_reduce(counts)
    for mixture in mixtures.values():
        mixture.counted = [0] * mixture.num_experts
    loads: list[list[int]] = to_host(counts)
    return loads
