"""Tensor parallelism: how often a layer's input travels in a group, how long its ranks wait, and what all ranks send.

        exchanges of        forward                      backward, waited for   backward, beside dW
        a region            sum y: 2                     none                   sum dX: 2; 4 if gate and up do so apart
        the embedding       sum its rows: 2              none                   none
        the head            none                         none                   sum dX: 2

        with sequence parallelism
        a region            gather x, scatter sums y: 2  gather dY: 1           scatter sums dX: 1; 2 if x comes again
        the embedding       scatter sums of rows: 1      gather gradients: 1    none
        the head            gather x: 1                  none                   scatter sums dX, and x comes again: 2

A region has its matrices cut: attention is one, and the MLP. Norms and residuals lie between regions.

Invariant: one exchange is an all-gather or a reduce-scatter of a layer's input; an all-reduce is two.

Source: Shoeybi et al. 2019, "Megatron-LM"; with sequence parallelism Korthikanti et al. 2022.
`parlab.tensor.block_collectives` counts the same of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.case import Case
from parlab.plan.machine import Machine


class Exchanges(NamedTuple):
    """How many exchanges something has.

    Fields:
        forward: all are waited for.
        waited: of the backward, those that no work hides.
        beside: of the backward, those that may travel while dW is computed.
    """

    forward: Column
    waited: Column
    beside: Column


def _of_layer(case: Case) -> Exchanges:
    """Those of a layer. It has two regions: attention, and the MLP, if no experts are in its place."""
    model, software, sequence_parallel = case.model, case.software, case.layout.sequence_parallel
    regions = 1 if model.num_experts else 2
    has_gate = model.up_columns > model.mlp_columns
    apart = 2 if has_gate and not software.joins_products else 0
    x_again = 1 if software.gathers_x_again else 0
    return Exchanges(
        forward=2 * regions,
        waited=np.where(sequence_parallel, regions, 0),
        beside=np.where(sequence_parallel, regions * (1 + x_again), 2 * regions + apart),
    )


def _of_embedding(case: Case) -> Exchanges:
    """Those of the embedding: each rank looks up a part of the table, and the parts are summed."""
    sequence_parallel = case.layout.sequence_parallel
    return Exchanges(forward=np.where(sequence_parallel, 1, 2), waited=np.where(sequence_parallel, 1, 0), beside=0)


def _of_head(case: Case) -> Exchanges:
    """Those of the head, without its loss."""
    return Exchanges(forward=np.where(case.layout.sequence_parallel, 1, 0), waited=0, beside=2)


def layer_tensor_seconds(machine: Machine, case: Case, dw: Column) -> Seconds:
    """Seconds that a layer waits; `dw`: those of its products of dW.

    Router and experts run on the tokens that a rank has. With sequence parallelism these differ, and so the gradients
    of their parameters are summed over tp.
    """
    found = _waited(machine, case, _of_layer(case), dw)
    if not case.model.num_experts:
        return found
    summed = 2 * machine.ring(_token_params(case) * case.itemsize.activation, case.layout.tp)
    return found.plus(Seconds(0.0, np.where(case.layout.sequence_parallel, summed, 0)))


def embedding_tensor_seconds(machine: Machine, case: Case) -> Seconds:
    """Seconds that the embedding waits."""
    return _waited(machine, case, _of_embedding(case), dw=0.0)


def head_tensor_seconds(machine: Machine, case: Case, dw: Column) -> Seconds:
    """Seconds that the head and its loss wait; `dw`: those of the head's product of dW.

    In the layout of `paper` both ends together have 4 exchanges of 0.101 ms, and the loss 6 rings of 1.2 µs: 0.4112 ms.
    """
    count, nbytes = _loss_rings(case)
    loss = count * machine.ring(nbytes, case.layout.tp)
    return _waited(machine, case, _of_head(case), dw).plus(Seconds(loss, 0.0))


def _waited(machine: Machine, case: Case, exchanges: Exchanges, dw: Column) -> Seconds:
    """Seconds that a rank waits for exchanges, of which some software sends those beside dW while it computes dW."""
    exchange = machine.ring(case.share.input_bytes, case.layout.tp)
    behind = dw if "tp" in case.software.hides else 0.0
    backward = exchanges.waited * exchange + np.maximum(exchanges.beside * exchange - behind, 0)
    return Seconds(exchanges.forward * exchange, backward)


def _token_params(case: Case) -> Column:
    """Parameters of a mixture's layer that run on the tokens of a rank: of the router and the rank's experts."""
    return case.stages.layer_expert_params + case.model.hidden_size * case.model.num_experts


def _loss_rings(case: Case) -> tuple[int, Column]:
    """How many all-gathers or reduce-scatters the loss has, and of how many bytes.

    It has three all-reduces of a number a token; or one all-gather, in software that gathers the logits.
    """
    if case.software.cuts_logits:
        return 3 * 2, case.itemsize.wide * case.share.tokens
    return 1, case.itemsize.activation * case.share.tokens * case.model.vocab_size


def tensor_bytes(case: Case) -> Column:
    """Bytes that all ranks send: exchanges of a layer's input, gradients that several ranks have a part of, the loss.

    In an all-gather or a reduce-scatter tp ranks send tp − 1 times the whole array, all together.
    """
    model, layout, itemsize = case.model, case.layout, case.itemsize.activation
    tp, sequence_parallel = layout.tp, layout.sequence_parallel
    of_layer, of_ends = _of_layer(case), sum(_of_embedding(case)) + sum(_of_head(case))
    exchange = (tp - 1) * case.share.input_bytes
    keys = model.hidden_size * model.kv_heads * model.head_dim  # parameters of k; v has as many
    # Gradients that several ranks have a part of are all-reduced: 2 each. Those of k and of v by the ranks of a head;
    # with sequence parallelism a norm's by all, because each has its own tokens
    shared = 2 * 2 * (case.holders_of_kv_head - 1) * keys * itemsize
    norm = np.where(sequence_parallel, 2 * (tp - 1) * model.hidden_size * itemsize, 0)
    exchanges = of_layer.forward * (1 + case.recomputed) + of_layer.waited + of_layer.beside
    layer = exchange * exchanges + shared + 2 * norm
    if model.num_experts:
        layer = layer + np.where(sequence_parallel, 2 * (tp - 1) * _token_params(case) * itemsize, 0)
    count, nbytes = _loss_rings(case)
    outside = exchange * of_ends + norm + (tp - 1) * count * nbytes
    return case.group_passes * (model.num_layers * layer + outside)
