"""Seconds that a step takes beside the work of its layers: messages between stages, ZeRO's traffic, and the update.

Invariant: traffic counts only as far as a rank waits for it.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds, exposed_transfers
from parlab.plan.case import Case
from parlab.plan.machine import Machine

OPTIMIZER_BYTES = 64  # a parameter, through memory, counted: unscale, norm, clip, Adam's state, 16-bit weights
HOST_BYTES = 28  # a parameter, through the host's memory: gradient, master, moments, weight


def optimizer_seconds(machine: Machine, case: Case) -> Column:
    """Seconds of the update of a rank's shard, on the device or in the host."""
    shard = case.sharding.held(case.stages.most_params, case.stages.most_expert_params, from_stage=1)
    link, memory = machine.hardware.host_link, machine.hardware.host_memory
    # A gradient goes to the host, a weight comes back
    on_host = 2 * case.itemsize.activation * shard / link + HOST_BYTES * shard / memory
    return np.where(case.layout.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory_pace)


def pipeline_seconds(machine: Machine, case: Case) -> Column:
    """Seconds that a step waits for messages between stages.

    Without sequence parallelism each rank of tp has the whole microbatch. Some software sends a part from each rank,
    and gathers the parts on the other side (Narayanan et al. 2021, section 4.1). Software that computes and sends in
    one stream waits for each message of 1F1B.
    """
    pp, input_bytes, token_ranks = case.layout.pp, case.share.input_bytes, case.share.token_ranks
    inside = case.stride("pp") * pp <= machine.node
    parts = case.layout.tp if case.software.scatters else token_ranks
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


def zero_seconds(machine: Machine, case: Case, chunk: Seconds) -> Column:
    """Seconds that a step waits for ZeRO's traffic, beside the work of microbatches, each `chunk` seconds a chunk.

    Weights travel before forwards, gradients after backwards; before these ZeRO-3 gathers its weights again. In the
    layout of `paper` a pass of 20.509 million gradients goes among R = 2 ranks: (R − 1)(1 µs + 2 · 20.509 MB / R / 10
    GB/s) = 2.0519 ms. Weights have one pass too, and nothing hides either: 4.1 ms.
    """
    sharding = case.sharding
    gradients = _one_pass(machine, case, case.itemsize.sent_gradient)
    weights = _one_pass(machine, case, case.itemsize.state.weight)
    before = weights * sharding.forward_gathers
    after = gradients * sharding.gradient_passes + weights * sharding.backward_gathers
    if "dp" not in case.software.hides:
        return after + before
    in_forward = _waited(case, before, np.maximum(sharding.forward_gathers, 1), chunk.forward)
    return in_forward + _waited(case, after, sharding.reductions, chunk.backward)


def _one_pass(machine: Machine, case: Case, itemsize: int) -> Column:
    """Seconds of a reduce-scatter or an all-gather of all parameters of a rank, and of its experts among edp."""
    layout, sharding, stages = case.layout, case.sharding, case.stages
    together = machine.in_a_node((layout.cp, case.stride("cp")), (layout.dp, case.stride("dp")))
    seconds = machine.ring(itemsize * stages.most_params, sharding.shards, together)
    if not case.model.num_experts:
        return seconds
    together = _ranks_of_edp_in_a_node(machine, case)
    return seconds + machine.ring(itemsize * stages.most_expert_params, sharding.expert_shards, together)


def _ranks_of_edp_in_a_node(machine: Machine, case: Case) -> Column:
    """How many of the ranks that hold the same experts share a node.

    ep takes neighbours along cp, and then along dp. So those that hold the same experts are what is left of each axis,
    and lie further apart.
    """
    cp, dp, ep = case.layout.cp, case.layout.dp, case.layout.ep
    cp_left, dp_left = np.maximum(cp / ep, 1), dp / np.maximum(ep / cp, 1)
    cp_stride, dp_stride = case.stride("cp") * cp / cp_left, case.stride("dp") * dp / dp_left
    return machine.in_a_node((cp_left, cp_stride), (dp_left, dp_stride))


def _waited(case: Case, traffic: Column, rounds: Column, work: Column) -> Column:
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
    return piece + np.maximum(others - chunks_beside(case, rounds) * work, 0)


def chunks_beside(case: Case, rounds: Column) -> Column:
    """How many chunks of a microbatch a rank works on, while all pieces but one travel: v chunks, m microbatches.

        a piece leaves                                         pieces        beside all but one of them
        after each microbatch's backward (ZeRO-2 and ZeRO-3)   m · v         m · v − 1
        after the backwards of a group of N microbatches       rounds · v    N · (rounds · v − 1)

    v is that of the rank with the least work: the last, whose last chunk may have fewer layers.
    """
    stages, pipeline = case.stages, case.pipeline
    v = case.layout.chunks - (stages.chunk_layers - stages.last_layers) / stages.chunk_layers
    after_each = pipeline.microbatches * v - 1
    after_groups = pipeline.group * (rounds * v - 1)
    return np.maximum(np.where(case.sharding.each_microbatch, after_each, after_groups), 0)
