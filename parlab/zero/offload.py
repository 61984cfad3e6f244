"""A place for optimizer state with a bandwidth of its own: host memory behind a bus.

Source: Ren et al. 2021, "ZeRO-Offload: democratizing billion-scale model training", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from parlab.arguments import instance, positive, whole
from parlab.world import Link


@dataclass(frozen=True)
class Offload:
    """The memory that holds and updates the optimizer's state when the device is too small.

    Only gradients go there and only weights come back: 4 bytes a parameter in mixed precision. To fetch the state
    itself would move 24.

    Args:
        link: between a rank's device and this memory.
        memory_bandwidth: bytes a second that it reads and writes, for one rank.

    Raises:
        ValueError: no `Link`, or a bandwidth that is not positive.
    """

    link: Link
    memory_bandwidth: float

    def __post_init__(self) -> None:
        instance("link", self.link, Link)
        positive("memory_bandwidth", self.memory_bandwidth)

    def seconds(self, gradient: int, state: int) -> float:
        """The duration of an update: the gradient goes there, the state is read and written, the weights come back.

        Args:
            gradient: bytes of the gradient's shard as it travels; the weights' shard is as long.
            state: bytes that the update reads and writes.

        Raises:
            ValueError: a negative number of bytes.
        """
        whole("gradient", gradient, 0)
        whole("state", state, 0)
        return 2 * self.link.picoseconds(gradient) / 1e12 + state / self.memory_bandwidth
