"""Seconds of a step by kind, from FLOPs and bytes in closed form and from the pace that the hardware reaches.

A matrix product is computed in tiles, and takes the longer of the times of its FLOPs and of its bytes. All other work
takes the time of its bytes. Then come the idle time of a pipeline whose stages differ, and the traffic that no
work hides.

Invariant: the kinds are disjoint, so a step is their sum; traffic counts only as far as a rank waits for it.

Source: Williams, Waterman and Patterson 2009, "Roofline" (the longer of two times); each function names the paper of
its form.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from parlab.pipeline.closed_forms import Column, Pass, exposed_transfers, step
from parlab.plan.case import Case
from parlab.plan.machine import Machine

# Of the forward's bytes: inputs are read again, gradients of gains and biases are summed. Fitted, as `Hardware.memory`
BACKWARD_ELEMENTWISE = 1.8
OF_LAYER = ("products", "attention", "elementwise", "recomputation", "tp", "cp", "ep")
OPTIMIZER_BYTES = 64  # a parameter, through memory, counted: unscale, norm, clip, Adam's state, 16-bit weights
HOST_BYTES = 28  # a parameter, through the host's memory: gradient, master, moments, weight


def total(seconds: dict[str, Pass]) -> Pass:
    """The sum over all kinds."""
    return Pass(*map(sum, zip(*seconds.values(), strict=True)))


def step_seconds(machine: Machine, case: Case) -> dict[str, Column]:
    """Seconds of a step by kind.

    Work and traffic inside stages are those of an average rank. The imbalance is the additional work of the slowest
    one.
    """
    of_layer, embedding, head = layer_seconds(machine, case), *end_seconds(machine, case)

    def chunk_of(layers: Column, outside: Pass) -> Pass:
        return Pass(*(layers * one + more for one, more in zip(total(of_layer), outside, strict=True)))

    chunk = chunk_of(case.chunk_layers, Pass(0, 0))
    first = chunk_of(case.chunk_layers - case.fewer_first, total(embedding))
    last = chunk_of(case.chunk_layers - case.fewer_last, total(head))
    found = {}
    for kind in (kind for kind in OF_LAYER if kind in of_layer):
        outside = sum(part[kind].both for part in (embedding, head) if kind in part)
        found[kind] = case.microbatches / case.pp * (case.num_layers * of_layer[kind].both + outside)
    params = reduce(np.maximum, (params for _, _, params in case.stages))
    found["pp"] = _between_stages(machine, case)
    experts = case.chunk_layers * case.chunks * case.layer_expert_params
    found["dp"] = _data_traffic(machine, case, params, experts, chunk)
    mean, more, found["bubble"] = step(*case.pipeline, chunk, first, last)
    of_average = case.microbatches / case.pp * _whole(case, of_layer, embedding, head)
    found["imbalance"] = np.maximum(mean + more - of_average, 0)
    shard = params / np.where(case.zero > 0, case.data_ranks, 1) + experts / np.where(case.zero > 0, case.edp, 1)
    on_host = 2 * case.itemsize * shard / machine.hardware.host_link + HOST_BYTES * shard / machine.hardware.host_memory
    found["optimizer"] = np.where(case.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory)
    return found


def _whole(case: Case, of_layer: dict[str, Pass], *ends: dict[str, Pass]) -> Column:
    """Seconds of a microbatch in the whole model, forward and backward."""
    return case.num_layers * total(of_layer).both + sum(total(end).both for end in ends)


def layer_seconds(machine: Machine, case: Case) -> dict[str, Pass]:
    """Seconds of one layer by kind, forward and backward. The backward repeats each product for dX and for dW."""
    E, D, M, n, t = case.hidden_size, case.head_dim, case.mlp_columns, case.tokens, case.tp
    queries, up = case.heads * D / t, case.up_columns / t
    products = [_products(machine, case, E, queries + 2 * case.own_kv_heads * D), _products(machine, case, queries, E)]
    if case.num_experts:
        products += _mixture_products(machine, case)
    else:
        products += [_products(machine, case, E, up), _products(machine, case, M / t, E)]
    forward, inputs, weights = map(sum, zip(*products, strict=True))
    if case.fused_attention:  # bytes: norms 4E, residuals 6E each; SwiGLU reads two columns, writes one; rotary of q, k
        touched = n * (20 * E / case.token_ranks + 6 * M / t + 4 * (queries + case.own_kv_heads * D)) / machine.memory
    else:  # bytes: norms 4E, bias with dropout and residual 7E each; GELU reads and writes its columns
        touched = n * (22 * E / case.token_ranks + 4 * M / t) / machine.memory
    # Two all-reduces each way (Shoeybi et al. 2019). With sequence parallelism all-gathers and reduce-scatters send as
    # many bytes, and the backward has two more all-gathers (Korthikanti et al. 2022). Software that hides them sends dX
    # while it computes dW, and x while it computes dX. Nothing hides the two all-gathers of dY
    core, turn = attention_seconds(machine, case), machine.ring(case.input_bytes, case.tp)
    hidden_behind = weights if "tp" in case.software.hides else 0.0  # seconds of dW
    never_hidden = np.where(case.sequence_parallel, 2, 0) * case.forward_turns / 4
    waited = never_hidden * turn + np.maximum((case.backward_turns - never_hidden) * turn - hidden_behind, 0)
    found = {
        "products": Pass(forward, inputs + weights),
        "attention": core,
        "elementwise": Pass(touched, BACKWARD_ELEMENTWISE * touched),
        "tp": Pass(case.forward_turns * turn, waited),
        "cp": _ring(machine, case, core),
    }
    if case.num_experts:
        found = _with_mixture(machine, case, found)
    # Full: the whole forward again, with its messages. Selective: attention again; a fused kernel does so in any case
    selective = 0.0 if case.fused_attention else np.where(case.recompute == "none", 0.0, core.forward)
    return found | {"recomputation": Pass(0.0, np.where(case.recompute == "full", total(found).forward, selective))}


def _products(machine: Machine, case: Case, k: Column, m: Column) -> tuple[Column, Column, Column]:
    """Seconds of x [n, k] × W [k, m], of dX and of dW: as many FLOPs and bytes each, but other tiles."""
    n, item = case.tokens, case.itemsize
    return machine.product(n, k, m, item), machine.product(n, m, k, item), machine.product(k, n, m, item)


def _mixture_products(machine: Machine, case: Case) -> list[tuple[Column, Column, Column]]:
    """Seconds of the router, and of a rank's experts at an even load: N/ep products, each with its share of rows."""
    E, item, own = case.hidden_size, case.itemsize, case.num_experts / case.ep
    rows, tokens = case.expert_rows / own, case.tokens / case.token_ranks
    router = machine.product(tokens, E, case.num_experts, item)
    found = [(router, router, router)]
    for k, m in ((E, 2 * case.expert_columns), (case.expert_columns, E)):
        back = machine.product(rows, m, k, item), machine.product(k, rows, m, item)
        found.append((own * machine.product(rows, k, m, item), own * back[0], own * back[1]))
    return found


