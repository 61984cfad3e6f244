"""The bytes that a rank holds: what a layer keeps for the backward, and what exists only for a moment.

Invariant: the kinds are disjoint: a byte that a layer keeps is not one that exists for a moment.

Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models" (activations).
"""

from __future__ import annotations

import numpy as np

from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_kept_bytes, gpt_kept_bytes
from parlab.pipeline.closed_forms import Column
from parlab.plan.case import Case
from parlab.plan.experts import kept_of_experts
from parlab.plan.zero import gathered_weight_bytes

# The places of a layer's cache (`nn.formulas`) by how the ranks of tp divide them; all others are columns or heads.
# Regions are attention and the MLP, whose matrices are cut; norms and residuals lie between them
NORMS = ("attention_norm.x", "attention_norm.inverse", "mlp_norm.x", "mlp_norm.inverse")
BETWEEN_REGIONS = (*NORMS, "attention.output_keep", "mlp.output_keep")
COLUMN_INPUTS = ("attention.x", "mlp.x")
KEYS_AND_VALUES = ("attention.k", "attention.v")
SCORES = ("attention.softmax", "attention.dropped", "attention.keep")  # 5 a s² b in 16 bits: S × S of each head


def kept_of_layer(case: Case, recompute: Column) -> Column:
    """Bytes of one layer and microbatch that a rank keeps for the backward, by this way to recompute.

        places                    a rank of tp keeps
        BETWEEN_REGIONS           all; with sequence parallelism a t-th
        COLUMN_INPUTS             the same; all in software that does not gather them again
        KEYS_AND_VALUES           a t-th; one head where t ranks are more than heads
        SCORES                    a t-th; nothing by any way to recompute
        other columns and heads   a t-th; of mlp.hidden nothing by the way of this name

    By full recomputation it keeps the layer's input alone. In 16 bits a GPT's are those of Korthikanti's table 2:
    sbh(10 + 24/t) + 5as²b/t, with sequence parallelism 34sbh/t + 5as²b/t; selective recomputation leaves 5as²b/t out. A
    Llama's are those of `parlab.tensor.llama_kept_by_place`. In the layout of `paper`, of each of 1000 tokens:

        inputs of two norms and two column layers   2 · 4E         8000
        q, k, v, merged; gate, up, hidden           2(4E + 3M)/t  10000
        two norms' and 10/t heads' statistics       4(2 + 10/t)      28

    >>> from parlab.nn import LlamaConfig
    >>> from parlab.plan import Layout
    >>> case = Case(LlamaConfig(1000, 1000, 2000, 8, 10, 10), Layout(dp=2, pp=2, tp=2), batch=8, sequence=1000)
    >>> int(kept_of_layer(case, "none"))
    18028000
    """
    share, tp, items = case.share, case.layout.tp, _kept_items(case)

    def nbytes(places: tuple[str, ...]) -> int:
        return sum(items.get(place, 0) for place in places)

    between, inputs, keys, scores = map(nbytes, (BETWEEN_REGIONS, COLUMN_INPUTS, KEYS_AND_VALUES, SCORES))
    others: Column = sum(items.values()) - between - inputs - keys - scores
    others = others - np.where(recompute == "mlp.hidden", items.get("mlp.hidden", 0), 0)
    by_tp = others + keys * case.holders_of_kv_head + np.where(recompute == "none", scores, 0)
    by_tokens, whole = (between + inputs, 0) if case.software.gathers_x_again else (between, inputs)
    of_sequence = by_tokens / share.token_ranks + whole + by_tp / tp  # on a rank of tp
    kept = case.layout.microbatch / case.layout.cp * of_sequence + kept_of_experts(case)
    return np.where(recompute == "full", share.own_input_bytes, kept)


def _kept_items(case: Case) -> dict[str, int]:
    """Bytes by place that a layer keeps of one sequence, before any rank cuts them; experts, if it has some, apart."""
    model, itemsize = case.model, case.itemsize.activation
    if not isinstance(case.config, LlamaConfig):
        return gpt_kept_bytes(case.sequence, 1, model.hidden_size, model.heads, itemsize)
    items = block_kept_bytes(case.config, 1, case.sequence, itemsize)
    replaced = ("mlp.gate", "mlp.up", "mlp.hidden") if model.num_experts else ()
    return {place: size for place, size in items.items() if place not in replaced}


def working_bytes(case: Case, kept: Column) -> Column:
    """Bytes that exist only for a moment on each rank, where a layer keeps `kept` of a microbatch.

    They are a layer's gathered input, the gradient of its widest activation, the activations of a layer that is
    computed again, and ZeRO-3's gathered weights.
    """
    model, share = case.model, case.share
    gathered_input = share.tokens * model.hidden_size
    widest = share.tokens * model.up_columns / case.layout.tp + share.expert_rows * 2 * model.expert_columns
    activations = case.itemsize.activation * (gathered_input + widest)
    return activations + _recomputed_bytes(case, kept) + gathered_weight_bytes(case)


def _recomputed_bytes(case: Case, kept: Column) -> Column:
    """Activations that the recomputation of a layer makes: all that it needs, less the least that a layer keeps."""
    least = np.where(case.layout.recompute_layers > 0, np.minimum(kept, case.share.own_input_bytes), kept)
    return kept_of_layer(case, "none") - least


def loss_bytes(case: Case) -> Column:
    """Bytes on the last stage: inputs of the final norm and the head, logits, and their softmax in float32 or wider."""
    of_logit = case.itemsize.activation + case.itemsize.wide + case.software.logit
    return case.share.tokens * case.share.loss_columns * of_logit + 2 * case.share.own_input_bytes
