"""Bytes of the fullest rank, by kind, and that all ranks send, by strategy: the counted closed forms, in columns."""

from __future__ import annotations

import numpy as np

from parlab.nn import LlamaConfig
from parlab.nn.formulas import block_kept_bytes, gpt_kept_bytes
from parlab.plan.case import Case, Column
from parlab.tensor.costs import SOFTMAX, WHOLE


def kept_of_layer(case: Case, recompute: Column) -> Column:
    """Bytes that a rank keeps of one layer and microbatch for the backward: `parlab.tensor.costs`, item by item."""
    whole = cut = scores = 0.0
    if isinstance(case.config, LlamaConfig):
        for place, size in block_kept_bytes(case.config, 1, case.sequence, case.item).items():
            shared = case.kv * case.t / case.sizes.G if place in ("attention.k", "attention.v") else 1
            whole, cut = (
                (whole + size, cut) if "norm" in place or place.endswith(".x") else (whole, cut + size * shared)
            )
    else:
        items = gpt_kept_bytes(case.sequence, 1, case.sizes.E, case.sizes.H, itemsize=case.item)
        whole, scores = (sum(items[name] for name in names) for names in (WHOLE, SOFTMAX))
        cut = sum(items.values()) - whole - scores
    kept = whole / case.between + (cut + np.where(recompute == "none", scores, 0)) / case.t
    everything = case.b / case.c * kept
    return np.where(recompute == "full", case.item * case.n * case.sizes.E / case.between, everything)


def in_flight(case: Case, rank: Column) -> Column:
    """Chunks that a rank keeps at its fullest: all m·v for GPipe and breadth-first; 1F1B p − r; interleaved
    vp + p − 1 − 2r; never more than m·v."""
    p, v, every = case.p, case.v, case.m * case.v
    return np.where(case.in_turn, np.minimum(every, np.where(v == 1, p - rank, v * p + p - 1 - 2 * rank)), every)


def rank_bytes(case: Case) -> dict[str, Column]:
    """Of the fullest rank: of the first stage, the second, or the last.

    ZeRO's terms are the paper's (`parlab.zero.model_state_bytes`). The working set lives for a moment: the gradient of
    the widest activation and a layer's gathered input; the layer that is made again; gradients before they are
    scattered, and gathered weights (stages 2 and 3); on the last stage the logits, also in float32.
    """
    state, layers = case.state, case.layers * case.v
    kept = kept_of_layer(case, case.recompute)
    widest = case.item * case.n * (case.sizes.E + case.sizes.up / case.t)
    again = np.where(case.recompute == "none", 0, kept_of_layer(case, np.array("none")) - kept)
    logits = case.n * case.sizes.V / case.t * (case.item + 4) + 2 * case.item * case.n * case.sizes.E / case.between
    passing = np.where(case.zero == 3, 2 * state.weight, 0) * case.layer_params
    first, middle, last = case.stage_params
    ranks = []
    for params, rank, short in ((first, 0, case.fewer_first), (middle, 1, 0), (last, case.p - 1, case.fewer_last)):
        unscattered = np.where(case.passes > 1, case.layer_params, params / case.v)
        working = widest + again + passing + np.where(case.zero >= 2, state.gradient * unscattered, 0)
        ranks.append(
            {
                "weights": state.weight * params / np.where(case.zero == 3, case.data, 1),
                "gradients": state.gradient * params / np.where(case.zero >= 2, case.data, 1),
                "optimizer": np.where(case.offload, 0, state.optimizer * params / np.where(case.zero, case.data, 1)),
                "activations": np.minimum(in_flight(case, rank) / case.v * (layers - short), case.m * layers) * kept,
                "working": working + np.where(rank == case.p - 1, logits, 0),
            }
        )
    totals = [sum(kinds.values()) for kinds in ranks]
    second = (case.p > 2) & (totals[1] > totals[0])
    third = totals[2] > np.where(second, totals[1], totals[0])
    return {
        kind: np.where(third, ranks[2][kind], np.where(second, ranks[1][kind], ranks[0][kind])) for kind in ranks[0]
    }


def sent_bytes(case: Case) -> dict[str, Column]:
    """Bytes that all ranks send in a step, by strategy: what a run counts (`parlab.tensor.model_collectives`,
    `parlab.sequence.costs.bytes_sent`, `parlab.zero.elements_sent`)."""
    E, D, G, L = case.sizes.E, case.sizes.D, case.sizes.G, case.sizes.L
    t, c, item, wide = case.t, case.c, case.item, max(case.item, 4)
    microbatches = case.m * case.d * case.c  # each sent by all ranks of a tensor-parallel group
    turn = (t - 1) * case.n * E * item
    again = np.where(case.recompute == "full", 1, 0)
    cut = case.sequence_parallel
    shared = 2 * 2 * (t * case.kv / G - 1) * E * G * D * item  # dW of the k and v that t·kv/G ranks share
    norms = np.where(cut, 2 * (t - 1) * E * item, 0)
    layer = turn * (4 * (1 + again) + np.where(cut, 6, 4)) + shared + 2 * norms
    outside = turn * np.where(cut, 5, 4) + norms + 3 * 2 * (t - 1) * case.n * wide
    hop = 2 * case.n * case.kv * D * t
    around = hop * ((c - 1) * item * (2 + again) + np.where(c > 1, c * wide, 0))
    first, middle, last = case.stage_params
    params = t * np.where(case.p == 1, first, first + (case.p - 2) * middle + last)
    k, stage = case.passes, case.zero
    gradients = case.state.gradient * np.where(stage == 0, 2, k)
    weights = case.state.weight * np.where(stage == 0, 0, np.where(stage == 3, 2 * k, 1))
    return {
        "tp": microbatches * (L * layer + outside),
        "cp": microbatches * L * around,
        "pp": microbatches * 2 * (case.p * case.v - 1) * case.n * E * item * np.where(cut, 1, t),
        "dp": (case.data - 1) * params * (gradients + weights),
    }
