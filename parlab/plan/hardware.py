"""What a device really reaches of its data sheet, and the seconds that products and messages take with it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.world import CLASSROOM, DGX_A100, DGX_H100, Cluster

CLUSTERS = {"dgx_h100": DGX_H100, "dgx_a100": DGX_A100, "classroom": CLASSROOM}


@dataclass(frozen=True)
class Hardware:
    """Fractions of the data sheet, and what a `Cluster` lacks: `hardware.toml` says what each means, and its source."""

    products: float = 1.0
    memory: float = math.inf
    intra: float = 1.0
    inter: float = 1.0
    exponentials: float = math.inf
    host_link: float = math.inf
    host_memory: float = math.inf
    hides: Collection[str] = frozenset()
    rails: bool = False
    source: str = ""


def read_table(name: str) -> dict[str, Any]:
    """A file of numbers that stands beside this one."""
    return tomllib.loads((files("parlab.plan") / name).read_text(encoding="utf-8"))


A100, H100 = (Hardware(**fractions) for fractions in read_table("hardware.toml").values())
# What the simulated clock of `parlab.world` charges: products, and messages, one after the other.
CLOCK = Hardware(hides={"pp"}, source="the simulated clock: no element-wise work, nothing hidden")


def hardware_of(cluster: Cluster) -> Hardware:
    """By the name of its device: A100, H100; for any other `CLOCK`, which has no constants."""
    instance("cluster", cluster, Cluster)
    name = cluster.device_of(0).name
    return A100 if "A100" in name else H100 if "H100" in name else CLOCK


class Machine:
    """A cluster at the fractions that its hardware reaches (None: its device's): seconds, in columns of sizes."""

    def __init__(self, cluster: Cluster, hardware: Hardware | None) -> None:
        self.hardware = hardware = hardware or hardware_of(cluster)
        instance("hardware", hardware, Hardware)
        self.device, self.node = cluster.device_of(0), cluster.ranks_per_node
        self.flops = self.device.flops * hardware.products
        self.memory = self.device.memory_bandwidth * hardware.memory
        self.intra, self.inter = cluster.intra.bandwidth * hardware.intra, cluster.inter.bandwidth * hardware.inter
        self.latencies = cluster.intra.latency, cluster.inter.latency

    def product(self, m: Any, k: Any, n: Any, item: int) -> Any:
        """[m, k] × [k, n]: its FLOPs, then its operands and its result once through memory."""
        return 2 * m * k * n / self.flops + item * (m * k + k * n + m * n) / self.memory

    def together(self, size: Any, stride: Any = 1) -> Any:
        """How many of `size` ranks that are `stride` apart share a node."""
        return np.clip(self.node // stride, 1, size)

    def ring(self, nbytes: Any, size: Any, together: Any) -> Any:
        """One turn of `nbytes` in all around `size` ranks: an all-gather or a reduce-scatter; an all-reduce is two.

        Where it leaves a node, NCCL's channels use the ports of all its ranks in the node, up to the pace inside; on
        the simulated clock a ring keeps the pace of one port.
        """
        ports = together if self.hardware.rails else 1
        return (size - 1) * self._message(nbytes / size, together >= size, np.minimum(self.intra, self.inter * ports))

    def hop(self, nbytes: Any, reach: Any) -> Any:
        """A message to the next rank, where the chain of all of them takes `reach` consecutive ranks."""
        return self._message(nbytes, reach <= self.node, self.inter)

    def _message(self, nbytes: Any, inside: Any, across: Any) -> Any:
        return np.where(inside, *self.latencies) + nbytes / np.where(inside, self.intra, across)