def _with_mixture(machine: Machine, case: Case, found: dict[str, Pass]) -> dict[str, Pass]:
    """The kinds of a layer, with a mixture's copies of rows, its exchanges, and sums of gradients over tp.

    Rows are copied in the order of the experts, answers put back and multiplied: 4 times E read and written. A copy of
    a token travels to each of its experts; links inside a node and between nodes work at the same time.
    """
    rows, sent = case.expert_rows, case.expert_rows * case.hidden_size * case.itemsize
    touched = found["elementwise"].forward + rows * (8 * case.hidden_size + 6 * case.expert_columns) / machine.memory
    near = machine.together(np.minimum(case.ep, case.cp), case.stride("cp"))
    near = near * machine.together(np.maximum(case.ep / case.cp, 1), case.stride("dp"))
    inside, between = sent * (near - 1) / case.ep / machine.intra, sent * (1 - near / case.ep) / machine.inter
    exchange = np.maximum(inside, between) + np.where(case.ep > 1, machine.hardware.collective, 0)
    gradients = case.layer_expert_params + case.hidden_size * case.num_experts
    summed = np.where(case.sequence_parallel, 2 * machine.ring(gradients * case.itemsize, case.tp), 0)
    tp = Pass(found["tp"].forward, found["tp"].backward + summed)
    elementwise = Pass(touched, BACKWARD_ELEMENTWISE * touched)
    return found | {"elementwise": elementwise, "tp": tp, "ep": Pass(2 * exchange, 2 * exchange)}


