"""The hardware: what a cluster reaches of its data sheets, and so the seconds of a product, of a ring, of a message.

Invariant: nothing here knows a model or a layout, only sizes; and a pace is never beyond the data sheet's.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import reduce
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from parlab.arguments import instance
from parlab.pipeline.closed_forms import Column, Seconds
from parlab.world import Cluster

TILES = (256, 128), (128, 256), (128, 128)  # rows and columns of a product's result that a processor computes at once
# Of the forward's bytes: inputs are read again, gradients of gains and biases are summed. Fitted, as `Hardware.memory`
BACKWARD_ELEMENTWISE = 1.8


@dataclass(frozen=True)
class Hardware:
    """Fractions of the data sheet, and numbers that a `Cluster` lacks. `hardware.toml` has the source of each.

    Args:
        products, attention: fractions of the peak, in full tiles of a product, and in the products of attention. None:
            as in any product.
        memory: fraction of the memory's bandwidth. inf: bytes take no time.
        intra, inter: fractions of the links in a node, and between nodes.
        processors: they compute tiles of a product, one each at once. None: a product has no tiles.
        usable: the least and the most GiB of a device that tensors may fill. None: not known.
        exponentials: a second.
        host_link, host_memory: bytes a second between a device and its host, and of the host's memory.
        rails: a ring over several nodes uses the ports of all its ranks.
        collective: seconds before a collective's first hop.
        source: where the numbers can be read.
    """

    products: float = 1.0
    attention: float | None = None
    memory: float = np.inf
    intra: float = 1.0
    inter: float = 1.0
    processors: int | None = None
    usable: tuple[float, float] | None = None
    exponentials: float = np.inf
    host_link: float = np.inf
    host_memory: float = np.inf
    rails: bool = False
    collective: float = 0.0
    source: str = ""


_devices = tomllib.loads((files("parlab.plan") / "hardware.toml").read_text(encoding="utf-8"))
A100, H100 = (Hardware(**numbers | {"usable": tuple(numbers["usable"])}) for numbers in _devices.values())
CLOCK = Hardware(source="the simulated clock of `parlab.world`: products and messages, one after the other")


def hardware_of(cluster: Cluster) -> Hardware:
    """The hardware of a cluster, by the name of its device: A100, H100, or `CLOCK` for any other."""
    instance("cluster", cluster, Cluster)
    name = cluster.device.name
    return A100 if "A100" in name else H100 if "H100" in name else CLOCK


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


class Machine:
    """A cluster at the pace that its hardware reaches. Its methods give seconds, for columns of sizes.

    Args:
        cluster: the devices and their links.

    Attributes:
        hardware: the fractions of the data sheet that the cluster's device reaches.
        product_pace, attention_pace: FLOPs a second, in full tiles of a product and in the products of attention.
        memory_pace: bytes a second of a device's memory.
        intra_pace, inter_pace: bytes a second of a link in a node, and between nodes.
        intra_latency, inter_latency: seconds of a message of no bytes, in a node and between nodes.
        ranks_per_node: how many ranks share a node.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.hardware = hardware = hardware_of(cluster)
        self.device, self.ranks_per_node = cluster.device, cluster.ranks_per_node
        self.product_pace = self.device.flops * hardware.products
        self.attention_pace = self.device.flops * (hardware.attention or hardware.products)
        self.memory_pace = self.device.memory_bandwidth * hardware.memory
        self.intra_pace = cluster.intra.bandwidth * hardware.intra
        self.inter_pace = cluster.inter.bandwidth * hardware.inter
        self.intra_latency, self.inter_latency = cluster.intra.latency, cluster.inter.latency

    def product(self, m: Column, k: Column, n: Column, itemsize: int) -> Column:
        """Seconds of [m, k] × [k, n]: its FLOPs by the processors that have a tile, or its bytes through memory.

        Source: NVIDIA, "Matrix Multiplication Background User's Guide", sections 2.3 (tiles), 3.1 and 3.2 (the result
        is cut into tiles, whose last wave may leave processors idle).
        """
        flops, moved = 2 * m * k * n / self.product_pace, itemsize * (m * k + k * n + m * n) / self.memory_pace
        return np.maximum(flops / self.busy(m, n), moved)

    def linear(self, rows: Column, inputs: Column, outputs: Column, itemsize: int) -> Linear:
        """Seconds of x [rows, inputs] × W [inputs, outputs]; dX and dW have as many FLOPs, but other tiles."""
        return Linear(
            forward=self.product(rows, inputs, outputs, itemsize),
            dx=self.product(rows, outputs, inputs, itemsize),
            dw=self.product(inputs, rows, outputs, itemsize),
        )

    def busy(self, rows: Column, columns: Column) -> Column:
        """The part of the processors' time that computes a result of rows × columns, at the best of `TILES`."""
        count = self.hardware.processors
        if count is None:
            return 1.0
        waves = [np.ceil(np.ceil(rows / a) * np.ceil(columns / b) / count) * a * b for a, b in TILES]
        return rows * columns / count / reduce(np.minimum, waves)

    def in_a_node(self, *axes: tuple[Column, Column]) -> Column:
        """How many ranks of a group share a node. Along each axis the group has `size` ranks that are `stride` apart.

        >>> from parlab.world import DGX_H100
        >>> int(Machine(DGX_H100).in_a_node((16, 2)))  # of 8 ranks in a node every second one
        4
        """
        return reduce(np.multiply, (np.clip(self.ranks_per_node // stride, 1, size) for size, stride in axes))

    def ring(self, nbytes: Column, size: Column, together: Column | None = None) -> Column:
        """Seconds of an all-gather or a reduce-scatter of `nbytes` among P = `size` ranks; an all-reduce takes two.

            start + (P − 1) · (latency + nbytes / P / pace)

        `together` of its ranks share a node (None: the ranks are neighbours). Where the ring leaves a node, NCCL's
        channels use the ports of all of them, up to the pace inside. On the simulated clock a ring uses one port. A
        collective starts in `Hardware.collective` seconds.
        """
        together = self.in_a_node((size, 1)) if together is None else together
        ports = together if self.hardware.rails else 1
        hop = self.hop(nbytes / size, together >= size, np.minimum(self.intra_pace, self.inter_pace * ports))
        return (size - 1) * hop + np.where(size > 1, self.hardware.collective, 0)

    def hop(self, nbytes: Column, inside: Column, across: Column | None = None) -> Column:
        """Seconds of a message to the next rank: `inside` a node, or between nodes at the pace `across`.

        `across` None: the pace of one port.
        """
        across = self.inter_pace if across is None else across
        latency = np.where(inside, self.intra_latency, self.inter_latency)
        return latency + nbytes / np.where(inside, self.intra_pace, across)
