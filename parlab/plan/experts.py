"""A mixture's experts, dealt out among ep ranks: their work, what they keep, and the tokens that travel to them.

        exchanges of rows      forward                 backward
        each a copy a token    dispatch, combine: 2    the gradients of both: 2
        and expert             and once more where a layer is computed again

Invariant: loads are even: each rank sends as many rows as it gets, and each expert has as many as any other.

Source: Lepikhin et al. 2020, "GShard". `parlab.experts` runs it.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.case import Case
from parlab.plan.machine import Linear, Machine


def mixture_layers(machine: Machine, case: Case) -> list[Linear]:
    """The router, and a rank's experts: N/ep linear layers up and down, each with its share of rows."""
    model, hidden, itemsize = case.model, case.model.hidden_size, case.itemsize.activation
    experts = model.num_experts / case.layout.ep  # of a rank
    rows = case.share.expert_rows / experts
    router = machine.product(case.share.own_tokens, hidden, model.num_experts, itemsize)
    up = machine.linear(rows, hidden, 2 * model.expert_columns, itemsize)
    down = machine.linear(rows, model.expert_columns, hidden, itemsize)
    return [Linear(router, router, router), up.times(experts), down.times(experts)]


def kept_of_experts(case: Case) -> Column:
    """Bytes that a layer keeps: rows, answers, what each expert keeps, and the routing of each token."""
    model, share, itemsize = case.model, case.share, case.itemsize.activation
    routed = 8 + 8 + itemsize  # the pair's place, expert and gate
    of_row = itemsize * (2 * model.hidden_size + 3 * model.expert_columns) + routed
    return share.expert_rows * of_row + share.own_tokens * model.num_experts * itemsize


def expert_seconds(machine: Machine, case: Case) -> Seconds:
    """Seconds of a layer's exchanges. Links inside a node and between nodes work at the same time."""
    ep, cp = case.layout.ep, case.layout.cp
    sent = case.share.expert_rows * case.model.hidden_size * case.itemsize.activation
    together = machine.in_a_node((np.minimum(ep, cp), case.stride("cp")), (np.maximum(ep / cp, 1), case.stride("dp")))
    # A rank's rows go evenly to the ep ranks: to the others in its node, and to those in other nodes
    inside, between = sent * (together - 1) / ep / machine.intra_pace, sent * (1 - together / ep) / machine.inter_pace
    exchange = np.maximum(inside, between) + np.where(ep > 1, machine.hardware.collective, 0)
    return Seconds(2 * exchange, 2 * exchange)


def expert_bytes(case: Case) -> Column:
    """Bytes that all ranks send: rows, and before a dispatch the plan of N numbers."""
    ep, experts, recomputed = case.layout.ep, case.model.num_experts, case.recomputed
    row = case.model.hidden_size * case.itemsize.activation
    rows = case.share.expert_rows * (1 - 1 / ep) * row  # of an exchange
    exchanged = (4 + 2 * recomputed) * rows + (1 + recomputed) * 8 * experts * (ep - 1)
    return case.group_passes * case.layout.tp * case.model.num_layers * exchanged
