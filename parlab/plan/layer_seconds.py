"""Seconds of a layer, and of the model's two ends, from FLOPs and bytes in closed form and the pace of the hardware.

A matrix product is computed in tiles, and takes the longer of the times of its FLOPs and of its bytes. All other work
takes the time of its bytes. Traffic counts only as far as a rank waits for it.

Source: Williams, Waterman and Patterson 2009, "Roofline" (the longer of two times); each function names the paper of
its form.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column, Pass
from parlab.plan.case import Case
from parlab.plan.machine import Machine

# Of the forward's bytes: inputs are read again, gradients of gains and biases are summed. Fitted, as `Hardware.memory`
BACKWARD_ELEMENTWISE = 1.8


def total(seconds: dict[str, Pass]) -> Pass:
    """The sum over all kinds."""
    return Pass(*map(sum, zip(*seconds.values(), strict=True)))


def layer_seconds(machine: Machine, case: Case) -> dict[str, Pass]:
    """Seconds of one layer by kind, forward and backward. The backward repeats each product for dX and for dW."""
    model, work, tp = case.model, case.work, case.layout.tp
    E, M, n = model.hidden_size, model.mlp_columns, work.tokens
    queries, keys = model.heads * model.head_dim / tp, work.kv_heads * model.head_dim  # columns of a rank
    products = [_products(machine, case, E, queries + 2 * keys), _products(machine, case, queries, E)]
    if model.num_experts:
        products += _mixture_products(machine, case)
    else:
        products += [_products(machine, case, E, model.up_columns / tp), _products(machine, case, M / tp, E)]
    forward, inputs, weights = map(sum, zip(*products, strict=True))
    if model.fused_attention:
        # Bytes: norms 4E, residuals 6E each; SwiGLU reads two columns, writes one; rotary of q, k
        touched = n * (20 * E / work.token_ranks + 6 * M / tp + 4 * (queries + keys)) / machine.memory_pace
    else:
        # Bytes: norms 4E, bias with dropout and residual 7E each; GELU reads and writes its columns
        touched = n * (22 * E / work.token_ranks + 4 * M / tp) / machine.memory_pace
    # Two all-reduces each way (Shoeybi et al. 2019). With sequence parallelism all-gathers and reduce-scatters send as
    # many bytes, and the backward has two more all-gathers (Korthikanti et al. 2022). Software that hides them sends dX
    # while it computes dW, and x while it computes dX. Nothing hides the two all-gathers of dY
    core, exchange = attention_seconds(machine, case), machine.ring(work.input_bytes, tp)
    hidden_behind = weights if "tp" in case.software.hides else 0.0  # seconds of dW
    gathers_of_dy = case.exchanges.forward / 2  # one a row layer, which has two of the forward's exchanges
    never_hidden = np.where(case.layout.sequence_parallel, gathers_of_dy, 0)
    waited = never_hidden * exchange
    waited = waited + np.maximum((case.exchanges.backward - never_hidden) * exchange - hidden_behind, 0)
    found = {
        "products": Pass(forward, inputs + weights),
        "attention": core,
        "elementwise": Pass(touched, BACKWARD_ELEMENTWISE * touched),
        "tp": Pass(case.exchanges.forward * exchange, waited),
        "cp": _ring(machine, case, core),
    }
    if model.num_experts:
        found = _with_mixture(machine, case, found)
    return found | {"recomputation": Pass(0.0, _recomputation(machine, case, total(found).forward, core.forward))}


def _recomputation(machine: Machine, case: Case, forward: Column, attention: Column) -> Column:
    """Seconds of a layer's recomputation, on average over all layers.

    Full: the whole forward again, with its messages. Selective: attention again; a fused kernel does so in any case.
    mlp.hidden: SwiGLU again, which reads gate and up and writes their product.
    """
    hidden = 6 * case.work.tokens * case.model.mlp_columns / case.layout.tp / machine.memory_pace
    selective = 0.0 if case.model.fused_attention else np.where(case.layout.recompute == "none", 0.0, attention)
    less = np.where(case.layout.recompute == "mlp.hidden", hidden, selective)
    return case.recomputed * forward + (1 - case.recomputed) * less


def _products(machine: Machine, case: Case, k: Column, m: Column) -> tuple[Column, Column, Column]:
    """Seconds of x [n, k] × W [k, m], of dX and of dW: as many FLOPs and bytes each, but other tiles."""
    n, item = case.work.tokens, case.itemsize
    return machine.product(n, k, m, item), machine.product(n, m, k, item), machine.product(k, n, m, item)


def _mixture_products(machine: Machine, case: Case) -> list[tuple[Column, Column, Column]]:
    """Seconds of the router, and of a rank's experts at an even load: N/ep products, each with its share of rows."""
    model, work, item = case.model, case.work, case.itemsize
    E, own = model.hidden_size, model.num_experts / case.layout.ep
    rows, tokens = work.expert_rows / own, work.tokens / work.token_ranks
    router = machine.product(tokens, E, model.num_experts, item)
    found = [(router, router, router)]
    for k, m in ((E, 2 * model.expert_columns), (model.expert_columns, E)):
        back = machine.product(rows, m, k, item), machine.product(k, rows, m, item)
        found.append((own * machine.product(rows, k, m, item), own * back[0], own * back[1]))
    return found


