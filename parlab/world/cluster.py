"""The stated hardware: what a message, and what a computation, costs on the simulated clock.

Times are integer picoseconds, so that sums are exact and every machine computes the same timeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from parlab.arguments import amount, instance, positive, text, whole

A_LEVEL = "a level"  # of ports: one inside the node, and one between nodes
PICOSECONDS = 10**12  # in a second
MOST_SECONDS = 1e18  # of one message or computation: older than the universe, and far from where floats end
REACHED = 0.65  # of the peak, by products: one fraction for all lessons


def picoseconds(seconds: float) -> int:
    """`seconds` rounded to the clock's tick."""
    return round(seconds * PICOSECONDS)


@dataclass(frozen=True)
class Link:
    """A connection between two ranks.

    Args:
        latency: seconds from start to the first byte (α).
        bandwidth: bytes a second (1/β), in one direction; `math.inf` for a link on which only latency counts.

    >>> Link(latency=1e-6, bandwidth=1e9).picoseconds(1000)
    2000000
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        amount("latency", self.latency, below=MOST_SECONDS)
        positive("bandwidth", self.bandwidth)
        if self.bandwidth < 1:
            raise ValueError(f"bandwidth={self.bandwidth!r}: must be at least 1 byte a second")

    def picoseconds(self, nbytes: int) -> int:
        """How long a message of `nbytes` holds both ports: α + nβ, the second term rounded half up to a picosecond.

        Raises:
            ValueError: `nbytes` is not a whole number, or negative.
        """
        whole("nbytes", nbytes, 0)
        if self.bandwidth == math.inf:
            return picoseconds(self.latency)
        bandwidth = int(self.bandwidth)
        return picoseconds(self.latency) + (2 * nbytes * PICOSECONDS + bandwidth) // (2 * bandwidth)


@dataclass(frozen=True)
class Device:
    """The processor and memory of a rank.

    Args:
        name: as it is shown.
        flops: floating-point operations a second, at its peak. Kernels reach a part of it (`Cluster.reaching`).
        memory_bandwidth: bytes a second between the device and its memory.
        memory: bytes of memory.
    """

    name: str
    flops: float
    memory_bandwidth: float
    memory: float = math.inf

    def __post_init__(self) -> None:
        text("name", self.name)
        for field in ("flops", "memory_bandwidth", "memory"):
            positive(field, getattr(self, field))

    def seconds(self, flops: float, nbytes: float) -> float:
        """The roofline: the longer of computing and of moving the bytes.

        Raises:
            ValueError: an amount that is negative, infinite or no number, or one that takes longer than any clock runs.

        Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009).
        """
        amount("flops", flops)
        amount("nbytes", nbytes)
        seconds = max(flops / self.flops, nbytes / self.memory_bandwidth)
        if not seconds < MOST_SECONDS:
            raise ValueError(
                f"flops={flops!r}, nbytes={nbytes!r}: they take {seconds:g} seconds on {self.name} ({self.flops:g} a "
                f"second, memory {self.memory_bandwidth:g} bytes a second); at most {MOST_SECONDS:g} can be simulated"
            )
        return seconds


@dataclass(frozen=True)
class Cluster:
    """Equal devices in nodes, with one link inside a node and another between nodes.

    Args:
        name: as it is shown.
        device: the device of every rank.
        ranks_per_node: ranks 0 .. ranks_per_node − 1 share the first node, and so on.
        intra: the link between ranks of one node.
        inter: the link between ranks of different nodes.
        ports: messages that a rank can send at once, and receive at once; None for no limit. `"a level"`: one port
            for links inside the node and one for the network, as a GPU has NVLink and a network card.
        source: where the numbers come from.
    """

    name: str
    device: Device
    ranks_per_node: int
    intra: Link
    inter: Link
    ports: int | str | None = 1
    source: str = ""

    def __post_init__(self) -> None:
        text("name", self.name)
        instance("device", self.device, Device)
        whole("ranks_per_node", self.ranks_per_node, 1)
        instance("intra", self.intra, Link)
        instance("inter", self.inter, Link)
        if self.ports is not None and self.ports != A_LEVEL:
            whole("ports", self.ports, 1, f", or None for no limit, or {A_LEVEL!r}")
        text("source", self.source)

    @classmethod
    def uniform(
        cls,
        latency: float,
        bandwidth: float,
        *,
        flops: float = 1e12,
        memory_bandwidth: float = 1e11,
        ports: int | str | None = 1,
    ) -> Cluster:
        """The same link between any two ranks: the α–β model of the textbooks.

        Args:
            latency: seconds a message (α).
            bandwidth: bytes a second (1/β).
            flops: floating-point operations a second of every rank.
            memory_bandwidth: bytes a second to the memory of every rank.
            ports: see `Cluster`.
        """
        link = Link(latency, bandwidth)
        return cls("uniform", Device("uniform", flops, memory_bandwidth), 1, link, link, ports)

    def reaching(self, kernel: float) -> Cluster:
        """The same cluster, whose devices compute with this fraction of their peak, above 0 and at most 1.

        Published for H100: attention's forward at D 128 about 0.65 (648 of 989 TFLOP/s), as Shah et al. 2024,
        "FlashAttention-3", figure 5.

        >>> DGX_H100.reaching(0.5).device.flops
        494500000000000.0
        """
        positive("kernel", kernel)
        if kernel > 1:
            raise ValueError(f"kernel={kernel!r}: must be at most 1, the peak")
        return replace(self, device=replace(self.device, flops=kernel * self.device.flops))

    def link(self, src: int, dst: int) -> Link:
        """The link that a message from rank `src` to rank `dst` takes."""
        same_node = src // self.ranks_per_node == dst // self.ranks_per_node
        return self.intra if same_node else self.inter


CLASSROOM = Cluster(
    name="classroom",
    device=Device("classroom", flops=1e12, memory_bandwidth=1e11),
    ranks_per_node=8,
    intra=Link(latency=1e-6, bandwidth=10e9),
    inter=Link(latency=5e-6, bandwidth=1e9),
    source="round numbers, chosen so that times can be worked out in the head",
)

PEAK = "peak of dense bf16 products; a port into the node and one to the network"
NCCL = "latencies as NCCL's model of a ring with the Simple protocol has them (src/graph/tuning.cc)"

DGX_A100 = Cluster(
    name="DGX A100",
    device=Device("A100 80GB, bf16", flops=312e12, memory_bandwidth=2.039e12, memory=80e9),
    ranks_per_node=8,
    intra=Link(latency=3.4e-6, bandwidth=300e9),
    inter=Link(latency=9.6e-6, bandwidth=25e9),
    ports=A_LEVEL,
    source=f"NVIDIA A100 and DGX A100 data sheets (NVLink 600 GB/s both ways, one 200 Gb/s port a GPU); {PEAK}; {NCCL}",
)

DGX_H100 = Cluster(
    name="DGX H100",
    device=Device("H100 80GB, bf16", flops=989e12, memory_bandwidth=3.35e12, memory=80e9),
    ranks_per_node=8,
    intra=Link(latency=3.4e-6, bandwidth=450e9),
    inter=Link(latency=9.6e-6, bandwidth=50e9),
    ports=A_LEVEL,
    source=f"NVIDIA H100 and DGX H100 data sheets (NVLink 900 GB/s both ways, one 400 Gb/s port a GPU); {PEAK}; {NCCL}",
)

CLUSTERS = {"dgx_h100": DGX_H100, "dgx_a100": DGX_A100, "classroom": CLASSROOM}  # by the names of a command line
