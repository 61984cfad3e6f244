"""Seconds of a step by kind: the work of an average rank, the idle time of a pipeline whose stages differ, and the
traffic that no work hides.

Invariant: the kinds are disjoint, so a step is their sum; traffic counts only as far as a rank waits for it. Each
function names the paper of its form.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from parlab.pipeline.closed_forms import Column, Pass, exposed_transfers
from parlab.pipeline.closed_forms import step as step_of_pipeline
from parlab.plan.case import Case
from parlab.plan.layer_seconds import end_seconds, layer_seconds, total
from parlab.plan.machine import Machine

OF_LAYER = ("products", "attention", "elementwise", "recomputation", "tp", "cp", "ep")
OPTIMIZER_BYTES = 64  # a parameter, through memory, counted: unscale, norm, clip, Adam's state, 16-bit weights
HOST_BYTES = 28  # a parameter, through the host's memory: gradient, master, moments, weight


def step_seconds(machine: Machine, case: Case) -> dict[str, Column]:
    """Seconds of a step by kind.

    Work and traffic inside stages are those of an average rank. The imbalance is the additional work of the slowest
    one.
    """
    of_layer, (embedding, head) = layer_seconds(machine, case), end_seconds(machine, case)
    model, layout, stages = case.model, case.layout, case.stages
    passes = case.pipeline.microbatches / layout.pp  # of the whole model, for an average rank

    def chunk_of(layers: Column, outside: Pass) -> Pass:
        return Pass(*(layers * one + more for one, more in zip(total(of_layer), outside, strict=True)))

    chunk = chunk_of(stages.chunk_layers, Pass(0, 0))
    first = chunk_of(stages.chunk_layers - stages.fewer_first, total(embedding))
    last = chunk_of(stages.chunk_layers - stages.fewer_last, total(head))
    found = {}
    for kind in (kind for kind in OF_LAYER if kind in of_layer):
        outside = sum(part[kind].both for part in (embedding, head) if kind in part)
        found[kind] = passes * (model.num_layers * of_layer[kind].both + outside)
    params = reduce(np.maximum, (rank.params for rank in stages.ranks))
    experts = stages.chunk_layers * layout.chunks * stages.layer_expert_params
    found["pp"] = _between_stages(machine, case)
    found["dp"] = _data_traffic(machine, case, params, experts, chunk)
    mean, more, found["bubble"] = step_of_pipeline(case.pipeline, chunk, first, last)
    of_model = model.num_layers * total(of_layer).both + sum(total(end).both for end in (embedding, head))
    found["imbalance"] = np.maximum(mean + more - passes * of_model, 0)
    found["optimizer"] = _optimizer(machine, case, params, experts)
    return found


def _optimizer(machine: Machine, case: Case, params: Column, experts: Column) -> Column:
    """Seconds of the update of a rank's shard, on the device or in the host."""
    sharded, zero = case.layout.zero > 0, case.sharding
    shard = params / np.where(sharded, zero.shards, 1) + experts / np.where(sharded, zero.expert_shards, 1)
    on_host = 2 * case.itemsize * shard / machine.hardware.host_link + HOST_BYTES * shard / machine.hardware.host_memory
    return np.where(case.layout.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory_pace)


def _between_stages(machine: Machine, case: Case) -> Column:
    """Seconds that a step waits for messages between stages.

    Without sequence parallelism each of t ranks has the whole microbatch. Some software sends a t-th from each rank,
    and gathers the parts on the other side (Narayanan et al. 2021, section 4.1). Software that computes and sends in
    one stream waits for each message of 1F1B: a rank in the middle has four a microbatch.
    """
    p, m, work = case.layout.pp, case.pipeline.microbatches, case.work
    inside = case.stride("pp") * p <= machine.node
    parts = case.layout.tp if case.software.scatters else work.token_ranks
    gathered = np.where(parts > work.token_ranks, machine.ring(work.input_bytes, case.layout.tp), 0)
    waited_for = exposed_transfers(case.pipeline, apart="pp" in case.software.hides)
    if case.software.one_stream:
        all_of_a_rank = np.where(p == 1, 0, np.where(p == 2, 2 * m, 4 * m + 2 * (p - 4)))
        waited_for = np.where(case.pipeline.alternates & (case.layout.chunks == 1), all_of_a_rank, waited_for)
    return waited_for * (machine.hop(work.input_bytes / parts, inside) + gathered)


def _data_traffic(machine: Machine, case: Case, params: Column, experts: Column, chunk: Pass) -> Column:
    """Seconds that a step waits for ZeRO's traffic. `experts`: their parameters on a rank, which travel over edp.

    Gradients and weights travel in v pieces, one a chunk, behind the work that is there when they leave. The gradients
    of v = 2 chunks and m = 2 microbatches, by ZeRO-1, whose gradients are summed first:

        work      ... backward, chunk 1 | backward, chunk 1 | backward, chunk 0 | backward, chunk 0 |
        travels                                             | chunk 1's piece                       | chunk 0's piece

    By ZeRO-2 a piece leaves after each backward, v·m of them in all. Nothing hides the last piece of the gradients, nor
    the first piece of the weights, which travel before the forward.
    """
    zero, near = case.sharding, machine.together
    together = near(case.layout.cp, case.stride("cp")) * near(case.layout.dp, case.stride("dp"))

    def travels(itemsize: int) -> Column:
        """Seconds of a reduce-scatter or an all-gather of all parameters of a rank."""
        seconds = machine.ring(itemsize * params, zero.shards, together)
        if case.model.num_experts:
            seconds = seconds + machine.ring(itemsize * experts, zero.expert_shards, _experts_together(machine, case))
        return seconds

    gradient, weight = travels(case.gradient_bytes), travels(case.state.weight)
    before = weight * zero.forward_gathers
    after = gradient * zero.gradient_passes + weight * zero.backward_gathers
    if "dp" not in case.software.hides:
        return after + before
    chunks_of_shortest = case.layout.chunks - case.stages.fewer_last / case.stages.chunk_layers  # or more

    def waited(traffic: Column, times: Column, work: Column) -> Column:
        """The seconds of `traffic` that no work hides.

        In a step all parameters travel so many `times`, in v pieces each. One piece is never hidden. While the others
        travel, a rank works on so many chunks of a microbatch, for `work` seconds each: all but the first if pieces
        leave one by one; else those of one group for each other piece.
        """
        piece = traffic / times / case.layout.chunks
        after_each = case.pipeline.microbatches * chunks_of_shortest - 1
        after_groups = case.pipeline.group * (times * chunks_of_shortest - 1)
        chunks_beside = np.maximum(np.where(zero.one_by_one, after_each, after_groups), 0)
        return piece + np.maximum(traffic - piece - chunks_beside * work, 0)

    first = waited(before, np.maximum(zero.forward_gathers, 1), chunk.forward)
    return first + waited(after, zero.reductions, chunk.backward)


def _experts_together(machine: Machine, case: Case) -> Column:
    """The ranks in a node, of those that share a shard of the same experts."""
    layout = case.layout
    cp, dp = np.maximum(layout.cp / layout.ep, 1), layout.dp / np.maximum(layout.ep / layout.cp, 1)
    near = machine.together(cp, case.stride("cp") * layout.cp / cp)
    return near * machine.together(dp, case.stride("dp") * layout.dp / dp)
