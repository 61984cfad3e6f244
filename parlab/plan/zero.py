"""ZeRO: what of its state a rank holds, how often gradients and weights travel, how long it waits, and what all send.

How often all of them travel in a step of m microbatches:

    ZeRO   gradients            weights, before forwards   and before backwards
    0      2: an all-reduce     0                          0
    1      1                    1: the new ones            0
    2      m                    1: the new ones            0
    3      m                    m                          m

Where microbatches pass a chunk in a row, their gradients may be summed meanwhile, and sent once. ZeRO-2 does so where
all of them do (GPipe, breadth-first), and in some software for each group of 1F1B; ZeRO-3 in some software where all
do, and gathers its weights once, too. In some software ZeRO-1 all-reduces its gradients.

Invariant: a pass is one reduce-scatter of all gradients, or one all-gather of all weights; an all-reduce is two.

Source: Rajbhandari et al. 2020, "ZeRO". Groups of microbatches: the Llama team 2024, "The Llama 3 herd of models",
section 3.3.2. `parlab.zero.elements_sent` counts the passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.case import Case
from parlab.plan.machine import Machine

# Bytes a parameter, of mixed precision, whatever the state is
OPTIMIZER_BYTES = 64  # through memory, counted: unscale, norm, clip, Adam's state, 16-bit weights
HOST_BYTES = 28  # through the host's memory: gradient, master, moments, weight


# ---- the passes of a step


class Passes(NamedTuple):
    """How often all gradients and all weights travel in a step.

    Fields:
        rounds: how often all gradients are reduced. ZeRO-3 gathers its weights as often, before forwards and
            before backwards.
        each_microbatch: each of several microbatches has a round of its own, where a layer's gradients leave before the
            next layer's come; else those of a chunk are summed over microbatches first.
        gradients: a pass a round; two, if they are all-reduced.
        before_forwards, before_backwards: of weights.
    """

    rounds: Column
    each_microbatch: Column
    gradients: Column
    before_forwards: Column
    before_backwards: Column


def passes_of(case: Case) -> Passes:
    """The passes of ZeRO's stages: the table above."""
    zero, pipeline, software = case.layout.zero, case.pipeline, case.software
    groups = np.ceil(pipeline.microbatches / pipeline.group)
    by_group = (zero == 2) & pipeline.alternates & software.sends_by_group
    in_one_round = _sums_all_first(case) | _gathers_once(case)
    rounds = np.where(in_one_round, 1, np.where(by_group, groups, pipeline.microbatches))
    all_reduced = (zero == 0) | ((zero == 1) & (not software.scatters_gradients))
    return Passes(
        rounds=rounds,
        each_microbatch=(rounds > 1) & ~(by_group & (pipeline.group > 1)),
        gradients=np.where(all_reduced, 2, rounds),
        before_forwards=np.where(zero == 3, rounds, zero > 0),
        before_backwards=np.where(zero == 3, rounds, 0),
    )


def _sums_all_first(case: Case) -> Column:
    """Whether a rank sums its whole gradients over all microbatches, and sends them once. (ZeRO-3: `_gathers_once`.)"""
    zero = case.layout.zero
    return (zero < 2) | ((zero == 2) & ~case.pipeline.alternates)


def _gathers_once(case: Case) -> Column:
    """Whether ZeRO-3 gathers its weights once for all microbatches, and sends their gradients once."""
    return (case.layout.zero == 3) & ~case.pipeline.alternates & case.software.gathers_weights_once


# ---- bytes that a rank holds


def _shards(case: Case) -> tuple[Column, Column]:
    """Into how many parts ZeRO cuts a parameter, and an expert's: one for each rank that has the same one."""
    ranks = case.layout.dp * case.layout.cp
    return ranks, ranks / case.layout.ep


def held(case: Case, params: Column, experts: Column, from_stage: int) -> Column:
    """Of a rank's parameters, and its experts', those whose part of the state it holds.

    They are its shards if ZeRO cuts this part `from_stage` on (the optimizer's from stage 1, gradients from 2, weights
    from 3); else all.
    """
    shards, expert_shards = _shards(case)
    cut = case.layout.zero >= from_stage
    return params / np.where(cut, shards, 1) + experts / np.where(cut, expert_shards, 1)


