"""The messages between the stages of a pipeline: how long a step waits for them, and what all ranks send.

Invariant: each microbatch passes each of the p · v − 1 borders between chunks twice: a layer's input forward, its
gradient backward.

Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters".
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column, exposed_transfers
from parlab.plan.case import Case
from parlab.plan.machine import Machine


def pipeline_seconds(machine: Machine, case: Case) -> Column:
    """Seconds that a step waits for messages between stages.

    Without sequence parallelism each rank of tp has the whole microbatch. Some software sends a part from each rank,
    and gathers the parts on the other side (Narayanan et al. 2021, section 4.1). Software that computes and sends in
    one stream waits for each message of 1F1B.
    """
    pp, input_bytes, token_ranks = case.layout.pp, case.share.input_bytes, case.share.token_ranks
    inside = case.stride("pp") * pp <= machine.ranks_per_node
    parts = case.layout.tp if case.software.scatters_messages else token_ranks
    gathered = np.where(parts > token_ranks, machine.ring(input_bytes, case.layout.tp), 0)
    waited_for = exposed_transfers(case.pipeline, apart="pp" in case.software.hides)
    if case.software.one_stream:
        one_f_one_b = case.pipeline.alternates & (case.layout.chunks == 1)
        waited_for = np.where(one_f_one_b, _messages_in_turn(pp, case.pipeline.microbatches), waited_for)
    return waited_for * (machine.hop(input_bytes / parts, inside) + gathered)


def _messages_in_turn(pp: Column, microbatches: Column) -> Column:
    """The messages between stages that one after the other make a step of 1F1B longer.

    A rank in the middle has four a microbatch, and there are 2(p − 4) more while the pipeline fills and empties; two
    ranks have two a microbatch. So it is by DeepSpeed's order of sends and receives, `runtime/pipe/schedule.py`, which
    tests/plan/test_software.py plays action by action.
    """
    more = 4 * microbatches + 2 * (pp - 4)
    return np.where(pp == 1, 0, np.where(pp == 2, 2 * microbatches, more))


def pipeline_bytes(case: Case) -> Column:
    """Bytes that all ranks send between stages; and the gradients of a tied table, which two ranks sum."""
    layout = case.layout
    borders = layout.pp * layout.chunks - 1
    summed = np.where(layout.pp == 1, 0, 2 * case.model.tied_params * case.itemsize.activation)
    sent = case.group_passes * 2 * borders * case.share.input_bytes * layout.tp / case.share.token_ranks
    return sent + layout.dp * layout.cp * summed
