"""The bytes of the fullest rank, by kind: the model's state, kept activations, and what exists only for a moment.

Invariant: the kinds are disjoint, and all of one rank, the fullest by their sum; which rank that is may differ from
layout to layout.

Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models" (activations);
Rajbhandari et al. 2020, "ZeRO" (the model's state).
"""

from __future__ import annotations

import numpy as np

from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_kept_bytes, gpt_kept_bytes
from parlab.pipeline.closed_forms import Column, in_flight
from parlab.plan.case import Case

SCORES = ("attention.softmax", "attention.dropped", "attention.keep")  # 5 a s² b in 16 bits: S × S of each head


def rank_bytes(case: Case) -> dict[str, Column]:
    """Bytes of the fullest rank, by kind. It is the first, the second or the last of the pipeline.

    The model's state is that of `parlab.zero.model_state_bytes`. Activations are those of `in_flight` chunks; layers of
    which only the input is kept are dealt out evenly among a rank's chunks.
    """
    layout, state, stages = case.layout, case.state, case.stages
    layers = stages.chunk_layers * layout.chunks
    kept, kept_input = kept_of_layer(case, layout.recompute), case.work.input_bytes / case.work.token_ranks
    # Ranks among which each stage of ZeRO cuts its part of the state: 3 the weights, 2 the gradients, 1 the optimizer's
    over = [np.where(layout.zero >= stage, case.sharding.shards, 1) for stage in range(4)]
    over_experts = [np.where(layout.zero >= stage, case.sharding.expert_shards, 1) for stage in range(4)]
    working, logits = _working_bytes(case, kept), _logits(case)
    fullest: dict[str, Column] = {}
    for rank, fewer, params in stages.ranks:
        own = layers - fewer
        experts = own * stages.layer_expert_params
        flight, input_alone = in_flight(case.pipeline, rank) / layout.chunks, np.minimum(layout.recompute_layers, own)
        weights, gradients, optimizer = (params / over[stage] + experts / over_experts[stage] for stage in (3, 2, 1))
        found = {
            "weights": state.weight * weights,
            "gradients": state.gradient * gradients,
            "optimizer": np.where(layout.offload, 0, state.optimizer) * optimizer,
            "activations": flight * own * kept - flight * input_alone * (kept - kept_input),
            "working": working + _unscattered(case, params + experts) + np.where(rank == layout.pp - 1, logits, 0),
        }
        fuller = sum(found.values()) > sum(fullest.values())
        fullest = {kind: np.where(fuller, x, fullest.get(kind, 0)) for kind, x in found.items()}
    return fullest


def kept_of_layer(case: Case, recompute: Column) -> Column:
    """Bytes of one layer and microbatch that a rank keeps for the backward.

    In 16 bits a GPT's are those of Korthikanti's table 2: sbh(10 + 24/t) + 5as²b/t, with sequence parallelism 34sbh/t +
    5as²b/t; selective recomputation leaves 5as²b/t out. A Llama's are those of `parlab.tensor.llama_kept_by_place`.
    """
    model, tp = case.model, case.layout.tp
    if isinstance(case.config, LlamaConfig):
        items = block_kept_bytes(case.config, 1, case.sequence, case.itemsize)
    else:
        items = gpt_kept_bytes(case.sequence, 1, model.hidden_size, model.heads, itemsize=case.itemsize)
    if model.num_experts:
        items = {place: size for place, size in items.items() if place not in ("mlp.gate", "mlp.up", "mlp.hidden")}
    whole = sum(size for place, size in items.items() if "norm" in place or place.endswith((".x", "output_keep")))
    scores = sum(items.get(place, 0) for place in SCORES)
    shared = (items["attention.k"] + items["attention.v"]) * (case.work.kv_heads * tp / model.kv_heads - 1)
    by_tp = sum(items.values()) - whole - scores + shared
    by_tp = by_tp - np.where(recompute == "mlp.hidden", items.get("mlp.hidden", 0), 0)
    # Software that does not gather the inputs of column products again keeps them whole, and not its t-th of them
    inputs = 0 if case.software.gathers_again else items["attention.x"] + items["mlp.x"]
    kept = (whole - inputs) / case.work.token_ranks + inputs + (by_tp + np.where(recompute == "none", scores, 0)) / tp
    kept = case.layout.microbatch / case.layout.cp * kept + kept_of_experts(case)
    return np.where(recompute == "full", case.work.input_bytes / case.work.token_ranks, kept)


def kept_of_experts(case: Case) -> Column:
    """Of a mixture, at an even load: rows, answers, what each expert keeps, and the routing of each token."""
    model, work = case.model, case.work
    routed = 8 + 8 + case.itemsize  # the pair's place, expert and gate
    of_row = case.itemsize * (2 * model.hidden_size + 3 * model.expert_columns) + routed
    return work.expert_rows * of_row + work.tokens / work.token_ranks * model.num_experts * case.itemsize


def _working_bytes(case: Case, kept: Column) -> Column:
    """Bytes that exist only for a moment on each rank: the gradient of the widest activation, a layer's gathered input,
    the activations of a layer that is computed again, and ZeRO-3's gathered weights."""
    layout, model, work, stages = case.layout, case.model, case.work, case.stages
    widest = work.tokens * model.up_columns / layout.tp + work.expert_rows * 2 * model.expert_columns
    some = layout.recompute_layers > 0
    least = np.where(some, np.minimum(kept, work.input_bytes / work.token_ranks), kept)
    made_again = kept_of_layer(case, np.array("none")) - least
    # Layers whose weights are here: this one and the next; or the same of chunks
    opened = np.where(case.sharding.gathered_once, np.minimum(layout.chunks, 2) * stages.chunk_layers, 2)
    gathered = np.where(layout.zero == 3, opened * case.state.weight, 0)
    gathered = gathered * (stages.layer_params + stages.layer_expert_params)
    return case.itemsize * (work.tokens * model.hidden_size + widest) + made_again + gathered


def _unscattered(case: Case, params: Column) -> Column:
    """Bytes of gradients before ZeRO-2 or ZeRO-3 scatters them: those of a layer, or of a chunk that sums several
    microbatches first; `params` of a rank.

    A step of one microbatch is charged those of a chunk, which is too much where each layer's leave at once. That is on
    the safe side: charged those of a layer, the runs of 8B and 70B in `published.toml` would get 8 and 22 % too little.
    """
    of_layer = case.stages.layer_params + case.stages.layer_expert_params
    whole = np.where(case.sharding.one_by_one, of_layer, params / case.layout.chunks)
    return np.where(case.layout.zero >= 2, case.state.gradient, 0) * whole


def _logits(case: Case) -> Column:
    """Bytes on the last stage: the logits and their softmax in float32 or wider."""
    of_logit = case.itemsize + case.wide_itemsize + case.software.logit
    logits = case.work.tokens * case.exchanges.loss_columns * of_logit
    return logits + 2 * case.work.input_bytes / case.work.token_ranks