def attention_seconds(machine: Machine, case: Case) -> Pass:
    """Seconds of a layer's attention.

    Fused attention has two products of its pairs, five in the backward, and an exponential a pair, for which tensor
    cores wait (Dao 2023; Shah et al. 2024, section 1). Otherwise there are two products, four in the backward, that
    write and read whole S × S weights, and 9 bytes a weight for mask, softmax and dropout.
    """
    pairs, row = case.attention_pairs, case.itemsize * case.tokens * case.head_dim
    product = 2 * case.head_dim * pairs / machine.attention
    if case.fused_attention:
        softmax = pairs / machine.hardware.exponentials
        rows = 2 * row * (case.heads / case.tp + case.own_kv_heads) / machine.memory
        return Pass(2 * product + softmax + rows, 5 * product + softmax + 2 * rows)
    products = 2 * product + (2 * case.itemsize * pairs + 4 * row * case.heads / case.tp) / machine.memory
    touched = 9 * pairs / machine.memory
    return Pass(products + touched, 2 * products + BACKWARD_ELEMENTWISE * touched)


def end_seconds(machine: Machine, case: Case) -> tuple[dict[str, Pass], dict[str, Pass]]:
    """Seconds of the embedding, and of the head with its loss in float32.

    The loss runs over the V/t columns of a rank, with three all-reduces of a number a token; or, in software that
    gathers the logits, over all V columns on each rank.
    """
    n, t, cut, turn = case.tokens, case.tp, case.sequence_parallel, machine.ring(case.input_bytes, case.tp)
    lookup = 2 * case.input_bytes / machine.memory
    forward, inputs, weights = _products(machine, case, case.hidden_size, case.vocab_size / t)
    # Widen 6 bytes a logit, maximum 4, subtract 8, exp 8, sum 4, divide 8; backward subtract 8, narrow 6
    loss, sums = n * case.loss_columns / machine.memory, 3 * 2 * machine.ring(case.wide_itemsize * n, t)
    joined: Column = 0.0
    if not case.software.cuts_logits:  # 8 bytes a logit to join the gathered parts, and 4 in the backward
        joined, sums = np.where(t > 1, 4 * loss, 0), machine.ring(case.logit_bytes, t)
    hidden_behind = weights if "tp" in case.software.hides else 0.0
    embedding = {"elementwise": Pass(lookup, lookup), "tp": Pass(np.where(cut, 1, 2) * turn, np.where(cut, turn, 0))}
    head = {
        "products": Pass(forward, inputs + weights),
        "elementwise": Pass(38 * loss + 2 * joined, 14 * loss + joined),
        "tp": Pass(np.where(cut, turn, 0) + sums, np.maximum(2 * turn - hidden_behind, 0)),
    }
    return embedding, head