def gathered_weight_bytes(case: Case) -> Column:
    """Weights that ZeRO-3 has gathered: of this layer and the next, or of this chunk and the next."""
    stages = case.stages
    of_chunks = np.minimum(case.layout.chunks, 2) * stages.chunk_layers
    layers = np.where(_gathers_once(case), of_chunks, 2)
    of_param = np.where(case.layout.zero == 3, layers * case.itemsize.state.weight, 0)  # of one layer
    return of_param * (stages.layer_params + stages.layer_expert_params)


def waiting_gradient_bytes(case: Case, passes: Passes, rank_params: Column) -> Column:
    """Bytes of gradients that wait until ZeRO-2 or ZeRO-3 scatters them; `rank_params`: with experts.

    They are those of a layer, or of a chunk, where those of several microbatches are summed first.

    A step of one microbatch is charged those of a chunk, which is too much where each layer's leave at once. That is on
    the safe side: charged those of a layer, the runs of 8B and 70B in `published.toml` would get 8 and 22 % too little.
    """
    of_layer = case.stages.layer_params + case.stages.layer_expert_params
    waiting = np.where(passes.each_microbatch, of_layer, rank_params / case.layout.chunks)
    return np.where(case.layout.zero >= 2, case.itemsize.state.gradient, 0) * waiting


# ---- seconds that a step takes


def optimizer_seconds(machine: Machine, case: Case) -> Column:
    """Seconds of the update of a rank's shard, on the device or in the host."""
    shard = held(case, case.stages.most_params, case.stages.most_expert_params, from_stage=1)
    link, memory = machine.hardware.host_link, machine.hardware.host_memory
    # A gradient goes to the host, a weight comes back
    on_host = 2 * case.itemsize.activation * shard / link + HOST_BYTES * shard / memory
    return np.where(case.layout.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory_pace)


def zero_seconds(machine: Machine, case: Case, chunk: Seconds) -> Column:
    """Seconds that a step waits for ZeRO's traffic, beside the work of microbatches, each `chunk` seconds a chunk.

    Weights travel before forwards, gradients after backwards; before these ZeRO-3 gathers its weights again. In the
    layout of `paper` a pass of 20.509 million gradients goes among R = 2 ranks: (R − 1)(1 µs + 2 · 20.509 MB / R / 10
    GB/s) = 2.0519 ms. Weights have one pass too, and nothing hides either: 4.1 ms.
    """
    passes = passes_of(case)
    gradients = _one_pass(machine, case, case.itemsize.sent_gradient)
    weights = _one_pass(machine, case, case.itemsize.state.weight)
    before = weights * passes.before_forwards
    after = gradients * passes.gradients + weights * passes.before_backwards
    if "dp" not in case.software.hides:
        return after + before
    in_forward = _waited(case, passes, before, np.maximum(passes.before_forwards, 1), chunk.forward)
    return in_forward + _waited(case, passes, after, passes.rounds, chunk.backward)


def _one_pass(machine: Machine, case: Case, itemsize: int) -> Column:
    """Seconds of a reduce-scatter or an all-gather of all parameters of a rank, and of its experts among edp."""
    layout, stages = case.layout, case.stages
    shards, expert_shards = _shards(case)
    together = machine.in_a_node((layout.cp, case.stride("cp")), (layout.dp, case.stride("dp")))
    seconds = machine.ring(itemsize * stages.most_params, shards, together)
    if not case.model.num_experts:
        return seconds
    return seconds + machine.ring(itemsize * stages.most_expert_params, expert_shards, _edp_in_a_node(machine, case))


def _edp_in_a_node(machine: Machine, case: Case) -> Column:
    """How many of the ranks that hold the same experts (edp) share a node.

    ep takes neighbours along cp, and then along dp. So those that hold the same experts are what is left of each axis,
    and lie further apart.
    """
    cp, dp, ep = case.layout.cp, case.layout.dp, case.layout.ep
    cp_left, dp_left = np.maximum(cp / ep, 1), dp / np.maximum(ep / cp, 1)
    cp_stride, dp_stride = case.stride("cp") * cp / cp_left, case.stride("dp") * dp / dp_left
    return machine.in_a_node((cp_left, cp_stride), (dp_left, dp_stride))


