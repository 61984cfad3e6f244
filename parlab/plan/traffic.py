"""The bytes that all ranks send in a step, by strategy.

Invariant: they are those that a run of `parlab.train` counts. The closed forms are those of
`parlab.tensor.model_collectives`, `parlab.sequence.ring_cost` and `parlab.zero.elements_sent`, which name their papers.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.case import Case


def sent_bytes(case: Case) -> dict[str, Column]:
    """Bytes that all ranks send in a step, by strategy, as runs count them."""
    found = {"tp": _tensor_bytes(case), "cp": _ring_bytes(case), "pp": _pipeline_bytes(case), "dp": _data_bytes(case)}
    return found | ({"ep": _expert_bytes(case)} if case.model.num_experts else {})


def _all_microbatches(case: Case) -> Column:
    """For each of them all ranks of a tensor-parallel group send."""
    return case.pipeline.microbatches * case.layout.dp * case.layout.cp


def _tensor_bytes(case: Case) -> Column:
    """Exchanges of a layer's input, gradients that several ranks have a part of, and the loss."""
    model, work, t, item = case.model, case.work, case.layout.tp, case.itemsize
    E, G, by_tokens = model.hidden_size, model.kv_heads, case.layout.sequence_parallel
    exchange = (t - 1) * work.input_bytes
    shared = 2 * 2 * (t * work.kv_heads / G - 1) * E * G * model.head_dim * item  # dW of k and v, which ranks share
    norms = np.where(by_tokens, 2 * (t - 1) * E * item, 0)
    layer = exchange * (case.exchanges.forward * (1 + case.recomputed) + case.exchanges.backward) + shared + 2 * norms
    if model.num_experts:  # run on the tokens that a rank has; if these differ, gradients are summed over tp
        experts = case.stages.layer_expert_params + E * model.num_experts
        layer = layer + np.where(by_tokens, 2 * (t - 1) * experts * item, 0)
    loss = 3 * 2 * work.tokens * case.wide_itemsize if case.software.cuts_logits else case.exchanges.logit_bytes
    outside = exchange * np.where(by_tokens, 5, 4) + norms + (t - 1) * loss
    return _all_microbatches(case) * (model.num_layers * layer + outside)


def _ring_bytes(case: Case) -> Column:
    """c − 1 hops of K and V forward and backward, and c of dK and dV in float32 or wider."""
    c = case.layout.cp
    hops = (c - 1) * case.itemsize * (2 + case.recomputed) + np.where(c > 1, c * case.wide_itemsize, 0)
    around = 2 * case.work.tokens * case.work.kv_heads * case.model.head_dim * case.layout.tp * hops
    return _all_microbatches(case) * case.model.num_layers * around


def _pipeline_bytes(case: Case) -> Column:
    """A layer's input and its gradient between stages; and the gradients of a tied table, which two ranks sum."""
    layout = case.layout
    hops = 2 * (layout.pp * layout.chunks - 1)
    summed = np.where(layout.pp == 1, 0, 2 * _tied_table(case) * case.itemsize)
    sent = _all_microbatches(case) * hops * case.work.input_bytes * layout.tp / case.work.token_ranks
    return sent + case.layout.dp * case.layout.cp * summed


def _data_bytes(case: Case) -> Column:
    """ZeRO's passes over gradients and weights.

    A tied table is gathered at both ends of the model, and has a gradient at both. One rank with both ends sends two
    gradients, unless it keeps whole gradients. Two ranks with one end each first sum their two gradients, once a step.
    """
    weight, gradient, t, zero = case.state.weight, case.gradient_bytes, case.layout.tp, case.sharding
    passes = gradient * zero.gradient_passes + weight * (zero.forward_gathers + zero.backward_gathers)
    opened = np.where(zero.whole_gradients, 0, gradient * zero.reductions) + 2 * weight * zero.backward_gathers
    both = _tied_table(case) * np.where(case.layout.pp == 1, opened, -2 * gradient * (zero.reductions - 1))
    of_experts = case.model.num_layers * case.stages.layer_expert_params * passes
    experts = (zero.expert_shards - 1) * case.layout.ep * t * of_experts
    return (zero.shards - 1) * (t * case.stages.params * passes + both) + experts


def _tied_table(case: Case) -> int:
    """Parameters of a table that is the embedding and the head; 0 where these are two."""
    return case.model.vocab_size * case.model.hidden_size if case.model.tied else 0


def _expert_bytes(case: Case) -> Column:
    """Dispatch and combine, forward and backward, and the plan of N numbers."""
    ep, experts, recomputed = case.layout.ep, case.model.num_experts, case.recomputed
    rows = case.work.expert_rows * (1 - 1 / ep) * case.model.hidden_size * case.itemsize  # of a dispatch or a combine
    exchanged = (4 + 2 * recomputed) * rows + (1 + recomputed) * 8 * experts * (ep - 1)
    return _all_microbatches(case) * case.layout.tp * case.model.num_layers * exchanged
