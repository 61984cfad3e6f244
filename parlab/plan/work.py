"""Seconds of a microbatch's work and traffic on one rank: counted FLOPs and bytes over what the hardware reaches.

A product costs its FLOPs and its bytes, one after the other: that is the whole curve of efficiency over size. All else
costs its bytes. Seconds are by kind, forward and backward, as columns.
"""

from __future__ import annotations

import numpy as np

from parlab.plan.case import Case, Column
from parlab.plan.hardware import Hardware, hardware_of
from parlab.world import Cluster

Seconds = dict[str, Column]

BACKWARD_ELEMENTWISE = 1.8  # of the forward's bytes: inputs are read again, gradients of gains and biases are summed


class Machine:
    """A cluster at the fractions that its hardware reaches; None: those of its device."""

    def __init__(self, cluster: Cluster, hardware: Hardware | None) -> None:
        self.cluster, self.hardware = cluster, hardware or hardware_of(cluster)
        device = cluster.device_of(0)
        self.flops = device.flops * self.hardware.products
        self.memory = device.memory_bandwidth * self.hardware.memory
        self.fast, self.slow = (
            cluster.intra.bandwidth * self.hardware.intra,
            cluster.inter.bandwidth * self.hardware.inter,
        )

    def product(self, m: Column, k: Column, n: Column, item: int) -> Column:
        """[m, k] × [k, n]: its FLOPs, then its operands and its result once through memory."""
        return 2 * m * k * n / self.flops + item * (m * k + k * n + m * n) / self.memory

    def together(self, size: Column, stride: Column) -> Column:
        """How many of `size` ranks that are `stride` apart share a node."""
        return np.clip(self.cluster.ranks_per_node // stride, 1, size)

    def ring(self, nbytes: Column, size: Column, together: Column) -> Column:
        """One turn of `nbytes` in all around `size` ranks: an all-gather or a reduce-scatter; an all-reduce is two.

        Where it leaves a node, NCCL's channels use the ports of all its ranks in the node, up to the pace inside; on
        the simulated clock a ring keeps the pace of one port.
        """
        inside = together >= size
        bandwidth = np.where(
            inside, self.fast, np.minimum(self.fast, self.slow * (together if self.hardware.rails else 1))
        )
        latency = np.where(inside, self.cluster.intra.latency, self.cluster.inter.latency)
        return (size - 1) * (latency + nbytes / size / bandwidth)

    def hop(self, nbytes: Column, reach: Column) -> Column:
        """A message to the next rank, where the chain of all of them takes `reach` consecutive ranks."""
        inside = reach <= self.cluster.ranks_per_node
        latency = np.where(inside, self.cluster.intra.latency, self.cluster.inter.latency)
        return latency + nbytes / np.where(inside, self.fast, self.slow)


def layer(machine: Machine, case: Case) -> tuple[Seconds, Seconds]:
    """Forward and backward of one layer, by kind; backward each product again for dX and for dW."""
    E, D, M, n, t = case.sizes.E, case.sizes.D, case.sizes.M, case.n, case.t
    queries, up = case.sizes.H * D / t, case.sizes.up / t
    shapes = ((E, queries + 2 * case.kv * D), (queries, E), (E, up), (M / t, E))
    products = sum(machine.product(n, k, m, case.item) for k, m in shapes)
    if case.sizes.fused:  # norms 4E, residuals 6E each; SwiGLU reads two columns and writes one; rotary turns q and k
        touched = n * (20 * E / case.between + 6 * M / t + 4 * (queries + case.kv * D))
    else:  # norms 4E, bias with dropout and residual 7E each; GELU reads and writes its columns
        touched = n * (22 * E / case.between + 4 * M / t)
    forward = {"products": products, "attention": attention(machine, case), "elementwise": touched / machine.memory}
    backward = {
        "products": 2 * products,
        "attention": attention(machine, case, backward=True),
        "elementwise": BACKWARD_ELEMENTWISE * forward["elementwise"],
    }
    forward["tp"], backward["tp"] = _tensor_traffic(machine, case, products)
    forward["cp"], backward["cp"] = _context_traffic(machine, case, forward["attention"], backward["attention"])
    # Full: the whole forward again, its messages too. Selective: attention, unless its kernel does so in any case
    whole, part = sum(forward.values()), 0.0 if case.sizes.fused else forward["attention"]
    backward["recomputation"] = np.where(case.recompute == "full", whole, np.where(case.recompute == "none", 0.0, part))
    return forward, backward


def attention(machine: Machine, case: Case, *, backward: bool = False) -> Column:
    """Of a layer.

    Fused: two products of its pairs (backward five) and an exponential a pair, which tensor cores wait for (Dao 2023;
    Shah et al. 2024, section 1). Otherwise two products (backward four) that write and read whole S × S weights, and 9
    bytes a weight for mask, softmax and dropout.
    """
    D, pairs = case.sizes.D, case.pairs
    if case.sizes.fused:
        rows = case.item * case.n * D * 2 * (case.sizes.H / case.t + case.kv)
        work = (10 if backward else 4) * D * pairs / machine.flops
        return work + pairs / machine.hardware.exponentials + (2 if backward else 1) * rows / machine.memory
    moved = case.item * (2 * pairs + 4 * case.n * D * case.sizes.H / case.t)
    products = 4 * D * pairs / machine.flops + moved / machine.memory
    touched = 9 * pairs / machine.memory
    return 2 * products + BACKWARD_ELEMENTWISE * touched if backward else products + touched


def ends(machine: Machine, case: Case) -> tuple[tuple[Seconds, Seconds], tuple[Seconds, Seconds]]:
    """Forward and backward of the embedding, and of the head with the loss, in float32 over V/t columns."""
    E, columns, n = case.sizes.E, case.sizes.V / case.t, case.n
    turn = _turn(machine, case)
    lookup = 2 * case.item * n * E / machine.memory
    logits = machine.product(n, E, columns, case.item)
    # Widen 6 bytes a logit, maximum 4, subtract 8, exp 8, sum 4, divide 8; backward subtract 8, narrow 6
    loss = n * columns / machine.memory
    sums = 3 * 2 * machine.ring(max(case.item, 4) * n, case.t, machine.together(case.t, 1))
    cut = case.sequence_parallel
    hidden = np.maximum(0, 2 * turn - (logits if "tp" in machine.hardware.hides else 0))
    embedding = {"elementwise": lookup, "tp": np.where(cut, 1, 2) * turn}
    embedding_back = {"elementwise": lookup, "tp": np.where(cut, 1, 0) * turn}
    head = {"products": logits, "elementwise": 38 * loss, "tp": np.where(cut, 1, 0) * turn + sums}
    head_back = {"products": 2 * logits, "elementwise": 14 * loss, "tp": hidden}
    return (embedding, embedding_back), (head, head_back)


def _turn(machine: Machine, case: Case) -> Column:
    return machine.ring(case.item * case.n * case.sizes.E, case.t, machine.together(case.t, 1))


def _tensor_traffic(machine: Machine, case: Case, products: Column) -> tuple[Column, Column]:
    """What a layer waits for: two all-reduces each way (Shoeybi et al. 2019); with sequence parallelism as many bytes
    in all-gathers and reduce-scatters, and backward two all-gathers more, of x (Korthikanti et al. 2022).

    Since 2022 dX travels while dW is computed, and x while dX is; the two all-gathers of dY have no such cover.
    """
    turn = _turn(machine, case)
    hideable = 4 * turn
    hidden = np.minimum(hideable, products) if "tp" in machine.hardware.hides else 0.0
    return 4 * turn, np.where(case.sequence_parallel, 2 * turn, 0) + hideable - hidden


def _context_traffic(machine: Machine, case: Case, forward: Column, backward: Column) -> tuple[Column, Column]:
    """What a ring adds to attention: hops that are waited for, and blocks that are merged.

    c − 1 hops of K and V, backward also c of dK and dV in float32, hide behind the blocks that are computed meanwhile,
    but not the last of dK and dV. Each block after the first reads its queries again (backward also out and its
    gradient), and adds its float32 result to the sum; under zigzag to 3/4 of the rows on average.
    """
    elements, reach = 2 * case.n * case.kv * case.sizes.D, case.c * case.t
    keys, gradients = (machine.hop(size * elements, reach) for size in (case.item, max(case.item, 4)))
    behind = (case.c - 1) / case.c if "cp" in machine.hardware.hides else 0.0
    ahead = np.maximum((case.c - 1) * keys - behind * forward, 0)
    back = np.where(case.c > 1, gradients, 0) + np.maximum((case.c - 1) * (keys + gradients) - behind * backward, 0)
    merged = 0.75 * (case.c - 1) * case.n * case.sizes.H * case.sizes.D / case.t / machine.memory
    return ahead + merged * (case.item + 16), back + merged * (3 * case.item + 16)
