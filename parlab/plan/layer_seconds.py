"""Seconds of a layer, and of the model's two ends, from FLOPs and bytes in closed form and the pace of the hardware.

A matrix product is computed in tiles, and takes the longer of the times of its FLOPs and of its bytes. All other work
takes the time of its bytes. Traffic counts only as far as a rank waits for it.

Invariant: the kinds are disjoint, and each is that of one microbatch on one rank.

Source: Williams, Waterman and Patterson 2009, "Roofline" (the longer of two times); each function names the paper of
its form.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.case import Case
from parlab.plan.machine import Machine

# Of the forward's bytes: inputs are read again, gradients of gains and biases are summed. Fitted, as `Hardware.memory`
BACKWARD_ELEMENTWISE = 1.8
# Of each element that a ring adds to its sum, in float32: a block writes it, it is read, the sum is read and written
MERGE_BYTES = 4 * 4
# Of a rank's queries, those of a block of the zigzag layout: all of them attend to keys of an earlier rank, and half of
# them to keys of a later one; and as many ranks are earlier as are later
ZIGZAG_QUERIES = (1 + 1 / 2) / 2


class Linear(NamedTuple):
    """Seconds of a linear layer's three matrix products: y = x × W; dX = dY × Wᵀ; and dW = xᵀ × dY."""

    forward: Column
    dx: Column
    dw: Column

    @property
    def seconds(self) -> Seconds:
        """Forward and backward."""
        return Seconds(self.forward, self.dx + self.dw)

    def times(self, count: Column) -> Linear:
        """Seconds of so many of them."""
        return Linear(count * self.forward, count * self.dx, count * self.dw)

    def plus(self, other: Linear) -> Linear:
        """Seconds of this and of the other."""
        return Linear(self.forward + other.forward, self.dx + other.dx, self.dw + other.dw)


def all_kinds(seconds: dict[str, Seconds]) -> Seconds:
    """The sum over all kinds."""
    return reduce(Seconds.plus, seconds.values())


def layer_seconds(machine: Machine, case: Case) -> dict[str, Seconds]:
    """Seconds of one layer by kind, of one microbatch on one rank.

    The layout of `paper`, in milliseconds, forward and backward:

        products    2 · 1000 tokens · 10⁷ params / t FLOPs; twice                        10      + 20
        attention   2 · 2D a pair and head: 400 · 500 500 · 10/t FLOPs; 5/2 times         1.001  +  2.5025
        tp          4 exchanges of (t − 1)(1 µs + 2 MB / t / 10 GB/s); as many            0.404  +  0.404

    >>> from parlab.nn import LlamaConfig
    >>> from parlab.plan import Layout
    >>> from parlab.world import CLASSROOM
    >>> case = Case(LlamaConfig(1000, 1000, 2000, 8, 10, 10), Layout(dp=2, pp=2, tp=2), batch=8, sequence=1000)
    >>> forward, backward = all_kinds(layer_seconds(Machine(CLASSROOM, None), case))
    >>> f"{1000 * forward:.4f} + {1000 * backward:.4f} ms"
    '11.4050 + 22.9065 ms'
    """
    linear, attention = _linear_layers(machine, case), attention_seconds(machine, case)
    by_kind = {
        "products": linear.seconds,
        "attention": attention,
        "elementwise": _elementwise_seconds(machine, case),
        "tp": _tensor_seconds(machine, case, linear.dw),
        "cp": _ring_attention_seconds(machine, case, attention),
    }
    if case.model.num_experts:
        by_kind["ep"] = _expert_seconds(machine, case)
    again = _recomputation(machine, case, all_kinds(by_kind).forward, attention.forward)
    return by_kind | {"recomputation": Seconds(0.0, again)}


def _linear_layers(machine: Machine, case: Case) -> Linear:
    """Query, key and value; the attention's output; and the MLP's up and down, or the experts'."""
    model, share, tp, hidden = case.model, case.share, case.layout.tp, case.model.hidden_size
    queries, keys = model.heads * model.head_dim / tp, share.kv_heads * model.head_dim  # columns of a rank

    def linear(inputs: Column, outputs: Column) -> Linear:
        return _linear(machine, case, share.tokens, inputs, outputs)

    attention = [linear(hidden, queries + 2 * keys), linear(queries, hidden)]
    if model.num_experts:
        mlp = _mixture_layers(machine, case)
    else:
        mlp = [linear(hidden, model.up_columns / tp), linear(model.mlp_columns / tp, hidden)]
    return reduce(Linear.plus, [*attention, *mlp])


def _linear(machine: Machine, case: Case, rows: Column, inputs: Column, outputs: Column) -> Linear:
    """Of x [rows, inputs] × W [inputs, outputs]: dX and dW have as many FLOPs and bytes, but other tiles."""
    itemsize = case.itemsize.activation
    return Linear(
        forward=machine.product(rows, inputs, outputs, itemsize),
        dx=machine.product(rows, outputs, inputs, itemsize),
        dw=machine.product(inputs, rows, outputs, itemsize),
    )


