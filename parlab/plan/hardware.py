"""What a device really reaches of its data sheet: the only constants of the planner, four a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parlab.world import Cluster


@dataclass(frozen=True)
class Hardware:
    """Fractions of the data sheet, numbers of the data sheet that a `Cluster` lacks, and what hides behind computing.

    Args:
        products: of the peak, that a large matrix product reaches.
        memory: of the memory's bandwidth.
        intra, inter: of the links' bandwidths.
        exponentials: a second, of the special function units: softmax waits for them.
        host_link, host_memory: bytes a second between a device and its host, and of the host's memory a device.
        hides: kinds of traffic that this software sends while it computes: of tp, cp, pp, dp.
        rails: a ring over several nodes uses the ports of all its ranks, as NCCL's channels do; otherwise it keeps the
            pace of one.
        source: where the numbers come from.
    """

    products: float = 1.0
    memory: float = math.inf
    intra: float = 1.0
    inter: float = 1.0
    exponentials: float = math.inf
    host_link: float = math.inf
    host_memory: float = math.inf
    hides: frozenset[str] = frozenset()
    rails: bool = False
    source: str = ""


# What the simulated clock of `parlab.world` charges: products, and messages, one after the other.
CLOCK = Hardware(hides=frozenset({"pp"}), source="the simulated clock: no element-wise work, nothing hidden")

SINCE_2022 = frozenset({"tp", "cp", "dp"})

A100 = Hardware(
    products=0.8,
    memory=0.8,
    intra=0.78,
    inter=0.6,
    exponentials=108 * 16 * 1.41e9,
    host_link=32e9,
    host_memory=51e9,
    hides=SINCE_2022,
    rails=True,
    source="products and memory: a fit to Korthikanti et al. 2022, tables 4 and 5, gives 0.79 for both; NVLink: what "
    "NCCL's rings reach (235 of 300 GB/s), InfiniBand: Megatron's tables; 16 exponentials a clock in each of 108 "
    "processors; PCIe 4, and 16 channels of DDR4-3200 for 8 devices (DGX A100 data sheet)",
)

H100 = Hardware(
    products=0.60,
    memory=0.8,
    intra=0.78,
    inter=0.6,
    exponentials=132 * 16 * 1.83e9,
    host_link=64e9,
    host_memory=77e9,
    hides=SINCE_2022 | {"pp"},
    rails=True,
    source="products: large bf16 products within 700 W; memory and links as on the A100; 16 exponentials a clock in "
    "each of 132 processors (Shah et al. 2024, section 1); PCIe 5, and 16 channels of DDR5-4800 (DGX H100 data sheet)",
)


def hardware_of(cluster: Cluster) -> Hardware:
    """By the name of its device: A100, H100; for any other `CLOCK`, which has no constants."""
    name = cluster.device_of(0).name
    return A100 if "A100" in name else H100 if "H100" in name else CLOCK
