"""A cluster at the pace that it reaches: the time of a product, of a ring, of a message."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from parlab.plan.hardware import Hardware, hardware_of
from parlab.world import Cluster

TILES = (256, 128), (128, 256), (128, 128)  # rows and columns of a product's result that a processor computes at once


class Machine:
    """A cluster at the pace that its hardware reaches. Its methods give seconds, for columns of sizes.

    Args:
        cluster: the devices and their links.
        hardware: the fractions of the data sheet. None: those of the cluster's device.

    Attributes:
        product_pace, attention_pace: FLOPs a second, in full tiles of a product and in the products of attention.
        memory_pace: bytes a second of a device's memory.
        intra_pace, inter_pace: bytes a second of a link in a node, and between nodes.
        latencies: seconds, in a node and between nodes.
        node: ranks in a node.
    """

    def __init__(self, cluster: Cluster, hardware: Hardware | None) -> None:
        self.hardware = hardware = hardware or hardware_of(cluster)
        self.device, self.node = cluster.device_of(0), cluster.ranks_per_node
        self.product_pace = self.device.flops * hardware.products
        self.attention_pace = self.device.flops * (hardware.attention or hardware.products)
        self.memory_pace = self.device.memory_bandwidth * hardware.memory
        self.intra_pace = cluster.intra.bandwidth * hardware.intra
        self.inter_pace = cluster.inter.bandwidth * hardware.inter
        self.latencies = cluster.intra.latency, cluster.inter.latency

    def product(self, m: Any, k: Any, n: Any, itemsize: int) -> Any:
        """Seconds of [m, k] × [k, n]: its FLOPs by the processors that have a tile, or its bytes through memory.

        Source: NVIDIA, "Matrix Multiplication Background User's Guide", sections 2.3 (tiles), 3.1 and 3.2 (the result
        is cut into tiles, whose last wave may leave processors idle).
        """
        flops, moved = 2 * m * k * n / self.product_pace, itemsize * (m * k + k * n + m * n) / self.memory_pace
        return np.maximum(flops / self.used(m, n), moved)

    def used(self, rows: Any, columns: Any) -> Any:
        """The part of the processors' time that computes a result of rows × columns, at the best of `TILES`."""
        count = self.hardware.processors
        if count is None:
            return 1.0
        waves = [np.ceil(np.ceil(rows / a) * np.ceil(columns / b) / count) * a * b for a, b in TILES]
        return rows * columns / count / reduce(np.minimum, waves)

    def in_a_node(self, *axes: tuple[Any, Any]) -> Any:
        """How many ranks of a group share a node. Along each axis the group has `size` ranks that are `stride` apart.

        >>> from parlab.world import DGX_H100
        >>> int(Machine(DGX_H100, None).in_a_node((16, 2)))  # of 8 ranks in a node every second one
        4
        """
        return reduce(np.multiply, (np.clip(self.node // stride, 1, size) for size, stride in axes))

    def ring(self, nbytes: Any, size: Any, together: Any = None) -> Any:
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

    def hop(self, nbytes: Any, inside: Any, across: Any = None) -> Any:
        """Seconds of a message to the next rank: `inside` a node, or between nodes at the pace `across`.

        `across` None: the pace of one port.
        """
        across = self.inter_pace if across is None else across
        return np.where(inside, *self.latencies) + nbytes / np.where(inside, self.intra_pace, across)
