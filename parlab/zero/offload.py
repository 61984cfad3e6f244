"""A place for optimizer state with a bandwidth of its own: host memory behind a bus.

Source: Ren et al. 2021, "ZeRO-Offload: democratizing billion-scale model training", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlab.arguments import instance, positive, whole
from parlab.world import Link


@dataclass(frozen=True)
class Offload:
    """Where optimizer state lives when the device is too small, and is updated, so that only gradients go there and
    only weights come back: 4 bytes a parameter in mixed precision, where fetching the state itself would move 24.

    Args:
        link: between a rank's device and the place.
        memory_bandwidth: bytes a second that the place reads and writes, for one rank.

    Raises:
        ValueError: no `Link`, or a bandwidth that is not positive.
    """

    link: Link
    memory_bandwidth: float

    def __post_init__(self) -> None:
        instance("link", self.link, Link)
        positive("memory_bandwidth", self.memory_bandwidth)

    def seconds(self, gradient: int, state: int) -> float:
        """How long an update lasts: the gradient there, the state read and written, as many bytes of weights back.

        Args:
            gradient: bytes of the gradient's shard as it travels; the weights' shard is as long.
            state: bytes that the update reads and writes.

        Raises:
            ValueError: a negative number of bytes.
        """
        whole("gradient", gradient, 0)
        whole("state", state, 0)
        return 2 * self.link.picoseconds(gradient) / 1e12 + state / self.memory_bandwidth