def _mixture_layers(machine: Machine, case: Case) -> list[Linear]:
    """The router, and a rank's experts at an even load: N/ep linear layers, each with its share of rows."""
    model, hidden = case.model, case.model.hidden_size
    experts = model.num_experts / case.layout.ep  # of a rank
    rows = case.share.expert_rows / experts
    router = machine.product(case.share.own_tokens, hidden, model.num_experts, case.itemsize.activation)
    up = _linear(machine, case, rows, hidden, 2 * model.expert_columns)
    down = _linear(machine, case, rows, model.expert_columns, hidden)
    return [Linear(router, router, router), up.times(experts), down.times(experts)]


def _elementwise_seconds(machine: Machine, case: Case) -> Seconds:
    """Norms, residuals and activation functions, by their bytes in 16 bits.

    A mixture copies its rows in the order of the experts, puts answers back, and multiplies them: elements of a
    row are read twice and written twice. SwiGLU runs on the columns of its experts.
    """
    model, tp, tokens = case.model, case.layout.tp, case.share.tokens
    if model.fused_attention:
        # Bytes of a token: 4 an element in each of two norms, 6 in each of two residuals; SwiGLU reads two, writes one
        # Rotary reads and writes q and k: 4 an element
        rotated = 4 * (model.heads * model.head_dim / tp + case.share.kv_heads * model.head_dim)
        of_token = 20 * model.hidden_size / case.share.token_ranks + 6 * model.mlp_columns / tp + rotated
    else:
        # Bytes of a token: 4 an element in each of two norms, 7 in each of two biases with dropout, its
        # mask of 1, and residual; GELU reads one, writes one
        of_token = 22 * model.hidden_size / case.share.token_ranks + 4 * model.mlp_columns / tp
    copied = case.share.expert_rows * (8 * model.hidden_size + 6 * model.expert_columns) / machine.memory_pace
    forward = tokens * of_token / machine.memory_pace + copied
    return Seconds(forward, BACKWARD_ELEMENTWISE * forward)


def _tensor_seconds(machine: Machine, case: Case, dw: Column) -> Seconds:
    """Seconds that a layer waits for its exchanges, `case.exchanges`. Some may travel while `dw` is computed.

    Experts and router run on the tokens that a rank has; if these differ, their gradients are summed over tp.
    """
    exchange = machine.ring(case.share.input_bytes, case.layout.tp)
    forward, waited, beside = case.exchanges
    backward = waited * exchange + np.maximum(beside * exchange - _work_beside_tp(case, dw), 0)
    if case.model.num_experts:
        params = case.stages.layer_expert_params + case.model.hidden_size * case.model.num_experts
        summed = 2 * machine.ring(params * case.itemsize.activation, case.layout.tp)
        backward = backward + np.where(case.layout.sequence_parallel, summed, 0)
    return Seconds(forward * exchange, backward)


def _work_beside_tp(case: Case, dw: Column) -> Column:
    """The work behind which tensor parallelism's exchanges travel: the products of dW, in some software."""
    return dw if "tp" in case.software.hides else 0.0


def _expert_seconds(machine: Machine, case: Case) -> Seconds:
    """Dispatch and combine, in the forward and in the backward.

    A copy of a token travels to each of its experts; links inside a node and between nodes work at the same time.
    """
    ep, cp = case.layout.ep, case.layout.cp
    sent = case.share.expert_rows * case.model.hidden_size * case.itemsize.activation
    together = machine.in_a_node((np.minimum(ep, cp), case.stride("cp")), (np.maximum(ep / cp, 1), case.stride("dp")))
    # A rank's rows go evenly to the ep ranks: to the others in its node, and to those in other nodes
    inside, between = sent * (together - 1) / ep / machine.intra_pace, sent * (1 - together / ep) / machine.inter_pace
    dispatch = np.maximum(inside, between) + np.where(ep > 1, machine.hardware.collective, 0)
    return Seconds(2 * dispatch, 2 * dispatch)


def _recomputation(machine: Machine, case: Case, forward: Column, attention: Column) -> Column:
    """Seconds of a layer's recomputation, on average over all layers.

    Full: the whole forward again, with its messages. Selective: attention again; a fused kernel does so in any case.
    mlp.hidden: SwiGLU again, which reads gate and up and writes their product.
    """
    swiglu = 6 * case.share.tokens * case.model.mlp_columns / case.layout.tp / machine.memory_pace
    selective = 0.0 if case.model.fused_attention else np.where(case.layout.recompute == "none", 0.0, attention)
    partial = np.where(case.layout.recompute == "mlp.hidden", swiglu, selective)
    return case.recomputed * forward + (1 - case.recomputed) * partial


