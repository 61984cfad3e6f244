"""The bytes that all ranks send in a step, a strategy a function.

Invariant: they are those that a run of `parlab.train` counts. The closed forms are those of
`parlab.tensor.block_collectives`, `parlab.sequence.ring_cost` and `parlab.zero.elements_sent`, which name their papers.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column
from parlab.plan.case import Case


def _passes_of_groups(case: Case) -> Column:
    """How often a microbatch passes a tensor-parallel group of a stage: m times in each of the dp · cp groups."""
    return case.pipeline.microbatches * case.layout.dp * case.layout.cp


def tensor_bytes(case: Case) -> Column:
    """Exchanges of a layer's input, gradients that several ranks have a part of, and the loss."""
    model, tp, itemsize, cut = case.model, case.layout.tp, case.itemsize.activation, case.layout.sequence_parallel
    hidden, kv_heads = model.hidden_size, model.kv_heads
    exchange = (tp - 1) * case.share.input_bytes
    keys = hidden * kv_heads * model.head_dim  # parameters of k; v has as many
    # Ranks that share a head sum its gradients: of k and of v, each an all-reduce, which is two passes
    shared = 2 * 2 * (tp * case.share.kv_heads / kv_heads - 1) * keys * itemsize
    norm = np.where(cut, 2 * (tp - 1) * hidden * itemsize, 0)
    layer = exchange * (case.exchanges.forward * (1 + case.recomputed) + case.exchanges.backward) + shared + 2 * norm
    if model.num_experts:  # run on the tokens that a rank has; if these differ, gradients are summed over tp
        experts = case.stages.layer_expert_params + hidden * model.num_experts
        layer = layer + np.where(cut, 2 * (tp - 1) * experts * itemsize, 0)
    loss = 3 * 2 * case.share.tokens * case.itemsize.wide if case.software.cuts_logits else case.share.logit_bytes
    # Of both ends: each has an all-reduce, so two exchanges; cut, the head gathers its input again in the backward
    outside = exchange * np.where(cut, 5, 4) + norm + (tp - 1) * loss
    return _passes_of_groups(case) * (model.num_layers * layer + outside)


def ring_bytes(case: Case) -> Column:
    """cp − 1 hops of K and V forward and backward, and cp of dK and dV in float32 or wider."""
    cp = case.layout.cp
    hops = (cp - 1) * case.itemsize.activation * (2 + case.recomputed) + np.where(cp > 1, cp * case.itemsize.wide, 0)
    around = 2 * case.share.tokens * case.share.kv_heads * case.model.head_dim * case.layout.tp * hops
    return _passes_of_groups(case) * case.model.num_layers * around


def pipeline_bytes(case: Case) -> Column:
    """A layer's input and its gradient between stages; and the gradients of a tied table, which two ranks sum."""
    layout = case.layout
    hops = 2 * (layout.pp * layout.chunks - 1)
    summed = np.where(layout.pp == 1, 0, 2 * _tied_table(case) * case.itemsize.activation)
    sent = _passes_of_groups(case) * hops * case.share.input_bytes * layout.tp / case.share.token_ranks
    return sent + layout.dp * layout.cp * summed


def data_bytes(case: Case) -> Column:
    """ZeRO's passes over gradients and weights: (R − 1) times all parameters, where a pass goes among R ranks."""
    weight, gradient = case.itemsize.state.weight, case.itemsize.sent_gradient
    tp, sharding = case.layout.tp, case.sharding
    passes = gradient * sharding.gradient_passes + weight * (sharding.forward_gathers + sharding.backward_gathers)
    of_all = tp * case.stages.params * passes + _tied_table(case) * _more_of_tied_table(case)
    of_experts = case.model.num_layers * case.stages.layer_expert_params * passes
    return (sharding.shards - 1) * of_all + (sharding.expert_shards - 1) * case.layout.ep * tp * of_experts


def _more_of_tied_table(case: Case) -> Column:
    """Bytes that each parameter of a tied table sends more than any other; fewer if negative.

    the model's ends   tables in `params`   what differs, in a step with r reductions
    on one rank        1, for both ends     ZeRO-3 gathers it for each end: 2r weights more
                                            each end has a gradient: r more, or 0 if whole gradients are kept
    on two ranks       2, one each          the two sum their gradients first, once a step, and each sends the sum:
                                            1 gradient in place of r, twice
    """
    weight, gradient, sharding = case.itemsize.state.weight, case.itemsize.sent_gradient, case.sharding
    second_gradient = np.where(sharding.whole_gradients, 0, gradient * sharding.reductions)
    on_one_rank = second_gradient + 2 * weight * sharding.backward_gathers
    on_two_ranks = 2 * gradient * (1 - sharding.reductions)
    return np.where(case.layout.pp == 1, on_one_rank, on_two_ranks)


def _tied_table(case: Case) -> int:
    """Parameters of a table that is the embedding and the head; 0 where these are two."""
    return case.model.vocab_size * case.model.hidden_size if case.model.tied else 0


def expert_bytes(case: Case) -> Column:
    """Dispatch and combine, forward and backward, and the plan of N numbers."""
    ep, experts, recomputed = case.layout.ep, case.model.num_experts, case.recomputed
    row = case.model.hidden_size * case.itemsize.activation
    rows = case.share.expert_rows * (1 - 1 / ep) * row  # of a dispatch or a combine
    exchanged = (4 + 2 * recomputed) * rows + (1 + recomputed) * 8 * experts * (ep - 1)
    return _passes_of_groups(case) * case.layout.tp * case.model.num_layers * exchanged
