"""The bills of a layout: seconds of a step, bytes of the fullest rank, bytes sent. Each is a sum of its kinds.

Of a model of L layers, on a pipeline of p ranks with v chunks each, which m microbatches pass:

    seconds =  m/p · (L · layer + embedding + head)     work of an average rank, by kind                `layer`
                                                        and what it waits for: tp                       `tensor`
                                                        cp                                              `attention`
                                                        ep, of a mixture                                `experts`
            +  imbalance                                the slowest rank has more layers, or the head   `closed_forms`
            +  bubble                                   it waits for the others: (p − 1)/v microbatches `closed_forms`
            +  pp                                       messages between stages                         `pipeline`
            +  dp + optimizer                           ZeRO's traffic, and the update                  `zero`

    bytes   =  weights + gradients + optimizer          of a rank's parameters, cut by ZeRO             `zero`
            +  activations                              chunks in flight · what their layers keep       `memory`
            +  working                                  what exists only for a moment                   `memory`, `zero`

    sent    =  tp + cp + pp + dp + ep                   each in the file that has its seconds

`parlab.plan.paper` has the first two for an even model, in a line each.

Invariant: kinds are disjoint, so a bill is their sum; all kinds of the bytes are of one rank, the one with the
greatest sum, which may be another in another layout.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from parlab.pipeline.closed_forms import Column, in_flight, slowest_and_idle
from parlab.plan.attention import ring_bytes
from parlab.plan.case import Case
from parlab.plan.experts import expert_bytes
from parlab.plan.layer import all_kinds, embedding_seconds, head_seconds, layer_seconds
from parlab.plan.machine import Machine
from parlab.plan.memory import kept_of_layer, loss_bytes, working_bytes
from parlab.plan.pipeline import pipeline_bytes, pipeline_seconds
from parlab.plan.stages import Rank
from parlab.plan.tensor import tensor_bytes
from parlab.plan.zero import (
    Passes,
    held,
    optimizer_seconds,
    passes_of,
    waiting_gradient_bytes,
    zero_bytes,
    zero_seconds,
)

LAYER_KINDS = ("products", "attention", "elementwise", "recomputation", "tp", "cp", "ep")


def step_seconds(machine: Machine, case: Case) -> dict[str, Column]:
    """Seconds of a step by kind.

    The layout of `paper`, in milliseconds; `layer_seconds` says 34.3115 of a layer, and a head takes 3.2092 more:

        products    m/p · (8 · 30 + 3)                         m/p = 2, the head has 3      486.0
        attention   m/p · 8 · 3.5035                                                         56.1
        tp          m/p · (8 · 0.808 + 0.4112)                 of both ends 0.4112           13.8
        imbalance   m · (4 · 34.3115 + 3.2092) − 555.8         less the average, as above     6.0
        bubble      (p − 1) · (4 · 34.3115 + 0.202)            the stage with the embedding 137.4
        pp          2((p − 1)(1 + m/p) − 1) · 0.201            4 messages of 2 MB             0.8
        dp          2 · 2.0519                                 20.5 M gradients, weights      4.1

    >>> from parlab.nn import LlamaConfig
    >>> from parlab.plan import Layout
    >>> from parlab.world import CLASSROOM
    >>> case = Case(LlamaConfig(1000, 1000, 2000, 8, 10, 10), Layout(dp=2, pp=2, tp=2), batch=8, sequence=1000)
    >>> kinds = step_seconds(Machine(CLASSROOM), case)
    >>> print(", ".join(f"{kind} {1000 * seconds:.1f}" for kind, seconds in kinds.items() if seconds))
    products 486.0, attention 56.1, tp 13.8, pp 0.8, dp 4.1, bubble 137.4, imbalance 6.0
    """
    num_layers, stages = case.model.num_layers, case.stages
    layer = layer_seconds(machine, case)
    embedding, head = embedding_seconds(machine, case), head_seconds(machine, case)
    of_layer, of_embedding, of_head = map(all_kinds, (layer, embedding, head))  # all kinds together
    per_rank = case.pipeline.microbatches / case.layout.pp  # m/p, with all layers: the work of an average rank
    seconds = {}
    for kind in [kind for kind in LAYER_KINDS if kind in layer]:  # without experts there is no ep
        ends = sum(end[kind].both for end in (embedding, head) if kind in end)
        seconds[kind] = per_rank * (num_layers * layer[kind].both + ends)

    chunk = of_layer.times(stages.chunk_layers)
    first = of_layer.times(stages.first_layers).plus(of_embedding)
    last = of_layer.times(stages.last_layers).plus(of_head)
    slowest, idle = slowest_and_idle(case.pipeline, chunk, first, last)
    average = per_rank * (num_layers * of_layer.both + (of_embedding.both + of_head.both))  # the kinds above, together
    return seconds | {
        "pp": pipeline_seconds(machine, case),
        "dp": zero_seconds(machine, case, chunk),
        "bubble": idle,
        "imbalance": np.maximum(slowest - average, 0),
        "optimizer": optimizer_seconds(machine, case),
    }


def rank_bytes(case: Case) -> dict[str, Column]:
    """Bytes of the fullest rank by kind: of the first, the second or the last of the pipeline.

    The layout of `paper`, whose first rank is the fullest, in millions; `kept_of_layer` says 18.028 of a layer:

        parameters    4 · (10/t + 0.002) + 1/t    4 layers, in each two whole norms, and the embedding   20.508
        weights       2 · 20.508; as many gradients                                                      41.0
        optimizer     12/d · 20.508                                                                     123.0
        activations   (p − r) · 4 · 18.028        2 microbatches in flight                              144.2
        working       2 + 4                       a layer's input, and the gradient of gate and up        6.0

    >>> from parlab.nn import LlamaConfig
    >>> from parlab.plan import Layout
    >>> case = Case(LlamaConfig(1000, 1000, 2000, 8, 10, 10), Layout(dp=2, pp=2, tp=2), batch=8, sequence=1000)
    >>> print(", ".join(f"{kind} {nbytes / 1e6:.1f}" for kind, nbytes in rank_bytes(case).items()))
    weights 41.0, gradients 41.0, optimizer 123.0, activations 144.2, working 6.0
    """
    kept = kept_of_layer(case, case.layout.recompute)
    working, passes = working_bytes(case, kept), passes_of(case)
    return reduce(_fuller, (_bytes_of(case, rank, passes, kept, working) for rank in case.stages.ranks))


def _bytes_of(case: Case, rank: Rank, passes: Passes, kept: Column, working: Column) -> dict[str, Column]:
    """Bytes of a rank; `passes` of ZeRO, `kept` by a layer of a microbatch, `working` on each rank for a moment.

    Chunks in flight are those of `in_flight`. Layers of which only the input is kept are dealt out evenly among chunks.
    """
    layout, state = case.layout, case.itemsize.state
    experts = rank.layers * case.stages.layer_expert_params
    flight = in_flight(case.pipeline, rank.number) / layout.chunks  # microbatches
    dropped = np.minimum(layout.recompute_layers, rank.layers) * (kept - case.share.own_input_bytes)
    return {
        "weights": state.weight * held(case, rank.params, experts, from_stage=3),
        "gradients": state.gradient * held(case, rank.params, experts, from_stage=2),
        "optimizer": np.where(layout.offload, 0, state.optimizer) * held(case, rank.params, experts, from_stage=1),
        "activations": flight * rank.layers * kept - flight * dropped,
        "working": working
        + waiting_gradient_bytes(case, passes, rank.params + experts)
        + np.where(rank.number == layout.pp - 1, loss_bytes(case), 0),
    }


def _fuller(one: dict[str, Column], other: dict[str, Column]) -> dict[str, Column]:
    """The bytes of the fuller one of two ranks."""
    fuller = sum(other.values()) > sum(one.values())
    return {kind: np.where(fuller, other[kind], one[kind]) for kind in one}


def sent_bytes(case: Case) -> dict[str, Column]:
    """Bytes that all ranks send in a step, by strategy: those that a run of `parlab.train` counts.

    The layout of `paper`, in millions; each of 8 microbatches passes all layers:

        tp    8 · (8 · 8 + 4) · (t − 1) · 2, and 0.2 of the loss    exchanges of the layers and of both ends   1088.2
        pp    8 · 2 · t · 2                                         a message each way from each rank of tp      64.0
        dp    (d − 1) · t · 41.017 · (2 + 2)                        gradients and weights, once                 328.1

    >>> from parlab.nn import LlamaConfig
    >>> from parlab.plan import Layout
    >>> case = Case(LlamaConfig(1000, 1000, 2000, 8, 10, 10), Layout(dp=2, pp=2, tp=2), batch=8, sequence=1000)
    >>> print(", ".join(f"{kind} {nbytes / 1e6:.1f}" for kind, nbytes in sent_bytes(case).items() if nbytes))
    tp 1088.2, pp 64.0, dp 328.1
    """
    sent = {"tp": tensor_bytes(case), "cp": ring_bytes(case), "pp": pipeline_bytes(case), "dp": zero_bytes(case)}
    return sent | ({"ep": expert_bytes(case)} if case.model.num_experts else {})
