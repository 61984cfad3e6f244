"""The fractions of the data sheet that a device reaches, and numbers that a `Cluster` lacks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from parlab.arguments import amount, flag, instance, positive, text, whole
from parlab.plan.arguments import fraction
from parlab.world import Cluster


@dataclass(frozen=True)
class Hardware:
    """Fractions of the data sheet, and numbers that a `Cluster` lacks. `hardware.toml` explains each, with its source.

    `usable`: the least and the most GiB of a device that tensors may fill.

    Raises:
        ValueError: a fraction that is not greater than 0 and at most 1, or no number where one is needed.
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

    def __post_init__(self) -> None:
        fraction("products", self.products)
        if self.attention is not None:
            fraction("attention", self.attention)
        for name in ("memory", "intra", "inter"):
            if getattr(self, name) != np.inf:  # inf: it takes no time
                fraction(name, getattr(self, name))
        if self.processors is not None:
            whole("processors", self.processors, 1)
        if self.usable is not None:
            _check_band(self.usable)
        for name in ("exponentials", "host_link", "host_memory"):
            positive(name, getattr(self, name))
        flag("rails", self.rails)
        amount("collective", self.collective)
        text("source", self.source)

    def but(self, **changes: Any) -> Hardware:
        """The same hardware with other numbers: `H100.but(products=0.7)`."""
        return replace(self, **changes)


def _check_band(usable: Any) -> None:
    if not isinstance(usable, tuple) or len(usable) != 2:
        raise ValueError(f"usable={usable!r:.60}: must be two numbers of GiB, the least and the most")
    for one in usable:
        positive("usable", one)
    if usable[0] > usable[1]:
        raise ValueError(f"usable={usable!r}: the least comes first")


_devices = tomllib.loads((files("parlab.plan") / "hardware.toml").read_text(encoding="utf-8"))
A100, H100 = (Hardware(**numbers | {"usable": tuple(numbers["usable"])}) for numbers in _devices.values())
CLOCK = Hardware(source="the simulated clock of `parlab.world`: products and messages, one after the other")


def hardware_of(cluster: Cluster) -> Hardware:
    """The hardware of a cluster, by the name of its device: A100, H100, or `CLOCK` for any other."""
    instance("cluster", cluster, Cluster)
    name = cluster.device_of(0).name
    return A100 if "A100" in name else H100 if "H100" in name else CLOCK
