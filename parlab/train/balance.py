"""The mixtures in a step: their loads are counted before the first backward, and their biases move after the step.

The load is that of the whole batch, whatever rank a token is on and whatever microbatch it is in.

The auxiliary loss weighs each expert by its load in the batch, and its gradient goes through the router into all layers
below. So the first backward needs the loads of the last forward, and no correction afterwards can mend it: a step of
several microbatches begins with a first pass, forward alone, that counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arrays import Array
from parlab.train.mixture import groups_of_tokens, take_counts
from parlab.train.parts import Parts
from parlab.world import Comm


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
    loads = take_counts(parts.mixtures, groups_of_batch(parts), parts.xp, parts.device)
    for layer, mixture in parts.mixtures.items():
        mixture.counting, mixture.batch_loads = False, loads[layer]


def move_biases(parts: Parts, skipped: bool) -> None:
    """Move the bias of each expert by the loads of the batch, if there is a bias_rate; a skipped step moves none."""
    if not parts.settings.bias_rate:
        return
    parts.loads = take_counts(parts.mixtures, groups_of_batch(parts), parts.xp, parts.device)
    if not skipped:
        for layer, loads in enumerate(parts.loads):
            parts.mixtures[layer].rebalance(loads)


def groups_of_batch(parts: Parts) -> list[Comm]:
    """The groups over which a rank's tokens and layers become the whole batch's."""
    return [*groups_of_tokens(parts.mesh, parts.settings), parts.mesh.pp]