def _with_mixture(machine: Machine, case: Case, found: dict[str, Pass]) -> dict[str, Pass]:
    """The kinds of a layer, with a mixture's copies of rows, its exchanges, and sums of gradients over tp.

    Rows are copied in the order of the experts, answers put back and multiplied: 4 times E read and written. A copy of
    a token travels to each of its experts; links inside a node and between nodes work at the same time.
    """
    model, ep, cp, rows = case.model, case.layout.ep, case.layout.cp, case.work.expert_rows
    sent = rows * model.hidden_size * case.itemsize
    copied = rows * (8 * model.hidden_size + 6 * model.expert_columns) / machine.memory_pace
    touched = found["elementwise"].forward + copied
    near = machine.together(np.minimum(ep, cp), case.stride("cp"))
    near = near * machine.together(np.maximum(ep / cp, 1), case.stride("dp"))
    inside, between = sent * (near - 1) / ep / machine.intra_pace, sent * (1 - near / ep) / machine.inter_pace
    dispatch = np.maximum(inside, between) + np.where(ep > 1, machine.hardware.collective, 0)
    gradients = case.stages.layer_expert_params + model.hidden_size * model.num_experts
    summed = np.where(case.layout.sequence_parallel, 2 * machine.ring(gradients * case.itemsize, case.layout.tp), 0)
    tp = Pass(found["tp"].forward, found["tp"].backward + summed)
    elementwise = Pass(touched, BACKWARD_ELEMENTWISE * touched)
    return found | {"elementwise": elementwise, "tp": tp, "ep": Pass(2 * dispatch, 2 * dispatch)}


def attention_seconds(machine: Machine, case: Case) -> Pass:
    """Seconds of a layer's attention.

    Fused attention has two products of its pairs, five in the backward, and an exponential a pair, for which tensor
    cores wait (Dao 2023; Shah et al. 2024, section 1). Otherwise there are two products, four in the backward, that
    write and read whole S × S weights, and 9 bytes a weight for mask, softmax and dropout.
    """
    model, pairs, heads = case.model, case.work.attention_pairs, case.model.heads / case.layout.tp
    row = case.itemsize * case.work.tokens * model.head_dim
    product = 2 * model.head_dim * pairs / machine.attention_pace
    if model.fused_attention:
        softmax = pairs / machine.hardware.exponentials
        rows = 2 * row * (heads + case.work.kv_heads) / machine.memory_pace
        return Pass(2 * product + softmax + rows, 5 * product + softmax + 2 * rows)
    products = 2 * product + (2 * case.itemsize * pairs + 4 * row * heads) / machine.memory_pace
    touched = 9 * pairs / machine.memory_pace
    return Pass(products + touched, 2 * products + BACKWARD_ELEMENTWISE * touched)


def end_seconds(machine: Machine, case: Case) -> tuple[dict[str, Pass], dict[str, Pass]]:
    """Seconds of the embedding, and of the head with its loss in float32.

    The loss runs over the V/t columns of a rank, with three all-reduces of a number a token; or, in software that
    gathers the logits, over all V columns on each rank.
    """
    n, t, by_tokens = case.work.tokens, case.layout.tp, case.layout.sequence_parallel
    exchange, lookup = machine.ring(case.work.input_bytes, t), 2 * case.work.input_bytes / machine.memory_pace
    forward, inputs, weights = _products(machine, case, case.model.hidden_size, case.model.vocab_size / t)
    # Widen 6 bytes a logit, maximum 4, subtract 8, exp 8, sum 4, divide 8; backward subtract 8, narrow 6
    loss, sums = n * case.exchanges.loss_columns / machine.memory_pace, 3 * 2 * machine.ring(case.wide_itemsize * n, t)
    joined: Column = 0.0
    if not case.software.cuts_logits:  # 8 bytes a logit to join the gathered parts, and 4 in the backward
        joined, sums = np.where(t > 1, 4 * loss, 0), machine.ring(case.exchanges.logit_bytes, t)
    hidden_behind = weights if "tp" in case.software.hides else 0.0
    embedding = {
        "elementwise": Pass(lookup, lookup),
        "tp": Pass(np.where(by_tokens, 1, 2) * exchange, np.where(by_tokens, exchange, 0)),
    }
    head = {
        "products": Pass(forward, inputs + weights),
        "elementwise": Pass(38 * loss + 2 * joined, 14 * loss + joined),
        "tp": Pass(np.where(by_tokens, exchange, 0) + sums, np.maximum(2 * exchange - hidden_behind, 0)),
    }
    return embedding, head


def _ring(machine: Machine, case: Case, core: Pass) -> Pass:
    """Seconds that a ring adds to a layer's attention.

    There are c − 1 hops of K and V, and in the backward c hops of dK and dV in float32. They hide behind the blocks
    that are computed meanwhile, but for the last hop of dK and dV. Each block after the first one reads its queries
    again, in the backward also out and its gradient, and adds its float32 result to the sum. With the zigzag layout
    these are 3/4 of the rows.
    """
    model, work, c, item = case.model, case.work, case.layout.cp, case.itemsize
    elements = 2 * work.tokens * work.kv_heads * model.head_dim
    inside = case.stride("cp") * c <= machine.node
    keys, gradients = (machine.hop(size * elements, inside) for size in (item, case.wide_itemsize))
    behind = (c - 1) / c if "cp" in case.software.hides else 0.0
    merged = 0.75 * (c - 1) * work.tokens * model.heads * model.head_dim / case.layout.tp / machine.memory_pace
    forward = np.maximum((c - 1) * keys - behind * core.forward, 0)
    backward = np.where(c > 1, gradients, 0) + np.maximum((c - 1) * (keys + gradients) - behind * core.backward, 0)
    return Pass(forward + merged * (item + 16), backward + merged * (3 * item + 16))