def _waited(case: Case, passes: Passes, traffic: Column, rounds: Column, work: Column) -> Column:
    """The seconds of a step's `traffic` that no work hides: one piece, and what is longer than the work beside others.

    In a step all parameters travel in so many `rounds`, each in v pieces, one a chunk. `work`: seconds of a chunk of a
    microbatch. The gradients of v = 2 chunks and m = 2 microbatches, by ZeRO-1, whose gradients are summed first:

        work      ... backward, chunk 1 | backward, chunk 1 | backward, chunk 0 | backward, chunk 0 |
        travels                                             | chunk 1's piece                       | chunk 0's piece

    Two pieces, of which the last is waited for; the other has two chunks of work beside it. If a piece takes 3 seconds,
    and a backward 1: 3 + max(3 − 2·1, 0) = 4. Weights are the same the other way round: the first piece is waited for.
    """
    piece = traffic / rounds / case.layout.chunks
    others = traffic - piece
    return piece + np.maximum(others - _chunks_beside(case, passes, rounds) * work, 0)


def _chunks_beside(case: Case, passes: Passes, rounds: Column) -> Column:
    """How many chunks of a microbatch a rank works on, while all pieces but one travel: v chunks, m microbatches.

        a piece leaves                                         pieces        beside all but one of them
        after each microbatch's backward (ZeRO-2 and ZeRO-3)   m · v         m · v − 1
        after the backwards of a group of N microbatches       rounds · v    N · (rounds · v − 1)

    Weights come before a forward in the same way. Those of ZeRO-1 and ZeRO-2 travel once, before the first group: one
    round. v is that of the rank with the least work: the last, whose last chunk may have fewer layers.
    """
    stages, pipeline = case.stages, case.pipeline
    v = case.layout.chunks - (stages.chunk_layers - stages.last_layers) / stages.chunk_layers
    after_each = pipeline.microbatches * v - 1
    after_groups = pipeline.group * (rounds * v - 1)
    in_each_microbatch = passes.each_microbatch & (rounds > 1)
    return np.maximum(np.where(in_each_microbatch, after_each, after_groups), 0)


# ---- bytes that all ranks send


def zero_bytes(case: Case) -> Column:
    """A pass among R ranks sends R − 1 times all parameters."""
    weight, gradient = case.itemsize.state.weight, case.itemsize.sent_gradient
    tp, passes = case.layout.tp, passes_of(case)
    shards, expert_shards = _shards(case)
    of_param = gradient * passes.gradients + weight * (passes.before_forwards + passes.before_backwards)
    of_all = tp * case.stages.params * of_param + case.model.tied_params * _more_of_tied_table(case, passes)
    of_experts = case.model.num_layers * case.stages.layer_expert_params * of_param
    return (shards - 1) * of_all + (expert_shards - 1) * case.layout.ep * tp * of_experts


def _more_of_tied_table(case: Case, passes: Passes) -> Column:
    """Bytes that each parameter of a tied table sends more than any other; fewer if negative.

    the model's ends   tables in `params`   what differs, in a step of r rounds
    on one rank        1, for both ends     ZeRO-3 gathers it for each end: 2r weights more
                                            each end has a gradient: r more, or 0 if all are summed first
    on two ranks       2, one each          the two sum their gradients first, once a step, and each sends the sum:
                                            1 gradient in place of r, twice
    """
    weight, gradient = case.itemsize.state.weight, case.itemsize.sent_gradient
    second_gradient = np.where(_sums_all_first(case), 0, gradient * passes.rounds)
    on_one_rank = second_gradient + 2 * weight * passes.before_backwards
    on_two_ranks = 2 * gradient * (1 - passes.rounds)
    return np.where(case.layout.pp == 1, on_one_rank, on_two_ranks)