def attention_seconds(machine: Machine, case: Case) -> Seconds:
    """Seconds of a layer's attention.

    Fused attention has two products of its pairs, five in the backward, and an exponential a pair, for which tensor
    cores wait (Dao 2023; Shah et al. 2024, section 1). Otherwise there are two products, four in the backward, that
    write and read whole S × S weights, and 9 bytes a weight for mask, softmax and dropout.
    """
    model, pairs, heads = case.model, case.share.attention_pairs, case.model.heads / case.layout.tp
    row = case.itemsize.activation * case.share.tokens * model.head_dim  # bytes of q, k, v or out of one head
    product = 2 * model.head_dim * pairs / machine.attention_pace
    if model.fused_attention:
        softmax = pairs / machine.hardware.exponentials
        rows = 2 * row * (heads + case.share.kv_heads) / machine.memory_pace
        return Seconds(2 * product + softmax + rows, 5 * product + softmax + 2 * rows)
    products = 2 * product + (2 * case.itemsize.activation * pairs + 4 * row * heads) / machine.memory_pace
    touched = 9 * pairs / machine.memory_pace
    return Seconds(products + touched, 2 * products + BACKWARD_ELEMENTWISE * touched)


def _ring_attention_seconds(machine: Machine, case: Case, attention: Seconds) -> Seconds:
    """Seconds that a ring adds to a layer's `attention`.

    There are cp − 1 hops of K and V, and in the backward cp hops of dK and dV in float32. They hide behind the blocks
    that are computed meanwhile, but for the last hop of dK and dV. Each block after the first one reads its queries
    again, in the backward also out and its gradient, and merges what it has computed into the sum.
    """
    model, share, cp, itemsize = case.model, case.share, case.layout.cp, case.itemsize
    elements = 2 * share.tokens * share.kv_heads * model.head_dim
    inside = case.stride("cp") * cp <= machine.node
    keys, gradients = (machine.hop(size * elements, inside) for size in (itemsize.activation, itemsize.wide))
    behind = (cp - 1) / cp if "cp" in case.software.hides else 0.0
    forward = np.maximum((cp - 1) * keys - behind * attention.forward, 0)
    last_hop, others = np.where(cp > 1, gradients, 0), (cp - 1) * (keys + gradients)
    backward = last_hop + np.maximum(others - behind * attention.backward, 0)
    queries = ZIGZAG_QUERIES * (cp - 1) * share.tokens * model.heads * model.head_dim / case.layout.tp  # of all blocks
    of_byte = queries / machine.memory_pace  # seconds of one byte of each
    read = itemsize.activation
    return Seconds(forward + of_byte * (read + MERGE_BYTES), backward + of_byte * (3 * read + MERGE_BYTES))


def embedding_seconds(machine: Machine, case: Case) -> dict[str, Seconds]:
    """Seconds of the embedding: rows are looked up, and parts of the table are summed over tp."""
    exchange, cut = machine.ring(case.share.input_bytes, case.layout.tp), case.layout.sequence_parallel
    lookup = 2 * case.share.input_bytes / machine.memory_pace
    return {
        "elementwise": Seconds(lookup, lookup),
        "tp": Seconds(np.where(cut, 1, 2) * exchange, np.where(cut, exchange, 0)),
    }


def head_seconds(machine: Machine, case: Case) -> dict[str, Seconds]:
    """Seconds of the head with its loss in float32.

    The loss runs over the columns of a rank, V/tp, with three all-reduces of a number a token; or, in software that
    gathers the logits, over all V columns on each rank.
    """
    tokens, tp = case.share.tokens, case.layout.tp
    exchange = machine.ring(case.share.input_bytes, tp)
    linear = _linear(machine, case, tokens, case.model.hidden_size, case.model.vocab_size / tp)
    of_byte = tokens * case.share.loss_columns / machine.memory_pace  # seconds of one byte of each logit
    if case.software.cuts_logits:
        joined: Column = 0.0
        traffic = 3 * 2 * machine.ring(case.itemsize.wide * tokens, tp)
    else:  # 8 bytes a logit to join the gathered parts, and 4 in the backward
        joined = np.where(tp > 1, 4 * of_byte, 0)
        traffic = machine.ring(case.share.logit_bytes, tp)
    return {
        "products": linear.seconds,
        # Widen 6 bytes a logit, maximum 4, subtract 8, exp 8, sum 4, divide 8; backward subtract 8, narrow 6
        "elementwise": Seconds(38 * of_byte + 2 * joined, 14 * of_byte + joined),
        "tp": Seconds(
            np.where(case.layout.sequence_parallel, exchange, 0) + traffic,
            np.maximum(2 * exchange - _work_beside_tp(case, linear.dw), 0),
        ),
    }