def _between_stages(machine: Machine, case: Case) -> Column:
    """Seconds that a step waits for messages between stages.

    Without sequence parallelism each of t ranks has the whole microbatch. Some software sends a t-th from each rank,
    and gathers the parts on the other side (Narayanan et al. 2021, section 4.1). Software that computes and sends in
    one stream waits for each message of 1F1B: a rank in the middle has four a microbatch.
    """
    p, m, inside = case.pp, case.microbatches, case.stride("pp") * case.pp <= machine.node
    parts = case.tp if case.software.scatters else case.token_ranks
    gathered = np.where(parts > case.token_ranks, machine.ring(case.input_bytes, case.tp), 0)
    waited_for = exposed_transfers(*case.pipeline, apart="pp" in case.software.hides)
    if case.software.one_stream:
        one_by_one = np.where(p == 1, 0, np.where(p == 2, 2 * m, 4 * m + 2 * (p - 4)))
        waited_for = np.where(case.one_f_one_b & (case.chunks == 1), one_by_one, waited_for)
    return waited_for * (machine.hop(case.input_bytes / parts, inside) + gathered)


def _ring(machine: Machine, case: Case, core: Pass) -> Pass:
    """Seconds that a ring adds to a layer's attention.

    There are c − 1 hops of K and V, and in the backward c hops of dK and dV in float32. They hide behind the blocks
    that are computed meanwhile, but for the last hop of dK and dV. Each block after the first one reads its queries
    again, in the backward also out and its gradient, and adds its float32 result to the sum. With the zigzag layout
    these are 3/4 of the rows.
    """
    c, item, elements = case.cp, case.itemsize, 2 * case.tokens * case.own_kv_heads * case.head_dim
    inside = case.stride("cp") * c <= machine.node
    keys, gradients = (machine.hop(size * elements, inside) for size in (item, case.wide_itemsize))
    behind = (c - 1) / c if "cp" in case.software.hides else 0.0
    merged = 0.75 * (c - 1) * case.tokens * case.heads * case.head_dim / case.tp / machine.memory
    forward = np.maximum((c - 1) * keys - behind * core.forward, 0)
    backward = np.where(c > 1, gradients, 0) + np.maximum((c - 1) * (keys + gradients) - behind * core.backward, 0)
    return Pass(forward + merged * (item + 16), backward + merged * (3 * item + 16))


def _data_traffic(machine: Machine, case: Case, params: Column, experts: Column, chunk: Pass) -> Column:
    """Seconds that a step waits for ZeRO's traffic. `experts`: their parameters on a rank, which travel over edp.

    Gradients and weights travel in v pieces, behind the work on the other chunks. Nothing hides the last gradients and
    the first weights.
    """
    together = machine.together(case.cp, case.stride("cp")) * machine.together(case.dp, case.stride("dp"))
    gradient, weight = (
        machine.ring(x * params, case.data_ranks, together) for x in (case.gradient_bytes, case.state.weight)
    )
    if case.num_experts:
        cp, dp = np.maximum(case.cp / case.ep, 1), case.dp / np.maximum(case.ep / case.cp, 1)  # sizes of edp along both
        near = machine.together(cp, case.stride("cp") * case.cp / cp)
        near = near * machine.together(dp, case.stride("dp") * case.dp / dp)
        gradient = gradient + machine.ring(case.gradient_bytes * experts, case.edp, near)
        weight = weight + machine.ring(case.state.weight * experts, case.edp, near)
    before, after = weight * case.forward_gathers, gradient * case.gradient_passes + weight * case.backward_gathers
    if "dp" not in case.software.hides:
        return after + before
    group = np.where(case.one_f_one_b, np.minimum(case.microbatches, case.pp), case.microbatches)
    of_rank = case.chunks - case.fewer_last / case.chunk_layers  # the layers of the rank with the fewest, in chunks
    chunks = np.maximum(np.where(case.reductions > 1, case.microbatches * of_rank - 1, group * (of_rank - 1)), 0)

    def waited(traffic: Column, passes: Column, work: Column) -> Column:
        piece = traffic / passes / case.chunks
        return piece + np.maximum(traffic - piece - chunks * work, 0)

    first = waited(before, np.maximum(case.forward_gathers, 1), chunk.forward)
    return first + waited(after, case.reductions, chunk.backward)
