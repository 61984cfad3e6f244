"""The work of a rank in a microbatch, by kind: of a layer, and of the model's two ends, the embedding and the head.

A matrix product is computed in tiles, and takes the longer of the times of its FLOPs and of its bytes. All other work
takes the time of its bytes. Traffic counts only as far as a rank waits for it: `tensor`, `attention` and `experts`.

Invariant: the kinds are disjoint, and each is that of one microbatch on one rank.

Source: Williams, Waterman and Patterson 2009, "Roofline" (the longer of two times).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.attention import attention_seconds, ring_seconds
from parlab.plan.case import Case
from parlab.plan.experts import expert_seconds, mixture_layers
from parlab.plan.machine import BACKWARD_ELEMENTWISE, Linear, Machine
from parlab.plan.tensor import embedding_tensor_seconds, head_tensor_seconds, layer_tensor_seconds


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
    >>> forward, backward = all_kinds(layer_seconds(Machine(CLASSROOM), case))
    >>> f"{1000 * forward:.4f} + {1000 * backward:.4f} ms"
    '11.4050 + 22.9065 ms'
    """
    linear, attention = _linear_layers(machine, case), attention_seconds(machine, case)
    by_kind = {
        "products": linear.seconds,
        "attention": attention,
        "elementwise": _elementwise_seconds(machine, case),
        "tp": layer_tensor_seconds(machine, case, linear.dw),
        "cp": ring_seconds(machine, case, attention),
    }
    if case.model.num_experts:
        by_kind["ep"] = expert_seconds(machine, case)
    again = _recomputation(machine, case, all_kinds(by_kind).forward, attention.forward)
    return by_kind | {"recomputation": Seconds(0.0, again)}


def _linear_layers(machine: Machine, case: Case) -> Linear:
    """Query, key and value; the attention's output; and the MLP's up and down, or the experts'."""
    model, share, tp, hidden = case.model, case.share, case.layout.tp, case.model.hidden_size
    queries, keys = model.heads * model.head_dim / tp, share.kv_heads * model.head_dim  # columns of a rank

    def linear(inputs: Column, outputs: Column) -> Linear:
        return machine.linear(share.tokens, inputs, outputs, case.itemsize.activation)

    attention = [linear(hidden, queries + 2 * keys), linear(queries, hidden)]
    if model.num_experts:
        mlp = mixture_layers(machine, case)
    else:
        mlp = [linear(hidden, model.up_columns / tp), linear(model.mlp_columns / tp, hidden)]
    return reduce(Linear.plus, [*attention, *mlp])


def _elementwise_seconds(machine: Machine, case: Case) -> Seconds:
    """Norms, residuals and activation functions, by the bytes of what they read and write.

        elements of a token    a Llama                               a GPT
        two norms              2 · 2E                                2 · 2E
        two residuals          2 · 3E                                2 · 3E, and 2E bytes of dropout's masks
        activation function    3M: gate and up, and their product    2 · 4E
        rotary                 2 · columns of q and k                none

    A mixture copies its rows in the order of the experts, puts answers back, and multiplies them: elements of a
    row are read twice and written twice. SwiGLU runs on the columns of its experts.
    """
    model, share, tp, itemsize = case.model, case.share, case.layout.tp, case.itemsize.activation
    if model.fused_attention:
        own, columns = 10 * itemsize * model.hidden_size, 3 * itemsize * model.mlp_columns
        rotated = 2 * itemsize * (model.heads * model.head_dim / tp + share.kv_heads * model.head_dim)
    else:
        own, columns = (10 * itemsize + 2) * model.hidden_size, 2 * itemsize * model.mlp_columns
        rotated = 0
    of_token = own / share.token_ranks + columns / tp + rotated
    of_row = itemsize * (4 * model.hidden_size + 3 * model.expert_columns)
    forward = share.tokens * of_token / machine.memory_pace + share.expert_rows * of_row / machine.memory_pace
    return Seconds(forward, BACKWARD_ELEMENTWISE * forward)


def _recomputation(machine: Machine, case: Case, forward: Column, attention: Column) -> Column:
    """Seconds of a layer's recomputation, on average over all layers.

    Full: the whole forward again, with its messages. Selective: attention again; a fused kernel does so in any case.
    mlp.hidden: SwiGLU again, which reads gate and up and writes their product.
    """
    swiglu_bytes = 3 * case.itemsize.activation * case.share.tokens * case.model.mlp_columns / case.layout.tp
    swiglu = swiglu_bytes / machine.memory_pace
    selective = 0.0 if case.model.fused_attention else np.where(case.layout.recompute == "none", 0.0, attention)
    partial = np.where(case.layout.recompute == "mlp.hidden", swiglu, selective)
    return case.recomputed * forward + (1 - case.recomputed) * partial


def embedding_seconds(machine: Machine, case: Case) -> dict[str, Seconds]:
    """Seconds of the embedding: rows are looked up."""
    lookup = 2 * case.share.input_bytes / machine.memory_pace
    return {"elementwise": Seconds(lookup, lookup), "tp": embedding_tensor_seconds(machine, case)}


def head_seconds(machine: Machine, case: Case) -> dict[str, Seconds]:
    """Seconds of the head with its loss, in float32 or wider.

    The loss runs over the columns of a rank, V/tp; or, in software that gathers the logits, over all V columns on each
    rank, which first joins the gathered parts.
    """
    tokens, tp, itemsize, wide = case.share.tokens, case.layout.tp, case.itemsize.activation, case.itemsize.wide
    linear = machine.linear(tokens, case.model.hidden_size, case.model.vocab_size / tp, itemsize)
    of_byte = tokens * case.share.loss_columns / machine.memory_pace  # seconds of one byte of each logit
    # Read and written: twice to join the gathered parts, and once in the backward
    joined: Column = 0.0 if case.software.cuts_logits else np.where(tp > 1, 2 * itemsize * of_byte, 0)
    # Wide elements, read or written: widen 1, maximum 1, subtract 2, exp 2, sum 1, divide 2; backward subtract 2,
    # narrow 1. And one each of an activation's size, to widen and to narrow
    forward, backward = (9 * wide + itemsize) * of_byte, (3 * wide + itemsize) * of_byte
    return {
        "products": linear.seconds,
        "elementwise": Seconds(forward + 2 * joined, backward + joined),
        "tp": head_tensor_seconds(machine, case, linear.dw),
    }
