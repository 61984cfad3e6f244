"""Attention: its work on a rank, and with context parallelism the ring on which keys and values of cp ranks go around.

        hops            forward    backward
        of K and V      cp − 1     cp − 1
        of dK and dV    none       cp: the last one brings them home, in float32 or wider

Invariant: in each of cp turns a rank attends to the keys that it has, while the next ones travel. So where software
hides hops, they are waited for only as far as they are longer than the work of cp − 1 turns; the last one home, whole.

Source: Dao 2023, "FlashAttention-2", and Shah et al. 2024, "FlashAttention-3" (work); Liu et al. 2023, "Ring attention
with blockwise transformers for near-infinite context". `parlab.sequence.ring_cost` counts the hops.
"""

from __future__ import annotations

import numpy as np

from parlab.pipeline.closed_forms import Column, Seconds
from parlab.plan.case import Case
from parlab.plan.machine import BACKWARD_ELEMENTWISE, Machine

MERGES = 4  # times that an element goes through memory: a turn writes it, it is read, the sum is read and written
# The part of a rank's queries that a turn reads by the zigzag layout, on average: all of them where the keys are those
# of an earlier rank, and half of them where they are those of a later one
ZIGZAG_QUERIES = (1 + 1 / 2) / 2


def attention_seconds(machine: Machine, case: Case) -> Seconds:
    """Seconds of a layer's attention.

    Fused attention has two products of its pairs, five in the backward, and an exponential a pair, for which tensor
    cores wait (Shah et al. 2024, section 1). Otherwise there are two products, four in the backward, that write and
    read whole S × S weights; softmax and dropout read and write each weight, and dropout a byte of its mask.
    """
    model, pairs, heads = case.model, case.share.attention_pairs, case.model.heads / case.layout.tp
    row = case.itemsize.activation * case.share.tokens * model.head_dim  # bytes of q, k, v or out of one head
    product = 2 * model.head_dim * pairs / machine.attention_pace
    if model.fused_attention:
        softmax = pairs / machine.hardware.exponentials
        rows = 2 * row * (heads + case.share.kv_heads) / machine.memory_pace
        return Seconds(2 * product + softmax + rows, 5 * product + softmax + 2 * rows)
    products = 2 * product + (2 * case.itemsize.activation * pairs + 4 * row * heads) / machine.memory_pace
    touched = (4 * case.itemsize.activation + 1) * pairs / machine.memory_pace
    return Seconds(products + touched, 2 * products + BACKWARD_ELEMENTWISE * touched)


def ring_seconds(machine: Machine, case: Case, attention: Seconds) -> Seconds:
    """Seconds that a ring adds to a layer's `attention`.

    Hops hide behind the turns that are computed meanwhile, but for the last one of dK and dV. Each turn after the first
    one reads its queries again, in the backward also out and its gradient, and merges what it has computed into the
    sum.
    """
    share, cp, itemsize = case.share, case.layout.cp, case.itemsize
    elements = _keys_and_values(case)
    inside = case.stride("cp") * cp <= machine.ranks_per_node
    keys, gradients = (machine.hop(size * elements, inside) for size in (itemsize.activation, itemsize.wide))
    behind = (cp - 1) / cp if "cp" in case.software.hides else 0.0
    forward = np.maximum((cp - 1) * keys - behind * attention.forward, 0)
    last_hop, others = np.where(cp > 1, gradients, 0), (cp - 1) * (keys + gradients)
    backward = last_hop + np.maximum(others - behind * attention.backward, 0)
    # Elements of the queries of all turns after the first
    queries = ZIGZAG_QUERIES * (cp - 1) * share.tokens * case.model.heads * case.model.head_dim / case.layout.tp
    of_byte = queries / machine.memory_pace  # seconds of one byte of each
    read, merged = itemsize.activation, MERGES * itemsize.wide
    return Seconds(forward + of_byte * (read + merged), backward + of_byte * (3 * read + merged))


def ring_bytes(case: Case) -> Column:
    """Bytes that all ranks send on their rings; K and V once more where a layer is computed again."""
    cp, itemsize = case.layout.cp, case.itemsize
    hops = (cp - 1) * itemsize.activation * (2 + case.recomputed) + np.where(cp > 1, cp * itemsize.wide, 0)
    around = _keys_and_values(case) * case.layout.tp * hops
    return case.group_passes * case.model.num_layers * around


def _keys_and_values(case: Case) -> Column:
    """Elements of K and V that a rank has of a microbatch."""
    return 2 * case.share.tokens * case.share.kv_heads * case.model.head_dim
