"""Seconds of a step by kind, from FLOPs and bytes in closed form and from the pace that the hardware reaches.

A matrix product takes the time of its FLOPs plus the time of its bytes, so small products are less efficient. All other
work takes the time of its bytes. Then come the idle time of a pipeline whose stages differ, and the traffic that no
work hides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from importlib.resources import files
from typing import Any

import numpy as np

from parlab.arguments import check_fields, checked
from parlab.pipeline.costs import Column, Pass, exposed_transfers, step
from parlab.plan.arguments import HARDWARE, RULES
from parlab.plan.layout import Case
from parlab.world import Cluster

BACKWARD_ELEMENTWISE = 1.8  # of the forward's bytes: inputs are read again, gradients of gains and biases are summed
OPTIMIZER_BYTES = 64  # a parameter, through memory: unscale, norm, clip, Adam's float32 state, new 16-bit weights
HOST_BYTES = 28  # a parameter, through the host's memory: gradient, master, moments, weight


@dataclass(frozen=True)
class Hardware:
    """Fractions of the data sheet, and numbers that a `Cluster` lacks. `hardware.toml` explains each, with its source.

    Raises:
        ValueError: a fraction that is not greater than 0 and at most 1, or kinds of traffic that do not exist.
    """

    products: float = 1.0
    memory: float = np.inf
    intra: float = 1.0
    inter: float = 1.0
    exponentials: float = np.inf
    host_link: float = np.inf
    host_memory: float = np.inf
    hides: Collection[str] = frozenset()
    rails: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        check_fields(self, HARDWARE)


_devices = tomllib.loads((files("parlab.plan") / "hardware.toml").read_text(encoding="utf-8"))
A100, H100 = Hardware(**_devices["A100"]), Hardware(**_devices["H100"])
# The simulated clock of `parlab.world` counts products and messages, one after the other.
CLOCK = Hardware(hides={"pp"}, source="the simulated clock: no element-wise work, nothing hidden")


@checked(RULES)
def hardware_of(cluster: Cluster) -> Hardware:
    """The hardware of a cluster, by the name of its device: A100, H100, or `CLOCK` for any other."""
    name = cluster.device_of(0).name
    return A100 if "A100" in name else H100 if "H100" in name else CLOCK


class Machine:
    """A cluster at the pace that its hardware reaches. Its methods give seconds, for columns of sizes.

    Args:
        cluster: the devices and their links.
        hardware: the fractions of the data sheet. None: those of the cluster's device.
    """

    def __init__(self, cluster: Cluster, hardware: Hardware | None) -> None:
        self.hardware = hardware = hardware or hardware_of(cluster)
        self.device, self.node = cluster.device_of(0), cluster.ranks_per_node
        self.flops = self.device.flops * hardware.products
        self.memory = self.device.memory_bandwidth * hardware.memory
        self.intra, self.inter = cluster.intra.bandwidth * hardware.intra, cluster.inter.bandwidth * hardware.inter
        self.latencies = cluster.intra.latency, cluster.inter.latency

    def product(self, m: Any, k: Any, n: Any, item: int) -> Any:
        """Seconds of [m, k] × [k, n]: its FLOPs, then its operands and its result once through memory."""
        return 2 * m * k * n / self.flops + item * (m * k + k * n + m * n) / self.memory

    def together(self, size: Any, stride: Any = 1) -> Any:
        """The number of ranks in a node, of a group of `size` ranks that are `stride` apart."""
        return np.clip(self.node // stride, 1, size)

    def ring(self, nbytes: Any, size: Any, together: Any = None) -> Any:
        """Seconds of an all-gather or a reduce-scatter of `nbytes` among `size` ranks; an all-reduce takes two.

        `together` ranks of the group share a node (None: the ranks are neighbours). Where the ring leaves a node,
        NCCL's channels use the ports of all of them, up to the pace inside. On the simulated clock a ring uses one
        port.
        """
        together = self.together(size) if together is None else together
        ports = together if self.hardware.rails else 1
        return (size - 1) * self.hop(nbytes / size, together >= size, np.minimum(self.intra, self.inter * ports))

    def hop(self, nbytes: Any, inside: Any, across: Any = None) -> Any:
        """Seconds of a message to the next rank: `inside` a node, or between nodes at the pace `across`.

        `across` None: the pace of one port.
        """
        across = self.inter if across is None else across
        return np.where(inside, *self.latencies) + nbytes / np.where(inside, self.intra, across)


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

    chunk = chunk_of(case.layers, Pass(0, 0))
    first = chunk_of(case.layers - case.fewer_first, total(embedding))
    last = chunk_of(case.layers - case.fewer_last, total(head))
    found = {}
    for kind in ("products", "attention", "elementwise", "recomputation", "tp", "cp"):
        outside = sum(part[kind].both for part in (embedding, head) if kind in part)
        found[kind] = case.m / case.p * (case.L * of_layer[kind].both + outside)
    params = reduce(np.maximum, (params for _, _, params in case.stages))
    # From stage to stage. Without sequence parallelism each of t ranks has the whole microbatch. Megatron sends a t-th
    # from each rank, and gathers the parts on the other side (Narayanan et al. 2021, section 4.1)
    scattered = case.t if machine.hardware.rails else case.between
    gathered = np.where(scattered > case.between, machine.ring(case.x, case.t), 0)
    transfer = machine.hop(case.x / scattered, case.p * case.c * case.t <= machine.node) + gathered
    found["pp"] = exposed_transfers(*case.pipeline, apart="pp" in machine.hardware.hides) * transfer
    found["dp"] = _data_traffic(machine, case, params, chunk)
    _, found["imbalance"], found["bubble"] = step(*case.pipeline, chunk, first, last)
    shard = params / np.where(case.zero > 0, case.data, 1)
    on_host = 2 * case.item * shard / machine.hardware.host_link + HOST_BYTES * shard / machine.hardware.host_memory
    found["optimizer"] = np.where(case.offload, on_host, OPTIMIZER_BYTES * shard / machine.memory)
    return found


def layer_seconds(machine: Machine, case: Case) -> dict[str, Pass]:
    """Seconds of one layer by kind, forward and backward. The backward repeats each product for dX and for dW."""
    E, D, M, n, t = case.E, case.D, case.M, case.n, case.t
    queries, up = case.H * D / t, case.up / t
    shapes = ((E, queries + 2 * case.kv * D), (queries, E), (E, up), (M / t, E))
    products = sum(machine.product(n, k, m, case.item) for k, m in shapes)
    if case.fused:  # bytes: norms 4E, residuals 6E each; SwiGLU reads two columns and writes one; rotary of q and k
        touched = n * (20 * E / case.between + 6 * M / t + 4 * (queries + case.kv * D)) / machine.memory
    else:  # bytes: norms 4E, bias with dropout and residual 7E each; GELU reads and writes its columns
        touched = n * (22 * E / case.between + 4 * M / t) / machine.memory
    # Two all-reduces each way (Shoeybi et al. 2019). With sequence parallelism all-gathers and reduce-scatters send as
    # many bytes, and the backward has two more all-gathers (Korthikanti et al. 2022). Since 2022 dX travels while dW is
    # computed, and x while dX is computed. Nothing hides the two all-gathers of dY
    core, turn, hides = attention_seconds(machine, case), machine.ring(case.x, case.t), "tp" in machine.hardware.hides
    waited = np.where(case.sequence_parallel, 2 * turn, 0) + np.maximum(4 * turn - hides * products, 0)
    found = {
        "products": Pass(products, 2 * products),
        "attention": core,
        "elementwise": Pass(touched, BACKWARD_ELEMENTWISE * touched),
        "tp": Pass(4 * turn, waited),
        "cp": _ring(machine, case, core),
    }
    # Full: the whole forward again, with its messages. Selective: attention again; a fused kernel does so in any case
    selective = 0.0 if case.fused else np.where(case.recompute == "none", 0.0, core.forward)
    return found | {"recomputation": Pass(0.0, np.where(case.recompute == "full", total(found).forward, selective))}


def attention_seconds(machine: Machine, case: Case) -> Pass:
    """Seconds of a layer's attention.

    Fused attention has two products of its pairs, five in the backward, and an exponential a pair, for which tensor
    cores wait (Dao 2023; Shah et al. 2024, section 1). Otherwise there are two products, four in the backward, that
    write and read whole S × S weights, and 9 bytes a weight for mask, softmax and dropout.
    """
    pairs, row = case.pairs, case.item * case.n * case.D
    product = 2 * case.D * pairs / machine.flops
    if case.fused:
        softmax, rows = pairs / machine.hardware.exponentials, 2 * row * (case.H / case.t + case.kv) / machine.memory
        return Pass(2 * product + softmax + rows, 5 * product + softmax + 2 * rows)
    products = 2 * product + (2 * case.item * pairs + 4 * row * case.H / case.t) / machine.memory
    touched = 9 * pairs / machine.memory
    return Pass(products + touched, 2 * products + BACKWARD_ELEMENTWISE * touched)


def end_seconds(machine: Machine, case: Case) -> tuple[dict[str, Pass], dict[str, Pass]]:
    """Seconds of the embedding, and of the head with its loss in float32 over V/t columns."""
    n, columns, cut, turn = case.n, case.V / case.t, case.sequence_parallel, machine.ring(case.x, case.t)
    lookup = 2 * case.x / machine.memory
    logits = machine.product(n, case.E, columns, case.item)
    # Widen 6 bytes a logit, maximum 4, subtract 8, exp 8, sum 4, divide 8; backward subtract 8, narrow 6
    loss = n * columns / machine.memory
    sums = 3 * 2 * machine.ring(case.wide * n, case.t)
    embedding = {"elementwise": Pass(lookup, lookup), "tp": Pass(np.where(cut, 1, 2) * turn, np.where(cut, turn, 0))}
    head = {
        "products": Pass(logits, 2 * logits),
        "elementwise": Pass(38 * loss, 14 * loss),
        "tp": Pass(np.where(cut, turn, 0) + sums, np.maximum(2 * turn - ("tp" in machine.hardware.hides) * logits, 0)),
    }
    return embedding, head


def _ring(machine: Machine, case: Case, core: Pass) -> Pass:
    """Seconds that a ring adds to a layer's attention.

    There are c − 1 hops of K and V, and in the backward c hops of dK and dV in float32. They hide behind the blocks
    that are computed meanwhile, but for the last hop of dK and dV. Each block after the first one reads its queries
    again, in the backward also out and its gradient, and adds its float32 result to the sum. With the zigzag layout
    these are 3/4 of the rows.
    """
    c, item, elements = case.c, case.item, 2 * case.n * case.kv * case.D
    keys, gradients = (machine.hop(size * elements, c * case.t <= machine.node) for size in (item, case.wide))
    behind = (c - 1) / c if "cp" in machine.hardware.hides else 0.0
    merged = 0.75 * (c - 1) * case.n * case.H * case.D / case.t / machine.memory
    forward = np.maximum((c - 1) * keys - behind * core.forward, 0)
    backward = np.where(c > 1, gradients, 0) + np.maximum((c - 1) * (keys + gradients) - behind * core.backward, 0)
    return Pass(forward + merged * (item + 16), backward + merged * (3 * item + 16))


def _data_traffic(machine: Machine, case: Case, params: Column, chunk: Pass) -> Column:
    """Seconds that a step waits for ZeRO's traffic.

    Gradients and weights travel in v pieces, behind the work on the other chunks. Nothing hides the last gradients and
    the first weights.
    """
    together = machine.together(case.c, case.t) * machine.together(case.d, case.t * case.c * case.p)
    gradient, weight = (machine.ring(x * params, case.data, together) for x in (case.state.gradient, case.state.weight))
    before, after = weight * case.gathers, gradient * case.sums + weight * case.regathers
    if "dp" not in machine.hardware.hides:
        return after + before
    group = np.where(case.in_turn, np.minimum(case.m, case.p), case.m)
    of_rank = case.v - case.fewer_last / case.layers  # the layers of the rank with the fewest, in chunks
    chunks = np.maximum(np.where(case.passes > 1, case.m * of_rank - 1, group * (of_rank - 1)), 0)

    def waited(traffic: Column, passes: Column, work: Column) -> Column:
        piece = traffic / passes / case.v
        return piece + np.maximum(traffic - piece - chunks * work, 0)

    return waited(before, np.maximum(case.gathers, 1), chunk.forward) + waited(after, case.passes, chunk.backward)
